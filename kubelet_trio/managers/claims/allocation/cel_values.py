"""The types of Kubernetes' CEL libraries: quantities and semantic versions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from kubelet_trio.model import NANO, parse_quantity

_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)
_LOOSE = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(.*)", re.DOTALL)
_Identifier: TypeAlias = tuple[int, int, str]


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """A quantity in nano-units."""

    nano: int

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Return the quantity of a text. Raises ValueError."""
        return cls(parse_quantity(text))

    @property
    def is_integer(self) -> bool:
        return self.nano % NANO == 0 and -(1 << 63) <= self.nano // NANO < 1 << 63


@dataclass(frozen=True, slots=True, order=True)
class SemVer:
    """A version that compares as semver 2.0.0 says; build metadata does not count."""

    release: tuple[int, int, int]
    # A release is later than all of its pre-releases.
    is_final: bool
    pre: tuple[_Identifier, ...]

    @classmethod
    def parse(cls, text: str, *, loosely: bool = False) -> SemVer:
        """Return the version of a text.

        Args:
            text: `1.2.3-rc.1+build`.
            loosely: whether to accept `v1.2` and leading zeros, too.

        Raises ValueError.
        """
        if loosely and (parts := _LOOSE.fullmatch(text)):
            numbers = ".".join(str(int(number or "0")) for number in parts.groups()[:3])
            text = numbers + parts[4]
        found = _SEMVER.fullmatch(text)
        if found is None:
            raise ValueError(f"{text[:64]!r} is not a semantic version")
        release = (int(found[1]), int(found[2]), int(found[3]))
        identifiers = found[4].split(".") if found[4] else []
        for each in identifiers:
            if each.isdigit() and len(each) > 1 and each[0] == "0":
                raise ValueError(f"{text[:64]!r} is not a semantic version: leading zero")
        # Numbers are before words, and compare as numbers.
        pre = tuple((0, int(e), "") if e.isdigit() else (1, 0, e) for e in identifiers)
        return cls(release, not identifiers, pre)
