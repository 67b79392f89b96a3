"""Lifecycle hooks of real containers."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import (
    Agent,
    CriClient,
    Json,
    container,
    container_status,
    eventually,
    forever,
    pod,
)


def events(agent: Agent, name: str) -> str:
    return agent.cli("events", "--for", f"pod/{name}-node")


def noted(path: Path) -> list[str]:
    return (path / "notes").read_text().split() if (path / "notes").exists() else []


def noting(name: str, path: Path, script: str, **lifecycle: Json) -> Json:
    """Return a container that sees `path` as /notes and has hooks."""
    mounts = [{"name": "notes", "mountPath": "/notes"}]
    return container(name, script, volumeMounts=mounts, lifecycle=lifecycle)


def note(text: str) -> Json:
    return {"exec": {"command": ["sh", "-c", f"{text} >> /notes/notes"]}}


def notes_of(path: Path) -> Json:
    return {"volumes": [{"name": "notes", "hostPath": {"path": str(path)}}]}


STOP = "trap 'echo stopped >> /notes/notes; exit 0' TERM; while :; do sleep 1000 & wait $!; done"


def test_hooks_run_after_the_start_and_before_the_stop(agent: Agent, tmp_path: Path) -> None:
    main = noting(
        "main", tmp_path, STOP, postStart=note("echo begun"), preStop=note("sleep 1; echo ending")
    )
    # Its first note comes after the other's hook: it starts once that is over.
    other = noting("other", tmp_path, f"echo next >> /notes/notes; {STOP}")
    agent.put(pod("hooks", main, other, **notes_of(tmp_path)))
    agent.wait_ready("hooks")
    eventually(lambda: len(noted(tmp_path)) == 2)
    assert noted(tmp_path) == ["begun", "next"]
    agent.drop("hooks")
    agent.wait_gone("hooks")
    # The other has no hook and stops at once; the first after its own.
    assert noted(tmp_path) == ["begun", "next", "stopped", "ending", "stopped"]


def test_a_failed_post_start_says_why(agent: Agent, tmp_path: Path) -> None:
    fails = {"exec": {"command": ["sh", "-c", "echo sorry >&2; exit 9"]}}
    agent.put(pod("sorry", container("main", forever(), lifecycle={"postStart": fails})))

    def waiting(p: Json) -> Json:
        state: Json = container_status(p, "main").get("state", {}).get("waiting", {})
        return state

    seen = agent.wait("sorry", lambda p: waiting(p).get("reason") == "PostStartHookError")
    assert "exited with 9: sorry" in waiting(seen)["message"]
    told = events(agent, "sorry")
    assert "FailedPostStartHook" in told
    assert "sorry\n" not in told
    agent.drop("sorry")
    agent.wait_gone("sorry")


def test_a_pre_stop_that_never_ends_takes_the_grace_and_no_more(agent: Agent) -> None:
    slow = {"exec": {"command": ["sleep", "1000"]}}
    main = container("main", forever(), lifecycle={"preStop": slow})
    agent.put(pod("slow", main, terminationGracePeriodSeconds=3))
    agent.wait_ready("slow")
    began = time.monotonic()
    agent.drop("slow")
    agent.wait_gone("slow")  # the hook itself would take longer
    assert time.monotonic() - began >= 3


def test_the_grace_of_a_restart_may_be_the_probes_own(agent: Agent, cri: CriClient) -> None:
    ignores = "trap '' TERM; while :; do sleep 1000 & wait $!; done"
    probe = {
        "exec": {"command": ["test", "!", "-e", "/tmp/sick"]},
        "periodSeconds": 1,
        "failureThreshold": 1,
        "terminationGracePeriodSeconds": 2,
    }
    script = f"(sleep 3; touch /tmp/sick) & {ignores}"
    main = container("main", script, livenessProbe=probe)
    agent.put(pod("sick", main, terminationGracePeriodSeconds=60))
    agent.wait("sick", lambda p: container_status(p, "main").get("restartCount") == 1)
    for sandbox in cri.sandboxes():
        cri.stop_sandbox(sandbox.id)  # nobody waits a minute for what ignores SIGTERM
    agent.drop("sick")
    agent.wait_gone("sick", within=70)


@contextmanager
def web_server() -> Iterator[tuple[int, list[str]]]:
    """Serve plain HTTP on the host, with an error for everything: port and requests."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def handle(self) -> None:
            if self.connection.recv(3, socket.MSG_PEEK) == b"GET":
                super().handle()
            else:  # as Go's and most others do
                self.connection.recv(65536)
                self.connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\nplain HTTP here")

        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers['User-Agent']} {self.headers['X-Hook']}")
            self.send_error(500)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep quiet."""

    server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_http_hooks_ask_and_do_not_mind_the_answer(agent: Agent) -> None:
    with web_server() as (port, asked):
        headers = [{"name": "X-Hook", "value": "yes"}]
        get = {"port": port, "path": "/begun", "httpHeaders": headers}
        end = {"port": port, "path": "/ending", "scheme": "HTTPS"}
        lifecycle = {"postStart": {"httpGet": get}, "preStop": {"httpGet": end}}
        agent.put(pod("http", container("main", forever(), lifecycle=lifecycle), hostNetwork=True))
        agent.wait_ready("http")
        assert asked == ["/begun kube-lifecycle/1.36 yes"]
        agent.drop("http")
        agent.wait_gone("http")
        # Asked for TLS, the server said something in plain HTTP: so it is asked in that.
        assert asked[1:] == ["/ending kube-lifecycle/1.36 None"]
        assert "LifecycleHTTPFallback" in events(agent, "http")


@pytest.mark.parametrize("seconds", [0, 1])
def test_a_hook_may_sleep(agent: Agent, seconds: int) -> None:
    sleeps = {"preStop": {"sleep": {"seconds": seconds}}}
    agent.put(pod("sleeps", container("main", forever(), lifecycle=sleeps)))
    agent.wait_ready("sleeps")
    began = time.monotonic()
    agent.drop("sleeps")
    agent.wait_gone("sleeps")
    assert time.monotonic() - began >= seconds


def test_a_stop_signal_is_ignored_while_its_gate_is_off(agent: Agent, cri: CriClient) -> None:
    main = container("main", forever(), lifecycle={"stopSignal": "SIGUSR1"})
    agent.put(pod("signal", main, os={"name": "linux"}))
    agent.wait_ready("signal")
    agent.drop("signal")
    agent.wait_gone("signal")
