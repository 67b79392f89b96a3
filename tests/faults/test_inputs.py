"""What anybody may throw at the sources: refused by name, and the rest goes on."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.faults.bed import Bed, MakeBed
from tests.harness import eventually

MB = 1024 * 1024
ROOM = 40 * MB  # that an agent may grow by under any of this

HOSTILE = {
    "binary.yaml": bytes(range(256)) * 64,
    "deep.json": b"[" * 200_000 + b"]" * 200_000,
    "deep.yaml": b"a: " + b"{b: " * 50_000,
    "bomb.yaml": b"a: &a [x, x, x, x, x, x, x, x]\n"
    + b"".join(
        b"%c: &%c [%s]\n" % (98 + n, 98 + n, b", ".join([b"*%c" % (97 + n)] * 8)) for n in range(12)
    ),
    "large.json": json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "large", "annotations": {"a": "x" * (11 * MB)}},
            "spec": {"containers": [{"name": "main", "image": "busybox"}]},
        }
    ).encode(),
    "not-a-pod.yaml": b"apiVersion: v1\nkind: Pod\nmetadata: 3\n",
}


def test_hostile_manifests_are_named_and_harm_nobody(bed: Bed) -> None:
    steady = bed.pid_of("steady")
    before = bed.agent.rss_bytes()
    for name, content in HOSTILE.items():
        written = bed.agent.base / "hostile.tmp"
        written.write_bytes(content)
        written.rename(bed.agent.manifests / name)

    def named() -> set[str]:
        return {n for n in HOSTILE for p in bed.agent.problems() if n in p["where"]}

    eventually(lambda: named() == set(HOSTILE), within=120, what="every file is named")
    bed.agent.put(bed.pod("after"))
    bed.agent.wait_ready("after")
    assert bed.pid_of("steady") == steady
    assert bed.agent.rss_bytes() - before < ROOM
    for name in HOSTILE:
        (bed.agent.manifests / name).unlink()
    eventually(lambda: not bed.agent.problems(), within=60, what="no problem is left")


def test_a_storm_of_edits_ends_with_the_last_one(bed: Bed) -> None:
    steady = bed.pid_of("steady")
    before = bed.agent.rss_bytes()
    names = [f"edited{n}" for n in range(5)]
    edits = 10_000
    for edit in range(edits):
        bed.agent.put(bed.pod(names[edit % len(names)], edit))
    last = {name: edits - len(names) + n for n, name in enumerate(names)}
    bed.wait_runs({"steady": 0, **last}, within=120)
    assert bed.pid_of("steady") == steady
    assert bed.agent.rss_bytes() - before < ROOM


class _Endless(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        with suppress(OSError):  # the agent hangs up, as it should
            self.rfile.readline()
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/yaml\r\n\r\n")
            while True:
                self.wfile.write(b"# nothing, and more of it\n" * 4096)


@contextmanager
def endless_url() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Endless) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/pods"
        finally:
            server.shutdown()
            thread.join()


def test_a_url_that_never_ends_is_cut_off_and_named(make_bed: MakeBed) -> None:
    with endless_url() as url:
        bed = make_bed(config={"staticPodURL": url, "httpCheckFrequency": "1s"})
        bed.agent.start()
        eventually(lambda: any(url in p["where"] for p in bed.agent.problems()), within=60)
        before = bed.agent.rss_bytes()
        bed.agent.put(bed.pod("beside"))
        bed.agent.wait_ready("beside")
        assert bed.agent.rss_bytes() - before < ROOM
        # What it would want, if it ever delivered, says nothing of the pods of files.
        bed.agent.drop("beside")
        bed.agent.put(bed.pod("after"))
        bed.agent.wait_ready("after")
        bed.wait_runs({"after": 0}, within=60)


def test_a_flood_of_logs_holds_nobody_up(bed: Bed) -> None:
    before = bed.agent.rss_bytes()
    flood = bed.pod("flood")
    main = flood["spec"]["containers"][0]
    line = "x" * 200
    main["command"][2] = f"yes {line} | head -c 150000000; {main['command'][2]}"
    bed.agent.put(flood)
    bed.agent.put(bed.pod("beside"))
    bed.agent.wait_ready("beside")

    def has_flooded() -> bool:
        return sum(p.stat().st_size for p in bed.agent.logs.glob("*_flood-*/main/*")) > 10 * MB

    eventually(has_flooded, within=60, what="the log has grown")
    assert bed.agent.healthz()[0] == 200
    assert bed.agent.rss_bytes() - before < ROOM
    bed.agent.drop("flood")
    bed.wait_runs({"steady": 0, "beside": 0}, within=120)
