"""What may go wrong between a program and the agent that it embeds.

    KubeletError                     the base: catch this for all of them
    ├── KubeletClosedError           the kubelet has ended (or never began): nothing more works
    │   └── KubeletFailedError       it gave up; `__cause__` says why
    ├── PodExistsError               a pod of that name is there already
    ├── PodNotFoundError             there is no pod of that name
    ├── PodNotReadyError             the pod cannot start, and nothing the kubelet does helps
    ├── PodEndedError                the pod ended or was removed while it was waited for
    └── ContainerUnavailableError    the container does not run, or has written no log

A pod that cannot be accepted raises `ManifestError`, with every reason and its field path;
what the runtime refuses raises `RuntimeCallError` or a class below it.
"""

from __future__ import annotations


class KubeletError(Exception):
    """Base of the errors below."""


class KubeletClosedError(KubeletError):
    """The kubelet has ended; a pod handle or stream of it is of no more use."""


class KubeletFailedError(KubeletClosedError):
    """The kubelet could not start, or one of its parts kept failing. `__cause__` says why."""


class PodExistsError(KubeletError):
    """A pod of that name is there already, and is not this caller's to replace."""


class PodNotFoundError(KubeletError):
    """There is no pod of that name."""


class PodNotReadyError(KubeletError):
    """A container cannot start until somebody changes something; the message says why."""


class PodEndedError(KubeletError):
    """The pod can never be what was waited for: it has ended, or was removed."""


class ContainerUnavailableError(KubeletError):
    """The container does not run now, or has not written a log yet."""


for _error in (
    KubeletError,
    KubeletClosedError,
    KubeletFailedError,
    PodExistsError,
    PodNotFoundError,
    PodNotReadyError,
    PodEndedError,
    ContainerUnavailableError,
):
    _error.__module__ = "kubelet_trio"  # tracebacks show where a program imports it from
