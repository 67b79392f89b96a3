"""Compiles and evaluates CEL selectors with cel-python, in Kubernetes' environment for devices.

Imported only when a selector needs it: the library takes some 20 MB. Its parser and evaluator are
extended here by what Kubernetes' environment has in addition: `cel.bind`, optional selection
(`.?`, `[?]`), quantities, versions, an empty map for an unknown domain, and a limit of cost.
Upstream: dynamic-resource-allocation/cel/compile.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import celpy
import lark
from celpy import celtypes
from celpy.celparser import CELParser
from celpy.evaluation import (
    Activation,
    CELEvalError,
    CELSyntaxError,
    CELUnsupportedError,
    Evaluator,
)

from kubelet_trio.managers.claims.allocation.cel_functions import FUNCTIONS, NONE, Optional
from kubelet_trio.managers.claims.allocation.cel_values import Quantity, SemVer
from kubelet_trio.managers.claims.allocation.devices import AttributeValue, Offered, Version

MAX_COST = 100_000  # steps of one evaluation: about a second

# Nodes of the grammar that mean nothing if they have one child.
_CHAIN = frozenset(
    (
        "expr",
        "conditionalor",
        "conditionaland",
        "relation",
        "addition",
        "multiplication",
        "unary",
        "member",
    )
)
_MACROS = frozenset(("all", "exists", "exists_one", "filter", "map"))
_FAILURES = (
    CELEvalError,
    CELSyntaxError,
    CELUnsupportedError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class CelError(Exception):
    """An expression does not compile, or fails on a device."""


class _TooExpensiveError(Exception):
    pass


class _Cost:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0

    def spend(self, amount: int) -> None:
        self.spent += amount
        if self.spent > self.limit:
            raise _TooExpensiveError


class _Domains(celtypes.MapType):
    """Attributes or capacities by domain; an unknown domain is an empty map."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if key in self else celtypes.MapType()


class Program:
    """A compiled selector."""

    def __init__(self, tree: lark.Tree[Any]) -> None:
        self._tree = tree

    def evaluate(self, device: object) -> tuple[bool, int]:
        """Return whether it matches an input of `device_input`, and what that has cost.

        Raises CelError.
        """
        cost = _Cost(MAX_COST)
        # `string` as a type is not the function of that name.
        names: Any = {"device": device, "string": celtypes.StringType}
        activation = Activation(vars=names, functions=FUNCTIONS)
        try:
            value = _Evaluator(self._tree, activation, cost).evaluate()
        except _TooExpensiveError:
            raise CelError("the cost of the expression exceeds the limit") from None
        except RecursionError:
            raise CelError("nested too deeply") from None
        except _FAILURES as exc:
            raise CelError(_text(exc)) from exc
        if not isinstance(value, bool | celtypes.BoolType):
            raise CelError(f"the result is not true or false, but {_type_name(value)}")
        return bool(value), cost.spent


def compile_selector(expression: str) -> Program:
    """Compile an expression. Raises CelError."""
    try:
        tree = _collapse(_parser().parse(expression))
        _check_names(tree)
    except RecursionError:
        raise CelError("nested too deeply") from None
    except lark.exceptions.UnexpectedInput as exc:
        raise CelError(f"syntax error at line {exc.line}, column {exc.column}") from exc
    except lark.exceptions.LarkError as exc:
        raise CelError("syntax error") from exc
    return Program(tree)


def device_input(device: Offered) -> object:
    """Return variable `device` for a device. Raises CelError for an attribute that is invalid."""
    try:
        attributes = _by_domain(device, ((k, _value(v)) for k, v in device.attributes.items()))
    except ValueError as exc:
        raise CelError(str(exc)) from exc
    capacity = _by_domain(device, ((k, Quantity(v)) for k, v in device.capacity.items()))
    shared = bool(device.device.allowMultipleAllocations)
    return celtypes.MapType(
        {
            celtypes.StringType("driver"): celtypes.StringType(device.id.driver),
            celtypes.StringType("attributes"): attributes,
            celtypes.StringType("capacity"): capacity,
            celtypes.StringType("allowMultipleAllocations"): celtypes.BoolType(shared),
        }
    )


def _by_domain(device: Offered, values: Iterable[tuple[str, Any]]) -> _Domains:
    domains = _Domains()
    for name, value in values:
        domain, slash, short = name.partition("/")
        if not slash:
            domain, short = device.id.driver, name
        key = celtypes.StringType(domain)
        if key not in domains:
            domains[key] = celtypes.MapType()
        domains[key][celtypes.StringType(short)] = value
    return domains


