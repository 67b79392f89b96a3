"""The behaviour of a container of the fake runtime after its start.

A callback chooses it, or words in the image's name and the command do, so that a manifest is
enough to define how its container behaves:

    image: exit-1                   exits with code 1 at once
    image: exit-3-after-5           runs 5 s, then exits with code 3
    image: web:1                    runs until it is stopped
    image: stubborn                 ignores SIGTERM
    image: slow-stop-4              takes 4 s to stop
    image: no-start, no-create      StartContainer, CreateContainer fail
    image: missing-x                cannot be pulled (see `FakeImages`)
    command: [exit-0-after-2]       the same words, and they win over the image's
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from kubelet_trio.cri import v1

# 128 and the signal's number, as runtimes report the end by a signal.
SIGTERM_EXIT = 143
SIGKILL_EXIT = 137


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a container behaves. All times are seconds of trio's clock."""

    exits_after: float | None = None  # after its start; None: runs until stopped
    exit_code: int = 0
    reason: str = ""  # of the exit; "" is Completed or Error, by the exit code
    ignores_sigterm: bool = False
    stop_takes: float = 0.0  # from SIGTERM to the exit
    stop_exit_code: int = SIGTERM_EXIT
    create_error: str = ""  # CreateContainer fails with this message
    start_error: str = ""  # StartContainer fails with this message, state EXITED, code 128
    output: str = ""  # written to the log file at the start
    termination_message: str = ""  # written to the mounted message file at the exit


Behave = Callable[[v1.ContainerConfig], Behaviour]

_EXIT = re.compile(r"\bexit-(\d+)(?:-after-(\d+(?:\.\d+)?))?")
_SLOW_STOP = re.compile(r"\bslow-stop-(\d+(?:\.\d+)?)")
# Text that begins like a behaviour word. If it is not one, it is probably mistyped, and an error is
# better than a container that silently runs for ever.
_LIKE_A_WORD = re.compile(r"(?<![\w.-])(?:exit|slow-stop|no-(?:start|create))-[\w.-]*")
_NUMBER = r"\d+(?:\.\d+)?"
_WORD = re.compile(rf"exit-\d+(?:-after-{_NUMBER})?|slow-stop-{_NUMBER}")


def mistaken_words(text: str) -> list[str]:
    """Return the strings that begin like a behaviour word but are not one."""
    return [word for word in _LIKE_A_WORD.findall(text) if not _WORD.fullmatch(word)]


def behaviour_from_words(text: str) -> Behaviour:
    """Read a behaviour from the words in the module's docstring; ignore other words.

    With a mistyped word the container cannot be created, and the error names the word.
    """
    if mistaken := mistaken_words(text):
        known = "exit-CODE, exit-CODE-after-SECONDS, slow-stop-SECONDS"
        return Behaviour(
            create_error=f"the fake runtime does not know {mistaken[0]!r}: expected {known}"
        )
    exits, slow = _EXIT.search(text), _SLOW_STOP.search(text)
    return Behaviour(
        exits_after=float(exits[2] or 0) if exits else None,
        exit_code=int(exits[1]) if exits else 0,
        ignores_sigterm="stubborn" in text,
        stop_takes=float(slow[1]) if slow else 0.0,
        create_error="container could not be created" if "no-create" in text else "",
        start_error="exec: no such file or directory" if "no-start" in text else "",
    )


def behaviour_by_name(config: v1.ContainerConfig) -> Behaviour:
    """Choose by the words of command and args, or else of the image's name."""
    by_command = behaviour_from_words(" ".join([*config.command, *config.args]))
    if by_command != Behaviour():
        return by_command
    image = config.image or v1.ImageSpec()
    return behaviour_from_words(image.user_specified_image or image.image)
