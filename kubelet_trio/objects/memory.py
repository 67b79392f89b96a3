"""The seam to knowledge of the API server that outlives the agent; `offline` implements it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from lightkube.models.core_v1 import Node

from kubelet_trio.model import PodKey, PodUid
from kubelet_trio.objects.kinds import ApiObject, ObjectKey, ServiceFacts


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A token of a service account, bound to one pod."""

    pod: PodKey
    uid: PodUid
    service_account: str
    audience: str = ""  # "": the API server's own
    expiration_seconds: int = 3600


@dataclass(frozen=True, slots=True)
class KnownToken:
    """A token as the server issued it; times in Unix seconds."""

    text: str = field(repr=False)
    renew_at: float
    expires_at: float


class ClusterMemory(Protocol):
    """Records what the server returns, and returns what it was before this start. Never blocks."""

    @property
    def is_kept(self) -> bool:
        """Whether anything is kept: then old data is better than none."""
        ...

    @property
    def is_cut_off(self) -> bool:
        """Whether the server has not answered since the start: then do not wait for it."""
        ...

    def note_object(self, key: ObjectKey, value: ApiObject | None) -> None:
        """Record the current state of an object; None: it does not exist."""
        ...

    def drop_object(self, key: ObjectKey) -> None:
        """Note that an object is no longer followed; its last state stays while pods need it."""
        ...

    def last_object(self, key: ObjectKey) -> ApiObject | None:
        """Return an object's last known state, to be used when the server does not answer."""
        ...

    @property
    def last_node(self) -> Node | None:
        """What is kept of the node's object: labels, taints, and the volumes in its status."""
        ...

    # The same for services and tokens.

    def note_services(self, facts: tuple[ServiceFacts, ...]) -> None: ...

    def last_services(self) -> tuple[ServiceFacts, ...] | None: ...

    def note_token(self, request: TokenRequest, token: KnownToken) -> None: ...

    def last_token(self, request: TokenRequest) -> KnownToken | None: ...


class NoMemory:
    """A memory that keeps nothing."""

    is_kept = False
    is_cut_off = False
    last_node = None

    def note_object(self, key: ObjectKey, value: ApiObject | None) -> None:
        """Do nothing."""

    def drop_object(self, key: ObjectKey) -> None:
        """Do nothing."""

    def last_object(self, key: ObjectKey) -> ApiObject | None:
        return None

    def note_services(self, facts: tuple[ServiceFacts, ...]) -> None:
        """Do nothing."""

    def last_services(self) -> tuple[ServiceFacts, ...] | None:
        return None

    def note_token(self, request: TokenRequest, token: KnownToken) -> None:
        """Do nothing."""

    def last_token(self, request: TokenRequest) -> KnownToken | None:
        return None


NO_MEMORY = NoMemory()
