"""What only shows the node never keeps its pods from running."""

from __future__ import annotations

import urllib.request
from contextlib import ExitStack
from pathlib import Path

from tests.daemon.running import LIMIT, Daemon, daemon, number, taken_port

HTTPS = ("--address=127.0.0.1", "--anonymous-auth", "--authorization-mode=AlwaysAllow")
# The flag that gives each server its port.
PORTS = {
    "healthz": "--healthz-port",
    "ui": "--ui-port",
    "read-only": "--read-only-port",
    "https": "--port",
}


def fetch(url: str) -> tuple[str, bytes]:
    """Return where a request ended, and what was there."""
    with urllib.request.urlopen(url, timeout=LIMIT) as answer:
        return answer.url, answer.read()


def test_pods_run_beside_taken_ports_that_are_named(tmp_path: Path) -> None:
    with ExitStack() as stack:
        taken = {server: number(stack.enter_context(taken_port())) for server in PORTS}
        flags = [f"{flag}={taken[server]}" for server, flag in PORTS.items()]
        agent = stack.enter_context(daemon(tmp_path, *flags, *HTTPS, f"--cert-dir={tmp_path}"))
        agent.write()
        agent.eventually(agent.running_pods)
        named = {s: f"127.0.0.1:{p}: Address already in use by " for s, p in taken.items()}
        agent.eventually(lambda: all(named[s] in agent.port_problems().get(s, "") for s in taken))
        tree = agent.client.text("tree", format="text")
        assert all(problem in tree for problem in agent.port_problems().values())
        assert agent.terminate() == 0
        log = agent.log.read_text()
        assert log.count("port.not_open") == len(taken)
        assert "Traceback" not in log


def test_the_port_is_served_once_it_is_free(tmp_path: Path) -> None:
    with taken_port() as held, taken_port() as other:
        health, page = number(held), number(other)
        with daemon(tmp_path, f"--healthz-port={health}", f"--ui-port={page}") as agent:
            agent.eventually(lambda: len(agent.port_problems()) == 2)
            held.close()
            other.close()
            agent.eventually(lambda: not agent.port_problems())
            assert fetch(f"http://127.0.0.1:{health}/healthz")[1] == b"ok"
            address, body = fetch(f"http://127.0.0.1:{page}/")
            assert address.endswith("/ui/")
            assert b"<html" in body
            assert agent.terminate() == 0


def test_a_certificate_that_cannot_be_read_keeps_no_pod_from_running(tmp_path: Path) -> None:
    missing = f"--tls-cert-file={tmp_path}/none.crt", f"--tls-private-key-file={tmp_path}/none.key"
    with daemon(tmp_path, *HTTPS, *missing, "--healthz-port=0") as agent:
        agent.write()
        agent.eventually(agent.running_pods)
        assert "none.crt" in agent.eventually(agent.port_problems)["https"]
        assert agent.terminate() == 0


def test_another_agent_on_the_same_directory_is_refused_at_once(tmp_path: Path) -> None:
    with daemon(tmp_path, "--healthz-port=0") as agent:
        agent.eventually(lambda: agent.client.get("status"))
        second = Daemon(tmp_path, "--healthz-port=0")
        assert second.process.wait(LIMIT) == 1
        assert f"another kubelet-trio (pid {agent.process.pid}) runs on" in second.log.read_text()
        assert agent.terminate() == 0
