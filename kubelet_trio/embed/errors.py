"""Errors that an embedded kubelet raises into the program.

    KubeletError                     the base: catch this for all of them
    ├── KubeletClosedError           the kubelet has ended (or never started): no call works
    │   └── KubeletFailedError       it gave up; `__cause__` says why
    ├── PodExistsError               a pod of that name exists already
    ├── PodNotFoundError             there is no pod of that name
    ├── PodNotReadyError             the pod cannot start until something outside changes
    ├── PodEndedError                the pod ended or was removed during the wait
    ├── PodResizeError               the pod cannot have the resources that were asked for
    ├── ContainerUnavailableError    the container does not run, or has no log yet
    └── CommandFailedError           a command of `exec(check=True)` exited with another code than 0

An invalid pod raises `ManifestError`, with every reason and its field path. A refusal by the
runtime raises `RuntimeCallError` or a subclass.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubelet_trio.cri import ExecResult


class KubeletError(Exception):
    """Base of the errors below."""


class KubeletClosedError(KubeletError):
    """The kubelet has ended; its pod handles and streams no longer work."""


class KubeletFailedError(KubeletClosedError):
    """The kubelet could not start, or one of its parts kept failing. `__cause__` says why."""


class PodExistsError(KubeletError):
    """A pod of that name exists already, and this call may not replace it."""


class PodNotFoundError(KubeletError):
    """There is no pod of that name."""


class PodNotReadyError(KubeletError):
    """A container cannot start until something outside changes; the message says why."""


class PodEndedError(KubeletError):
    """The pod can never reach the awaited state: it has ended, or was removed."""


class PodResizeError(KubeletError):
    """The pod keeps its resources: the node can never grant the new ones, or they were replaced."""


class ContainerUnavailableError(KubeletError):
    """The container does not run now, or has no log yet."""


class CommandFailedError(KubeletError):
    """A command exited with another code than 0; `result` has its output and code."""

    def __init__(self, command: Sequence[str], result: ExecResult) -> None:
        self.command = tuple(command)
        self.result = result
        last = result.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        text = f"{list(command)} exited with code {result.exit_code}"
        super().__init__(f"{text}: {last}" if last else text)


for _error in (
    KubeletError,
    KubeletClosedError,
    KubeletFailedError,
    PodExistsError,
    PodNotFoundError,
    PodNotReadyError,
    PodEndedError,
    PodResizeError,
    ContainerUnavailableError,
    CommandFailedError,
):
    _error.__module__ = "kubelet_trio"  # tracebacks show where a program imports it from
