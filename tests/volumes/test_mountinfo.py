from __future__ import annotations

from pathlib import Path

from kubelet_trio.volumes import MountPoint, parse_mountinfo, read_mountinfo

TABLE = r"""22 28 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw
36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 propagate_from:2 - ext3 /dev/root rw,errors=continue
40 28 0:40 / /a\040b\011c\134d\012e rw - tmpfs tmp\040fs rw,size=10k
41 28 0:41 / /no-options rw - overlay overlay
not a line
"""


def test_a_table_is_parsed() -> None:
    super_options = ("rw", "errors=continue")
    assert parse_mountinfo(TABLE) == [
        MountPoint(
            "/sys", "sysfs", "sysfs", "/", ("rw", "nosuid"), ("rw",), shared=True, device="0:21"
        ),
        MountPoint(
            *("/mnt2", "ext3", "/dev/root", "/mnt1", ("rw", "noatime"), super_options),
            device="98:0",
        ),
        MountPoint(
            "/a b\tc\\d\ne", "tmpfs", "tmp fs", "/", ("rw",), ("rw", "size=10k"), device="0:40"
        ),
        MountPoint("/no-options", "overlay", "overlay", "/", ("rw",), device="0:41"),
    ]


def test_the_kernels_own_table_is_read() -> None:
    assert any(mount.path == "/proc" for mount in read_mountinfo())


def test_names_that_are_not_utf8_survive(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"1 2 0:1 / /\xff rw - tmpfs tmpfs rw\n")
    (mount,) = read_mountinfo(tmp_path / "m")
    assert mount.path == "/\udcff"
