"""A source file by its parts, each by what it does when it runs: functions, and the bodies of classes and the module.

Docstrings, comments and layout do nothing, nor do annotations if nothing reads them. An import counts for the parts
that use the names it binds.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

import msgspec

from pytest_rlperf.model.reach import MAIN, ChangedPart, Kind

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "orelse", "finalbody")
_ALL, _FUTURE = "__all__", "__future__:annotations"
_NAMES_ALONE = {_ALL, "__version__"}  # no code under measurement computes with these
# These may bind any name, or tell which are bound.
_BINDERS = {"delattr", "dir", "eval", "exec", "globals", "locals", "setattr", "vars"}
_OF_PYTHON = "of Python: "  # before an import of the standard library, in an order
_STAR = ast.dump(ast.alias("*"))
_STATEMENT = "."  # in the order of a block
_WORD = re.compile(r"\w+")
_MAIN_TESTS = ("__name__ == '__main__'", "'__main__' == __name__")
_BUILTINS = "builtins"
# Decorators that only run the function itself, or a class's methods, by their packages. Others may compile it, or keep
# it for later, and read its annotations.
_OF_TYPING = {"final", "overload", "override", "runtime_checkable"}
_OF_ATTRS, _OF_CLASSES = {"attrs", "define", "frozen", "mutable", "s"}, {"dataclass"}
_TRANSPARENT = {
    _BUILTINS: {"classmethod", "property", "staticmethod"},
    **{"abc": {"abstractmethod"}, "contextlib": {"contextmanager"}, "enum": {"unique"}, "pytest": {"fixture"}},
    "functools": {"cache", "cached_property", "lru_cache", "total_ordering", "wraps"},
    "torch": {"inference_mode", "no_grad"},
    **dict.fromkeys(("typing", "typing_extensions"), _OF_TYPING),
    **dict.fromkeys(("attr", "attrs"), _OF_ATTRS),
    **dict.fromkeys(("chex", "dataclasses", "flax"), _OF_CLASSES),
}
_OF_PROPERTIES = {"deleter", "getter", "setter"}
_ANY = "*"  # for a module's name: whatever object code asks for a name
_FOR_TYPES = {_BUILTINS: (), **dict.fromkeys(("typing", "typing_extensions"), ("TYPE_CHECKING",))}


class Part(msgspec.Struct, frozen=True):
    """A function with all that it contains, or a body without its functions and classes.

    It reaches from line ``first``, its first decorator's, to ``last``; ``line`` has its name. ``runs`` is what it does,
    as text, and ``names`` are the names that it uses. A function is ``kept`` if a decorator, its own or its class's,
    may run it as something else. ``text`` is its source. A body's ``order`` is that of its statements, imports,
    classes, and functions that are kept, have computed defaults or another's name: statements may affect the others.
    """

    kind: Kind
    name: str
    first: int
    line: int
    last: int
    runs: str
    names: frozenset[str]
    kept: bool
    text: str
    order: tuple[str, ...] = ()


class Source:
    """The parts of a file by name, which several may share, and the names that its imports bind.

    With ``annotated``, annotations are part of what runs, and ``whole`` is all of it. ``bound`` are all names that the
    module itself binds.
    """

    def __init__(self, text: str, *, annotated: bool = False) -> None:
        self.parts: dict[tuple[str, int], Part] = {}
        self.imports: dict[str, list[str]] = {}
        self._lines = text.split("\n")
        self._times: Counter[tuple[str, Kind]] = Counter()
        tree = ast.parse(text)
        self._bound = _Bound(tree)
        self.has_star = self._bound.has_star
        _AsItRuns(self._bound, annotated=annotated).visit(tree)
        self.whole = ast.dump(tree) if annotated else ""
        names = _names_bound(tree.body)
        self.bound = names.all
        tree.body, order = self._taken(tree.body, "", names.others, at_top=True)
        self._add(Kind.BODY, "", tree, 1, 1, len(self._lines), order)

    @functools.cached_property
    def has_annotations(self) -> bool:
        """Whether there are annotations of variables, arguments or functions."""
        nodes = ast.walk(ast.parse("\n".join(self._lines)))
        return any(getattr(each, "annotation", None) or getattr(each, "returns", None) for each in nodes)

    @property
    def has_names_on_demand(self) -> bool:
        """Whether the module has a function that makes the names that it lacks."""
        return "__getattr__" in self.bound

    @property
    def asks_for_any(self) -> bool:
        """Whether code in the file may ask for any of the module's names."""
        return any(not _BINDERS.isdisjoint(part.names) for part in self.parts.values())

    @functools.cached_property
    def functions(self) -> list[Part]:
        """All functions, including methods."""
        return [part for part in self.parts.values() if part.kind is Kind.FUNCTION]

    # ------------------------------------------------------------------ taking it apart

    def _taken(
        self,
        body: Iterable[ast.stmt],
        prefix: str,
        others: Collection[str],
        *,
        at_top: bool = False,
        kept: bool = False,
        text_of: Callable[[ast.stmt], str] = ast.dump,
    ) -> tuple[list[ast.stmt], list[str]]:
        """Take functions and classes out of a body, and imports if it is the module's; return the rest and the order.

        ``others`` are the names that are not only functions'. The functions are ``kept`` if the body is a class's whose
        decorator may keep them. ``text_of`` makes a statement's entry in the order.
        """
        rest: list[ast.stmt] = []
        order: list[str] = []
        for node in body:
            if isinstance(node, _Function):
                self._add_function(node, prefix, kept=kept)
                order += [f"def {node.name}"] * self._has_place(node, others)
                rest += _left_of(node)
            elif isinstance(node, ast.ClassDef):
                self._add_class(node, prefix)
                order.append(f"class {node.name}")
            elif at_top and isinstance(node, (ast.Import, ast.ImportFrom)) and self._add_import(node):
                order += [f"{_OF_PYTHON * _is_of_python(node)}{entry}" for entry in _import_entries(node)]
            elif at_top and _is_main(node):
                self._take_nested(node, prefix, others)
                self._add(Kind.BODY, MAIN, node, node.lineno, node.lineno, node.end_lineno or 0)
            elif at_top and isinstance(node, ast.Assign) and _targets(node) <= _NAMES_ALONE and _is_literal(node.value):
                if _ALL in _targets(node):
                    self.imports.setdefault(_ALL, []).append(ast.dump(node.value))
            else:
                self._take_nested(node, prefix, others)
                rest.append(node)
                order.append(text_of(node))
        return rest, order

    def _has_place(self, node: ast.FunctionDef | ast.AsyncFunctionDef, others: Collection[str]) -> bool:
        """Whether it matters what comes before a function and after it; ``others`` may have its name."""
        is_other = node.name in others or "*" in others or node.name in vars(builtins)
        return is_other or _is_computed(node) or self._bound.is_kept(node)

    def _add_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, prefix: str, *, kept: bool) -> None:
        name, last = f"{prefix}{node.name}", node.end_lineno or 0
        is_kept = kept or self._bound.is_kept(node)
        self._add(Kind.FUNCTION, name, node, _first(node), node.lineno, last, kept=is_kept)

    def _add_class(self, node: ast.ClassDef, prefix: str) -> None:
        name, last = f"{prefix}{node.name}", node.end_lineno or 0
        others = _names_bound(node.body).others | self.bound  # until the class binds a name, it is the module's
        node.body, order = self._taken(node.body, f"{name}.", others, kept=self._bound.is_kept(node))
        self._add(Kind.BODY, name, node, _first(node), node.lineno, last, order)

    def _take_nested(self, node: ast.stmt, prefix: str, others: Collection[str]) -> None:
        """Take functions and classes out of a statement's blocks, and leave their names and the order there."""
        for owner, field, block in _blocks(node):
            marks = [_mark(each.name) for each in block if isinstance(each, (*_Function, ast.ClassDef))]
            rest, order = self._taken(block, prefix, others, text_of=lambda _: _STATEMENT)  # each is in the rest
            setattr(owner, field, [*rest, *marks, _mark(" ".join(order))])

    def _add(
        self,
        kind: Kind,
        name: str,
        node: ast.AST,
        first: int,
        line: int,
        last: int,
        order: Iterable[str] = (),
        *,
        kept: bool = False,
    ) -> None:
        names = frozenset(name for each in ast.walk(node) for name in _names_in(each))
        text = "\n".join(self._lines[first - 1 : last])
        self._times[name, kind] += 1
        key = name, self._times[name, kind] * (1 if kind is Kind.FUNCTION else -1)
        self.parts[key] = Part(kind, name, first, line, last, ast.dump(node), names, kept, text, tuple(order))

    def _add_import(self, node: ast.Import | ast.ImportFrom) -> bool:
        """Note the names that an import binds; return False if they are not known."""
        origin = "" if isinstance(node, ast.Import) else f"{'.' * node.level}{node.module or ''}:"
        if any(alias.name == "*" for alias in node.names) or (origin == "__future__:" and not _is_layout(node)):
            return False
        for alias in node.names:
            bound = alias.asname or (alias.name if origin else alias.name.partition(".")[0])
            self.imports.setdefault(bound, []).append(f"{origin}{alias.name}")
        return True