def _value(value: AttributeValue) -> Any:
    if isinstance(value, tuple):
        return celtypes.ListType([_value(one) for one in value])
    if isinstance(value, Version):
        return SemVer.parse(value)
    if isinstance(value, bool):
        return celtypes.BoolType(value)
    return celtypes.IntType(value) if isinstance(value, int) else celtypes.StringType(value)


_cached_parser: list[lark.Lark] = []


def _parser() -> lark.Lark:
    """Return a parser of the library's grammar with optional selection added to its members."""
    if not _cached_parser:
        grammar = (Path(celpy.__file__).parent / "cel.lark").read_text()
        extended, count = re.subn(
            r"^member( +): member_dot ",
            r"member\1: member_opt_dot | member_opt_index | member_dot ",
            grammar,
            flags=re.MULTILINE,
        )
        assert count == 1, "the grammar of this version of cel-python is another one"
        extended += (
            '\nmember_opt_dot : member ".?" IDENT\nmember_opt_index : member "[?" expr "]"\n'
        )
        _cached_parser.append(
            lark.Lark(
                extended,
                parser="lalr",
                start="expr",
                g_regex_flags=re.MULTILINE,
                lexer_callbacks={"IDENT": CELParser.ambiguous_literals},
                propagate_positions=True,
                maybe_placeholders=False,
                priority="invert",
            )
        )
    return _cached_parser[0]


def _collapse(tree: lark.Tree[Any]) -> lark.Tree[Any]:
    """Return the tree without nodes that only pass on their child: it is nested half as deep."""
    while tree.data in _CHAIN and len(tree.children) == 1:
        child = tree.children[0]
        if not isinstance(child, lark.Tree):
            break
        tree = child
    tree.children = [_collapse(c) if isinstance(c, lark.Tree) else c for c in tree.children]
    return tree


def _check_names(tree: lark.Tree[Any]) -> None:
    """Refuse functions that this environment does not have. Raises CelError."""
    for node in tree.iter_subtrees():
        if node.data in ("ident_arg", "dot_ident_arg"):
            name = str(node.children[0])
            known = name in ("has", "dyn") or name in FUNCTIONS
            if name == "has" and _has_argument(node) is None:
                raise CelError("invalid argument to has() macro")
        elif node.data == "member_dot_arg":
            name = str(node.children[1])
            known = name in FUNCTIONS or name in _MACROS or _namespace(node) is not None
            _check_macro(node, name)
        else:
            continue
        if not known:
            raise CelError(f"undeclared reference to {name!r}")


def _check_macro(node: lark.Tree[Any], name: str) -> None:
    wanted = 2 if name in _MACROS else 3 if _namespace(node) == ("cel", "bind") else 0
    if not wanted:
        return
    arguments = node.children[2].children if len(node.children) == 3 else []
    variable = arguments[1 if name == "map" and len(arguments) == 3 else 0] if arguments else None
    if len(arguments) != wanted or _identifier(variable) is None:
        raise CelError(f"{name}(): expected {wanted} arguments, a variable first")


def _identifier(node: Any) -> str | None:
    """Return the name if a node is a plain identifier."""
    while isinstance(node, lark.Tree) and len(node.children) == 1 and node.data != "ident":
        node = node.children[0]
    if isinstance(node, lark.Tree) and node.data == "ident":
        return str(node.children[0])
    return None


def _namespace(node: lark.Tree[Any]) -> tuple[str, str] | None:
    """Return `cel.bind`, `optional.of` or `optional.none` as a pair."""
    pair = (_identifier(node.children[0]) or "", str(node.children[1]))
    known = (("cel", "bind"), ("optional", "of"), ("optional", "none"))
    return pair if pair in known else None


def _has_argument(node: lark.Tree[Any]) -> lark.Tree[Any] | None:
    """Return the selection in `has(a.b)`."""
    arguments = node.children[1].children if len(node.children) == 2 else []
    found = arguments[0] if len(arguments) == 1 else None
    return found if isinstance(found, lark.Tree) and found.data == "member_dot" else None


