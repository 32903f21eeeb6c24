"""Changes files at random: JSON at its values, anything at its bytes. A seed decides it all."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

MOST_BYTES = 200_000  # of an input

# Values that have broken programs before.
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, 10**30, -0.0, 0.5, -1.5, 5e-324, 1e-300, 1e18, 1e308,
    float("nan"), float("inf"), float("-inf"), "", "a", " ", "\0", "\n", "::error::x", "%0A", "\x1b[2J", "\ud800",
    "\u202e", "<img src=x>", "| a |", "`", "../../x", "--output=x", "-", "x" * 5000, "日本", [], {}, [None], [[]],
    {"": ""}, {"schema": 1}, ["a", 1], "1e999", "2024-13-45T99:99:99",
)  # fmt: skip
_TOKENS = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"null", b"true", b"NaN", b"-Infinity",
    b"1e999", b"-0", b"9" * 4400, b"\0", b"\r", b"\n", b"\t", b"  ", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1f\x8b",
    b"<<<<<<< HEAD\n", b"=======\n", b"[" * 3000, b'{"a":' * 3000, b"%", b"<=", b"+", b"*", b"counts", b"pip:", b"dir:",
    b"python:", b"@", b";", b"==", b"(", b"'", b"Timing", b"A tree view:\n", b": 0.1000\n",
)  # fmt: skip


def mutated(data: bytes, random: Random) -> bytes:
    """Return ``data`` with a few changes, of at most MOST_BYTES."""
    changed = _changed_json(data, random) if random.random() < 0.7 else None
    return (changed if changed is not None else _changed_bytes(data, random))[:MOST_BYTES]


# --------------------------------------------------------------------------- JSON


def _changed_json(data: bytes, random: Random) -> bytes | None:
    """Return a JSON document with other values in some places; None where it is none."""
    try:
        document = [json.loads(data)]
    except (ValueError, RecursionError):
        return None
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        holder, key = _place(document, random)
        _change(holder, key, document, random)
        if not document:
            document = [None]
    try:
        return json.dumps(document[0]).encode("ascii")
    except (ValueError, RecursionError):  # it holds itself
        return None


def _place(document: list[Any], random: Random) -> tuple[Any, Any]:
    """Return a value's holder and key: those at the end of a random path that may stop early."""
    holder: Any = document
    while True:
        key = random.choice(list(holder)) if isinstance(holder, dict) else random.randrange(len(holder))
        value = holder[key]
        if not (isinstance(value, (dict, list)) and value) or random.random() < 0.05:
            return holder, key
        holder = value


def _change(holder: Any, key: Any, document: list[Any], random: Random) -> None:
    """Replace, remove, rename or repeat one value, or put a copy of another in its place."""
    how = random.randrange(8)
    value = holder[key]
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder[random.choice(("", "x", str(key).upper(), "\ud800", "::error::", "a\nb", "é", "x" * 300))] = holder.pop(
            key
        )
    elif how == 2 and isinstance(holder, list):
        text, times = json.dumps(value), random.choice((1, 2, 30))
        holder[key:key] = [json.loads(text) for _ in range(times if times * len(text) < MOST_BYTES else 1)]
    elif how == 3:
        other_holder, other_key = _place(document, random)
        holder[key] = json.loads(json.dumps(other_holder[other_key]))
    elif how == 4 and isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e200:
        holder[key] = random.choice(
            (-value, value * 10, value / 10, value + 1, value * 1e12, value * 1e-12, str(value))
        )
    elif how == 5 and isinstance(value, str):
        place = random.randrange(len(value) + 1)
        holder[key] = (
            value[:place] + str(random.choice([one for one in _VALUES if isinstance(one, str)])) + value[place:]
        )
    else:
        holder[key] = copy.deepcopy(random.choice(_VALUES))


# --------------------------------------------------------------------------- bytes


def _changed_bytes(data: bytes, random: Random) -> bytes:
    """Return bytes with some flipped, cut out, repeated or put in."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        place = random.randrange(len(changed) + 1)
        end = min(len(changed), place + random.choice((1, 2, 8, 64, 1000)))
        how = random.randrange(6)
        if how == 0 and place < len(changed):
            changed[place] ^= 1 << random.randrange(8)
        elif how == 1:
            del changed[place:end]
        elif how == 2:
            changed[place:place] = random.choice(_TOKENS)
        elif how == 3:
            changed[place:place] = changed[place:end] * random.choice((1, 3))
        elif how == 4:
            changed[place:end] = random.randbytes(end - place)
        else:
            del changed[place:]
        if len(changed) > MOST_BYTES:
            del changed[MOST_BYTES:]
    return bytes(changed)
