"""An iSCSI initiator and a SCSI bus in memory and in a directory, which keep the rules.

`iscsiadm` logs in only where a discovery found the target, and with the right CHAP settings; a
target's session, and a disk, can only go while nothing is mounted from it.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from kubelet_trio.testing.devices import FakeBlockDevices
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes.host.scsi import ScsiDevices
from kubelet_trio.volumes.tools import ToolResult
from tests.volumes.host.programs import FakeTools, done

IQN = "iqn.2001-04.com.example:storage.disk1"


@dataclass(frozen=True)
class FakeScsi(ScsiDevices):
    """Implements the kernel's side: a scan makes a LUN's disk appear, a delete removes it."""

    initiator: list[Initiator] = field(default_factory=list)

    def scan_lun(self, host: int, lun: int) -> None:
        self.initiator[0].scan(host, lun)

    def delete(self, device: Path) -> None:
        self.initiator[0].delete(device)


@dataclass
class Initiator:
    """The node's initiator. `portals` are those that answer; `luns` those that targets have."""

    root: Path
    mounter: FakeMounter
    block: FakeBlockDevices
    portals: set[str] = field(default_factory=lambda: {"10.0.0.1:3260"})
    iqns: set[str] = field(default_factory=lambda: {IQN})
    luns: set[int] = field(default_factory=lambda: {0, 1})
    chap: dict[str, str] = field(default_factory=dict)  # what a login must have set
    transport: str = "tcp"
    has_multipath: bool = False
    ifaces: dict[str, dict[str, str]] = field(default_factory=dict)
    discovery: dict[str, dict[str, str]] = field(default_factory=dict)  # by portal
    nodes: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    sessions: dict[tuple[str, str], int] = field(default_factory=dict)  # the SCSI host's number
    hosts: int = 2
    disks: int = 0

    def __post_init__(self) -> None:
        self.ifaces["default"] = {
            "iface.iscsi_ifacename": "default",
            "iface.transport_name": self.transport,
            "iface.initiatorname": "<empty>",
        }
        (self.dev / "disk/by-path").mkdir(parents=True)

    @property
    def sys(self) -> Path:
        return self.root / "sys"

    @property
    def dev(self) -> Path:
        return self.root / "dev"

    @property
    def scsi(self) -> FakeScsi:
        return FakeScsi(self.sys, self.dev, [self])

    def add_to(self, tools: FakeTools) -> None:
        tools.programs["iscsiadm"] = self.iscsiadm
        tools.programs["multipath"] = self.multipath

    @property
    def is_clean(self) -> bool:
        """Whether nothing is logged in, and no record of a login is left."""
        left = (self.sessions, self.nodes, set(self.ifaces) - {"default"}, self.devices())
        return not any(left)

    def devices(self) -> list[str]:
        return sorted(p.name for p in self.dev.iterdir() if p.name != "disk")

    def iscsiadm(self, *arguments: str) -> ToolResult:
        flags, rest = set(arguments) & {"--discover", "--login", "--logout"}, list(arguments)
        options = {
            rest[i]: rest[i + 1]
            for i in range(len(rest) - 1)
            if rest[i].startswith("-") and not rest[i].startswith("--")
        }
        command = flags.pop() if flags else options.get("-o", "")
        modes = {"iface": self._iface, "discoverydb": self._discover, "node": self._node}
        return modes[options["-m"]](command, options)

    def _iface(self, command: str, options: dict[str, str]) -> ToolResult:
        name = options["-I"]
        if command == "new":
            self.ifaces[name] = {"iface.iscsi_ifacename": name}
        elif name not in self.ifaces:
            return done(f"iscsiadm: Could not read iface {name}", 6 if command == "show" else 21)
        elif command == "show":
            lines = [f"{k} = {v}" for k, v in self.ifaces[name].items()]
            return done("# BEGIN RECORD\n" + "\n".join(lines) + "\n# END RECORD\n")
        elif command == "update":
            self.ifaces[name][options["-n"]] = options["-v"]
        elif any(node["iface"] == name for node in self.nodes.values()):
            return done("iface is in use", 9)
        else:
            del self.ifaces[name]
        return done()

    def _discover(self, command: str, options: dict[str, str]) -> ToolResult:
        portal = options["-p"]
        assert options["-I"] in self.ifaces
        record = self.discovery.setdefault(portal, {})
        if command == "update":
            record[options["-n"]] = options["-v"]
        elif command == "delete":
            del self.discovery[portal]
        elif command == "--discover":
            if portal not in self.portals:
                return done("iscsiadm: cannot make connection: Connection refused", 4)
            if not self._may_enter("discovery.", record):
                return done("iscsiadm: Login failed to authenticate with target", 24)
            for iqn in self.iqns:
                self.nodes.setdefault((portal, iqn), {"iface": options["-I"]})
        return done()

    def _node(self, command: str, options: dict[str, str]) -> ToolResult:
        key = options["-p"], options["-T"]
        node = self.nodes.get(key)
        if node is None:
            return done("iscsiadm: No records found", 21)
        if command == "update":
            node[options["-n"]] = options["-v"]
        elif command == "delete":
            if key in self.sessions:
                return done("iscsiadm: This command will remove the record, but a session is", 15)
            # Those of the other targets that the discovery found.
            self.nodes = {k: v for k, v in self.nodes.items() if k != key}
        elif command == "--login":
            if key in self.sessions:
                return done("iscsiadm: session exists", 15)
            if not self._may_enter("node.", node):
                return done("iscsiadm: initiator reported error (24 - authorization failure)", 24)
            self._open_session(key)
        elif command == "--logout":
            if key not in self.sessions:
                return done("iscsiadm: No matching sessions found", 21)
            self._close_session(key)
        return done()

    def _may_enter(self, prefix: str, record: dict[str, str]) -> bool:
        wanted = {k: v for k, v in self.chap.items() if k.startswith(prefix)}
        return all(record.get(k) == v for k, v in wanted.items())

    def _open_session(self, key: tuple[str, str]) -> None:
        (address, _, port), iqn = key[0].rpartition(":"), key[1]
        number = self.sessions[key] = self.hosts = self.hosts + 1
        session = self._session(number)
        (session / f"iscsi_session/session{number}").mkdir(parents=True)
        (session / f"iscsi_session/session{number}/targetname").write_text(f"{iqn}\n")
        name = f"connection{number}:0"
        connection = session / name / "iscsi_connection" / name
        connection.mkdir(parents=True)
        for prefix in ("", "persistent_"):
            (connection / f"{prefix}address").write_text(address.strip("[]") + "\n")
            (connection / f"{prefix}port").write_text(f"{port}\n")

    def _close_session(self, key: tuple[str, str]) -> None:
        number = self.sessions.pop(key)
        for block in self._session(number).glob("target*/*/block/*"):
            self.delete(self.dev / block.name)
        shutil.rmtree(self.sys / f"class/iscsi_host/host{number}")

    def _session(self, number: int) -> Path:
        return self.sys / f"class/iscsi_host/host{number}/device/session{number}"

    def scan(self, host: int, lun: int) -> None:
        block = self._session(host) / f"target{host}:0:0/{host}:0:0:{lun}/block"
        if lun not in self.luns or block.exists():
            return
        (portal, iqn) = next(key for key, number in self.sessions.items() if number == host)
        self.disks += 1
        name = f"sd{chr(96 + self.disks)}"
        (block / name).mkdir(parents=True)
        self.block.add(self.dev / name, self.disks)
        pci = "" if self.transport == "tcp" else "pci-0000:00:01.0-"
        link = f"{pci}ip-{portal.replace('[', '').replace(']', '')}-iscsi-{iqn}-lun-{lun}"
        (self.dev / "disk/by-path" / link).symlink_to(self.dev / name)
        if self.has_multipath:
            (self.sys / "block/dm-0/slaves" / name).mkdir(parents=True)
            if not (self.dev / "dm-0").exists():
                self.block.add(self.dev / "dm-0", 100)

    def delete(self, device: Path) -> None:
        assert not self._is_mounted(device), f"{device} is removed while mounted"
        device.unlink()
        for link in (self.dev / "disk/by-path").iterdir():
            if not link.exists():
                link.unlink()
        for place in self.sys.glob(f"class/iscsi_host/*/device/*/target*/*/block/{device.name}"):
            shutil.rmtree(place.parent.parent)
        for slave in self.sys.glob(f"block/dm-*/slaves/{device.name}"):
            slave.rmdir()

    def multipath(self, *arguments: str) -> ToolResult:
        device = Path(arguments[-1])
        if self._is_mounted(device):
            return done(f"{device.name}: map in use", 1)
        device.unlink()
        shutil.rmtree(self.sys / "block" / device.name)
        return done()

    def _is_mounted(self, device: Path) -> bool:
        return any(str(device) in (m.source, m.device) for m in self.mounter.mounts())
