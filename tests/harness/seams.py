"""Finds `except`s that expect less than what is called says it raises.

A function's docstring names what comes out of it ("Raises `ImageGCError` and OSError."). A caller
that catches some of that and neither catches the rest nor documents it itself will crash one day,
two rooms away from the cause. `scripts/check` runs this over the package; it imports nothing of
it and takes a second.

Callees are resolved without types, as far as that is certain: functions by import, methods by
`self` and by the annotations of attributes and parameters, and what is handed to an `offload`.
What cannot be resolved is not reported.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_RAISES = re.compile(r"\bRaises\b:?(.*?)(?=\n\s*\n|\n\s*(?:Args|Returns|Yields):|\Z)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")

# Wrappers whose first argument is what is called.
_WRAPPERS = re.compile(r"(^|_)(offload|threads|run_sync)$")


@dataclass(slots=True)
class Function:
    """What is known of a function."""

    name: str
    raises: frozenset[str]
    node: ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class Class:
    """What is known of a class."""

    name: str
    bases: tuple[str, ...]
    methods: dict[str, Function] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)  # name to class name
    module: Module | None = None


@dataclass(slots=True)
class Module:
    """What is known of a file."""

    path: Path
    name: str  # dotted
    tree: ast.Module
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)
    tuples: dict[str, tuple[str, ...]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # to module and name there


@dataclass(frozen=True, slots=True)
class Gap:
    """An `except` that expects too little."""

    path: Path
    line: int
    callee: str
    caught: tuple[str, ...]
    missed: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.line}: {self.callee} raises {', '.join(self.missed)} too, "
            f"but only {', '.join(self.caught)} is expected here. Catch it, or document it"
        )


class Package:
    """All modules of a package, and what their names mean."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.modules = [_read(path) for path in paths]
        self._by_name = {module.name: module for module in self.modules}
        self.classes = _unique(m.classes for m in self.modules)
        self.tuples = _unique(m.tuples for m in self.modules)
        for module in self.modules:
            for one in module.classes.values():
                for method in one.methods.values():
                    method.raises = self.documented(method.node)
            for function in module.functions.values():
                function.raises = self.documented(function.node)

    def function(self, module: Module, name: str) -> Function | None:
        """Return the function that a name means in a module, followed through its imports."""
        for _ in range(4):  # a room's `__init__` between the two, rarely more
            if name in module.functions:
                return module.functions[name]
            where, name = module.imports.get(name, ("", ""))
            if where not in self._by_name:
                return None
            module = self._by_name[where]
        return None

    def class_(self, module: Module, name: str) -> Class | None:
        """Return the class that a name means in a module, followed through its imports."""
        for _ in range(4):
            if name in module.classes:
                return module.classes[name]
            where, name = module.imports.get(name, ("", ""))
            if where not in self._by_name:
                return None
            module = self._by_name[where]
        return None

    def is_error(self, name: str) -> bool:
        return bool(self.ancestors(name) & {"Exception", "BaseException"})

    def ancestors(self, name: str) -> set[str]:
        """Return an error's own name and those of its bases."""
        builtin = getattr(builtins, name, None)
        if isinstance(builtin, type):
            return {c.__name__ for c in builtin.__mro__}
        found = {name}
        for base in self.classes[name].bases if name in self.classes else ():
            if base != name:
                found |= self.ancestors(base)
        return found

    def documented(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
        """Return the errors that a docstring names."""
        text = ast.get_docstring(node) or ""
        found: set[str] = set()
        for match in _RAISES.finditer(text):
            # "Raises OSError: EBUSY for a mount." The rest of its sentence may explain.
            for word in _WORD.findall(match[1]):
                name = word.rpartition(".")[2]
                if name in self.tuples:
                    found |= set(self.expand(name))
                elif self.is_error(name):
                    found.add(name)
        return frozenset(found)

    def expand(self, name: str) -> tuple[str, ...]:
        """Return the classes that a name in an `except` stands for."""
        if name not in self.tuples:
            return (name,)
        return tuple(error for part in self.tuples[name] for error in self.expand(part))

    def gaps(self) -> list[Gap]:
        """Return every `except` that expects too little, in the order of the files."""
        return [gap for module in self.modules for gap in _Visitor(self, module).run()]


class _Visitor(ast.NodeVisitor):
    def __init__(self, package: Package, module: Module) -> None:
        self.package, self.module = package, module
        self.found: list[Gap] = []
        self._class: Class | None = None
        self._function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
        self._handled: list[tuple[str, ...]] = []  # by the `try`s around, outermost first

    def run(self) -> list[Gap]:
        self.visit(self.module.tree)
        return self.found

    def visit_ClassDef(self, node: ast.ClassDef) -> None:  # ast's name
        outer, self._class = self._class, self.module.classes.get(node.name)
        self.generic_visit(node)
        self._class = outer

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer = self._function, self._handled
        self._function, self._handled = node, []
        self.generic_visit(node)
        self._function, self._handled = outer

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function  # noqa: N815  # ast's names

    def _visit_try(self, node: ast.Try | ast.TryStar) -> None:
        caught = tuple(
            error
            for handler in node.handlers
            for name in _names(handler.type)
            for error in self.package.expand(name)
        )
        self._handled.append(caught)
        for statement in node.body:
            self.visit(statement)
        self._handled.pop()
        for part in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(part)

    def visit_With(self, node: ast.With) -> None:  # ast's name
        suppressed = tuple(
            error
            for item in node.items
            if isinstance(item.context_expr, ast.Call)
            and getattr(item.context_expr.func, "id", getattr(item.context_expr.func, "attr", ""))
            == "suppress"
            for argument in item.context_expr.args
            for name in _names(argument)
            for error in self.package.expand(name)
        )
        for item in node.items:
            self.visit(item)
        self._handled.append(suppressed)
        for statement in node.body:
            self.visit(statement)
        self._handled.pop()

    visit_Try = visit_TryStar = _visit_try  # noqa: N815  # ast's names

    def visit_Call(self, node: ast.Call) -> None:  # ast's name
        self.generic_visit(node)
        if not any(self._handled):
            return
        callee = self._resolve(node)
        if callee is not None:
            self._check(callee, node.lineno)

    def _check(self, callee: Function, line: int) -> None:
        caught = [error for level in self._handled for error in level]
        package = self.package
        # Only who expects something of it is asked to expect the rest.
        if not any(self._concerns(error, callee.raises) for error in caught):
            return
        passed_on = package.documented(self._function) if self._function is not None else ()
        missed = [
            error
            for error in sorted(callee.raises)
            if not package.ancestors(error) & {*caught, *passed_on}
        ]
        if missed:
            self.found.append(
                Gap(self.module.path, line, callee.name, tuple(caught), tuple(missed))
            )

    def _concerns(self, caught: str, raises: frozenset[str]) -> bool:
        ancestors = self.package.ancestors(caught)
        return any(r in ancestors or caught in self.package.ancestors(r) for r in raises)

    # What a call calls

    def _resolve(self, call: ast.Call) -> Function | None:
        function: ast.expr = call.func
        last = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if isinstance(function, ast.Call):  # self.offload_for(X)(fn)
            inner = function.func
            last = inner.attr if isinstance(inner, ast.Attribute) else ""
            last = "offload" if last in ("offload_for", "of") else ""
        if _WRAPPERS.search(last) and call.args:
            return self._function_of(_unpartial(call.args[0]))
        return self._function_of(function)

    def _function_of(self, node: ast.expr) -> Function | None:
        if isinstance(node, ast.Name):
            return self.package.function(self.module, node.id)
        if isinstance(node, ast.Attribute):
            owner = self._class_of(node.value)
            return self._method(owner, node.attr) if owner is not None else None
        return None

    def _method(self, owner: Class, name: str) -> Function | None:
        if name in owner.methods:
            return owner.methods[name]
        for base in owner.bases:
            known = self._named(owner, base)
            found = self._method(known, name) if known is not None and known is not owner else None
            if found is not None:
                return found
        return None

    def _named(self, owner: Class, name: str) -> Class | None:
        return self.package.class_(owner.module, name) if owner.module is not None else None

    def _class_of(self, node: ast.expr) -> Class | None:
        if isinstance(node, ast.Name):
            if node.id == "self":
                return self._class
            parameters = _parameters(self._function) if self._function is not None else {}
            return self.package.class_(self.module, parameters.get(node.id, ""))
        if isinstance(node, ast.Attribute):
            owner = self._class_of(node.value)
            if owner is None:
                return None
            return self._named(owner, owner.attributes.get(node.attr, ""))
        return None


def _read(path: Path) -> Module:
    parts = path.with_suffix("").parts
    dotted = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    module = Module(path, dotted, ast.parse(path.read_bytes(), str(path)))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                module.imports[alias.asname or alias.name] = (node.module, alias.name)
    for statement in module.tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            module.functions[statement.name] = _function(statement, statement.name)
        elif isinstance(statement, ast.ClassDef):
            module.classes[statement.name] = _read_class(statement)
            module.classes[statement.name].module = module
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Tuple):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    module.tuples[target.id] = _names(statement.value)
    return module


