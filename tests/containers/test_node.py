from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from kubelet_trio.containers import (
    hugepage_sizes,
    is_selinux_on,
    masked_paths,
    memory_capacity,
    read_resolv_conf,
)
from kubelet_trio.containers.node import ResolvConf


def test_memory_is_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:        2048 kB\nMemFree: 1 kB\n")
    assert memory_capacity(tmp_path / "meminfo") == 2 << 20
    assert memory_capacity() > 0


def test_page_sizes_have_the_controllers_names(tmp_path: Path) -> None:
    for kilobytes in (2048, 64, 1048576):
        (tmp_path / f"hugepages-{kilobytes}kB").mkdir()
    assert hugepage_sizes(tmp_path) == ("64KB", "2MB", "1GB")
    assert hugepage_sizes(tmp_path / "none") == ()


def test_thermal_events_are_masked_where_there_are_any(tmp_path: Path) -> None:
    (tmp_path / "cpu0" / "thermal_throttle").mkdir(parents=True)
    (tmp_path / "cpufreq" / "thermal_throttle").mkdir(parents=True)
    assert masked_paths(tmp_path)[-1] == str(tmp_path / "cpu0" / "thermal_throttle")
    assert masked_paths(tmp_path)[-2] == "/sys/devices/virtual/powercap"


def test_resolver_settings_are_read_or_not_wanted(tmp_path: Path) -> None:
    (tmp_path / "resolv.conf").write_text("nameserver 1.1.1.1\n")
    assert read_resolv_conf(str(tmp_path / "resolv.conf")) == ResolvConf(("1.1.1.1",))
    assert read_resolv_conf("") is None


def test_resolver_settings_take_little_memory(tmp_path: Path) -> None:
    (tmp_path / "resolv.conf").write_bytes(b"nameserver 1.1.1.1\r\nsearch \xff\r\n")
    tracemalloc.start()
    try:
        found = read_resolv_conf(str(tmp_path / "resolv.conf"))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert found == ResolvConf(("1.1.1.1",), ("\ufffd",))
    with pytest.raises(FileNotFoundError):
        read_resolv_conf(str(tmp_path / "none"))


def test_selinux_is_on_where_its_file_is(tmp_path: Path) -> None:
    assert not is_selinux_on(tmp_path / "enforce")
    (tmp_path / "enforce").touch()
    assert is_selinux_on(tmp_path / "enforce")
