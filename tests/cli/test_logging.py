"""Logs: text on a terminal, JSON elsewhere, one line an event."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import msgspec
import pytest
import structlog

from kubelet_trio.cli.logging import configure_logging
from kubelet_trio.model import recent_log, set_verbosity, set_vmodule


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers, root.level
    yield
    set_vmodule(())
    set_verbosity(0)
    structlog.configure(**before)
    root.handlers, root.level = handlers, level


def test_text_is_for_terminals() -> None:
    out = Terminal()
    configure_logging(stream=out)
    structlog.get_logger().info("pod.started", pod="default/web", message="a b", empty="")
    line = out.getvalue()
    assert line.startswith("I 20")
    assert line.endswith('pod.started pod=default/web message="a b" empty=""\n')


def test_an_event_is_a_sentence_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    configure_logging(stream=out)
    structlog.get_logger().warning(
        "event",
        object="Pod/default/crash",
        field_path="spec.containers{main}",
        type="Warning",
        reason="BackOff",
        message="Back-off\nrestarting",
        count=1,
    )
    assert out.getvalue().endswith(" Warning BackOff pod/default/crash main: Back-off restarting\n")


def test_what_needs_attention_is_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    configure_logging(stream=out)
    structlog.get_logger().warning("x")
    structlog.get_logger().info("y")
    first, second = out.getvalue().splitlines()
    assert first.startswith("\x1b[33mW\x1b[0m 20")
    assert second.startswith("I 20")


def test_anything_else_gets_json() -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    structlog.get_logger().warning("x", path=logging, n=1)
    event = msgspec.json.decode(out.getvalue())
    assert (event["event"], event["level"], event["n"]) == ("x", "warning", 1)
    assert event["timestamp"].endswith("Z")
    assert event["path"].startswith("<module")


def test_a_format_that_was_named_wins() -> None:
    out = Terminal()
    configure_logging(log_format="json", stream=out)
    structlog.get_logger().info("x")
    assert msgspec.json.decode(out.getvalue())["event"] == "x"


@pytest.mark.parametrize(("verbosity", "shown"), [(0, False), (2, False), (4, True)])
def test_verbosity_brings_debug(verbosity: int, shown: bool) -> None:
    out = io.StringIO()
    configure_logging(verbosity, stream=out)
    structlog.get_logger().debug("detail")
    assert ("detail" in out.getvalue()) is shown


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_is_shown_whole(form: str) -> None:
    out = io.StringIO()
    configure_logging(log_format=form, stream=out)
    try:
        raise ExceptionGroup("both", [ValueError("one"), KeyError("two")])
    except ExceptionGroup:
        structlog.get_logger().exception("child.crashed")
    assert "ValueError: one" in out.getvalue()
    assert "KeyError: 'two'" in out.getvalue()


def test_bound_context_is_in_every_line() -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    with structlog.contextvars.bound_contextvars(pod="default/web"):
        structlog.get_logger().info("x")
    assert msgspec.json.decode(out.getvalue())["pod"] == "default/web"


def test_libraries_log_into_the_same_stream() -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    logging.getLogger("trio.serve_listeners").error("accept failed: %s", "EMFILE")
    logging.getLogger("httpx").info("quiet")
    [line] = out.getvalue().splitlines()
    event = msgspec.json.decode(line)
    assert event["logger"] == "trio.serve_listeners"
    assert event["text"] == "accept failed: EMFILE"


def test_the_verbosity_changes_for_loggers_that_are_in_use() -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    log = structlog.get_logger()
    log.debug("first")
    log.info("second")
    set_verbosity(4)
    log.debug("third")
    set_verbosity(3)
    log.debug("fourth")
    told = [msgspec.json.decode(line)["event"] for line in out.getvalue().splitlines()]
    assert told == ["second", "third"]


class Unshowable:
    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "value", ["caf\udce9.yaml", ["\udce9"], {"\udce9": 1}, OSError("\udce9"), 10**400, Unshowable()]
)
def test_whatever_is_logged_gives_a_line(form: str, value: object) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    configure_logging(log_format=form, stream=out)
    structlog.get_logger().info("\udce9", value=value, after="there")
    out.flush()
    line = out.buffer.getvalue().decode()
    assert "there" in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("vmodule", "verbosity", "shown"),
    [
        ([("test_logging", 4)], 0, True),
        ([("test_logging", 3)], 0, False),
        ([("test_*", 4)], 0, True),
        ([("tes[^s]_loggin?", 4)], 0, True),
        ([("other", 9)], 0, False),
        ([("other", 9)], 4, True),  # a file's level only ever adds
        ([("test_logging", 0)], 4, True),
        ([("*", 0), ("test_logging", 9)], 0, False),  # the first that matches
        ([("test_logging.py", 9), ("cli/test_logging", 9)], 0, False),  # it is a name, no path
    ],
)
def test_files_have_levels_of_their_own(
    vmodule: list[tuple[str, int]], verbosity: int, shown: bool
) -> None:
    out = io.StringIO()
    configure_logging(verbosity, stream=out, vmodule=vmodule)
    structlog.get_logger().debug("detail", n=1)
    structlog.get_logger().info("always")
    lines = out.getvalue().splitlines()
    assert [msgspec.json.decode(line)["event"] for line in lines] == ["detail"] * shown + ["always"]


def test_a_verbosity_set_later_keeps_the_levels_of_files() -> None:
    out = io.StringIO()
    configure_logging(5, stream=out, vmodule=[("test_logging", 4)])
    set_verbosity(0)
    structlog.get_logger().debug("detail")
    assert "detail" in out.getvalue()


@pytest.mark.parametrize(
    ("form", "split", "apart"),
    [("text", ["text"], True), ("json", ["text"], False), ("json", ["json"], True)],
)
def test_a_split_stream_has_errors_apart(form: str, split: list[str], apart: bool) -> None:
    info, errors = io.StringIO(), io.StringIO()
    configure_logging(log_format=form, stream=errors, split=split, info_stream=info)
    log = structlog.get_logger()
    log.info("one")
    log.warning("two")
    log.error("three")
    log.exception("four", exc_info=ValueError("x"))
    assert ["one" in errors.getvalue(), "two" in errors.getvalue()] == [not apart] * 2
    assert ["one" in info.getvalue(), "two" in info.getvalue()] == [apart] * 2
    assert "three" in errors.getvalue()
    assert "four" in errors.getvalue()
    assert "three" not in info.getvalue()


def test_the_latest_entries_are_remembered_as_text_whatever_the_format() -> None:
    configure_logging(log_format="json", stream=io.StringIO())
    structlog.get_logger().warning("pod.failed", pod="prod/web")
    [line] = recent_log.lines("warning", 1)
    assert line.startswith("W 2")
    assert line.endswith("pod.failed pod=prod/web")
