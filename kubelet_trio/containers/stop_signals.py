"""The signals that stop containers, by the names of the API and of CRI (KEP-4960). Pure."""

from __future__ import annotations

from lightkube.models.core_v1 import Container

from kubelet_trio.cri import v1

# CRI's names cannot have the signs of SIGRTMIN+3 and SIGRTMAX-3.
_SIGNS = (("+", "PLUS"), ("-", "MINUS"))


def cri_stop_signal(container: Container) -> v1.Signal:
    """Return the signal by which the runtime is to stop a container.

    RUNTIME_DEFAULT leaves it to the image and the runtime; so does a name that CRI does not know.
    """
    name = (container.lifecycle.stopSignal if container.lifecycle is not None else None) or ""
    for sign, word in _SIGNS:
        name = name.replace(sign, word)
    return next((s for s in v1.Signal if s.name == name), v1.Signal.RUNTIME_DEFAULT)


def api_stop_signal(signal: v1.Signal) -> str:
    """Return the API's name of a container's stop signal; "" if the runtime does not tell it."""
    if signal == v1.Signal.RUNTIME_DEFAULT:
        return ""
    name = signal.name or ""  # of a newer CRI's signal it is None
    for sign, word in _SIGNS:
        name = name.replace(word, sign)
    return name
