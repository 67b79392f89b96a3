"""The runtime's state on disk: all that the next agent needs to take over.

    <state>/<sandbox id>/sandbox.json, sandbox.pb
    <state>/<sandbox id>/<container id>/container.json, container.pb    facts and CRI config
                                       /spec.json                       read by the shim
                                       /shim.json, exit.json, control   written by the shim
                                       /work                            working directory

`sandbox.json` and `container.json` are written last and removed first. A directory without its
`.json` was not completed or not removed completely; the next agent removes it. All functions
block.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.process.identity import Identity
from kubelet_trio.cri.process.launch import Spec
from kubelet_trio.cri.process.shim import protocol
from kubelet_trio.model import (
    JSON_ERRORS,
    ContainerId,
    SandboxId,
    StateForm,
    StateVersionError,
    parse_message,
    remove_tree,
    write_aside,
)

if TYPE_CHECKING:
    import betterproto2

# Searchable by everyone, for containers of other users; listable by the owner only.
_DIRECTORY_MODE = 0o711
_SANDBOX, _CONTAINER = "sandbox", "container"
WORK = "work"

# A crash of the machine may leave files empty or truncated.
_UNREADABLE = (FileNotFoundError, ValueError, EOFError, *JSON_ERRORS)

_Facts = TypeVar("_Facts", bound="SandboxFacts | ContainerFacts")
_Config = TypeVar("_Config", bound="betterproto2.Message")


class SandboxFacts(msgspec.Struct, frozen=True):
    """A sandbox's own data; its config is in the `.pb`. Times are Unix nanoseconds."""

    id: SandboxId
    created_at: int
    boot: str  # id of the boot it was created in; it is not ready in any other
    stopped: bool = False


class ContainerFacts(msgspec.Struct, frozen=True):
    """A container's own data; its config is in the `.pb`. Times are Unix nanoseconds."""

    id: ContainerId
    created_at: int
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    log_path: str = ""
    cgroups: tuple[str, ...] = ()


_WITHOUT = "the agent ends the processes in its directory"
SANDBOX_FORM = StateForm("a sandbox of the process runtime", SandboxFacts, 1, _WITHOUT)
CONTAINER_FORM = StateForm("a container of the process runtime", ContainerFacts, 1, _WITHOUT)


def new_id() -> str:
    """Return a new id in the format of other runtimes: 64 hexadecimal digits."""
    return os.urandom(32).hex()


def make_state_dir(state_dir: Path) -> None:
    state_dir.mkdir(parents=True, exist_ok=True)
    state_dir.chmod(_DIRECTORY_MODE)


def write_sandbox(directory: Path, facts: SandboxFacts, config: v1.PodSandboxConfig) -> None:
    """Create a sandbox's directory and write its files."""
    directory.mkdir(mode=_DIRECTORY_MODE)
    directory.chmod(_DIRECTORY_MODE)
    write_aside(directory / f"{_SANDBOX}.pb", bytes(config))
    update_sandbox(directory, facts)


def update_sandbox(directory: Path, facts: SandboxFacts) -> None:
    write_aside(directory / f"{_SANDBOX}.json", SANDBOX_FORM.encode(facts))


def write_container(
    directory: Path, facts: ContainerFacts, config: v1.ContainerConfig, spec: Spec
) -> None:
    """Write the files of a container into the directory that `make_work_dir` created."""
    directory.chmod(_DIRECTORY_MODE)
    write_aside(directory / f"{_CONTAINER}.pb", bytes(config))
    write_aside(directory / protocol.SPEC, msgspec.json.encode(spec))
    write_aside(directory / f"{_CONTAINER}.json", CONTAINER_FORM.encode(facts))


def update_container(directory: Path, config: v1.ContainerConfig) -> None:
    """Replace a container's config. Raises OSError."""
    write_aside(directory / f"{_CONTAINER}.pb", bytes(config))


def make_work_dir(directory: Path, identity: Identity, *, switch_user: bool) -> Path:
    """Create a container's directory, and in it a working directory that its user owns."""
    directory.mkdir(mode=_DIRECTORY_MODE)
    work = directory / WORK
    work.mkdir(mode=0o755)
    if switch_user:
        os.chown(work, identity.uid, identity.gid)
    return work


def remove(directory: Path) -> None:
    """Remove a sandbox's or a container's directory, `.json` first; a missing one is no error."""
    for name in (_SANDBOX, _CONTAINER):
        (directory / f"{name}.json").unlink(missing_ok=True)
    remove_tree(directory)


def load_sandboxes(
    state_dir: Path,
) -> Iterator[tuple[Path, SandboxFacts, v1.PodSandboxConfig]]:
    """Yield every sandbox, oldest first. Remove directories that are incomplete."""
    return _load(state_dir, _SANDBOX, SANDBOX_FORM, v1.PodSandboxConfig)


def load_containers(
    sandbox: Path,
) -> Iterator[tuple[Path, ContainerFacts, v1.ContainerConfig]]:
    """Yield every container in a sandbox's directory; otherwise as `load_sandboxes`."""
    return _load(sandbox, _CONTAINER, CONTAINER_FORM, v1.ContainerConfig)


def check_versions(state_dir: Path) -> None:
    """Raise `StateVersionError` if any of the state is of a newer agent. Raises OSError."""
    for pattern, form in (
        (f"*/{_SANDBOX}.json", SANDBOX_FORM),
        (f"*/*/{_CONTAINER}.json", CONTAINER_FORM),
    ):
        for path in state_dir.glob(pattern):
            with contextlib.suppress(FileNotFoundError, *JSON_ERRORS):  # see `_load`
                form.check(path.read_bytes(), path)


def _load(
    parent: Path, name: str, form: StateForm[_Facts], config_type: type[_Config]
) -> Iterator[tuple[Path, _Facts, _Config]]:
    found: list[tuple[Path, _Facts, _Config]] = []
    for directory in _directories(parent):
        try:
            path = directory / f"{name}.json"
            facts = form.decode(path.read_bytes(), path)
            config = parse_message(config_type, (directory / f"{name}.pb").read_bytes())
        except StateVersionError:
            raise
        except _UNREADABLE:
            remove(directory)
        else:
            found.append((directory, facts, config))
    yield from sorted(found, key=lambda item: item[1].created_at)


def _directories(parent: Path) -> list[Path]:
    with os.scandir(parent) as entries:
        return [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]
