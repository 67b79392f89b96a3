"""Write `/metrics/cadvisor`, with cAdvisor's names, labels and units, from a snapshot. No I/O.

Each cgroup is a subject with cAdvisor's labels: `id` (its path), `name` (the container's id),
`image`, `container`, `pod` and `namespace`, empty if it has none. A pod's own cgroup has pod and
namespace and an empty container.
Source: lib/metrics/prometheus.go and prometheus_machine.go, the sets that the Go kubelet includes.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubelet_trio.model import joined
from kubelet_trio.stats.cadvisor_families import (
    FAMILIES,
    NO_CPU,
    NO_MEMORY,
    SCRAPE_ERROR,
    TASK_STATES,
)
from kubelet_trio.stats.cadvisor_lines import (
    Families,
    Subject,
    block,
    head,
    write_disks,
    write_io,
    write_networks,
    write_writable,
)
from kubelet_trio.stats.machine import MachineInfo, write_machine
from kubelet_trio.stats.process_files import Processes
from kubelet_trio.stats.subjects import PodSubject
from kubelet_trio.stats.summary import Snapshot
from kubelet_trio.stats.text import Exposition, label_text, milliseconds
from kubelet_trio.stats.usage import Cpu, Memory, Psi

_PIECE = 128 * 1024  # bytes: less, and to send it takes longer than to make it
_NANO = 1e9
_MICRO = 1e6
_PLACES = {letter: i for i, (_, letters) in enumerate(TASK_STATES) for letter in letters}


def cadvisor_page(snapshot: Snapshot, machine: MachineInfo) -> Iterator[bytes]:
    """Return the page in pieces of at least 128 KiB, but for the last one.

    A full node's has 7 MB. In one piece these, and the copies on their way to the socket, would be
    memory that comes from the system anew for each scrape.
    """
    return joined(_families(snapshot, machine), _PIECE)


def _families(snapshot: Snapshot, machine: MachineInfo) -> Iterator[bytes]:
    about = Exposition()
    write_machine(about, machine, snapshot.reading.node)
    yield about.text().encode()
    subjects = list(_subjects(snapshot))
    # The same object for the same time: all but what a runtime reported.
    ends = {at: f"{milliseconds(at)}\n".encode() for at in {s.usage.time for s in subjects}}
    times = [ends[subject.usage.time] for subject in subjects]
    labels = [subject.labels for subject in subjects]
    plain = [text + b"} " for text in labels]
    columns, begun = zip(*map(_values, subjects), strict=True), ""
    for (name, kind, help_text, more, is_timed), column in zip(FAMILIES, columns, strict=True):
        inside, end = (labels, f"{more}}} ".encode()) if more else (plain, b"")
        if parts := block(name, inside, column, times if is_timed else None, end):
            # The lines of a family follow each other.
            yield b"".join(parts if name == begun else (head(name, kind, help_text), *parts))
            begun = name
    yield from _with_labels_of_their_own(snapshot, subjects, times)
    yield (head("container_scrape_error", "gauge", SCRAPE_ERROR) + b"container_scrape_error 0\n")


def _with_labels_of_their_own(
    snapshot: Snapshot, subjects: list[Subject], times: list[bytes]
) -> Iterator[bytes]:
    """Yield the families of disks, devices and interfaces."""
    families, reading = Families(), snapshot.reading
    write_disks(families, subjects[0], reading.disks, times[0])
    # A disk tells more of itself than the cgroup of the node does.
    told = {disk.device for disk in reading.disks if disk.io is not None}
    # The node first, so that its families have the same order whatever the pods have.
    for part in ((0, 1), (1, len(subjects))):
        mine = list(zip(subjects[slice(*part)], times[slice(*part)], strict=True))
        write_io(families, mine, reading.devices, told if part == (0, 1) else frozenset())
        write_networks(families, mine)
        write_writable(families, mine, snapshot.disk.containers or snapshot.disk.images)
    yield from families.texts()


def _labels(
    cgroup: str,
    pod: PodSubject | None = None,
    container: str = "",
    image: str = "",
    name: str = "",
) -> bytes:
    namespace, of = (pod.namespace, pod.name) if pod else ("", "")
    text = (
        f'container="{container}",id="{cgroup}",image="{image}",name="{name}",'
        f'namespace="{namespace}",pod="{of}"'
    )
    # Nothing to escape, as always but for names that somebody made up.
    if text.count('"') == 12 and "\\" not in text and "\n" not in text:
        return text.encode()
    return label_text(
        (
            ("container", container),
            ("id", cgroup),
            ("image", image),
            ("name", name),
            ("namespace", namespace),
            ("pod", of),
        )
    ).encode()


def _subjects(snapshot: Snapshot) -> Iterator[Subject]:
    reading, places, written = snapshot.reading, snapshot.places, set[str]()
    node = reading.node
    boot = node.boot_time or 0.0
    yield Subject(node.usage, _labels("/"), node.network, boot, boot)
    for pod in snapshot.pods:
        for subject, path in _pod_subjects(snapshot, pod):
            written.add(path)
            yield subject
    other_pods = set(places.pods.values())
    for path, usage in reading.cgroups.items():
        if path not in written and path not in other_pods and path != "/":
            yield Subject(usage, _labels(path), processes=reading.processes.get(path))


def _pod_subjects(snapshot: Snapshot, pod: PodSubject) -> Iterator[tuple[Subject, str]]:
    reading, places = snapshot.reading, snapshot.places
    path = places.pods.get(pod.uid)
    interfaces = snapshot.networks.get(pod.uid, ())
    sandbox_path = places.containers.get(pod.sandbox_id or "")
    # A pod's network counts once, with the sandbox as in cAdvisor: sums by pod must be right.
    if path is not None and path in reading.cgroups:
        yield (
            Subject(
                reading.cgroups[path],
                _labels(path, pod),
                () if sandbox_path else interfaces,
                pod.started_at,
                pod.sandbox_created_at,
            ),
            path,
        )
    if sandbox_path is not None and sandbox_path in reading.cgroups:
        yield (
            Subject(
                reading.cgroups[sandbox_path],
                _labels(sandbox_path, pod, name=pod.sandbox_id or ""),
                interfaces,
                pod.sandbox_created_at,
                pod.sandbox_created_at,
                reading.processes.get(sandbox_path),
            ),
            sandbox_path,
        )
    for container in pod.containers:
        usage = snapshot.of_container(container.id)
        if usage is None:
            continue
        # Without a cgroup the id is made up, so that each container has series of its own.
        own = places.containers.get(container.id) or f"/{container.id}"
        yield (
            Subject(
                usage,
                _labels(own, pod, container.name, container.image, container.id),
                () if path or sandbox_path else interfaces,
                container.started_at,
                container.created_at,
                reading.processes.get(own),
                snapshot.disk.writable.get(container.id),
            ),
            own,
        )


def _values(subject: Subject) -> tuple[float | None, ...]:
    """Return the values of `FAMILIES`, in their order; None: the subject has no such sample."""
    usage, cpu, memory = subject.usage, subject.usage.cpu, subject.usage.memory
    has_threads = usage.threads is not None
    processes = subject.processes
    return (
        int(usage.time),
        int(subject.created_at) or None,
        int(subject.started_at) or None,
        0,
        *(NO_CPU if cpu is None else _cpu_values(cpu)),
        *(NO_MEMORY if memory is None else _memory_values(memory)),
        *_psi_values(cpu.psi if cpu is not None else None),
        *_psi_values(memory.psi if memory is not None else None),
        *_psi_values(usage.io_psi),
        len(usage.pids) if has_threads else None,
        usage.threads,
        (usage.threads_max or 0) if has_threads else None,
        *(
            (None,) * 3
            if processes is None
            else (processes.fds, processes.sockets, processes.max_open_files)
        ),
        *_task_values(processes),
    )


def _cpu_values(cpu: Cpu) -> tuple[float | None, ...]:
    has_quota = cpu.quota is not None
    return (
        cpu.period,
        cpu.quota,
        cpu.shares,
        cpu.user / _NANO,
        cpu.system / _NANO,
        cpu.usage / _NANO,
        # No load is measured, as in a Go kubelet.
        0,
        0,
        # As cAdvisor (`s.Cpu.Quota != 0`): without a quota nothing is throttled.
        cpu.periods if has_quota else None,
        cpu.throttled_periods if has_quota else None,
        cpu.throttled / _NANO if has_quota else None,
        cpu.burst_periods if has_quota else None,
        cpu.burst / _NANO if has_quota else None,
    )


def _memory_values(memory: Memory) -> tuple[float | None, ...]:
    swap_limit = memory.swap_limit
    return (
        # cAdvisor's specMemoryValue: 0 means no limit.
        memory.limit or 0,
        # Memory and swap together, as `memsw` of version 1. On version 2 cAdvisor shows swap alone
        # under the same name (lib/container/common/helpers.go).
        0 if swap_limit is None else swap_limit + (memory.limit or 0),
        memory.reservation or 0,
        memory.cache,
        memory.rss,
        memory.kernel,
        memory.mapped_file,
        memory.swap or 0,
        memory.failcnt,
        memory.usage,
        memory.max_usage,
        memory.working_set,
        memory.active_file,
        memory.inactive_file,
        memory.own_page_faults,
        memory.own_major_page_faults,
        memory.page_faults,
        memory.major_page_faults,
        memory.oom_kills,
    )


def _psi_values(psi: Psi | None) -> tuple[float | None, float | None]:
    return (None, None) if psi is None else (psi.full.total / _MICRO, psi.some.total / _MICRO)


def _task_values(processes: Processes | None) -> tuple[int | None, ...]:
    """Return how many processes are in each state of taskstats; a state is a main thread's."""
    if processes is None:
        return (None,) * len(TASK_STATES)
    counts = [0] * len(TASK_STATES)
    for letter, count in processes.states.items():
        if letter in _PLACES:
            counts[_PLACES[letter]] += count
    return tuple(counts)
