"""What `tests/harness/seams.py` finds, and that the package has none of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.seams import Package, main, sources

_ROOM = '''
class RoomError(Exception): ...
class OtherError(Exception): ...
ROOM_ERRORS = (RoomError, OtherError, OSError)

def open_door():
    """Open it. Raises `RoomError` and OSError."""

def close_door():
    """Close it. Raises `ROOM_ERRORS`."""

class Door:
    async def knock(self):
        """Knock.

        Raises:
            RoomError: nobody is in.
            OSError: there is no door.
        """
'''


def gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caller: str) -> list[str]:
    """Return what is missed in a caller of the room, sorted."""
    monkeypatch.chdir(tmp_path)
    room = Path("house/room")
    room.mkdir(parents=True)
    (room / "_door.py").write_text(_ROOM)
    (room / "__init__.py").write_text(
        "from house.room._door import Door, OtherError, ROOM_ERRORS, RoomError\n"
        "from house.room._door import close_door, open_door\n"
    )
    header = "from house.room import Door, ROOM_ERRORS, RoomError, close_door, open_door\n"
    Path("house/caller.py").write_text(header + caller)
    found = Package(sources(Path("house"))).gaps()
    return [f"{gap.callee}: {', '.join(gap.missed)}" for gap in found]


_MISSING = {
    "a function": """
def f():
    try:
        open_door()
    except RoomError:
        pass
""",
    "a function in a thread": """
async def f(offload):
    try:
        await offload(open_door)
    except RoomError:
        pass
""",
    "a suppressed error": """
def f():
    with suppress(RoomError):
        open_door()
""",
    "only a part of what the system may say": """
def f():
    try:
        open_door()
    except (RoomError, FileNotFoundError):
        pass
""",
    "an inner function, whose caller's handler is another's": """
def f():
    try:
        def g():
            try:
                open_door()
            except RoomError:
                pass
    except OSError:
        pass
""",
}


@pytest.mark.parametrize("caller", _MISSING.values(), ids=_MISSING)
def test_an_except_that_expects_too_little_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caller: str
) -> None:
    assert gaps(tmp_path, monkeypatch, caller) == ["open_door: OSError"]


_METHODS = {
    "a parameter": """
async def f(door: Door | None):
    try:
        await door.knock()
    except OSError:
        pass
""",
    "a field": """
class Caller:
    door: Door
    async def f(self):
        try:
            await self.door.knock()
        except OSError:
            pass
""",
    "what the constructor was given": """
class Caller:
    def __init__(self, door: "Door"):
        self._door = door
    async def f(self):
        try:
            await self._door.knock()
        except OSError:
            pass
""",
    "an inherited method": """
class Caller(Door):
    async def f(self):
        try:
            await self.knock()
        except OSError:
            pass
""",
}


@pytest.mark.parametrize("caller", _METHODS.values(), ids=_METHODS)
def test_methods_are_found_by_annotations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caller: str
) -> None:
    assert gaps(tmp_path, monkeypatch, caller) == ["Door.knock: RoomError"]


_SOUND = {
    "the room's own tuple": """
def f():
    try:
        open_door()
        close_door()
    except ROOM_ERRORS:
        pass
""",
    "all of them, one by one": """
def f():
    try:
        open_door()
    except RoomError:
        pass
    except OSError:
        pass
""",
    "a base": """
def f():
    try:
        open_door()
    except Exception:
        pass
""",
    "the rest further out": """
def f():
    try:
        try:
            open_door()
        except RoomError:
            pass
    except OSError:
        pass
""",
    "the rest is documented": '''
def f():
    """Do it. Raises OSError."""
    try:
        open_door()
    except RoomError:
        pass
''',
    "an error of something else": """
def f():
    try:
        open_door()
        int("x")
    except ValueError:
        pass
""",
    "a call outside": """
def f():
    try:
        pass
    except RoomError:
        pass
    else:
        open_door()
""",
}


@pytest.mark.parametrize("caller", _SOUND.values(), ids=_SOUND)
def test_nothing_is_found_where_all_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caller: str
) -> None:
    assert gaps(tmp_path, monkeypatch, caller) == []


def test_a_tuple_stands_for_all_its_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = "def f():\n    try:\n        close_door()\n    except RoomError:\n        pass\n"
    assert gaps(tmp_path, monkeypatch, caller) == ["close_door: OSError, OtherError"]


def test_the_package_expects_all_that_its_rooms_raise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent)
    assert main(["kubelet_trio"]) == 0, capsys.readouterr().out
