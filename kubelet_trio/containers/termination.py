"""The termination message of a container.

A host file is mounted at the container's `terminationMessagePath`, a new one for each instance.
With the policy FallbackToLogsOnError, if the file is empty and the container failed, the message is
the end of its log. All functions that read or write files block.
"""

from __future__ import annotations

import os
from pathlib import Path

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.containers.labels import TERMINATION_MESSAGE_POLICY
from kubelet_trio.containers.logs.cri_log import LogOptions, read_log
from kubelet_trio.containers.paths import container_dir, make_directories
from kubelet_trio.model import ContainerRecord, open_regular, pod_containers

# Source: MaxContainerTerminationMessage... in pkg/kubelet/container/runtime.go.
MAX_MESSAGE = 4096  # bytes of the file's end
MAX_LOG_LINES = 80
MAX_LOG_MESSAGE = 2048  # bytes of the log's end
MAX_POD_MESSAGES = 12 * 1024  # bytes of all containers of a pod together

_FALLBACK = "FallbackToLogsOnError"
_NEVER_RAN = "ContainerCannotRun"


def make_termination_log(pod_dir: Path, container: str) -> Path:
    """Create an empty message file for a new instance of a container. Raises OSError."""
    directory = container_dir(pod_dir, container)
    make_directories(directory)
    path = directory / os.urandom(4).hex()
    path.touch()
    path.chmod(0o666)  # the container may run as any user
    return path


def read_termination_message(record: ContainerRecord, container: Container | None = None) -> str:
    """Return the message of an exited container; "" if it left none.

    The policy is that in the record, which the container was started with, else `container`'s.
    If the file cannot be read, the message says so.
    """
    policy = record.annotations.get(TERMINATION_MESSAGE_POLICY) or (
        container.terminationMessagePolicy if container is not None else None
    )
    message = ""
    if record.termination_message_path:
        try:
            message = _file_end(record.termination_message_path)
        except FileNotFoundError:
            message = ""
        except OSError as exc:
            path = record.termination_message_path
            return f"Error on reading termination log {path}: {exc.strerror}"
    # A container that could not even start has no log. Source: kuberuntime_container.go.
    failed = record.exit_code != 0 and record.reason != _NEVER_RAN
    if message or policy != _FALLBACK or not failed or not record.log_path:
        return message
    return _log_end(record.log_path)


def message_limit(pod: Pod) -> int:
    """Return the limit of each container's message in the pod's status, in bytes."""
    return MAX_POD_MESSAGES // max(sum(1 for _ in pod_containers(pod)), 1)


def cut_message(message: str, limit: int) -> str:
    """Return the first `limit` bytes of a message, never half a character."""
    encoded = message.encode()
    return message if len(encoded) <= limit else encoded[:limit].decode(errors="ignore")


def _file_end(path: str) -> str:
    # A volume mounted over it may have put anything there: a FIFO, or a link to a host file.
    with open(open_regular(path), "rb", buffering=0) as file:
        file.seek(max(os.fstat(file.fileno()).st_size - MAX_MESSAGE, 0))
        return file.read(MAX_MESSAGE).decode(errors="replace")


def _log_end(path: str) -> str:
    end = b""
    try:
        for piece in read_log(Path(path), LogOptions(tail=MAX_LOG_LINES)):
            end = (end + piece)[-MAX_LOG_MESSAGE:]
    except OSError as exc:
        return f"Error on reading termination message from logs: {exc.strerror}"
    return end.decode(errors="replace")