def source_of(path: str, *, annotated: bool = False) -> Source | None:
    """Return the source at a path, an empty one if there is no file, None if it cannot be taken apart."""
    return _source_at(path, annotated)


@functools.cache
def _source_at(path: str, annotated: bool) -> Source | None:
    text = _text_of(path)
    try:
        return None if text is None else Source(text, annotated=annotated)
    except (SyntaxError, ValueError, RecursionError):
        return None


class Span(NamedTuple):
    """The lines of a function, with its first decorator and all functions within it, and its name."""

    first: int
    last: int
    name: str


def spans_of(path: str) -> Sequence[Span]:
    """Return the functions of a source that are in no other one; none if it cannot be taken apart."""
    return _spans_in(_text_of(path) or "")


@functools.cache
def _spans_in(text: str) -> Sequence[Span]:
    try:
        return tuple(_spans(ast.parse(text).body, ""))
    except (SyntaxError, ValueError, RecursionError):
        return ()


def takes(path: str, modules: Collection[str], name: str) -> bool:
    """Whether a source may take a name from a module, given by the last parts of the names that it has."""
    found = _taken_in(_text_of(path))
    return found is None or any((module, name) in found for module in (*modules, _ANY))


@functools.cache
def _taken_in(text: str | None) -> frozenset[tuple[str, str]] | None:
    """Return the names that a source takes from modules, None if it cannot be taken apart."""
    try:
        tree = ast.parse(text or "")
        return None if text is None else frozenset(_Bound(tree).taken_in(tree))
    except (SyntaxError, ValueError, RecursionError):
        return None


