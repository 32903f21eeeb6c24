"""What the names of a file are bound to, and which names it takes from other modules."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

# These may bind any name, or tell which are bound.
BINDERS = {"delattr", "dir", "eval", "exec", "getmembers", "globals", "locals", "setattr", "vars", "__dict__"}
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
_OWN_OBJECTS = {"cls", "self"}  # which no module is
_OF_PROPERTIES = {"deleter", "getter", "setter"}
_TRIES = (ast.Try, getattr(ast, "TryStar", ast.Try))  # the second is new in Python 3.11
ANY = "*"  # for a module's name: whatever object code asks for a name
REQUIRED = "()"  # for a module's name: classes, which Python asks whether they have a method
_PROTOCOLS = {_BUILTINS: (), **dict.fromkeys(("typing", "typing_extensions"), ("Protocol",))}
_FOR_TYPES = {_BUILTINS: (), **dict.fromkeys(("typing", "typing_extensions"), ("TYPE_CHECKING",))}


class Bindings:
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

    def _is_of(self, node: ast.expr, known: Mapping[str, Collection[str]]) -> bool:
        """Whether an expression certainly names one of the ``known`` objects, given by package."""
        root, _, rest = ast.unparse(node).partition(".")
        if root not in self._origins:
            return not rest and "*" not in self._origins and root in known[_BUILTINS]
        if len(self._origins[root]) > 1:
            return False
        package, _, inner = f"{next(iter(self._origins[root]))}{'.' * bool(rest)}{rest}".partition(".")
        return inner.rpartition(".")[2] in known.get(package, ())

    def is_for_types(self, node: ast.expr) -> bool:
        """Whether an expression is false, except to type checkers."""
        return self._is_of(node, _FOR_TYPES)

    @property
    def has_star(self) -> bool:
        """Whether an import binds names that are not known."""
        return "*" in self._origins

    @property
    def evaluates_annotations(self) -> bool:
        """Whether a function's annotations are evaluated where it is defined."""
        return "__future__.annotations" not in self._origins.get("annotations", ())

    def modules(self, node: ast.expr) -> Iterable[str]:
        """Return the last parts of the names of modules that an expression may be."""
        match node:
            case ast.Name(id=name):
                return {name, *map(_last, self._origins.get(name, ()))}
            case ast.Attribute(attr=name):
                return {name}
        return ()

    def is_protocol(self, node: ast.ClassDef) -> bool:
        """Whether a class is a protocol."""
        bases = (each.value if isinstance(each, ast.Subscript) else each for each in node.bases)
        return any(self._is_of(each, _PROTOCOLS) for each in bases)

    def is_kept(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
        """Whether something else than a call may use a function or a class's methods, as a decorator may."""
        called = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
        return not all(
            self._is_of(each, _TRANSPARENT) or (isinstance(each, ast.Attribute) and each.attr in _OF_PROPERTIES)
            for each in called
        )


def names_taken(text: str) -> frozenset[tuple[str, str]]:
    """Return the names that a source takes from modules, each with the last part of the module's name.

    Where code asks whether an object has a name, or for all names of one, this may be a module. Elsewhere a name that
    it lacks is an error.
    """
    tree = ast.parse(text)
    return frozenset(_taken_in(tree, Bindings(tree)))


def _taken_in(tree: ast.AST, bound: Bindings) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom():
                yield from ((_last(node.module or ""), alias.name) for alias in node.names)
            case ast.Attribute(attr="__all__" as name):
                yield ANY, name
            case ast.Attribute(value=owner, attr=name):
                yield from ((module, name) for module in bound.modules(owner))
            case ast.Call(func=ast.Name("getattr" | "hasattr"), args=[_, ast.Constant(str(name)), *_]):
                yield ANY, name
            case ast.Constant(str(text)) if "__all__" in text or "import *" in text:
                yield ANY, "__all__"
            case ast.ClassDef():
                yield from ((REQUIRED, name) for name in _required_by(node, is_protocol=bound.is_protocol(node)))
        for each in (each for statement in _tried(node) for each in ast.walk(statement)):
            match each:
                case ast.Attribute(attr=name):
                    yield ANY, name
                case ast.ImportFrom():
                    yield from ((ANY, alias.name) for alias in each.names)


def _required_by(node: ast.ClassDef, *, is_protocol: bool) -> list[str]:
    """Return the methods that other classes must have to be no abstract classes, or to be of a protocol."""
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [each.name for each in methods if is_protocol or is_abstract(each)]


def is_abstract(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a class with a method is abstract."""
    return any(_last(ast.unparse(each)).startswith("abstract") for each in node.decorator_list)


def asks(node: ast.AST) -> str:
    """Return by which of ``BINDERS`` a node may bind, or ask for, any of a module's names; "" by none."""
    match node:
        case ast.Name(id=name) if name in BINDERS:
            return name
        case ast.Attribute(attr="getmembers" as name):
            return name
        case ast.Attribute(value=owner, attr="__dict__" as name) if getattr(owner, "id", "") not in _OWN_OBJECTS:
            return name
    return ""


def _tried(node: ast.AST) -> list[ast.stmt]:
    """Return the block of a statement that may go on where the block lacks a name, as below ``contextlib.suppress``."""
    if isinstance(node, ast.With | ast.AsyncWith):
        return node.body
    return node.body if isinstance(node, _TRIES) and node.handlers else []


class Names(NamedTuple):
    """The names that statements bind in their own scope, "*" if they may bind any.

    ``others`` are those that are not only one function's.
    """

    all: frozenset[str]
    others: frozenset[str]


def names_bound(nodes: Iterable[ast.AST]) -> Names:
    """Return the names that statements bind in their own scope."""
    found, functions = set[str](), Counter[str]()
    _note_bound(nodes, found, functions)
    others = found | {name for name, times in functions.items() if times > 1}
    return Names(frozenset(found | functions.keys()), frozenset(others))


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
            case _:
                found.update(["*"] if asks(node) else [])
                own = getattr(node, "name", None) or getattr(node, "rest", None)  # of a handler, or a pattern
                found.update([own] if isinstance(own, str) else ())
                _note_bound(ast.iter_child_nodes(node), found, functions)


def _globals_of(node: ast.AST) -> Iterator[str]:
    """Yield the names of the module that functions within a part may bind."""
    return (name for each in ast.walk(node) if isinstance(each, ast.Global) for name in each.names)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
