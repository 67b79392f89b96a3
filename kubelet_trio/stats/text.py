"""Prometheus' text format (0.0.4), written straight: a scrape of a full node is 10 000 lines.

Written here and not by `prometheus_client`: importing that costs every agent some 6 MB, and its
collectors build an object for each sample where a string will do. A test has its parser read
what this writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """Collects families in the order they are named, each with its samples together."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def family(self, name: str, kind: str, help_text: str) -> list[str]:
        """Begin a family, or go on with it; returns the lines that samples are put into."""
        lines = self._families.get(name)
        if lines is None:
            lines = [
                f"# HELP {name} {help_text}".replace("\n", "\\n"),
                f"# TYPE {name} {kind}",
            ]
            self._families[name] = lines
        return lines

    def add(
        self, name: str, kind: str, help_text: str, value: float, labels: str = "", time: str = ""
    ) -> None:
        """Put one sample; `labels` as `label_text` makes them, `time` as `milliseconds` does."""
        self.family(name, kind, help_text).append(sample(name, labels, value, time))

    def default(self, name: str, kind: str, help_text: str, value: float) -> None:
        """Put a sample without labels if the family has none at all."""
        lines = self.family(name, kind, help_text)
        if len(lines) == 2:
            lines.append(sample(name, "", value))

    def text(self) -> str:
        """Return the page. Families without a sample are left out."""
        return "".join(
            "\n".join(lines) + "\n" for lines in self._families.values() if len(lines) > 2
        )


def sample(name: str, labels: str, value: float, time: str = "") -> str:
    """Return one line of a page."""
    inside = f"{{{labels}}}" if labels else ""
    return f"{name}{inside} {number(value)}{time}"


def milliseconds(seconds: float) -> str:
    """Return a sample's own time as it ends its line."""
    return f" {round(seconds * 1000)}"


def number(value: float) -> str:
    """Write a value as Go does."""
    if value == float("inf"):
        return "+Inf"
    return repr(value) if isinstance(value, int) else f"{value:.17g}".replace("inf", "Inf")


def label_text(labels: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """Return labels as they stand between the braces."""
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    return ",".join(f'{name}="{escape(value)}"' for name, value in pairs)


def escape(value: str) -> str:
    """Escape a label's value."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value
