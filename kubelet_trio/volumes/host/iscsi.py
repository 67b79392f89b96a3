"""iSCSI volumes, inline and persistent, through the host's iscsiadm.

A volume is logged in to at each of its portals; of several paths the multipath device is used.
What was logged in to is written to `iscsi.json` in the volume's place before iscsiadm first runs,
as the Go kubelet writes it, so that either agent can log out. The last volume of a target on the
node logs out of it. As pkg/volume/iscsi in the Go kubelet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath

import trio
from lightkube.models.core_v1 import Secret

from kubelet_trio.containers import make_directories
from kubelet_trio.model import get_logger, read_regular, unfinished, write_aside
from kubelet_trio.objects import secret_content, secret_key
from kubelet_trio.volumes.host.disk_places import MAPS, places_below
from kubelet_trio.volumes.host.disks import DiskVolumes, safe_name
from kubelet_trio.volumes.host.plugins import PluginContext
from kubelet_trio.volumes.host.scsi import ScsiDevices, rescan_disks
from kubelet_trio.volumes.keyed import KeyedLocks
from kubelet_trio.volumes.spec import VolumeSpec
from kubelet_trio.volumes.tools import ToolResult

log = get_logger()

_FILE = "iscsi.json"
_MAX_FILE = 64 << 10
_PORT = "3260"
_PLACES = "iface-*/*"

# Limits of AttachDisk in pkg/volume/iscsi.
_MIN_PATHS = 2  # paths that are enough for a multipath volume
_MIN_ROUNDS = 2  # rounds over all portals before that many are enough
_MAX_ROUNDS = 5  # rounds before a single path is enough
_DEVICE_WAIT = 30  # seconds for a device to appear
_MULTIPATH_WAIT = 10  # seconds for its multipath device

# Exit statuses of iscsiadm (iscsi_err.h in open-iscsi).
_SESSION_NOT_FOUND = 2
_SESSION_EXISTS = 15
_NOTHING_FOUND = 21
_GONE = (0, _SESSION_NOT_FOUND, _NOTHING_FOUND)

_TRANSPORT = re.compile(r"^iface\.transport_name = (.*)$", re.MULTILINE)
_CHAP = ("auth.username", "auth.password", "auth.username_in", "auth.password_in")


@dataclass(frozen=True, slots=True)
class IscsiDisk:
    """An iSCSI disk and how the node reaches it."""

    volume: str
    portals: tuple[str, ...]  # `address:port`, without repetition
    iqn: str
    lun: int
    base_iface: str  # the interface record of the host's administrator
    iface: str  # the one that is used: the same, or a copy with the volume's initiator name
    initiator: str = ""

    @property
    def name(self) -> PurePath:
        """Its place below the plugin's directory. Raises ValueError."""
        disk = f"{self.portals[0]}-{self.iqn}-lun-{self.lun}"
        return PurePath(
            safe_name("iSCSI interface", f"iface-{self.iface}"), safe_name("iSCSI disk", disk)
        )

    @property
    def is_cloned(self) -> bool:
        """Whether the interface record is the volume's own."""
        return bool(self.initiator) and self.iface == f"{self.portals[0]}:{self.volume}"

    def to_json(self) -> bytes:
        """Return the content of `iscsi.json`: the exported fields of Go's `iscsiDisk`."""
        fields = {
            "VolName": self.volume,
            "Portals": list(self.portals),
            "Iqn": self.iqn,
            "Lun": str(self.lun),
            "InitIface": self.base_iface,
            "Iface": self.iface,
            "InitiatorName": self.initiator,
        }
        return json.dumps(fields).encode() + b"\n"


def disk_of(spec: VolumeSpec) -> IscsiDisk:
    """Return the disk that a volume asks for."""
    source = spec.source
    portals = [_with_port(portal) for portal in (source.targetPortal, *(source.portals or ()))]
    base = source.iscsiInterface or "default"
    return IscsiDisk(
        volume=spec.disk_name,
        portals=tuple(dict.fromkeys(portals)),
        iqn=source.iqn,
        lun=int(source.lun),
        base_iface=base,
        iface=f"{portals[0]}:{spec.disk_name}" if source.initiatorName else base,
        initiator=source.initiatorName or "",
    )