@functools.cache
def _text_of(path: str) -> str | None:
    """Return the text at a path, read once: "" if there is no file, None if it has no text."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError):
        return None


def changed_parts(
    base: Source, head: Source, file: str, is_taken: Callable[[str], bool] = lambda name: False
) -> Iterator[tuple[ChangedPart, Part | None, Part | None]]:
    """Yield what differs between two sources of a file, with the base's part and the head's.

    ``is_taken`` is whether another module takes a name from this one, or all names ("*").
    """
    rebound = {name for name in {*base.imports, *head.imports} if base.imports.get(name) != head.imports.get(name)}
    handed_on = any(_is_handed_on(name, base, head, is_taken) for name in rebound)
    for key in dict.fromkeys([*head.parts, *base.parts]):
        was, now = base.parts.get(key), head.parts.get(key)
        if was is not None and now is not None and was.runs == now.runs and _is_in_order(was.order, now.order):
            if rebound.isdisjoint(was.names) and not (handed_on and not was.name):
                continue
        elif (was is None or now is None) and _does_nothing(was) and _does_nothing(now):
            continue
        yield _changed(was, now, file), was, now


def _is_handed_on(name: str, base: Source, head: Source, is_taken: Callable[[str], bool]) -> bool:
    """Whether another module may see that the import of a name differs, even if nothing here uses the name.

    It may import the name from here if its origin has changed. A name that one side lacks counts if another module
    takes it, or if something else takes its place: a builtin, or what a star import or the module's function makes.
    """
    if name == _ALL:
        return is_taken("*") or is_taken(_ALL)
    if _FUTURE in (*base.imports.get(name, ()), *head.imports.get(name, ())):
        return base.has_annotations or head.has_annotations
    makes = any(each.has_star or each.has_names_on_demand or each.asks_for_any for each in (base, head))
    return name in base.bound & head.bound or makes or name in vars(builtins) or is_taken(name) or is_taken("*")


def _is_in_order(was: Sequence[str], now: Sequence[str]) -> bool:
    """Whether what both bodies share comes in the same order.

    Imports of the standard library do not affect other imports, but statements may replace what they bind.
    """
    if was == now:
        return True
    both = {*was} & {*now}
    ours, theirs = ([each for each in order if each in both] for order in (was, now))
    return _without_python(ours) == _without_python(theirs) and _statements_before(ours) == _statements_before(theirs)


def _without_python(order: Iterable[str]) -> list[str]:
    return [each for each in order if not each.startswith(_OF_PYTHON)]


def _statements_before(order: Iterable[str]) -> dict[str, list[int]]:
    """Return how many statements come before each import of the standard library."""
    found, statements = dict[str, list[int]](), 0
    for each in order:
        if each.startswith(_OF_PYTHON):
            found.setdefault(each, []).append(statements)
        else:
            statements += not each.startswith("Import") or _STAR in each
    return found


def _import_entries(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return an import's entries in an order: one for each name, however many a line imports."""
    if isinstance(node, ast.Import):
        return [f"Import {alias.name} as {alias.asname}" for alias in node.names]
    names = sorted((alias.name, alias.asname or "") for alias in node.names)
    return [f"ImportFrom {'.' * node.level}{node.module or ''}:{name} as {asname}" for name, asname in names]


