"""Small files, written so that a reader never sees half of one."""

from __future__ import annotations

import json
import os


def write_file(path: str, text: str) -> bool:
    """Write to a file that exists; return whether that worked."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, text.encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def write_json(name: str, value: object, *, only_new: bool = False) -> None:
    """Replace a file of the working directory: readers see all of it or nothing.

    Raises FileExistsError if it is to be new and is there.
    """
    new = f"{name}.{os.getpid()}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        file.write(json.dumps(value))
    if only_new:
        os.link(new, name)
        os.unlink(new)
    else:
        os.rename(new, name)


_ROOM = 1024  # bytes: more than what is told of an end takes


def reserve(name: str) -> str:
    """Take room on the disk for a file of the working directory that is written later."""
    room = f"{name}.room"
    fd = os.open(room, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        file.write(" " * _ROOM)
    return room


def fill_json(room: str, name: str, value: object) -> None:
    """Write to the room, which a full disk takes too, and give it its name."""
    fd = os.open(room, os.O_WRONLY | os.O_CLOEXEC)
    with open(fd, "w") as file:
        file.write(json.dumps(value))  # the blanks that are left after it are JSON as well
    os.rename(room, name)