def _with_port(portal: str) -> str:
    # An IPv6 address without a port counts as one with it, as in the Go kubelet (portalMounter).
    return portal if ":" in portal else f"{portal}:{_PORT}"


def read_disk(place: Path) -> IscsiDisk:
    """Return the disk of a place, from its `iscsi.json` or else from the place's name.

    Raises OSError if neither tells.
    """
    named = _named_disk(place)
    try:
        found = json.loads(read_regular(place / _FILE, _MAX_FILE))
        portals = tuple(dict.fromkeys(p for p in found["Portals"] if isinstance(p, str) and p))
        fields = [found[f] for f in ("VolName", "Iqn", "InitIface", "Iface", "InitiatorName")]
        if not portals or not all(isinstance(value, str) for value in fields):
            raise ValueError("a field has the wrong type")
        volume, iqn, base, iface, initiator = fields
        return IscsiDisk(volume, portals, iqn, int(found["Lun"]), base, iface, initiator)
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
        log.warning("iscsi.file_unreadable", path=str(place / _FILE), error=str(exc))
    if named is None:
        raise OSError(f"{place} names no iSCSI disk, and has no {_FILE}")
    return named


def _named_disk(place: Path) -> IscsiDisk | None:
    head, _, lun = place.name.rpartition("-lun-")
    found = re.search(r"-((?:iqn|eui|naa)\..*)$", head)
    if found is None or not lun.isascii() or not lun.isdecimal():
        return None
    iface = place.parent.name.removeprefix("iface-")
    return IscsiDisk("", (head[: found.start()],), found[1], int(lun), iface, iface)


