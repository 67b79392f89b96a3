"""A lean import leaves out what is only read, and changes nothing that a program does."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.lean import share_methods, trim, without_docstrings

_SOURCE = '''"""Of the module."""

def f(a: int) -> str:
    """Of f."""
    return "kept"

def bare():
    return "kept"

class C:
    """Of C."""
    text = "kept"
    def m(self) -> int:
        """Of m."""
        def inner():
            """Of inner."""
            return inner.__doc__
        return inner()

class Bare:
    text = "kept"

async def co():
    """Of co."""
    return 5

listed = ["kept" for _ in range(1)]
lazy = lambda: "kept"
only = (lambda x: f"kept {x}")(1)
generated = list("kept" for _ in range(1))
'''


def compiled(source: str) -> CodeType:
    return compile(source, "made.py", "exec", dont_inherit=True)


def run(code: CodeType) -> ModuleType:
    module = ModuleType("made")
    exec(code, vars(module))
    return module


def test_docstrings_are_gone_and_other_constants_stay() -> None:
    module = run(without_docstrings(compiled(_SOURCE)))
    names = vars(module)
    assert names["f"].__doc__ is None
    assert names["f"](1) == names["bare"]() == names["lazy"]() == "kept"
    assert names["C"].__doc__ != "Of C."
    assert names["C"]().m() is None
    assert names["C"].text == names["Bare"].text == "kept"
    assert names["co"].__doc__ is None
    assert names["listed"] == names["generated"] == ["kept"]
    assert names["only"] == "kept 1"
    with pytest.raises(StopIteration, match="5"):
        names["co"]().send(None)


def test_lines_of_tracebacks_stay() -> None:
    code = without_docstrings(compiled("def f():\n    '''a'''\n    1 / 0\n"))
    with pytest.raises(ZeroDivisionError) as failed:
        vars(run(code))["f"]()
    assert failed.traceback[-1].lineno == 2  # of pytest: counted from 0


def test_code_without_docstrings_is_left_as_it_is() -> None:
    code = compiled("x = 1\ndef f():\n    return 'a'\n")
    assert without_docstrings(code) is code


def test_annotations_of_functions_go_and_those_of_fields_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = "from dataclasses import dataclass\n" + _SOURCE
    source += "@dataclass\nclass D:\n    a: int = 1\n    def m(self, b: int) -> None: ...\n"
    monkeypatch.setitem(sys.modules, "made", ModuleType("made"))  # dataclasses looks there
    module = run(compiled(source))
    trim(module)
    names = vars(module)
    assert names["f"].__annotations__ == names["C"].m.__annotations__ == {}
    assert names["D"].m.__annotations__ == names["D"].__init__.__annotations__ == {}
    assert names["D"].__annotations__ == {"a": int}
    assert names["D"]() == names["D"](1)


def test_a_module_among_the_names_is_not_asked_for_anything() -> None:
    class Asked(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise AssertionError(name)

    module = ModuleType("made")
    vars(module)["other"] = Asked("other")
    trim(module)


_SEAM = '''
from typing import Protocol
class Seam(Protocol):
    def a(self):
        """A."""
        ...
    async def b(self, x): ...
    def c(self):
        """C."""
        return 5
'''


def test_a_protocol_shares_the_methods_without_a_body() -> None:
    module = run(without_docstrings(compiled(_SEAM)))
    trim(module)
    seam: Any = vars(module)["Seam"]

    class Real(seam):  # type: ignore[misc]
        pass

    assert "stub" in Real.a.__name__
    assert "stub" in Real.b.__name__
    assert Real().a() is None
    assert Real().c() == 5
    with pytest.raises(StopIteration):
        Real().b(1).send(None)


values = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.tuples(st.integers()))
kinds = st.tuples(st.integers(0, 4), st.booleans(), st.booleans())


@given(kinds, st.lists(values, min_size=4, max_size=4), st.lists(values, min_size=4, max_size=4))
def test_shared_methods_are_those_that_were_generated(
    kind: tuple[int, bool, bool], left: list[Any], right: list[Any]
) -> None:
    count, frozen, slots = kind
    names = ["a", "b", "c", "d"][:count]
    hidden = [("hidden", int, field(default=0, repr=False, compare=False))]
    made = [(name, object) for name in names]
    make: Any = make_dataclass  # whose classes mypy does not know
    both = [make("Made", [*made, *hidden], frozen=frozen, slots=slots) for _ in range(2)]
    real, lean = both
    share_methods(lean)
    a, b = real(*left[:count]), real(*right[:count])
    x, y = lean(*left[:count]), lean(*right[:count])
    assert (a == b) is (x == y)
    assert repr(a) == repr(x)
    assert x != a
    assert replace(x, hidden=1) == x
    if frozen:
        assert hash(x) == hash(replace(x, hidden=1))
        with pytest.raises(FrozenInstanceError, match="assign to field 'hidden'"):
            x.hidden = 2
        with pytest.raises(FrozenInstanceError, match="delete field 'hidden'"):
            del x.hidden
    else:
        with pytest.raises(TypeError):
            hash(x)
        x.hidden = 2
    assert [one.name for one in fields(x)] == [one.name for one in fields(a)]


def test_methods_of_the_class_itself_are_kept() -> None:
    @dataclass
    class Own:
        a: int

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

        def __repr__(self) -> str:
            return "own"

    share_methods(Own)
    assert Own(1) == Own(2)
    assert repr(Own(1)) == "own"


_DAEMON = """
import sys
sys.modules["rich"] = None
from kubelet_trio.lean import import_libraries, load_lean
load_lean()
import_libraries()
import kubelet_trio.daemon
"""


def run_lean(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _DAEMON + code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_spared_is_whole_for_who_imports_it() -> None:
    run_lean("""
import decimal, inspect, pickle, typing_extensions, uuid, ctypes.util
assert decimal.Decimal("1.5") + 1 == decimal.Decimal("2.5")
assert uuid.UUID(int=1).int == 1
assert pickle.loads(pickle.dumps([1])) == [1]
assert typing_extensions.TypedDict
assert ctypes.util.find_library("c")
async def f(): ...
assert inspect.iscoroutinefunction(f)
assert str(inspect.signature(run_test := lambda a, *, b=1: None)) == "(a, *, b=1)"
import attr.validators
assert attr.validators.in_([1])
""")


def test_trio_asks_inspect_without_running_it() -> None:
    run_lean("""
import sys, trio
async def main():
    lock = trio.Lock()
    async with lock:
        assert await trio.to_thread.run_sync(lambda: 7) == 7
trio.run(main)
assert type(sys.modules["inspect"]).__name__ == "_UnexecutedModule"
""")


def test_loggers_threads_and_errors_are_as_ever(tmp_path: Path) -> None:
    told = run_lean("""
import outcome, structlog, trio
try:
    outcome.Error("none")
except TypeError as failed:
    print(failed)
trio.run(trio.to_thread.run_sync, lambda: structlog.get_logger().info("said"))
""")
    assert "'error' must be <class 'BaseException'>" in told
    assert "said" in told


def test_yaml_is_read_and_written_without_its_parser_in_python() -> None:
    told = run_lean("""
import yaml
print(yaml.safe_load("a: [1, {b: 2.5}]"), yaml.safe_dump({"a": [1, None]}), end="")
try:
    yaml.safe_load("a: [1")
except yaml.YAMLError as failed:
    print(type(failed).__name__, failed.problem_mark.line)
print(hasattr(yaml.scanner.Scanner, "fetch_more_tokens"))
""")
    assert told == "{'a': [1, {'b': 2.5}]} a:\n- 1\n- null\nParserError 1\nFalse\n"
