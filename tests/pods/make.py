"""Short ways to write pods and what the runtime says of them, for tables of decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lightkube.models.core_v1 import (
    Container,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    EphemeralContainer,
    Pod,
    PodSpec,
    PodStatus,
)
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import (
    ContainerId,
    ContainerRecord,
    ContainerState,
    PodUid,
    RuntimePod,
    SandboxId,
    SandboxRecord,
)
from kubelet_trio.pods.plan import PlanInput, PodPlan, plan_pod

UID = PodUid("uid-1")
RUNNING, EXITED = ContainerState.RUNNING, ContainerState.EXITED
CREATED, UNKNOWN = ContainerState.CREATED, ContainerState.UNKNOWN


def container(
    name: str,
    restart: str | None = None,
    rules: Sequence[tuple[str, list[int]]] = (),
    action: str = "Restart",
    **more: Any,
) -> Container:
    """A container; `rules` are (operator, exit codes) that restart it, or do as `action` says."""
    made = [
        ContainerRestartRule(
            action=action,
            exitCodes=ContainerRestartRuleOnExitCodes(operator=operator, values=codes),
        )
        for operator, codes in rules
    ]
    return Container(
        name=name,
        image=f"{name}:1",
        restartPolicy=restart,
        restartPolicyRules=made or None,
        **more,
    )


def sidecar(name: str, **more: Any) -> Container:
    return container(name, "Always", **more)


def pod(
    *mains: str | Container,
    init: Iterable[str | Container] = (),
    ephemeral: Iterable[str] = (),
    policy: str = "Always",
    annotations: dict[str, str] | None = None,
    deletion_grace: int | None = None,
    deleted: Any = None,
    generation: int | None = None,
    status: PodStatus | None = None,
    **body: Any,
) -> Pod:
    """A defaulted pod, with one main container `web` unless others are named."""
    return Pod(
        metadata=ObjectMeta(
            name="p",
            namespace="ns",
            uid=UID,
            annotations=annotations,
            deletionGracePeriodSeconds=deletion_grace,
            deletionTimestamp=deleted,
            generation=generation,
        ),
        spec=PodSpec(
            containers=_containers(mains or ("web",)),
            initContainers=_containers(init) or None,
            ephemeralContainers=[EphemeralContainer(name=n, image="debug:1") for n in ephemeral]
            or None,
            restartPolicy=policy,
            **body,
        ),
        status=status,
    )


def static_pod(*mains: str | Container, **more: Any) -> Pod:
    return pod(*mains, annotations={"kubernetes.io/config.source": "file"}, **more)


def _containers(named: Iterable[str | Container]) -> list[Container]:
    return [container(c) if isinstance(c, str) else c for c in named]


def record(
    name: str,
    state: ContainerState = RUNNING,
    attempt: int = 0,
    *,
    code: int = 0,
    sandbox: str = "s0",
    created: float | None = None,
    finished: float | None = None,
    **more: Any,
) -> ContainerRecord:
    """An instance, made at 100 s plus 10 s an attempt and ended 5 s later."""
    made = 100.0 + 10 * attempt if created is None else created
    ended = (made + 5 if finished is None else finished) if state is EXITED else 0.0
    return ContainerRecord(
        id=ContainerId(f"{name}-{sandbox}-{attempt}"),
        name=name,
        sandbox_id=SandboxId(sandbox),
        state=state,
        attempt=attempt,
        created_at=made,
        started_at=0.0 if state is CREATED else made,
        finished_at=ended,
        exit_code=code,
        image=f"{name}:1",
        image_id=f"sha256:{name}",
        **more,
    )


def sandbox(
    number: int = 0,
    *,
    ready: bool = True,
    host: bool = False,
    ips: tuple[str, ...] = ("10.0.0.1",),
) -> SandboxRecord:
    return SandboxRecord(
        id=SandboxId(f"s{number}"),
        ready=ready,
        attempt=number,
        created_at=90.0 + number,
        host_network=host,
        ips=() if host else ips,
    )


def runtime(
    *records: ContainerRecord, sandboxes: Sequence[SandboxRecord] | None = None
) -> RuntimePod:
    """What the runtime holds, newest first; one good sandbox unless told otherwise."""
    return RuntimePod(
        uid=UID,
        namespace="ns",
        name="p",
        sandboxes=tuple(sandboxes) if sandboxes is not None else (sandbox(),),
        containers=tuple(sorted(records, key=lambda r: -r.created_at)),
    )


NOTHING = runtime(sandboxes=())


def started(made: PodPlan) -> list[tuple[str, int]]:
    """The containers that a plan starts, and their restart counts."""
    return [(s.container.spec.name, s.attempt) for s in made.start]


def planned(of: Pod, observed: RuntimePod, *, now: float = 100_000.0, **given: Any) -> PodPlan:
    """What is planned for a pod; `given` are the other fields of `PlanInput`."""
    return plan_pod(of, observed, PlanInput(now, **given))
