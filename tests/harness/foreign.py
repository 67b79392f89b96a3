"""Finds where a file that somebody else may have made is opened or looked up by its path.

Containers, and pods that collect logs, make files where the agent works: a link, a FIFO or a device
may have any name there. `kubelet_trio.model.foreign` opens such files; whatever else goes by a
path in the modules that work there is found here, and either stands in `ALLOWED` with the reason
why nobody else can have made what has the path, or is a mistake. So is an entry without a use.

    python tests/harness/foreign.py kubelet_trio
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# What works below pods' directories, their logs and their volumes.
MODULES = (
    "containers/logs/cri_log.py",
    "containers/paths.py",
    "containers/env/files.py",
    "containers/hosts.py",
    "containers/logs/files.py",
    "containers/logs/follow.py",
    "containers/termination.py",
    "cri/process/creation.py",
    "cri/process/shim/log.py",
    "cri/process/store.py",
    "gc/log_files.py",
    "model/atomic.py",
    "model/foreign.py",
    "model/removal.py",
    "model/tree.py",
    "pods/records/files.py",
    "pods/records/record.py",
    "pressure/usage.py",
    "stats/volumes.py",
    "volumes/*.py",
    "volumes/csi/*.py",
    "volumes/host/*.py",
)

_OS = (
    "access chmod chown link listdir lstat makedirs mkdir open readlink remove rename replace "
    "rmdir scandir stat statvfs symlink truncate unlink utime walk"
)
_OS_PATH = "exists getmtime getsize isdir isfile ismount lexists realpath samefile"
_METHODS = (
    "chmod exists glob hardlink_to is_dir is_file is_mount iterdir lchmod mkdir open "
    "read_bytes read_text rename resolve rglob rmdir samefile stat symlink_to touch unlink "
    "write_bytes write_text"
)
_BY_DESCRIPTOR = frozenset(("dir_fd", "src_dir_fd"))


@dataclass(frozen=True, slots=True)
class Use:
    """A call that goes by a path."""

    where: str  # module and function
    call: str
    line: int

    @property
    def key(self) -> str:
        return f"{self.where} {self.call}"


def uses(source: str, module: str) -> Iterator[Use]:
    """Yield the calls of a module that go by a path."""
    yield from _Visitor(module).run(ast.parse(source))


class _Visitor(ast.NodeVisitor):
    def __init__(self, module: str) -> None:
        self._names = [module]
        self._found: list[Use] = []

    def run(self, tree: ast.Module) -> list[Use]:
        self.visit(tree)
        return self._found

    def _visit_scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_scope  # noqa: N815  # ast's

    def visit_Call(self, node: ast.Call) -> None:  # ast's name
        self.generic_visit(node)
        call = _risky(node)
        if call:
            where = f"{self._names[0]}::{'.'.join(self._names[1:])}"
            self._found.append(Use(where, call, node.lineno))


def _risky(node: ast.Call) -> str:
    """Return what a call is that goes by a path; "" for any other."""
    name = ast.unparse(node.func)
    room, _, last = name.rpartition(".")
    if room == "os" and last in _OS.split():
        # An open file is another matter: O_NOFOLLOW has to be among its flags.
        goes_by_descriptor = _BY_DESCRIPTOR & {keyword.arg for keyword in node.keywords}
        return "" if goes_by_descriptor and last != "open" else name
    if room == "os.path":
        return name if last in _OS_PATH.split() else ""
    if room == "shutil":
        return name
    if name == "open":  # of what another call has opened it is none
        return "" if node.args and isinstance(node.args[0], ast.Call) else name
    if isinstance(node.func, ast.Attribute) and last in _METHODS.split():
        return "" if _follows_nothing(node) else f"Path.{last}"
    return ""


def _follows_nothing(node: ast.Call) -> bool:
    """Whether it is an entry of a listing that is asked, and not what it leads to."""
    return any(
        keyword.arg == "follow_symlinks"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is False
        for keyword in node.keywords
    )


def problems(root: Path, allowed: Mapping[str, str]) -> list[str]:
    """Return what is wrong below a package: uses that are not allowed, entries without a use."""
    found = [
        use
        for pattern in MODULES
        for path in sorted(root.glob(pattern))
        for use in uses(path.read_text(), str(path.relative_to(root)))
    ]
    wrong = [
        f"{root}/{use.where.partition('::')[0]}:{use.line}: {use.call} goes by a path: use"
        f" kubelet_trio.model.foreign, or say in tests/harness/foreign.py why it may ({use.key!r})"
        for use in found
        if use.key not in allowed
    ]
    missing = [p for p in MODULES if not any(root.glob(p))]
    return [
        *wrong,
        *(
            f"ALLOWED: nothing uses {key!r}"
            for key in sorted(allowed.keys() - {u.key for u in found})
        ),
        *(f"MODULES: {pattern} is not there" for pattern in missing),
    ]


_FD = "it goes by a descriptor"
_FLAGS = "by a descriptor, and its flags follow no link"
_OWN = "no container has what it looks at: the directory is the agent's, and nothing in it mounted"
_HOST = "the node's own, or what the pod's author named"
_TOP = "the top of what is looked at; what is above it is the agent's"
_LINKS = "a link in /var/log/containers, which is changed and not followed"


def _all(reason: str, *entries: str) -> dict[str, str]:
    """Return the entries `module::function call[, call...]`, all of one reason."""
    found: dict[str, str] = {}
    for entry in entries:
        where, _, calls = entry.partition(" ")
        found |= {f"{where} {call}": reason for call in calls.split(", ")}
    return found


ALLOWED: dict[str, str] = {
    **_all(
        _FD,
        "containers/logs/files.py::next_restart_count os.listdir",
        "gc/log_files.py::make_room os.listdir",
        "gc/log_files.py::set_aside os.listdir",
        "gc/log_files.py::remove_old_logs os.listdir",
        "model/foreign.py::reopen_regular os.open",
        "model/removal.py::_entries os.scandir",
        "model/removal.py::_open os.chmod",
        "model/tree.py::_Walk._list os.scandir",
        "volumes/atomic.py::_clear os.scandir",
        "volumes/atomic.py::_has_names os.scandir",
        "volumes/ownership.py::_own_files os.scandir",
        "volumes/ownership.py::_Unchanged.tell os.readlink",
        "volumes/ownership.py::_own_entry os.chmod",
        "volumes/sub_path.py::_Walk._open os.chmod",
        "volumes/sub_path.py::open_inside os.readlink",
    ),
    **_all(
        _FLAGS,
        "containers/hosts.py::write_hosts os.open",
        "cri/process/shim/log.py::_open os.open",
        "gc/log_files.py::_create os.open",
        "model/foreign.py::_step os.open",
        "model/foreign.py::make_directory os.open",
        "model/foreign.py::open_directory os.open",
        "model/foreign.py::open_regular os.open",
        "model/foreign.py::stat_own os.stat",
        "model/removal.py::_open os.open",
        "volumes/atomic.py::_write os.open",
        "volumes/ownership.py::_own_file os.open",
        "volumes/sub_path.py::_Walk._up os.open",
        "volumes/sub_path.py::_open_path os.open",
    ),
    **_all(
        _TOP,
        "gc/log_files.py::pod_log_directories os.scandir",
        "model/removal.py::remove_empty Path.iterdir, Path.rmdir",
        "model/removal.py::remove_tree Path.rmdir",
        "pressure/usage.py::UsageReader._volumes Path.glob",
        "stats/volumes.py::_measure os.path.ismount",
        "stats/volumes.py::_names os.listdir",
        "volumes/content.py::ContentVolume.is_set_up os.path.lexists",
        "volumes/sub_path.py::open_inside os.open",
        "volumes/sub_path.py::bind_sub_path Path.stat",
    ),
    **_all(
        _OWN,
        "containers/paths.py::make_directories Path.is_dir, Path.mkdir",
        "containers/termination.py::make_termination_log Path.chmod, Path.touch",
        "cri/process/creation.py::ContainerCreator._make_reachable os.open",
        "cri/process/store.py::_directories os.scandir",
        "cri/process/store.py::_load Path.read_bytes",
        "cri/process/store.py::check_versions Path.glob, Path.read_bytes",
        "cri/process/store.py::make_state_dir Path.chmod, Path.mkdir",
        "cri/process/store.py::make_work_dir Path.mkdir, os.chown",
        "cri/process/store.py::remove Path.unlink",
        "cri/process/store.py::write_container Path.chmod",
        "cri/process/store.py::write_sandbox Path.chmod, Path.mkdir",
        "model/atomic.py::remove_written Path.unlink",
        "model/atomic.py::sync_directory os.open",
        "model/atomic.py::write_aside os.open",
        "pods/records/record.py::_remove Path.rmdir, Path.unlink, os.listdir",
        "pods/records/record.py::_remove_empty Path.iterdir, Path.rmdir",
        "pods/records/record.py::_write Path.mkdir",
        "pods/records/record.py::load_records Path.is_dir, Path.iterdir, Path.read_bytes",
        "pods/records/record.py::read_pod_records Path.glob, Path.read_bytes",
        "pods/records/record.py::unrecorded_pods Path.exists, Path.is_dir, Path.iterdir",
        "volumes/empty_dir.py::EmptyDir._is_made Path.is_dir",
        "volumes/empty_dir.py::EmptyDir.is_set_up Path.exists",
        "volumes/empty_dir.py::EmptyDir.set_up Path.touch",
        "volumes/empty_dir.py::_make_directory Path.mkdir, Path.stat, os.chmod",
        "volumes/host/disks.py::DiskVolumes._bind Path.unlink",
        "volumes/host/disks.py::DiskVolumes._finish Path.touch",
        "volumes/host/disks.py::DiskVolumes._is_set_up Path.exists",
        "volumes/host/disk_places.py::DiskPlaces.remove Path.is_dir, Path.rmdir, Path.unlink",
        "volumes/host/disk_places.py::DiskPlaces.tear_down Path.unlink, os.path.lexists",
        "volumes/host/disk_places.py::DiskPlaces.unused Path.is_dir",
        "volumes/host/disk_places.py::_entries Path.iterdir",
        "volumes/host/disk_places.py::_scan os.scandir",
        "volumes/host/disks.py::_touch Path.touch",
        "volumes/host/flex.py::FlexVolumes._finish Path.chmod, Path.write_text",
        "volumes/host/flex.py::FlexVolumes._is_set_up Path.exists, Path.read_text",
        "volumes/host/flex.py::FlexVolumes._tear_down Path.exists, Path.rmdir, Path.unlink",
        "volumes/pods_dir.py::PodsDirectory.pods Path.is_dir, os.scandir",
        "volumes/block.py::DeviceMaps.map Path.symlink_to, Path.touch, Path.unlink, os.readlink",
        "volumes/block.py::DeviceMaps.unmap Path.unlink",
        "volumes/claims.py::_take Path.exists, Path.iterdir, Path.touch",
        "volumes/layout.py::names_in os.listdir",
        "volumes/host/plugins.py::_has_remains Path.is_dir",
        "volumes/sub_path.py::_make_target Path.is_dir, Path.is_file, Path.mkdir, Path.rmdir, "
        "Path.touch, Path.unlink",
        "volumes/inventory.py::_names os.scandir",
        "volumes/csi/block.py::_prepare_pod Path.exists, Path.symlink_to, Path.touch",
        "volumes/csi/block.py::_remove_pod Path.rmdir, Path.unlink",
        "volumes/csi/block.py::_remove_volume Path.is_dir",
        "volumes/csi/data.py::_below os.scandir",
        "volumes/csi/data.py::damaged_records os.path.lexists",
        "volumes/csi/expand.py::_is_published Path.exists",
        "volumes/csi/filesystem.py::_prepare Path.exists",
        "volumes/csi/filesystem.py::_remove_nameless Path.rmdir",
        "volumes/csi/filesystem.py::_remove_unpublished Path.rmdir",
        "volumes/csi/services.py::CsiServices._has_any Path.glob",
        "volumes/csi/services.py::CsiServices._has_staged Path.is_dir",
        "volumes/csi/staging.py::_prepare Path.exists",
        "volumes/csi/staging.py::remove_mount_point Path.rmdir, os.unlink",
        "volumes/teardown.py::_remove_if_empty Path.is_dir, Path.iterdir",
        "volumes/teardown.py::unmount_foreign Path.exists",
        "volumes/teardown.py::plugin_directories Path.iterdir",
        "volumes/teardown.py::_names Path.iterdir",
        "volumes/teardown.py::tear_down Path.is_dir",
    ),
    **_all(
        _HOST,
        "stats/volumes.py::_measure_device os.stat",
        "stats/volumes.py::_read_text open",
        "pods/records/files.py::PodFiles.write_hosts Path.read_text",
        "volumes/block.py::DeviceMaps.is_mapped Path.exists",
        "volumes/block.py::DeviceMaps.map os.path.realpath",
        "volumes/external.py::_check Path.exists, Path.stat",
        "volumes/external.py::_create Path.touch",
        "volumes/host/disks.py::DiskVolumes._device_of Path.resolve",
        "volumes/host/disk_places.py::DiskPlaces.is_disk_used os.path.lexists, os.path.realpath",
        "volumes/host/disk_places.py::_number Path.stat",
        "volumes/host/fibre_channel.py::FcDisks._links Path.exists, os.listdir, os.path.realpath",
        "volumes/host/flex.py::FlexVolumes._release os.access, os.path.lexists",
        "volumes/host/iscsi.py::IscsiDisks._by_path Path.exists, Path.glob",
        "volumes/host/iscsi.py::IscsiDisks._is_target_used Path.glob, Path.iterdir",
        "volumes/host/local.py::LocalDisk.directory Path.stat",
        "volumes/host/resize.py::device_size os.open",
        "volumes/host/resize.py::is_larger os.open",
        "volumes/host/scsi.py::ScsiDevices.multipath os.path.realpath",
        "volumes/host/scsi.py::_names os.listdir",
        "volumes/host/scsi.py::_read Path.read_text",
        "volumes/host/scsi.py::_write os.open",
        "volumes/labels.py::_read open",
        "volumes/loop.py::KernelBlockDevices.attach Path.stat, os.open",
        "volumes/loop.py::KernelBlockDevices.number Path.stat",
        "volumes/loop.py::_attach os.open",
        "volumes/loop.py::_backing_file Path.read_text",
        "volumes/loop.py::_detach os.open",
        "volumes/loop.py::_free_device os.open",
        "volumes/loop.py::_loop_names os.listdir",
        "volumes/loop.py::_names_of os.path.realpath",
        "volumes/host/format.py::disk_format open",
        "volumes/tools.py::run_tool Path.is_dir, os.access",
        "volumes/mountinfo.py::read_mountinfo Path.read_text",
    ),
    **_all(
        _LINKS,
        "containers/logs/files.py::_links os.scandir",
        "containers/logs/files.py::_target os.readlink",
        "containers/logs/files.py::link_log Path.symlink_to, Path.unlink",
        "containers/logs/files.py::remove_links Path.unlink",
        "containers/logs/files.py::unlink_logs Path.unlink",
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Print what is wrong; return 1 if there is anything."""
    wrong = problems(Path(arguments[0]), ALLOWED)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["kubelet_trio"]))