@dataclass(frozen=True, slots=True)
class IscsiDisks:
    """The `DiskKind` of iSCSI volumes."""

    context: PluginContext
    scsi: ScsiDevices = field(default_factory=ScsiDevices)
    plugin: str = "iscsi"
    places: str = _PLACES
    map_places: str = _PLACES
    files: frozenset[str] = frozenset((_FILE, unfinished(_FILE)))
    owned_once: bool = False
    targets: KeyedLocks = field(default_factory=KeyedLocks)  # by IQN

    def name(self, spec: VolumeSpec) -> PurePath:
        return disk_of(spec).name

    def map_name(self, spec: VolumeSpec) -> PurePath:
        return disk_of(spec).name

    def directory(self, spec: VolumeSpec) -> Path | None:
        return None

    async def attach(self, spec: VolumeSpec, place: Path) -> Path:
        """Log in at every portal; return the multipath device, or the disk.

        Raises OSError, `MissingToolError` if the host has no iscsiadm, ValueError, `ObjectError`.
        """
        disk, secrets = disk_of(spec), chap_secrets(spec)
        await self.context.run(_write_disk, place, disk)
        shown = await self._admin("-m", "iface", "-I", disk.base_iface, "-o", "show")
        if shown.code != 0:
            text = f"iscsi: could not read iface {disk.base_iface} error: {shown.failure}"
            raise OSError(text)
        transport = _transport(shown.output)
        if disk.initiator:
            await self._clone_iface(disk, shown.output)
        # Two volumes of a target: one must not log out while the other logs in.
        async with self.targets.hold(disk.iqn):
            paths = await self._attach_paths(_Login(disk, transport, spec.source, secrets))
        return await self._multipath(paths, _MULTIPATH_WAIT if len(disk.portals) > 1 else 1)

    def devices(self, place: Path) -> list[Path]:
        return self._devices(read_disk(place))

    def _devices(self, disk: IscsiDisk) -> list[Path]:
        disks = self.scsi.lun_devices(disk.iqn, disk.lun)
        above = (self.scsi.multipath(device) for device in disks)
        return [*dict.fromkeys(device for device in above if device is not None), *disks]

    async def rescan(self, spec: VolumeSpec) -> None:
        """Have every path read the size of the LUN again. Raises OSError."""
        run = self.context.run
        # By the spec: a file system is mounted over the file in the place.
        devices = await run(self._devices, disk_of(spec))
        await run(rescan_disks, self.scsi, self.context.tools, devices)

    async def detach(self, place: Path) -> None:
        """Remove the disk's devices; log out if no other volume of the target is on the node.

        Raises OSError.
        """
        run = self.context.run
        disk = await run(read_disk, place)
        for device in await run(self.devices, place):
            await self._remove_device(device)
        async with self.targets.hold(disk.iqn):
            if not await run(self._is_target_used, disk, place):
                await self._log_out(disk)

    async def _admin(self, *arguments: str) -> ToolResult:
        return await self.context.run(self.context.tools.run, "iscsiadm", *arguments)

    async def _expect(self, what: str, *arguments: str, codes: Iterable[int] = (0,)) -> None:
        """Run iscsiadm. Raises OSError with its output, never with its arguments: secrets."""
        done = await self._admin(*arguments)
        if done.code not in codes:
            raise OSError(f"iscsi: failed to {what}: {done.failure}")

    async def _attach_paths(self, login: _Login) -> list[Path]:
        """Return a device for each portal that could be logged in to. Raises OSError if none."""
        disk, found, last = login.disk, dict[str, Path](), OSError("no portal")
        for round_ in range(1, _MAX_ROUNDS + 1):
            for portal in disk.portals:
                if portal in found:
                    continue
                try:
                    found[portal] = await self._attach_path(login, portal)
                except OSError as exc:
                    last = exc
                    log.warning("iscsi.path_failed", portal=portal, iqn=disk.iqn, error=str(exc))
            if not found:
                await self._delete_clone(disk)
                raise OSError(
                    f"failed to get any path for iscsi disk, last err seen:\n{last}"
                ) from last
            is_enough = len(found) >= _MIN_PATHS and round_ >= _MIN_ROUNDS
            if len(found) == len(disk.portals) or is_enough:
                break
        return list(found.values())

    async def _attach_path(self, login: _Login, portal: str) -> Path:
        """Log in at a portal, unless a session exists, and wait for the disk. Raises OSError."""
        disk, run = login.disk, self.context.run
        hosts = await run(self.scsi.portal_hosts, disk.iqn)
        if portal not in hosts:
            await self._log_in(login, portal)
            hosts = await run(self.scsi.portal_hosts, disk.iqn)
        if portal not in hosts:
            raise OSError(f"no SCSI host for portal {portal} after logging in")
        await run(self.scsi.scan_lun, hosts[portal], disk.lun)
        if not login.transport:
            raise OSError(f"could not parse iface file for {disk.base_iface}")
        for second in range(_DEVICE_WAIT):
            if second:
                await trio.sleep(1)
            path = await run(self._by_path, login, portal)
            if path is not None:
                return path
        text = f"Timed out waiting for device of {disk.iqn} lun {disk.lun} at {portal}"
        raise OSError(f"{text} after {_DEVICE_WAIT}s")

    def _by_path(self, login: _Login, portal: str) -> Path | None:
        """Return udev's link to the disk at a portal, once it is there."""
        places = self.scsi.dev / "disk/by-path"
        # Links have no brackets around an IPv6 address.
        address = portal.replace("[", "").replace("]", "")
        name = f"ip-{address}-iscsi-{login.disk.iqn}-lun-{login.disk.lun}"
        if login.transport == "tcp":
            return places / name if (places / name).exists() else None
        # Adapters with a transport of their own have their PCI address before it.
        found = [p for p in places.glob("pci-*") if p.name.endswith(f"-{name}")]
        return min(found, default=None)

    async def _log_in(self, login: _Login, portal: str) -> None:
        disk = login.disk
        record = ("-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", disk.iface)
        node = ("-m", "node", "-p", portal, "-T", disk.iqn, "-I", disk.iface)
        await self._admin(*record, "-o", "new")  # it may exist
        await self._set_chap(record, "discovery.sendtargets", login.discovery)
        done = await self._admin(*record, "--discover")
        if done.code != 0:
            await self._admin(*record, "-o", "delete")
            raise OSError(f"iscsi: failed to sendtargets to portal {portal}: {done.failure}")
        # Automatic scans would add LUNs that no volume uses
        # (https://github.com/kubernetes/kubernetes/issues/90982). Old versions do not know it.
        await self._admin(*node, "-o", "update", "-n", "node.session.scan", "-v", "manual")
        await self._set_chap(node, "node.session", login.session)
        done = await self._admin(*node, "--login")
        # Another agent, or an earlier attempt that was cut short, may be logged in.
        if done.code not in (0, _SESSION_EXISTS):
            await self._admin(*node, "-o", "delete")
            raise OSError(f"iscsi: failed to attach disk: Error: {done.failure} ({done.ending})")
        # So that a node does not hang at its next boot.
        await self._admin(*node, "-o", "update", "-n", "node.startup", "-v", "manual")

    async def _set_chap(
        self, record: tuple[str, ...], prefix: str, values: Mapping[str, str] | None
    ) -> None:
        if values is None:
            return
        update = (*record, "-o", "update", "-n")
        await self._expect("use CHAP", *update, f"{prefix}.auth.authmethod", "-v", "CHAP")
        for name, value in values.items():
            await self._expect(f"set {name}", *update, name, "-v", value)

    async def _clone_iface(self, disk: IscsiDisk, shown: str) -> None:
        """Copy the interface record, with the volume's initiator name (cloneIface)."""
        if disk.iface == disk.base_iface:
            raise OSError(f"iscsi: cannot clone iface with same name: {disk.base_iface}")
        parameters = {**_iface_parameters(shown), "iface.initiatorname": disk.initiator}
        own = ("-m", "iface", "-I", disk.iface)
        codes = (0, _SESSION_EXISTS)  # a session uses it already
        await self._expect("create new iface", *own, "-o", "new", codes=codes)
        failure = None
        for name, value in sorted(parameters.items()):
            update = ("-o", "update", "-n", name, "-v", value)
            done = await self._admin(*own, *update)
            if done.code not in codes:
                failure = done.failure
                break
        if failure is not None:
            await self._delete_clone(disk)
            raise OSError(f"iscsi: failed to update iface {disk.iface}: {failure}")

    async def _delete_clone(self, disk: IscsiDisk) -> None:
        if disk.is_cloned:
            await self._admin("-m", "iface", "-I", disk.iface, "-o", "delete")

    async def _multipath(self, paths: list[Path], seconds: int) -> Path:
        """Return the multipath device of some disks, or the first disk if there is none."""
        for second in range(seconds):
            if second:
                await trio.sleep(1)
            for path in paths:
                found = await self.context.run(self.scsi.multipath, path)
                if found is not None:
                    return found
        return paths[0]

    async def _remove_device(self, device: Path) -> None:
        run = self.context.run
        try:
            if not device.name.startswith("dm-"):
                await run(self.scsi.delete, device)
                return
            done = await run(self.context.tools.run, "multipath", "-f", str(device))
            if done.code == 0:
                return
            error = done.failure
        except OSError as exc:
            error = str(exc)
        # As in the Go kubelet the logout may still succeed.
        log.warning("iscsi.device_not_removed", device=str(device), error=error)

    def _is_target_used(self, disk: IscsiDisk, place: Path) -> bool:
        """Whether another volume on the node, raw or not, has a place for the same target."""
        base = self.context.root_dir / "plugins/kubernetes.io" / self.plugin
        starts = tuple(f"{portal}-{disk.iqn}-lun-" for portal in disk.portals)
        return any(
            other.name.startswith(starts) and other != place
            for tree in (base, base / MAPS)
            for parent in tree.glob("iface-*")
            for other in parent.iterdir()
        )

    async def _log_out(self, disk: IscsiDisk) -> None:
        for portal in disk.portals:
            node = ("-m", "node", "-p", portal, "-T", disk.iqn, "-I", disk.iface)
            await self._expect(f"log out of {disk.iqn}", *node, "--logout", codes=_GONE)
            await self._expect("delete node record", *node, "-o", "delete", codes=_GONE)
        if disk.is_cloned:
            own = ("-m", "iface", "-I", disk.iface, "-o", "delete")
            await self._expect("delete iface", *own, codes=_GONE)