class _Evaluator(Evaluator):
    def __init__(self, ast: lark.Tree[Any], activation: Activation, cost: _Cost) -> None:
        super().__init__(ast, activation)
        self._cost = cost

    def sub_evaluator(self, ast: lark.Tree[Any]) -> _Evaluator:
        return _Evaluator(ast, self.activation, self._cost)

    def _visit_tree(self, tree: lark.Tree[Any]) -> Any:
        self._cost.spend(1)
        value = super()._visit_tree(tree)
        if isinstance(value, str | bytes | list | dict):
            # Afterwards is early enough: no operation makes more than the sum of its operands.
            self._cost.spend(len(value) // 16)
        return value

    def macro_has_eval(self, exprlist: lark.Tree[Any]) -> Any:
        selection: Any = exprlist.children[0]
        base = self.visit(selection.children[0])
        if isinstance(base, CELEvalError):
            return base
        found = _select(base, celtypes.StringType(selection.children[1]), optional=True)
        return found if isinstance(found, CELEvalError) else celtypes.BoolType(found is not NONE)

    def member_dot(self, tree: lark.Tree[Any]) -> Any:
        return self._selected(tree, optional=False)

    def member_opt_dot(self, tree: lark.Tree[Any]) -> Any:
        return self._selected(tree, optional=True)

    def member_index(self, tree: lark.Tree[Any]) -> Any:
        return self._selected(tree, optional=False)

    def member_opt_index(self, tree: lark.Tree[Any]) -> Any:
        return self._selected(tree, optional=True)

    def _selected(self, tree: lark.Tree[Any], *, optional: bool) -> Any:
        member, key = tree.children
        base = self.visit(member)
        chosen = self.visit(key) if isinstance(key, lark.Tree) else celtypes.StringType(key)
        for value in (base, chosen):
            if isinstance(value, CELEvalError):
                return value
        return _select(base, chosen, optional=optional)

    def member_dot_arg(self, tree: lark.Tree[Any]) -> Any:
        arguments: Any = tree.children[2].children if len(tree.children) == 3 else []
        match _namespace(tree):
            case ("cel", "bind"):
                value = self.visit(arguments[1])
                if isinstance(value, CELEvalError):
                    return value
                inner = self.sub_evaluator(arguments[2])
                name = _identifier(arguments[0])
                assert name is not None  # checked when it was compiled
                return inner.set_activation({name: value}).visit(arguments[2])
            case ("optional", "of") if len(arguments) == 1:
                value = self.visit(arguments[0])
                return value if isinstance(value, CELEvalError) else Optional(value)
            case ("optional", "none"):
                return NONE
        return super().member_dot_arg(tree)


def _select(base: Any, key: Any, *, optional: bool) -> Any:
    """Return a field, an entry or an element; with `optional`, or from an optional, as one."""
    if isinstance(base, Optional):
        # Once optional, a chain stays so.
        return base if base is NONE else _select(base.content, key, optional=True)
    if isinstance(base, celtypes.MapType):
        try:
            found = base[key]
        except KeyError:
            return NONE if optional else CELEvalError(f"no such key: {key}", KeyError, ())
        except TypeError:
            return CELEvalError("no such overload: the key of a map", TypeError, ())
    elif isinstance(base, celtypes.ListType) and type(key) is celtypes.IntType:
        if not 0 <= key < len(base):
            return NONE if optional else CELEvalError(f"index out of bounds: {key}", KeyError, ())
        found = base[key]
    else:
        return CELEvalError(f"{_type_name(base)} has no fields", TypeError, ())
    return Optional(found) if optional else found


def _text(exc: BaseException) -> str:
    """Return the message of the library's error: its first argument, in one line."""
    first = str(exc.args[0] if exc.args else type(exc).__name__)
    if first.startswith("found no matching overload"):
        return "no such overload"
    if isinstance(exc.__cause__, ValueError):  # of a function of ours
        first = str(exc.__cause__)
    return first.partition(" (in activation")[0].partition("\n")[0][:200]


_NAMES: tuple[tuple[type, str], ...] = (
    (celtypes.BoolType, "bool"),
    (celtypes.IntType, "int"),
    (celtypes.UintType, "uint"),
    (celtypes.DoubleType, "double"),
    (celtypes.StringType, "string"),
    (celtypes.MapType, "map"),
    (celtypes.ListType, "list"),
    (Quantity, "quantity"),
    (SemVer, "semver"),
    (Optional, "optional"),
)


def _type_name(value: object) -> str:
    return next((name for kind, name in _NAMES if isinstance(value, kind)), type(value).__name__)
