"""Logging of the agent: one line per event on stderr, text on a terminal and JSON elsewhere.

Uses structlog, with its own small renderers: structlog's pretty printing needs too much memory.
Log records of the standard library go to the same stream.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Container, Iterator, MutableMapping, Sequence
from functools import partial
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import Processor

from kubelet_trio.cli.colour import is_wanted, paint, paint_state
from kubelet_trio.model import BoundLogger, recent_log, set_verbosity, set_vmodule

_LETTERS = {"debug": "D", "info": "I", "warning": "W", "error": "E", "critical": "F"}
_MOODS = {"warning": "busy", "error": "bad", "critical": "bad"}
_SUBJECT = ("pod", "podUID", "containerName", "containerID")
_CONTEXT = ("probe", "client", "child")
_EVENT_FIELDS = frozenset({"type", "reason", "object", "message"})
_CONTAINER = re.compile(r"spec\.\w+\{(.+)\}")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+,")


def configure_logging(
    verbosity: int = 0,
    log_format: str = "",
    stream: TextIO | None = None,
    *,
    vmodule: Sequence[tuple[str, int]] = (),
    split: Container[str] = (),
    info_stream: TextIO | None = None,
) -> None:
    """Set logging up for the process.

    Args:
        verbosity: the value of `-v`.
        log_format: `text`, `json` or empty (text on a terminal).
        stream: the output; None: stderr.
        vmodule: patterns of file names with their verbosity.
        split: the formats in which only errors go to `stream`, other lines to `info_stream`.
        info_stream: None: stdout.
    """
    out = stream or sys.stderr
    is_text = log_format == "text" or (not log_format and out.isatty())
    factory: Callable[..., structlog.WriteLogger] = structlog.WriteLoggerFactory(out)
    if ("text" if is_text else "json") in split:
        factory = partial(_split_logger, info_stream or sys.stdout, out)
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        # Local time for people at a terminal, UTC for log collectors.
        structlog.processors.TimeStamper(fmt="iso", utc=not is_text),
        structlog.processors.format_exc_info,
        _in_order,
        _remember,
        partial(render_text, colour=is_wanted("auto", out)) if is_text else render_json,
    ]
    structlog.configure(
        processors=processors,
        wrapper_class=BoundLogger,
        logger_factory=factory,
        cache_logger_on_first_use=True,
    )
    # Replaces other handlers: a library's `basicConfig` must not print lines twice.
    root = logging.getLogger()
    root.handlers = [_Forward()]
    set_vmodule(vmodule)
    set_verbosity(verbosity)


def _in_order(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Put what a line is about first, and the rest of its context last: it has no order itself."""
    ordered = {key: event[key] for key in _SUBJECT if key in event}
    ordered |= {key: value for key, value in event.items() if key not in _CONTEXT}
    return ordered | {key: event[key] for key in _CONTEXT if key in event}


def _remember(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Put an entry into the ring of the latest ones, as text."""
    # A copy: the renderers take an entry apart.
    recent_log.add(str(event.get("level", "")), render_text(logger, method, dict(event)))
    return event


class _SplitLogger(structlog.WriteLogger):
    """Writes errors to a separate stream, like the Go kubelet's `splitStream`."""

    def __init__(self, info: TextIO, errors: TextIO) -> None:
        super().__init__(info)
        self._errors = structlog.WriteLogger(errors)

    def error(self, message: str) -> None:
        self._errors.msg(message)

    critical = error


def _split_logger(info: TextIO, errors: TextIO, *_: Any) -> _SplitLogger:
    return _SplitLogger(info, errors)


def render_text(_: Any, __: str, event: MutableMapping[str, Any], *, colour: bool = False) -> str:
    """Render one log entry as `I 2026-01-02T15:04:05.000000 name key=value ...`.

    An event of Kubernetes is `I 2026-... Normal Started pod/default/web web: Container started`.
    """
    # Last, on its own lines: a traceback would be unreadable as a quoted value.
    exception = event.pop("exception", None)
    level = event.pop("level", "")
    letter = _LETTERS.get(level, "?")
    if colour and level in _MOODS:
        letter = paint(_MOODS[level], letter)
    head = f"{letter} {event.pop('timestamp', '')}"
    name = _shown(event.pop("event", ""), str)
    if name == "event" and event.keys() >= _EVENT_FIELDS:
        parts = [head, *_event_words(event, colour=colour)]
    else:
        parts = [head, name]
        parts += [f"{key}={_quoted(value)}" for key, value in event.items()]
    line = " ".join(parts)
    return _encodable(f"{line}\n{exception}" if exception else line)


def _event_words(event: MutableMapping[str, Any], *, colour: bool) -> Iterator[str]:
    """Yield an event of Kubernetes in the order of `kubelet-trio events`."""
    kind = _shown(event["type"], str)
    yield paint_state(kind) if colour else kind
    yield _shown(event["reason"], str)
    involved, _, name = _shown(event["object"], str).partition("/")
    container = _CONTAINER.fullmatch(_shown(event.get("field_path", ""), str))
    yield f"{involved.lower()}/{name}" + (f" {container[1]}:" if container else ":")
    # One line an entry, whatever a message has in it.
    yield " ".join(_shown(event["message"], str).split())
    if event.get("count", 1) != 1:
        yield f"(x{event['count']})"


def render_json(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    """Render one event as a JSON object; a value without a JSON form is written as its repr."""
    first = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    whole = {**first, **event}
    try:
        return msgspec.json.encode(whole, enc_hook=_shown).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        # For example a file name that is not UTF-8. Logging must not raise.
        plain = {
            _encodable(str(key)): _encodable(_shown(value, str)) for key, value in whole.items()
        }
        return msgspec.json.encode(plain).decode()


def _quoted(value: Any) -> str:
    text = _encodable(_shown(value, str))
    if text and _PLAIN.issuperset(text):
        return text
    return msgspec.json.encode(text).decode()


def _shown(value: Any, turn: Callable[[Any], str] = repr) -> str:
    """Return a value as text; never raises because of the value."""
    try:
        return turn(value)
    except (TypeError, ValueError, AttributeError, LookupError, RecursionError) as exc:
        return f"<{type(value).__name__}: {type(exc).__name__}>"


def _encodable(text: str) -> str:
    """Return text that every stream accepts: non-UTF-8 bytes of file names as `\\udce9`."""
    return text.encode("utf-8", "backslashreplace").decode()


class _Forward(logging.Handler):
    """Passes records of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        # One event name for all libraries: their messages are texts, not events.
        structlog.get_logger().log(
            record.levelno,
            "library",
            logger=record.name,
            text=record.getMessage(),
            **({"exc_info": record.exc_info} if record.exc_info else {}),
        )
