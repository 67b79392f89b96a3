"""`replay`: what the agent of a recording decides, in a line each, and where it differs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import click
import msgspec
import structlog

from kubelet_trio.cli.colour import paint
from kubelet_trio.cli.tables import has_colour, printable
from kubelet_trio.durations import parse_duration
from kubelet_trio.replay import Decision, Divergence, RecordingError, Replay, replay_recording

SAME, DIVERGED, TROUBLE = 0, 1, 2  # exit codes
_MOODS = {"why": "busy", "answer": "bad"}


@dataclass(frozen=True, slots=True)
class Options:
    """What of a recording is replayed. `after`: `until` counts from its beginning."""

    pod: str
    until: float | None
    after: bool
    tolerance: float


def options(pod: str, until: str, tolerance: str) -> Options:
    """Parse the options. Raises `click.UsageError`."""
    if pod and "/" not in pod:
        pod = f"default/{pod}"
    after = until.startswith("+")
    try:
        allowed = float(parse_duration(tolerance))
    except ValueError as exc:
        raise click.UsageError(f"--tolerance: {exc}") from exc
    try:
        stop = _time(until) if until else None
    except ValueError as exc:
        raise click.UsageError(f"--until: {exc}") from exc
    return Options(pod, stop, after, allowed)


def _time(text: str) -> float:
    """Return Unix seconds, or with a `+` the seconds after the beginning. Raises ValueError."""
    if text.startswith("+"):
        return float(parse_duration(text[1:]))
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text).timestamp()


def replay(file: str, chosen: Options, *, as_json: bool) -> int:
    """Replay a recording and print it; return the exit code."""
    # The agent's own log is that of a machine which is not there.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        found = replay_recording(
            file,
            pod=chosen.pod,
            until=None if chosen.after else chosen.until,
            after=chosen.until if chosen.after else None,
            tolerance=chosen.tolerance,
            on_decision=(lambda _decision: None) if as_json else _show,
        )
    except (RecordingError, OSError) as exc:
        click.echo(f"error: {exc}", err=True)
        return TROUBLE
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        click.echo("\n".join(_summary(found)))
    return SAME if found.divergence is None else DIVERGED


def _show(decision: Decision) -> None:
    click.echo(line(decision, coloured=has_colour()))


def line(decision: Decision, *, coloured: bool = False) -> str:
    """Return the line of a decision. Pure."""
    moment = _clock(decision.at)
    text = printable(decision.text)
    mood = _MOODS.get(decision.kind)
    who = printable(decision.pod or "-")
    shown = paint(mood, text) if coloured and mood else text
    return f"{moment}  {who:<24} {decision.kind:<7} {shown}"


def _summary(found: Replay) -> Iterator[str]:
    for note in found.notes:
        yield f"note: {printable(note)}"
    if found.divergence is not None:
        yield from divergence_lines(found.divergence, coloured=has_colour())
        return
    span = f"{found.ended - found.began:.0f} s"
    agents = "1 agent" if found.starts == 1 else f"{found.starts} agents"
    yield f"{span} of {agents}: it decides as it did ({len(found.decisions)} decisions)"


def divergence_lines(found: Divergence, *, coloured: bool = False) -> Iterator[str]:
    """Yield what a divergence says. Pure."""
    head = f"{_clock(found.at)}  {printable(found.pod or 'the node')}: IT DECIDES OTHERWISE"
    yield paint("bad", head) if coloured else head
    yield f"  recorded:     {printable(found.recorded)}"
    yield f"  decided now:  {printable(found.decided)}"
    for reason in found.why:
        yield f"  because:      {printable(reason)}"


def _clock(wall: float) -> str:
    moment = datetime.fromtimestamp(wall).astimezone()
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03}"