def _is_of_python(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import is only of the standard library."""
    modules = (
        [alias.name for alias in node.names]
        if isinstance(node, ast.Import)
        else ["." * node.level + (node.module or "")]
    )
    return all(module.partition(".")[0] in sys.stdlib_module_names for module in modules)


def _does_nothing(part: Part | None) -> bool:
    """Whether a part is missing, or is the body of an empty module."""
    return part is None or (not part.name and part.runs == _EMPTY)


def _changed(was: Part | None, now: Part | None, file: str) -> ChangedPart:
    here = now or was
    assert here is not None
    texts = ["" if part is None else part.text for part in (was, now)]
    differs = here.first + _first_difference(*texts)
    if not here.name:
        texts = ["", ""]  # the whole module would be too much to show
    return ChangedPart(here.kind, file, here.name, here.line, differs, *texts)


def _first_difference(was: str, now: str) -> int:
    """Return how many lines of ``now`` come before the first that differs from ``was``."""
    if not was or not now:
        return 0
    pairs = SequenceMatcher(None, was.split("\n"), now.split("\n"), autojunk=False).get_opcodes()
    return next((start for tag, _, _, start, _ in pairs if tag != "equal"), 0)


# --------------------------------------------------------------------------- syntax trees


class _Names(NamedTuple):
    """The names that statements bind in their own scope, "*" if they may bind any.

    ``others`` are those that are not only one function's.
    """

    all: frozenset[str]
    others: frozenset[str]


def _names_bound(nodes: Iterable[ast.AST]) -> _Names:
    found, functions = set[str](), Counter[str]()
    _note_bound(nodes, found, functions)
    others = found | {name for name, times in functions.items() if times > 1}
    return _Names(frozenset(found | functions.keys()), frozenset(others))


def _note_bound(nodes: Iterable[ast.AST], found: set[str], functions: Counter[str]) -> None:
    """Note the names that statements bind, and how many functions have each."""
    for node in nodes:
        match node:
            case ast.Import() | ast.ImportFrom():
                found.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                functions[node.name] += 1
                found.update(_globals_of(node))
            case ast.ClassDef():
                found.update([node.name, *_globals_of(node)])
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.add(name)
            case ast.Name(id=name) if name in _BINDERS:
                found.add("*")
            case _:
                own = getattr(node, "name", None) or getattr(node, "rest", None)  # of a handler, or a pattern
                found.update([own] if isinstance(own, str) else ())
                _note_bound(ast.iter_child_nodes(node), found, functions)


def _globals_of(node: ast.AST) -> Iterator[str]:
    """Yield the names of the module that functions within a part may bind."""
    return (name for each in ast.walk(node) if isinstance(each, ast.Global) for name in each.names)


def _spans(body: Iterable[ast.stmt], prefix: str) -> Iterator[Span]:
    """Yield the functions of a body, and of the classes and blocks within it, but none of a function's own."""
    for node in body:
        if isinstance(node, _Function):
            yield Span(_first(node), node.end_lineno or 0, f"{prefix}{node.name}")
        elif isinstance(node, ast.ClassDef):
            yield from _spans(node.body, f"{prefix}{node.name}.")
        else:
            for _, _, block in _blocks(node):
                yield from _spans(block, prefix)


def _blocks(node: ast.stmt) -> Iterator[tuple[ast.AST, str, list[ast.stmt]]]:
    """Yield the blocks of a statement, each after what owns it, and by which field."""
    for owner in (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        for field in _BLOCKS:
            block = getattr(owner, field, None)
            if isinstance(block, list):
                yield owner, field, block


class _Bound:
    """The objects that a file binds its names to: they show what a class or a decorator is."""

    def __init__(self, tree: ast.Module) -> None:
        self._origins: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            match node:
                case ast.Import():
                    for alias in node.names:
                        self._add(alias.asname or alias.name.partition(".")[0], alias.name)
                case ast.ImportFrom():
                    for alias in node.names:
                        self._add(alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}")
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._add(node.name, f".{type(node).__name__}")
                case ast.Name(ctx=ast.Store()):
                    self._add(node.id, ".")

    def _add(self, name: str, origin: str) -> None:
        self._origins.setdefault(name, set()).add(origin)

    def is_of(self, node: ast.expr, known: Mapping[str, Collection[str]]) -> bool:
        """Whether an expression certainly names one of the ``known`` objects, given by package."""
        root, _, rest = ast.unparse(node).partition(".")
        if root not in self._origins:
            return not rest and "*" not in self._origins and root in known[_BUILTINS]
        if len(self._origins[root]) > 1:
            return False
        package, _, inner = f"{next(iter(self._origins[root]))}{'.' * bool(rest)}{rest}".partition(".")
        return inner.rpartition(".")[2] in known.get(package, ())

    @property
    def has_star(self) -> bool:
        """Whether an import binds names that are not known."""
        return "*" in self._origins

    @property
    def evaluates_annotations(self) -> bool:
        """Whether a function's annotations are evaluated where it is defined."""
        return "__future__.annotations" not in self._origins.get("annotations", ())

    def taken_in(self, tree: ast.AST) -> Iterator[tuple[str, str]]:
        """Yield the names that a file takes from modules, each with the last part of the module's name.

        Where code asks whether an object has a name, this may be a module. Elsewhere a name that it lacks is an error.
        """
        for node in ast.walk(tree):
            match node:
                case ast.ImportFrom():
                    yield from ((_last(node.module or ""), alias.name) for alias in node.names)
                case ast.Attribute(value=owner, attr=name):
                    yield from ((module, name) for module in self._modules(owner))
                case ast.Call(func=ast.Name("getattr" | "hasattr"), args=[_, ast.Constant(str(name)), *_]):
                    yield _ANY, name
                case ast.Try(body=body):
                    inner = (each for statement in body for each in ast.walk(statement))
                    yield from ((_ANY, each.attr) for each in inner if isinstance(each, ast.Attribute))

    def _modules(self, node: ast.expr) -> Iterable[str]:
        """Return the last parts of the names of modules that an expression may be."""
        match node:
            case ast.Name(id=name):
                return {name, *map(_last, self._origins.get(name, ()))}
            case ast.Attribute(attr=name):
                return {name}
        return ()

    def is_kept(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
        """Whether a decorator may run something made from a function or a method in its place."""
        called = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
        return not all(
            self.is_of(each, _TRANSPARENT) or (isinstance(each, ast.Attribute) and each.attr in _OF_PROPERTIES)
            for each in called
        )


class _AsItRuns(ast.NodeTransformer):
    """Leaves in a tree only what runs: no docstrings, and nothing only for type checkers.

    Annotations stay in the body of a class, because code may make fields of them, on what a decorator may read, and on
    functions within a function, which evaluates them whenever it runs. With ``annotated`` they stay everywhere.
    """

    def __init__(self, bound: _Bound, *, annotated: bool) -> None:
        self._bound = bound
        self._is_within = False  # a function
        self._annotated = self._stays = annotated  # _stays is for the body around
        self._keeps = False  # for the class around

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._body_of(node, stays=False)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        outside, self._keeps = self._keeps, self._bound.is_kept(node)
        found = self._body_of(node, stays=True)
        self._keeps = outside
        return found

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        stays = self._annotated or self._keeps or self._bound.is_kept(node)
        if not stays and not (self._is_within and self._bound.evaluates_annotations):
            node.returns = None
            arguments = node.args
            named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
            for argument in filter(None, named):
                argument.annotation = None
        outside, self._is_within = self._is_within, True
        found = self._body_of(node, stays=stays)
        self._is_within = outside
        return found

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - ast's name

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | None:
        self.generic_visit(node)
        if self._stays:
            return node
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        return node.orelse if self._bound.is_of(node.test, _FOR_TYPES) else node

    def _body_of(
        self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, *, stays: bool
    ) -> ast.AST:
        if ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        outside, self._stays = self._stays, stays or self._annotated
        self.generic_visit(node)
        self._stays = outside
        return node


_EMPTY = ast.dump(ast.Module([], []))


def _is_layout(node: ast.Import | ast.ImportFrom) -> bool:
    return all(alias.name == "annotations" for alias in node.names)


def _first(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _is_main(node: ast.stmt) -> bool:
    """Whether a statement runs only if its module runs as a program."""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) in _MAIN_TESTS


def _targets(node: ast.Assign) -> set[str]:
    return {getattr(target, "id", "") for target in node.targets}


def _is_literal(node: ast.expr) -> bool:
    return all(isinstance(each, ast.Constant | ast.List | ast.Tuple | ast.expr_context) for each in ast.walk(node))


def _is_computed(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a default, or what a decorator is given, depends on what statements before the function have done."""
    return any(isinstance(each, ast.Name) for value in _evaluated(node) for each in ast.walk(value))


def _evaluated(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """Return what is evaluated where a function is defined: its defaults, and what decorators are given."""
    given = [each for each in node.decorator_list if isinstance(each, ast.Call)]
    arguments = (each for call in given for each in (*call.args, *(keyword.value for keyword in call.keywords)))
    return [*arguments, *node.args.defaults, *filter(None, node.args.kw_defaults)]


def _left_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """Return what a function leaves in the body around it: the calls in its defaults and decorators' arguments.

    And its name, if Python checks whether a class has it.
    """
    marks = [_mark(node.name)] if node.name.startswith("__") else []
    acting = (ast.Call, ast.NamedExpr)
    values = [each for each in _evaluated(node) if any(isinstance(inner, acting) for inner in ast.walk(each))]
    return [*marks, *map(ast.Expr, values)]


def _names_in(node: ast.AST) -> Iterator[str]:
    """Yield the name that a node uses, and the words of texts in its annotations."""
    if isinstance(node, ast.Name):
        yield node.id
    for annotation in filter(None, (getattr(node, "annotation", None), getattr(node, "returns", None))):
        for each in ast.walk(annotation):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield from _WORD.findall(each.value)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _mark(text: str) -> ast.stmt:
    """Return a statement that stands for what was taken out of a body."""
    return ast.Expr(ast.Constant(f"def {text}"))
