"""`python -m bench.probes [--seconds N]`: what probing costs the agent, no runtime needed.

A hundred pods with a probe a second each, against a server on loopback in a process of its
own. CPU is this process's, which runs the probes as the agent does: a supervised task for
each. TIME_WAIT is what the machine has left of them at the end.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import structlog
import trio
from lightkube.models.core_v1 import Container, HTTPGetAction, Pod, PodSpec, Probe, TCPSocketAction
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import (
    ContainerId,
    ContainerRecord,
    ContainerState,
    EventType,
    ObjectRef,
    PodUid,
    RuntimePod,
    SandboxId,
    SystemClock,
)
from kubelet_trio.probes import PodProbes, ProbeServices
from kubelet_trio.testing import FakeRuntime

PODS = 100
LIMITS = {"HTTP": 25.0, "TCP": 15.0}  # % of one core


@dataclass(slots=True)
class _Events:
    """Counts what is told."""

    told: Counter[str] = field(default_factory=Counter)

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        self.told[f"{reason}: {message}"] += 1


@click.command()
@click.option("--seconds", default=20.0, help="How long to measure each kind.")
def main(seconds: float) -> None:
    """Measure HTTP and TCP probes."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    click.echo("| probes | CPU, % of one core | limit | a probe, ms | TIME_WAIT | events |")
    click.echo("| --- | ---: | ---: | ---: | ---: | ---: |")
    with _server() as port:
        probes = {
            "HTTP": Probe(httpGet=HTTPGetAction(port=port, path="/", scheme="HTTP")),
            "TCP": Probe(tcpSocket=TCPSocketAction(port=port)),
        }
        for name, probe in probes.items():
            used, events = trio.run(_measure, probe, seconds)
            share, each = 100 * used / seconds, 1000 * used / (PODS * seconds)
            limit = f"{LIMITS[name]:g}{'' if share <= LIMITS[name] else ' (missed)'}"
            left = time_wait(port)
            click.echo(
                f"| {PODS} {name} a second | {share:.1f} | {limit} | {each:.2f} | {left} "
                f"| {sum(events.values())} |"
            )


async def _measure(probe: Probe, seconds: float) -> tuple[float, Mapping[str, int]]:
    """Run the probes of all pods and return the CPU seconds they took."""
    probe = Probe(
        httpGet=probe.httpGet,
        tcpSocket=probe.tcpSocket,
        periodSeconds=1,
        timeoutSeconds=1,
        successThreshold=1,
        failureThreshold=3,
    )
    events, now = _Events(), time.time()
    services = ProbeServices(FakeRuntime(), events, SystemClock(), started_at=now)
    async with trio.open_nursery() as nursery:
        pods = [_pod(n, probe) for n in range(PODS)]
        every = [PodProbes(services, pod, lambda: None) for pod, _ in pods]
        for probes, (pod, observed) in zip(every, pods, strict=True):
            await nursery.start(probes.run)
            probes.update(pod, observed, "127.0.0.1")
        await trio.sleep(2)  # the first of each are spread over a second
        began = time.process_time()
        await trio.sleep(seconds)
        used = time.process_time() - began
        ready = [
            all(probes.ready(observed).values())
            for probes, (_, observed) in zip(every, pods, strict=True)
        ]
        assert all(ready), events.told
        nursery.cancel_scope.cancel()
    return used, events.told


def _pod(number: int, probe: Probe) -> tuple[Pod, RuntimePod]:
    uid = PodUid(f"uid-{number}")
    container = Container(name="main", image="main", readinessProbe=probe)
    pod = Pod(
        metadata=ObjectMeta(name=f"pod-{number}", namespace="default", uid=uid),
        spec=PodSpec(containers=[container]),
    )
    record = ContainerRecord(
        ContainerId(f"id-{number}"),
        "main",
        SandboxId("sandbox"),
        ContainerState.RUNNING,
        0,
        created_at=time.time(),
        started_at=time.time(),
    )
    return pod, RuntimePod(uid, containers=(record,))


@contextmanager
def _server() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(listener,), daemon=True
        )
        process.start()
        try:
            yield listener.getsockname()[1]
        finally:
            process.terminate()
            process.join()


def _serve(listener: socket.socket) -> None:
    """Answer as a small HTTP server does, and close; blocking, one at a time."""
    os.nice(5)
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(1)
            try:
                if connection.recv(4096):
                    connection.sendall(answer)
            except OSError:
                continue


def time_wait(port: int) -> int:
    """Return how many connections of a port are in TIME_WAIT."""
    ends = f":{port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(f[3] == "06" and (f[1].endswith(ends) or f[2].endswith(ends)) for f in lines)


if __name__ == "__main__":
    main()