@dataclass(frozen=True, slots=True)
class _Login:
    """What a login needs."""

    disk: IscsiDisk
    transport: str
    source: object
    secrets: Mapping[str, str] = field(repr=False)

    @property
    def discovery(self) -> Mapping[str, str] | None:
        """The CHAP settings of the discovery; None without CHAP."""
        is_used = bool(getattr(self.source, "chapAuthDiscovery", False))
        return self._chosen("discovery.sendtargets") if is_used else None

    @property
    def session(self) -> Mapping[str, str] | None:
        """The CHAP settings of the session; None without CHAP."""
        is_used = bool(getattr(self.source, "chapAuthSession", False))
        return self._chosen("node.session") if is_used else None

    def _chosen(self, prefix: str) -> dict[str, str]:
        names = [f"{prefix}.{name}" for name in _CHAP]
        return {name: self.secrets[name] for name in names if self.secrets.get(name)}


def chap_secrets(spec: VolumeSpec) -> dict[str, str]:
    """Return the content of the volume's CHAP secret; empty if it uses none.

    Raises `ObjectError` or ValueError.
    """
    source, found = spec.source, spec.source.secretRef
    is_used = source.chapAuthDiscovery or source.chapAuthSession
    if not is_used or found is None or not found.name:
        return {}
    # The secret of a persistent volume may be in another namespace (SecretReference).
    namespace = getattr(found, "namespace", None) or spec.namespace
    secret = spec.objects.get(secret_key(namespace, found.name), Secret)
    return {name: value.decode() for name, value in secret_content(secret).items()}


