"""What an edit would do: JSON as it stands, by `msgspec.json`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContainerChange:
    """What happens to a container.

    `action`: `start`, `restart`, `resize` (in place) or `end`. Those not named stay as they are.
    """

    name: str
    action: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class VolumeChange:
    """What happens to a volume. `action`: `mount` or `unmount`.

    `loses_data`: it is an emptyDir, whose content goes with it.
    """

    name: str
    kind: str
    action: str
    loses_data: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the node would admit a pod, or grant its resize.

    `decision`: `admitted`, `preempting` (once `victims` have ended), `rejected`, `deferred` or
    `infeasible`; reason and message are those of the event that would follow.
    """

    decision: str
    reason: str = ""
    message: str = ""
    victims: tuple[str, ...] = ()

    @property
    def is_refusal(self) -> bool:
        """Whether the pod would not get what the edit asks for."""
        return self.decision in ("rejected", "deferred", "infeasible")


@dataclass(frozen=True, slots=True)
class PodChange:
    """What happens to the pod of a name.

    Attributes:
        action: `create`, `replace` (it ends, and a new pod of the name starts), `update` (it stays
            the same pod) or `remove`.
        uid: of the pod afterwards; "" if there is none.
        was_uid: of the pod before; "" if there was none.
        fields: what differs between the manifests, such as `spec.containers[web].image`.
        verdict: on what starts or grows; None if nothing does.
        before: the manifest as the agent has it, without what it adds on each start.
        after: as it would have it.
    """

    namespace: str
    name: str
    action: str
    manifest: str
    uid: str = ""
    was_uid: str = ""
    fields: tuple[str, ...] = ()
    containers: tuple[ContainerChange, ...] = ()
    volumes: tuple[VolumeChange, ...] = ()
    verdict: Verdict | None = None
    before: object = None
    after: object = None


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """What happens to a ConfigMap or another object. `used_by`: the pods that follow it."""

    kind: str
    namespace: str
    name: str
    action: str  # create, update or remove
    used_by: tuple[str, ...] = ()
    before: object = None
    after: object = None


@dataclass(frozen=True, slots=True)
class EditPlan:
    """What an edit would do. Nothing has been done.

    `problems`: why pods of the edit would not run at all, such as two of one name.
    """

    pods: tuple[PodChange, ...] = ()
    objects: tuple[ObjectChange, ...] = ()
    problems: tuple[str, ...] = ()
    changes: bool = False  # whether anything would change
    refused: bool = False  # whether a pod would not be admitted, or not resized
