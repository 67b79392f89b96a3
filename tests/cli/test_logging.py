"""Logs: text on a terminal, JSON elsewhere, one line an event."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import msgspec
import pytest
import structlog

from kubelet_trio.cli.logging import configure_logging
from kubelet_trio.model import set_verbosity


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers, root.level
    yield
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
