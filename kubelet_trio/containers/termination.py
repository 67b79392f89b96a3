"""The termination message: what a container left behind to explain its end.

A file of the host's is mounted at the container's `terminationMessagePath`; a new one for
each instance, so that an instance never shows another's words. Where the policy is
FallbackToLogsOnError and the file is empty, the end of the log of a failed container
stands in. Functions here block: callers hand them to a thread.
"""

from __future__ import annotations

import os
from pathlib import Path

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.containers.cri_log import LogOptions, read_log
from kubelet_trio.containers.directories import make_directories
from kubelet_trio.containers.labels import TERMINATION_MESSAGE_POLICY
from kubelet_trio.containers.paths import container_dir
from kubelet_trio.model import ContainerRecord, open_regular, pod_containers

MAX_MESSAGE = 4096  # bytes of the file's end
MAX_LOG_LINES = 80
MAX_LOG_MESSAGE = 2048  # bytes of the log's end
MAX_POD_MESSAGES = 12 * 1024  # bytes of all containers of a pod together

_FALLBACK = "FallbackToLogsOnError"
_NEVER_RAN = "ContainerCannotRun"


def make_termination_log(pod_dir: Path, container: str) -> Path:
    """Make an empty message file for a new instance of a container, writable by any user."""
    directory = container_dir(pod_dir, container)
    make_directories(directory)
    path = directory / os.urandom(4).hex()
    path.touch()
    path.chmod(0o666)
    return path


def read_termination_message(record: ContainerRecord, container: Container | None = None) -> str:
    """Return an ended container's message, empty if it left none.

    The policy it was started with is its record's; `container` is asked only where the
    record has none. A file that cannot be read says so in the message.
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
    failed = record.exit_code != 0 and record.reason != _NEVER_RAN
    if message or policy != _FALLBACK or not failed or not record.log_path:
        return message
    return _log_end(record.log_path)


def message_limit(pod: Pod) -> int:
    """Return how many bytes each container's message may have in the pod's status."""
    return MAX_POD_MESSAGES // max(sum(1 for _ in pod_containers(pod)), 1)


def cut_message(message: str, limit: int) -> str:
    """Return the first `limit` bytes of a message, never half a character."""
    encoded = message.encode()
    return message if len(encoded) <= limit else encoded[:limit].decode(errors="ignore")


def _file_end(path: str) -> str:
    # A volume mounted there may hold anything: a FIFO, or a link to a file of the host.
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
