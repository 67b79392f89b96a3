"""The seam to what outlives the agent of all that an API server has said: see `offline`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kubelet_trio.objects.tokens import TokenRequest
from kubelet_trio.objects.types import ApiObject, ObjectKey

if TYPE_CHECKING:
    from kubelet_trio.objects.services import ServiceFacts


@dataclass(frozen=True, slots=True)
class KnownToken:
    """A token as it was given; times in Unix seconds."""

    text: str
    renew_at: float
    expires_at: float


class ClusterMemory(Protocol):
    """Told of what the server says; asked what it said before this start. Never blocks."""

    @property
    def is_kept(self) -> bool:
        """Whether anything is kept at all: then what has grown old is better than nothing."""
        ...

    @property
    def is_cut_off(self) -> bool:
        """Whether the server has been silent since the start: then it is not waited for."""
        ...

    def note_object(self, key: ObjectKey, value: ApiObject | None) -> None:
        """Take what an object is now; None: there is none."""
        ...

    def drop_object(self, key: ObjectKey) -> None:
        """Nobody follows an object any more: it is as last noted for as long as pods need it."""
        ...

    def last_object(self, key: ObjectKey) -> ApiObject | None:
        """Return what may stand in for an answer that does not come, if anything."""
        ...

    def note_services(self, facts: tuple[ServiceFacts, ...]) -> None: ...

    def last_services(self) -> tuple[ServiceFacts, ...] | None: ...

    def note_token(self, request: TokenRequest, token: KnownToken) -> None: ...

    def last_token(self, request: TokenRequest) -> KnownToken | None: ...


class NoMemory:
    """What a start finds is what the server says, and nothing else."""

    is_kept = False
    is_cut_off = False

    def note_object(self, key: ObjectKey, value: ApiObject | None) -> None:
        """Nothing is kept."""

    def drop_object(self, key: ObjectKey) -> None:
        """Nothing was kept."""

    def last_object(self, key: ObjectKey) -> ApiObject | None:
        return None

    def note_services(self, facts: tuple[ServiceFacts, ...]) -> None:
        """Nothing is kept."""

    def last_services(self) -> tuple[ServiceFacts, ...] | None:
        return None

    def note_token(self, request: TokenRequest, token: KnownToken) -> None:
        """Nothing is kept."""

    def last_token(self, request: TokenRequest) -> KnownToken | None:
        return None


NO_MEMORY = NoMemory()
