"""The page of the agent's log lists what the code logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.log_events import PAGE, UnnamedError, logged_events, page


def test_the_page_lists_every_line_that_the_code_logs() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.harness.log_events"


def test_names_are_found_whichever_way_they_are_logged(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "part.py").write_text(
        "log.info('a.b', pod=1, **more)\n"
        "self._log.exception('a.failed')\n"
        "log.debug('on' if it else 'off', why=2)\n"
        "LeftOut('left.out', 'words')\n"
        "log.warning(one.event)\n"
        "other.info('not this')\n"
    )
    found = logged_events(tmp_path)
    assert {name: (entry.levels, [*entry.fields]) for name, entry in found.items()} == {
        "a.b": ({"info"}, ["pod"]),
        "a.failed": ({"error"}, []),
        "on": ({"debug"}, ["why"]),
        "off": ({"debug"}, ["why"]),
        "left.out": ({"warning"}, []),
    }
    assert found["a.b"].files == {"room/part"}


def test_a_line_without_a_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("log.info(f'a {thing}')\n")
    with pytest.raises(UnnamedError, match=r"a \{thing\}"):
        logged_events(tmp_path)


def test_pods_and_containers_have_the_go_kubelets_keys() -> None:
    ours = {"uid", "pod_uid", "container", "container_name", "container_id"}
    wrong = {name: entry.fields for name, entry in logged_events().items()}
    assert {name for name, fields in wrong.items() if ours & fields.keys()} == set()


def test_the_fields_that_name_a_pod_are_known(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("log.info('a', **about_pod(pod), why=1)\n")
    assert list(logged_events(tmp_path)["a"].fields) == ["pod", "podUID", "why"]