def _read_class(node: ast.ClassDef) -> Class:
    one = Class(node.name, tuple(n for base in node.bases for n in _names(base)))
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            one.attributes[statement.target.id] = _annotated(statement.annotation)
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            one.methods[statement.name] = _function(statement, f"{node.name}.{statement.name}")
            if statement.name == "__init__":
                one.attributes |= _assigned(statement)
    return one


def _assigned(init: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    """Return the classes of the attributes that a constructor sets from its parameters."""
    parameters, found = _parameters(init), dict[str, str]()
    for node in ast.walk(init):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs: list[tuple[ast.expr, ast.expr]] = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for one, value in pairs:
                if isinstance(one, ast.Attribute) and isinstance(value, ast.Name):
                    found[one.attr] = parameters.get(value.id, "")
    return found


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Function:
    return Function(name, frozenset(), node)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return {a.arg: _annotated(a.annotation) for a in every if a.annotation is not None}


def _annotated(node: ast.expr) -> str:
    """Return the class that an annotation names: `X`, `x.X`, `X | None`, a string of these."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _annotated(ast.parse(node.value, mode="eval").body)
    if isinstance(node, ast.BinOp):
        left, right = _annotated(node.left), _annotated(node.right)
        return left if right == "" else right if left == "" else ""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _names(node: ast.expr | None) -> tuple[str, ...]:
    if node is None:
        return ("BaseException",)
    if isinstance(node, ast.Tuple):
        return tuple(name for part in node.elts for name in _names(part))
    if isinstance(node, ast.Starred):
        return _names(node.value)
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return (name,) if name else ()


def _unpartial(node: ast.expr) -> ast.expr:
    is_partial = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "partial"
    return node.args[0] if isinstance(node, ast.Call) and is_partial and node.args else node


def _unique(tables: Iterable[dict[str, T]]) -> dict[str, T]:
    """Return what has a name of its own in all the tables."""
    found: dict[str, T] = {}
    twice: set[str] = set()
    for table in tables:
        for name, value in table.items():
            if name in found:
                twice.add(name)
            found[name] = value
    return {name: value for name, value in found.items() if name not in twice}


def sources(root: Path) -> Iterator[Path]:
    """Yield the package's own files: not what is generated, nor what only tests use."""
    for path in sorted(root.rglob("*.py")):
        if "generated" not in path.parts:
            yield path


def main(arguments: Sequence[str]) -> int:
    """Print the gaps below the directories; return 1 if there are any."""
    gaps = Package(p for root in arguments for p in sources(Path(root))).gaps()
    for gap in gaps:
        print(gap)
    return 1 if gaps else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["kubelet_trio"]))
