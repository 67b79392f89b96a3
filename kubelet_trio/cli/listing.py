"""Lists of objects: `pods`, `nodes` and what `get` calls by kubectl's names."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import click

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.kept import note_kept
from kubelet_trio.cli.output import Output, sort_objects
from kubelet_trio.cli.podstate import Json, part
from kubelet_trio.cli.progress import Footer, under_way
from kubelet_trio.cli.selectors import Selector, has_fields
from kubelet_trio.cli.tables import (
    POD_COLUMNS,
    WIDE_COLUMNS,
    Table,
    label_cells,
    pod_row,
)


@dataclass(frozen=True, slots=True)
class Shown:
    """Which objects to show, and how: the options that the listing commands share."""

    output: Output = field(default_factory=Output)
    namespace: str = ""  # empty: all
    labels: Selector | None = None
    fields: Sequence[tuple[str, bool, str]] = ()
    headers: bool = True
    sort_by: str = ""  # a field, as for jsonpath
    show_labels: bool = False
    label_columns: Sequence[str] = ()

    def chooses(self, thing: Json) -> bool:
        """Return whether an object matches the selectors."""
        labels = part(thing, "metadata").get("labels") or {}
        return (self.labels is None or self.labels(labels)) and has_fields(thing, list(self.fields))

    def choose(self, things: Sequence[Json], order: Callable[[Json], object]) -> list[Json]:
        """Return the objects that match, in the wanted order. Raises `ClientError`."""
        chosen = sorted(filter(self.chooses, things), key=order)  # type: ignore[arg-type]
        if not self.sort_by:
            return chosen
        try:
            return sort_objects(chosen, self.sort_by)
        except ValueError as exc:
            raise ClientError(f"--sort-by: {exc}") from exc

    def table(self, columns: Sequence[str]) -> Table:
        """Return a table of these columns, and those of labels."""
        own = [key.rpartition("/")[2].upper() for key in self.label_columns]
        return Table([*columns, *own, *(["LABELS"] if self.show_labels else [])])

    def row(self, thing: Json, cells: Sequence[str]) -> list[str]:
        """Return an object's cells, and those of its labels."""
        labels = part(thing, "metadata").get("labels") or {}
        return [*cells, *label_cells(labels, self.label_columns, every=self.show_labels)]

    def print(
        self,
        things: Sequence[Json],
        columns: Sequence[str],
        cells: Callable[[Json], Sequence[str]],
        *,
        is_one: bool = False,
    ) -> None:
        """Print objects as a table of `cells`, or as `output` says. Raises `ClientError`."""
        if not self.output.is_table:
            click.echo(self._text(things, is_one=is_one), nl=False)
        elif things:
            rows = [self.row(thing, cells(thing)) for thing in things]
            click.echo(self.table(columns).text(rows, headers=self.headers), nl=False)
        if not things and self.output.form in ("", "wide", "name"):
            click.echo("No resources found", err=True)

    def print_change(self, thing: Json) -> None:
        """Print an object of a watch, in a form that is no table. Raises `ClientError`."""
        text = self._text([thing], is_one=True)
        click.echo("---\n" * (self.output.form == "yaml") + text, nl=False)

    def _text(self, things: Sequence[Json], *, is_one: bool) -> str:
        try:
            return self.output.text(things, is_one=is_one, headers=self.headers)
        except ValueError as exc:
            raise ClientError(f"-o {self.output.form}: {exc}") from exc


class Watched:
    """Prints a watch: what there is at first together, sorted and aligned, then each change."""

    def __init__(
        self,
        shown: Shown,
        columns: Sequence[str],
        cells: Callable[[Json], Sequence[str]],
        order: Callable[[Json], object],
    ) -> None:
        self._shown, self._cells, self._order = shown, cells, order
        self._table = shown.table(columns)
        self._first: list[Json] | None = []  # None: they have been printed

    def take(self, thing: Json | None) -> None:
        """Print a chosen object; None is the bookmark after all current ones.

        Raises `ClientError`.
        """
        shown = self._shown
        if thing is None:
            rows = [self._row(each) for each in shown.choose(self._first or (), self._order)]
            if shown.output.is_table:
                click.echo(self._table.text(rows, headers=shown.headers), nl=False)
            self._first = None
        elif not shown.output.is_table:
            shown.print_change(thing)
        elif self._first is not None:
            self._first.append(thing)
        else:
            click.echo(self._table.rows([self._row(thing)])[0])

    def _row(self, thing: Json) -> Sequence[str]:
        return self._shown.row(thing, self._cells(thing))


def pods(agent: AgentClient, names: Sequence[str], shown: Shown, *, watch: bool) -> None:
    """Print pods; with `watch` also every change. Raises `ClientError`."""
    from kubelet_trio.cli.reading import find_pod

    if names and watch:
        raise ClientError("name no pods with --watch, or one namespace")
    wide = shown.output.is_wide
    columns = POD_COLUMNS + (WIDE_COLUMNS if wide else ())
    if watch:
        _watch_pods(agent, shown, columns)
        return
    if names:
        found = [find_pod(agent, name, shown.namespace) for name in names]
        found = shown.choose(found, lambda _: 0)
    else:
        every = agent.get("pods", namespace=shown.namespace)["items"]
        found = shown.choose(every, pod_order)
    now = time.time()
    shown.print(found, columns, lambda pod: pod_row(pod, now, wide=wide), is_one=len(names) == 1)
    if shown.output.is_table:
        note_kept(agent, found)


def pod_order(pod: Json) -> tuple[str, str]:
    """Return the sort key of kubectl's lists."""
    meta = part(pod, "metadata")
    return meta.get("namespace", ""), meta.get("name", "")


def _watch_pods(agent: AgentClient, shown: Shown, columns: Sequence[str]) -> None:
    wide = shown.output.is_wide
    watched = Watched(shown, columns, lambda pod: pod_row(pod, time.time(), wide=wide), pod_order)
    footer = Footer(lambda: _under_way(agent, shown))
    with footer.running():
        for change in agent.watch("pods", namespace=shown.namespace):
            pod = change.get("object")
            if pod is not None and not shown.chooses(pod):
                continue
            with footer.above():
                watched.take(pod)


def _under_way(agent: AgentClient, shown: Shown) -> str:
    """Return what is under way for the shown pods, "" if nothing is or the agent is gone."""
    try:
        found = agent.get("pods", namespace=shown.namespace)["items"]
        return under_way(agent.get("status"), filter(shown.chooses, found), time.time())
    except ClientError:
        return ""
