"""What a check of the machine found, and how the machine's distribution installs what lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Result = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    A problem keeps pods from running, or makes them fail later; a note does not. `cure` is a
    command or a sentence; empty if nothing needs to be done.
    """

    check: str
    result: Result
    message: str
    cure: str = ""
    by_install: bool = False  # whether `kubelet-trio install` cures it


@dataclass(frozen=True, slots=True)
class OsRelease:
    """The distribution, as os-release(5) names it."""

    name: str = "Linux"  # PRETTY_NAME
    ids: tuple[str, ...] = ()  # ID, then ID_LIKE

    def install(self, *packages: str) -> str:
        """Return the command that installs packages; their names are Debian's."""
        if {"debian", "ubuntu"} & set(self.ids):
            return f"apt-get install -y {' '.join(packages)}"
        if {"fedora", "rhel", "centos"} & set(self.ids):
            return f"dnf install -y {' '.join(_FEDORA.get(name, name) for name in packages)}"
        return f"install {', '.join(packages)} with your system's package manager"


# Fedora's names, where they differ from Debian's.
_FEDORA = {
    "iptables": "iptables-nft",
    "apparmor": "apparmor-parser",
    "systemd-timesyncd": "chrony",
    "mount": "util-linux",
}


def parse_os_release(text: str) -> OsRelease:
    """Read the content of /etc/os-release; unknown and malformed lines are skipped."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            values[key.strip()] = value.strip().strip("\"'")
    ids = f"{values.get('ID', '')} {values.get('ID_LIKE', '')}".split()
    return OsRelease(values.get("PRETTY_NAME", "Linux"), tuple(ids))


def problems(findings: Iterable[Finding], ignored: Iterable[str] = ()) -> list[Finding]:
    """Return the problems; `ignored` names checks, `all` is every one."""
    names = set(ignored)
    return [
        finding
        for finding in findings
        if finding.result == "problem" and not {"all", finding.check} & names
    ]


def as_json(findings: Iterable[Finding]) -> list[Mapping[str, object]]:
    """Return the findings as `check -o json` prints them."""
    return [
        {
            "check": f.check,
            "result": f.result,
            "message": f.message,
            **({"cure": f.cure} if f.cure else {}),
            **({"curedByInstall": True} if f.by_install else {}),
        }
        for f in findings
    ]
