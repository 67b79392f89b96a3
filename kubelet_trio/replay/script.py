"""What the containers of a replay answer to probes and hooks, from the recording."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import trio

from kubelet_trio.model import ContainerId, PodUid
from kubelet_trio.probes import Finding, ProbeKind, ScriptedFinding
from kubelet_trio.recorder import Entry, Kind, read_body
from kubelet_trio.replay.recorded import Life


class ReplayScript:
    """A `probes.ContainerScript` of one recorded life."""

    def __init__(self, life: Life) -> None:
        self._findings: dict[str, list[ScriptedFinding]] = {}
        for entry in _probes(life):
            body = read_body(entry.body)
            finding = None
            if body["result"] != "unknown":
                finding = Finding(body["result"] == "success", str(body.get("text") or ""))
            instance = ContainerId(str(body.get("container", "")))
            found = ScriptedFinding(entry.at, instance, finding)
            self._findings.setdefault(entry.key, []).append(found)
        self._stops: dict[str, list[float]] = {}
        for call in life.calls:
            if call.method == "stop_container":
                stops = self._stops.setdefault(str(call.request.get("container_id")), [])
                stops.append(call.began)

    def findings(self, uid: PodUid, container: str, kind: ProbeKind) -> Sequence[ScriptedFinding]:
        """Return the recorded findings of a probe."""
        return self._findings.get(f"{uid}/{container}/{kind.value.lower()}", ())

    async def http_hook(self, container_id: ContainerId, *, is_pre_stop: bool) -> None:
        """Return when the recorded agent has gone on: what hooks answer is not recorded."""
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        later = [at for at in self._stops.get(container_id, ()) if at >= now]
        if is_pre_stop and later:
            await trio.sleep_until(min(later))


def _probes(life: Life) -> Iterator[Entry]:
    for entry in (*life.snapshot, *life.news):
        if entry.kind is Kind.PROBE and entry.body:
            yield entry
