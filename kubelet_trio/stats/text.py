"""Write Prometheus' text format (0.0.4).

Not with `prometheus_client`: its import costs each agent about 6 MB, and it builds an object for
each sample, while a scrape of a full node has 10 000 lines. A test parses our pages with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SMALL, _LARGE = 1e-4, 1e16  # Python writes floats outside with an exponent


class Exposition:
    """Collects metric families, in the order of their first use."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def family(self, name: str, kind: str, help_text: str) -> list[str]:
        """Return the lines of a family, to append samples; create it at the first call."""
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
        """Append a sample; `labels` come from `label_text`, `time` from `milliseconds`."""
        self.family(name, kind, help_text).append(sample(name, labels, value, time))

    def default(self, name: str, kind: str, help_text: str, value: float) -> None:
        """Append a sample without labels if the family has no sample."""
        lines = self.family(name, kind, help_text)
        if len(lines) == 2:
            lines.append(sample(name, "", value))

    def text(self) -> str:
        """Return the page, without families that have no sample."""
        # The first two lines are HELP and TYPE. A full node's page has 7 MB: it is joined once.
        lines = [line for own in self._families.values() if len(own) > 2 for line in own]
        return "\n".join((*lines, "")) if lines else ""


def sample(name: str, labels: str, value: float, time: str = "") -> str:
    """Return one line of a page."""
    inside = f"{{{labels}}}" if labels else ""
    return f"{name}{inside} {number(value)}{time}"


def milliseconds(seconds: float) -> str:
    """Return a sample's timestamp, as the end of its line."""
    return f" {round(seconds * 1000)}"


def number(value: float) -> str:
    """Format a value: `+Inf` as the text format spells it, other floats with all their digits."""
    # 17 digits give every double back.
    if value == float("inf"):
        return "+Inf"
    return repr(value) if isinstance(value, int) else f"{value:.17g}".replace("inf", "Inf")


def number_texts(values: Sequence[float]) -> list[bytes]:
    """Return `str` of each value as bytes, at a third of the cost."""
    if not values:
        return []
    try:
        encoded = msgspec.json.encode(values)
    except OverflowError:  # an integer of more than 64 bits
        return [str(value).encode() for value in values]
    texts = encoded[1:-1].split(b",")
    if b"." in encoded or b"e" in encoded or b"n" in encoded:  # a float, or null for infinity
        for place, value in enumerate(values):
            # Here JSON has another form: fewer digits of the exponent, or none at all.
            if value >= _LARGE or (value < _SMALL and value):
                texts[place] = str(value).encode()
    return texts


def label_text(labels: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """Return labels as the text between the braces."""
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    return ",".join(f'{name}="{escape(value)}"' for name, value in pairs)


def escape(value: str) -> str:
    """Escape a label's value."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value
