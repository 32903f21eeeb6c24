"""What functions do by the names that libraries and scripts have for them."""

from __future__ import annotations

import re

# Words in names of what moves target networks: polyak_update, soft_copy, sync_q_target, update_lagged_network_weights.
_MOVE = re.compile(r"updates?|sync|synchronize|copy|move|track|blend")
_TARGET = re.compile(r"targ(et)?s?|lagged")
_MANNER = re.compile(r"soft|hard|ema")
_NETWORK = re.compile(
    r"(critic|actor|policy|value|net|network|model|param|parameter|weight|[qv]f?\d*|q?net\d*)s?|policies"
)
_BETWEEN = re.compile(rf"{_NETWORK.pattern}|all|the|to|soft|hard|\d+")
_OF_THINGS = re.compile(r"move|track")  # a robot's and a camera's targets, too
# Words of other targets than networks, and of what is about moving them but does not.
_OTHER = re.compile(
    r"entropy|ent|kl|returns?|rewards?|goals?|pos|positions?|angles?|velocity|velocities|speeds?|actions?|noise|states?|"
    r"loss|lr|tau|rate|interval|freq|frequency|period|every|schedule|coef|coefficient|get|set|init|make|build|is|has|"
    r"should|compute"
)


def moves_targets(name: str) -> bool:
    """Whether a function of that name moves target networks, softly or at once."""
    words = _words(name)
    if any(_OTHER.fullmatch(word) for word in words):
        return False
    of_networks = any(_NETWORK.fullmatch(word) for word in words)
    verbs = [
        index
        for index, word in enumerate(words)
        if _MOVE.fullmatch(word) and (of_networks or not _OF_THINGS.fullmatch(word))
    ]
    return "polyak" in words or (bool(verbs) and (_tells_manner(words) or _moves_target(words, verbs)))


def _words(name: str) -> list[str]:
    """Return a name's words, of snake_case, camelCase and ``softupdate``."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=soft|hard)(?=update|copy|sync)", "_", name)
    return [word for word in spaced.lower().replace("state_dict", "weights").split("_") if word]


def _tells_manner(words: list[str]) -> bool:
    """Whether the verb or target follows how it is moved, or nothing does.

    Soft Q functions and soft actors are SAC's own: ``soft_q_update`` trains one.
    """
    following = [after for word, after in zip(words, [*words[1:], ""], strict=True) if _MANNER.fullmatch(word)]
    return any(not word or _MOVE.fullmatch(word) or _TARGET.fullmatch(word) for word in following)


def _moves_target(words: list[str], verbs: list[int]) -> bool:
    """Whether nothing but networks' names is between a verb and a target."""
    targets = [index for index, word in enumerate(words) if _TARGET.fullmatch(word)]
    spans = [sorted((verb, target)) for verb in verbs for target in targets]
    return any(all(_BETWEEN.fullmatch(word) for word in words[first + 1 : last]) for first, last in spans)
