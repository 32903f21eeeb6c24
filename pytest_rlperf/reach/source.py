"""A source file by its parts, each by what it does when it runs: functions, and the bodies of classes and the module.

Docstrings, comments and layout do nothing, nor do annotations if nothing reads them. An import counts for the parts
that use the names it binds.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pytest_rlperf.model.reach import MAIN, Kind
from pytest_rlperf.reach.bindings import BINDERS, Bindings, asks, is_abstract, names_bound, names_taken
from pytest_rlperf.reach.order import import_entries

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "orelse", "finalbody")
ALL = "__all__"
_NAMES_ALONE = {ALL, "__version__"}  # no code under measurement computes with these
_STATEMENT = "."  # in the order of a block
_OF_EACH_CLASS = {"__format__", "__repr__", "__str__"}
_WORD = re.compile(r"\w+")
_MAIN_TESTS = ("__name__ == '__main__'", "'__main__' == __name__")


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
        self._bound = Bindings(tree)
        self.has_star = self._bound.has_star
        _AsItRuns(self._bound, annotated=annotated).visit(tree)
        self.whole = ast.dump(tree) if annotated else ""
        names = names_bound(tree.body)
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
        return any(not BINDERS.isdisjoint(part.names) for part in self.parts.values())

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
                order += import_entries(node)
            elif at_top and _is_main(node):
                self._take_nested(node, prefix, others)
                self._add(Kind.BODY, MAIN, node, node.lineno, node.lineno, node.end_lineno or 0)
            elif at_top and isinstance(node, ast.Assign) and _targets(node) <= _NAMES_ALONE and _is_literal(node.value):
                if ALL in _targets(node):
                    self.imports.setdefault(ALL, []).append(ast.dump(node.value))
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
        others = names_bound(node.body).others | self.bound  # until the class binds a name, it is the module's
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
    found: Source | None = _made(_annotated if annotated else Source, _text_of(path))
    return found


class Span(NamedTuple):
    """The lines of a function, with its first decorator and all functions within it, and its name."""

    first: int
    last: int
    name: str


def spans_of(path: str) -> Sequence[Span]:
    """Return the functions of a source that are in no other one; none if it cannot be taken apart."""
    return _made(_spans_in, _text_of(path)) or ()


def takes(path: str, modules: Collection[str], name: str) -> bool:
    """Whether a source may take a name from a module, given by the last parts of the names that it has.

    ``ANY`` among them is any object, and ``REQUIRED`` a class.
    """
    found: Collection[tuple[str, str]] | None = _made(names_taken, _text_of(path))
    return found is None or any((module, name) in found for module in modules)


@functools.cache
def _made(make: Callable[[str], Any], text: str | None) -> Any:
    """Return what is made of a source; None if it has no text, or cannot be taken apart."""
    try:
        return None if text is None else make(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _annotated(text: str) -> Source:
    return Source(text, annotated=True)


@functools.cache
def _text_of(path: str) -> str | None:
    """Return the text at a path, read once: "" if there is no file, None if it has no text."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError):
        return None


# --------------------------------------------------------------------------- syntax trees


def _spans_in(text: str) -> Sequence[Span]:
    return tuple(_spans(ast.parse(text).body, ""))


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


class _AsItRuns(ast.NodeTransformer):
    """Leaves in a tree only what runs: no docstrings, and nothing only for type checkers.

    Annotations stay in the body of a class, because code may make fields of them, on what a decorator may read, and on
    functions within a function, which evaluates them whenever it runs. With ``annotated`` they stay everywhere.
    """

    def __init__(self, bound: Bindings, *, annotated: bool) -> None:
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
        return node.orelse if self._bound.is_for_types(node.test) else node

    def _body_of(
        self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, *, stays: bool
    ) -> ast.AST:
        if ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        outside, self._stays = self._stays, stays or self._annotated
        self.generic_visit(node)
        self._stays = outside
        return node


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
    """Return what a function leaves in the body around it: what may act in its defaults and decorators' arguments.

    And its name, if Python checks whether a class has it, or the class is abstract because of it. What each class has
    is seen to run.
    """
    is_special = node.name.startswith("__") and node.name.endswith("__") and node.name not in _OF_EACH_CLASS
    marks = [_mark(node.name)] if is_special or is_abstract(node) else []
    values = [each for each in _evaluated(node) if any(map(_acts, ast.walk(each)))]
    return [*marks, *map(ast.Expr, values)]


def _acts(node: ast.AST) -> bool:
    """Whether an expression's evaluation may run code, by a call or an operator of objects that are not constants."""
    operators = (ast.BinOp, ast.UnaryOp, ast.Compare)
    if isinstance(node, operators):
        return any(isinstance(each, ast.Name) for each in ast.walk(node))
    return isinstance(node, ast.Call | ast.NamedExpr | ast.Subscript)


def _names_in(node: ast.AST) -> Iterator[str]:
    """Yield the name that a node uses, and the words of texts in its annotations."""
    if isinstance(node, ast.Name):
        yield node.id
    elif asked := asks(node):
        yield asked
    for annotation in filter(None, (getattr(node, "annotation", None), getattr(node, "returns", None))):
        for each in ast.walk(annotation):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield from _WORD.findall(each.value)


def _mark(text: str) -> ast.stmt:
    """Return a statement that stands for what was taken out of a body."""
    return ast.Expr(ast.Constant(f"def {text}"))
