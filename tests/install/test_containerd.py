"""containerd's configuration: what is in effect, and how little is changed."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.install.containerd import (
    DROP_IN,
    IMPORTS,
    ContainerdConfigError,
    ContainerdFiles,
    CriSettings,
    drop_in,
    dump_toml,
    effective,
    main_file,
)

DEBIAN = """\
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"
    [plugins."io.containerd.grpc.v1.cri".registry]
      config_path = "/etc/containerd/certs.d"
"""
DOCKER = '# the packages of Docker\ndisabled_plugins = ["cri"]\n\n#root = "/var/lib/containerd"\n'


def installed(files: ContainerdFiles, image: str = "") -> ContainerdFiles:
    """Return the files as `install` leaves them."""
    text = drop_in(files, systemd_cgroup=True, bin_dir="/x/bin", sandbox_image=image)
    others = tuple(entry for entry in files.imported if entry[0] != DROP_IN)
    return ContainerdFiles(files.version, main_file(files), (*others, (DROP_IN, text)))


@pytest.mark.parametrize("main", [None, "", DEBIAN, DOCKER, "version = 3\n", "version = 2"])
@pytest.mark.parametrize("version", ["1.6.20", "1.7.24", "2.1.0"])
def test_the_drop_in_takes_effect_with_any_main_file(main: str | None, version: str) -> None:
    if main == "version = 3\n" and version.startswith("1"):
        return  # containerd 1 refuses it
    files = installed(ContainerdFiles(version, main), "example.org/pause:1")
    assert effective(files) == CriSettings(True, "/x/bin", "/etc/cni/net.d", "example.org/pause:1")
    # A second time changes nothing.
    assert installed(files, "example.org/pause:1") == files


def test_other_settings_of_the_same_table_are_kept() -> None:
    files = installed(ContainerdFiles("1.6.20", DEBIAN))
    table = tomllib.loads(files.imported[0][1])["plugins"]["io.containerd.grpc.v1.cri"]
    assert table["registry"] == {"config_path": "/etc/containerd/certs.d"}
    assert table["cni"]["conf_dir"] == "/etc/cni/net.d"
    assert "sandbox_image" not in table


def test_the_main_file_gets_one_line_and_keeps_every_other() -> None:
    changed = main_file(ContainerdFiles("1.6.20", DEBIAN))
    assert changed.replace(f'imports = ["{IMPORTS}"]\n\n', "") == DEBIAN
    docker = main_file(ContainerdFiles("1.7.24", DOCKER))
    assert "# the packages of Docker\ndisabled_plugins = []\n" in docker


@pytest.mark.parametrize("imports", ['["/a.toml"]', '[\n  "/a.toml", # mine\n]'])
def test_other_imports_stay(imports: str) -> None:
    main = f"version = 2\nimports = {imports}\n[debug]\nlevel = 'info'\n"
    found = tomllib.loads(main_file(ContainerdFiles("1.6.20", main)))
    assert found["imports"] == ["/a.toml", IMPORTS]
    assert found["debug"] == {"level": "info"}


@pytest.mark.parametrize(
    ("main", "message"),
    [
        ("version = [", "config.toml"),
        ("[plugins.cri]\nx = 1\n", "version 1"),
        ('version = 2\ndisabled_plugins = [\n  "cri",\n]\n', "without cri in disabled_plugins"),
        ('version = 2\nx = """\n[a]\n"""\n[b]\n', "cannot be changed safely"),
    ],
)
def test_what_cannot_be_changed_safely_is_refused(main: str, message: str) -> None:
    with pytest.raises(ContainerdConfigError, match=message):
        main_file(ContainerdFiles("1.6.20", main))


_keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
_plain = st.one_of(st.booleans(), st.integers(-(2**53), 2**53), _keys)
_tables = st.recursive(
    st.dictionaries(_keys, st.one_of(_plain, st.lists(_plain, max_size=3)), max_size=3),
    lambda inner: st.dictionaries(_keys, st.one_of(_plain, inner, st.lists(inner)), max_size=3),
    max_leaves=8,
)


@given(_tables)
def test_what_is_written_is_read_back(table: dict[str, object]) -> None:
    assert tomllib.loads(dump_toml(table)) == table
