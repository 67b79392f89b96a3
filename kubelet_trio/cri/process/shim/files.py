"""Writing the small files of a container's directory so that readers never see a partial one."""

from __future__ import annotations

import json
import os


def write_file(path: str, text: str) -> bool:
    """Write to an existing file; return whether that succeeded."""
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
    """Replace a file of the working directory atomically.

    With `only_new`, raises FileExistsError if it exists.
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


_ROOM = 1024  # bytes; the record of an exit is smaller


def reserve(name: str) -> str:
    """Reserve disk space for a file of the working directory that is written later."""
    room = f"{name}.room"
    fd = os.open(room, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        file.write(" " * _ROOM)
    return room


def fill_json(room: str, name: str, value: object) -> None:
    """Write into the reserved space, which works on a full disk, and rename it."""
    fd = os.open(room, os.O_WRONLY | os.O_CLOEXEC)
    with open(fd, "w") as file:
        file.write(json.dumps(value))  # the blanks that follow are valid JSON whitespace
    os.rename(room, name)