def _write_disk(place: Path, disk: IscsiDisk) -> None:
    make_directories(place)
    write_aside(place / _FILE, disk.to_json(), sync=True)


def _transport(shown: str) -> str:
    found = _TRANSPORT.search(shown)
    if found is None:
        return ""
    return "tcp" if found[1] == "<empty>" else found[1]


def _iface_parameters(shown: str) -> dict[str, str]:
    """Return the settings of an interface record that a copy can take. Raises OSError."""
    found = {}
    for line in shown.splitlines():
        if not line.startswith("iface.") or "<empty>" in line:
            continue
        parts = line.split()
        if len(parts) != 3 or parts[1] != "=":
            raise OSError(f"iscsi: invalid iface setting: {line}")
        if parts[0] != "iface.iscsi_ifacename":  # a record keeps its name
            found[parts[0]] = parts[2]
    return found


def iscsi_unique_name(spec: VolumeSpec) -> str:
    """Return the volume's name in a node's `volumesInUse` and `volumesAttached`."""
    source = spec.source
    return f"kubernetes.io/iscsi/{source.targetPortal}:{source.iqn}:{source.lun}"


def iscsi_on_disk(base: Path) -> frozenset[str]:
    """Return the unique names of the disks that have a place. Blocks, and raises OSError."""
    names = set[str]()
    for place in places_below(base, _PLACES):
        # By the place: the file in it is covered by the file system.
        if (disk := _named_disk(place)) is not None:
            portal = disk.portals[0]
            # The volume may name the default port, or not.
            for form in {portal, portal.removesuffix(f":{_PORT}")}:
                names.add(f"kubernetes.io/iscsi/{form}:{disk.iqn}:{disk.lun}")
    return frozenset(names)


def make_iscsi(context: PluginContext) -> DiskVolumes:
    """Return the plugin of iSCSI volumes."""
    return DiskVolumes(context, IscsiDisks(context, targets=KeyedLocks(context.calls)))
