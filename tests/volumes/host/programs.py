"""A host whose programs are functions, for tests in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kubelet_trio.volumes.errors import MissingToolError
from kubelet_trio.volumes.tools import LIMIT, ToolResult

Program = Callable[..., ToolResult]


def done(output: str = "", code: int = 0) -> ToolResult:
    return ToolResult(code, output)


@dataclass
class FakeTools:
    """Implements `volumes.tools.Tools`: programs by name, and the calls of them."""

    programs: dict[str, Program] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, tool: str, *arguments: str, limit: float = LIMIT) -> ToolResult:
        self.calls.append((tool, *arguments))
        if tool not in self.programs:
            raise MissingToolError(f"{tool} is missing")
        return self.programs[tool](*arguments)

    def called(self, tool: str) -> list[tuple[str, ...]]:
        return [arguments for name, *arguments in self.calls if name == tool]  # type: ignore[misc]


@dataclass
class FakeFormats:
    """blkid, mkfs and fsck for files that stand for devices; they keep what was formatted."""

    formats: dict[str, str] = field(default_factory=dict)  # by the device's path
    fsck: int = 0

    def add_to(self, tools: FakeTools) -> None:
        tools.programs["blkid"] = self._blkid
        tools.programs["fsck"] = lambda *_: done("fsck says", self.fsck)
        for fstype in ("ext4", "xfs"):
            tools.programs[f"mkfs.{fstype}"] = lambda *a, f=fstype: self._mkfs(f, a[-1])

    def _blkid(self, *arguments: str) -> ToolResult:
        found = self.formats.get(str(Path(arguments[-1]).resolve()))
        return done(f"DEVNAME={arguments[-1]}\n{found}\n") if found else done("", 2)

    def _mkfs(self, fstype: str, device: str) -> ToolResult:
        real = str(Path(device).resolve())
        assert real not in self.formats, f"{real} is not empty"
        self.formats[real] = f"TYPE={fstype}"
        return done()
