"""What the node's pods hold: sums that are kept, beside sums that are made anew each time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
)
from lightkube.models.core_v1 import ContainerPort, Pod, ResourceRequirements
from msgspec.structs import replace

from kubelet_trio.containers import pod_requests
from kubelet_trio.model import (
    CONFIG_SOURCE,
    NANO,
    Meter,
    PodUid,
    is_static,
    metadata,
    pod_key,
    pod_uid,
)
from kubelet_trio.pods.admission.held import Held, HostPort, Sums, host_ports
from kubelet_trio.pods.types import EndReason, PendingResize, PodStage, TerminationRequest
from kubelet_trio.pods.worker.ledger import Ledger
from kubelet_trio.pods.worker.phases import Phase
from kubelet_trio.pods.worker.state import WorkerState
from tests.pods.make import container, pod, runtime
from tests.sources.make import FixedClock

RESOURCES = ("cpu", "memory", "example.org/gpu")
PORTS: list[HostPort] = [
    (address, protocol, number)
    for address in ("0.0.0.0", "192.0.2.1", "192.0.2.2")
    for protocol in ("TCP", "UDP")
    for number in (80, 81)
]
AMOUNTS = st.dictionaries(st.sampled_from(RESOURCES), st.sampled_from(["1", "2", "3"]))


class Standin(WorkerState):
    """The state of a worker, without a task: the test does to it what tasks do."""

    def enter(self, phase: Phase) -> None:
        self._phase.value = phase
        self._changed()

    def let_in(self) -> None:
        self._reporter.admit()
        self._changed()

    def give_way(self) -> None:
        self._yields = True
        self._changed()

    def preempt(self) -> None:
        self._request = TerminationRequest(self.uid, EndReason.PREEMPTED)
        self._changed()


def made(uid: str, amounts: dict[str, str], ports: list[HostPort], source: str) -> Pod:
    exposed = [
        ContainerPort(containerPort=1, hostIP=a, protocol=p, hostPort=n) for a, p, n in ports
    ]
    main = container("main", resources=ResourceRequirements(requests=amounts), ports=exposed)
    body = pod(main)
    meta = replace(
        metadata(body), uid=uid, name=f"name-{len(uid) % 2}", annotations={CONFIG_SOURCE: source}
    )
    return replace(body, metadata=meta)


def with_amounts(body: Pod, amounts: dict[str, str]) -> Pod:
    assert body.spec is not None
    main = replace(body.spec.containers[0], resources=ResourceRequirements(requests=amounts))
    return replace(body, spec=replace(body.spec, containers=[main]))


def leaves(worker: Standin) -> bool:
    return worker.is_displaced or not worker.is_wanted


class Ledgers(RuleBasedStateMachine):
    """Workers that come, change and go in any order; the ledger is asked after each change."""

    workers = Bundle("workers")

    def __init__(self) -> None:
        super().__init__()
        self.table: dict[PodUid, Standin] = {}
        self.ledger = Ledger(self.table)
        self.reserved: set[PodUid] = set()
        self.remembered: list[Pod] = []
        self.adopted: list[PodUid] = []
        self.services = cast(
            "Any", SimpleNamespace(meter=Meter(), started_at=0.0, clock=FixedClock())
        )
        self.numbers = 0

    @rule(
        target=workers,
        amounts=AMOUNTS,
        ports=st.lists(st.sampled_from(PORTS), max_size=2),
        source=st.sampled_from(["file", "api"]),
    )
    def come(self, amounts: dict[str, str], ports: list[HostPort], source: str) -> PodUid:
        self.numbers += 1
        return self.start(made("u" * self.numbers, amounts, ports, source))

    def start(self, body: Pod) -> PodUid:
        uid = pod_uid(body)
        self.table[uid] = Standin(self.services, body, None, self.ledger.note)
        self.ledger.note(uid)
        return uid

    @rule(uid=workers)
    def admit(self, uid: PodUid) -> None:
        self.table[uid].let_in()

    @rule(uid=workers, phase=st.sampled_from([p for p in Phase if p is not Phase.GONE]))
    def move(self, uid: PodUid, phase: Phase) -> None:
        self.table[uid].enter(phase)

    @rule(uid=workers)
    def preempt(self, uid: PodUid) -> None:
        self.table[uid].preempt()

    @rule(uid=workers)
    def give_way(self, uid: PodUid) -> None:
        self.table[uid].give_way()

    @rule(uid=workers)
    def reserve(self, uid: PodUid) -> None:
        self.reserved.add(uid)
        self.ledger.reserve(uid)

    @rule()
    def end_reservations(self) -> None:
        self.reserved.clear()
        self.ledger.end_reservations()

    @rule(uid=workers, amounts=AMOUNTS)
    def ask(self, uid: PodUid, amounts: dict[str, str]) -> None:
        worker = self.table[uid]
        asked = with_amounts(worker.allocation.desired, amounts)
        worker.allocation.update(asked, is_admitted=worker.is_admitted, now=0.0)

    @rule(uid=workers, fits=st.booleans())
    def decide(self, uid: PodUid, fits: bool) -> None:
        allocation = self.table[uid].allocation
        if not fits:
            allocation.refuse(PendingResize("Deferred", "full"))
        elif allocation.asked is not None:
            allocation.grant()

    @rule(uid=workers, is_over=st.booleans())
    def actuate(self, uid: PodUid, is_over: bool) -> None:
        allocation = self.table[uid].allocation
        if allocation.granted is not None:
            allocation.begin(*allocation.accepted(runtime()))
        elif is_over:
            allocation.finish()

    @rule(uid=consumes(workers))
    def finish(self, uid: PodUid) -> None:
        self.drop(uid)

    @rule(target=workers, uid=consumes(workers))
    def return_at_once(self, uid: PodUid) -> PodUid:
        body = self.table[uid].allocation.desired
        self.drop(uid)
        return self.start(body)

    def drop(self, uid: PodUid) -> None:
        del self.table[uid]
        self.ledger.drop(uid)
        self.reserved.discard(uid)
        self.adopted = [u for u in self.adopted if u != uid]

    @rule(all_amounts=st.lists(AMOUNTS, max_size=2))
    def remember(self, all_amounts: list[dict[str, str]]) -> None:
        self.remembered = [made(f"r{n}", a, [], "api") for n, a in enumerate(all_amounts)]
        self.ledger.remember(self.remembered)

    # What the admitter did before there was a ledger

    def counted(self, without: str) -> list[Standin]:
        def counts(worker: Standin) -> bool:
            if worker.stage is PodStage.TERMINATED:
                return False
            if not worker.is_wanted and (worker.yields or is_static(worker.pod)):
                return False
            return worker.is_admitted or worker.uid in self.reserved

        return [w for uid, w in self.table.items() if uid != without and counts(w)]

    def agree(self, held: Held, pods: list[Pod]) -> None:
        assert list(held.pods) == pods
        assert held.sums.count == len(pods)
        for resource in RESOURCES:
            expected = sum(pod_requests(p).get(resource, 0) for p in pods)
            assert held.sums.used(resource) == expected
        taken = [port for p in pods for port in host_ports(p)]
        for address, protocol, number in PORTS:
            assert held.sums.has_port((address, protocol, number)) == any(
                (protocol, number) == (p, n) and (address == a or "0.0.0.0" in (a, address))
                for a, p, n in taken
            )

    @invariant()
    def the_sums_are_those_of_the_pods(self) -> None:
        for uid in (*self.table, PodUid("no pod")):
            present = self.counted(uid)
            with self.ledger.beside(uid) as (others, leaving):
                self.agree(others, [w.counted for w in present if not leaves(w)] + self.remembered)
                self.agree(leaving, [w.counted for w in present if leaves(w)])

    @invariant()
    def those_who_ask_are_known_in_their_order(self) -> None:
        every = self.table.items()
        waiting = [uid for uid, w in every if not w.is_admitted and not w.is_ending]
        assert self.ledger.waiting() == waiting
        assert self.ledger.resizing() == [uid for uid, w in every if w.asks_resize]
        present = {uid for uid, w in every if w.stage is not PodStage.TERMINATED}
        assert set(self.ledger.present()) == present | {pod_uid(p) for p in self.remembered}
        for key in {pod_key(w.pod) for w in self.table.values()}:
            unwanted = [u for u, w in every if pod_key(w.pod) == key and not w.is_wanted]
            assert self.ledger.unwanted(key) == unwanted

    @invariant()
    def each_is_adopted(self) -> None:
        taken = self.ledger.take_unadopted()
        assert taken == [uid for uid in self.table if uid in taken]
        self.adopted.extend(taken)
        runs = {uid for uid, w in self.table.items() if w.is_admitted and not w.is_ending}
        assert runs <= set(self.adopted)


TestLedgers = Ledgers.TestCase
TestLedgers.settings = settings(max_examples=40, stateful_step_count=30)


def test_each_step_of_a_resize_is_noted() -> None:
    node = Ledgers()
    uid = node.start(made("u", {"cpu": "1"}, [], "api"))
    node.admit(uid)
    allocation, used = node.table[uid].allocation, []

    def look() -> None:
        node.the_sums_are_those_of_the_pods()
        node.those_who_ask_are_known_in_their_order()
        with node.ledger.beside(PodUid("")) as (others, _):
            used.append(others.sums.used("cpu") // NANO)

    look()
    for amount in ("3", "2"):
        node.ask(uid, {"cpu": amount})
        look()
        allocation.grant()
        look()
        allocation.begin(*allocation.accepted(runtime()))
        look()
        allocation.finish()
        look()
    node.ask(uid, {"cpu": "3"})
    allocation.grant()
    look()
    allocation.refuse(PendingResize("Deferred", "full"))
    look()
    assert used == [1, 1, 3, 3, 3, 3, 3, 3, 2, 3, 2]


def test_a_pod_whose_requests_are_not_known_fails_the_decisions_that_need_them() -> None:
    broken = made("a", {"cpu": "one"}, [PORTS[0]], "api")
    sums = Sums([broken])
    with pytest.raises(ValueError, match="one"):
        sums.used("cpu")
    assert (sums.count, sums.has_port(PORTS[0])) == (1, True)
