from __future__ import annotations

from pathlib import Path

from kubelet_trio.containers import (
    link_log,
    log_link,
    make_log_directory,
    next_restart_count,
    pod_log_directory,
    remove_links,
    remove_pod_logs,
    unlink_logs,
)
from kubelet_trio.containers.logs.files import newest_log
from kubelet_trio.model import ContainerId
from tests.containers.make import pod

ID = ContainerId("0123456789abcdef")


def test_paths_are_the_go_kubelets() -> None:
    assert pod_log_directory(Path("/var/log/pods"), pod()) == Path("/var/log/pods/default_web_u-1")
    assert log_link(Path("/c"), pod(), "main", ID) == Path(
        "/c/web_default_main-0123456789abcdef.log"
    )


def test_a_links_name_is_cut_to_255_bytes() -> None:
    link = log_link(Path("/c"), pod(name="n" * 253), "main", ID)
    assert len(link.name) == 255
    assert link.suffix == ".log"


def test_the_restart_count_follows_the_highest_log(tmp_path: Path) -> None:
    assert next_restart_count(tmp_path / "none") == 0
    assert next_restart_count(tmp_path) == 0
    for name in ("0.log", "2.log.20240501-100000.gz", "x9.log", "9.txt", "other"):
        (tmp_path / name).touch()
    assert next_restart_count(tmp_path) == 3
    assert newest_log(tmp_path) == tmp_path / "2.log"
    assert newest_log(tmp_path / "none") is None


def test_a_link_is_made_to_a_log_that_is_there(tmp_path: Path) -> None:
    link, log = tmp_path / "links" / "a.log", tmp_path / "logs" / "0.log"
    link_log(link, log)
    assert not link.is_symlink()
    make_log_directory(log.parent)
    log.write_text("x")
    link_log(link, log)
    link_log(link, log)
    assert link.read_text() == "x"
    other = tmp_path / "logs" / "1.log"
    other.write_text("y")
    link_log(link, other)
    assert link.read_text() == "y"


def test_only_the_pods_own_links_go(tmp_path: Path) -> None:
    links = tmp_path / "links"
    mine = pod_log_directory(tmp_path, pod())
    for directory in (mine, tmp_path / "default_web_u-2"):
        make_log_directory(directory / "main")
        (directory / "main" / "0.log").touch()
    link_log(links / "web_default_main-1.log", mine / "main" / "0.log")
    link_log(links / "web_default_main-2.log", tmp_path / "default_web_u-2" / "main" / "0.log")
    unlink_logs(links, pod(), mine)
    assert [link.name for link in links.iterdir()] == ["web_default_main-2.log"]
    remove_pod_logs(mine)
    remove_pod_logs(mine)
    assert not mine.exists()


def test_dangling_links_go(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.touch()
    link_log(tmp_path / "links" / "a.log", log)
    assert remove_links(tmp_path / "links") == 0
    log.unlink()
    assert remove_links(tmp_path / "links") == 1
    assert remove_links(tmp_path / "none") == 0
