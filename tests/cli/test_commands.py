"""The commands against a real control socket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.main import cli
from kubelet_trio.containers.logs.cri_log import format_line
from kubelet_trio.model import Event, pod_ref
from tests.cli.running import ServedView, served
from tests.server.fake_view import FakeView, make_pod

Run = Callable[..., Result]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ServedView]:
    view = FakeView(
        make_pod(),
        make_pod(
            "job-node1",
            uid="u2",
            namespace="batch",
            status={
                "phase": "Failed",
                "startTime": "2026-01-02T15:04:05Z",
                "containerStatuses": [
                    {
                        "name": "web",
                        "image": "i",
                        "imageID": "",
                        "ready": False,
                        "restartCount": 0,
                        "state": {"terminated": {"exitCode": 1, "reason": "Error"}},
                    }
                ],
            },
        ),
    )
    web = pod_ref("default", "web-node1", "u1")
    view.events.fold(Event(web, "Normal", "Pulled", "Image is there", 1_767_366_245.0))
    view.events.fold(Event(pod_ref("batch", "job-node1", "u2"), "Warning", "Failed", "no", 2.0))
    view.logs["c1"] = tmp_path / "0.log"
    view.logs["c1"].write_bytes(
        b"".join(
            format_line(f"2026-01-02T15:04:0{n}Z", "stdout", f"line {n}".encode()) for n in range(3)
        )
    )
    with served(view, tmp_path) as running:
        yield running


@pytest.fixture
def invoke(agent: ServedView) -> Run:
    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, ["--root-dir", str(agent.root), *words])

    return run


def columns(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("   ") if cell.strip()]


def test_pods_are_a_table(invoke: Run) -> None:
    result = invoke("pods")
    assert result.exit_code == 0, result.output
    header, job, web = result.output.splitlines()
    assert columns(header) == ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert columns(job)[:5] == ["batch", "job-node1", "0/1", "Error", "0"]
    assert columns(web)[:5] == ["default", "web-node1", "1/1", "Running", "0"]
    assert web.index("web-node1") == header.index("NAME", 5)


def test_pods_wide_have_ip_node_and_resources(invoke: Run) -> None:
    header, job, web = invoke("pods", "-o", "wide").output.splitlines()
    assert columns(header)[-5:] == ["IP", "NODE", "CPU", "MEMORY", "RESIZE"]
    assert columns(web)[-5:] == ["10.88.0.2", "node1", "<none>", "<none>", "<none>"]
    assert columns(job)[-5:] == ["<none>", "node1", "<none>", "<none>", "<none>"]


def test_pods_are_chosen_by_namespace_and_name(invoke: Run) -> None:
    assert len(invoke("pods", "-n", "batch").output.splitlines()) == 2
    assert len(invoke("pods", "web").output.splitlines()) == 2
    assert "web-node1" in invoke("pods", "default/web").output
    assert "No resources found" in invoke("pods", "-n", "none").output
    result = invoke("pods", "nope")
    assert (result.exit_code, result.output) == (1, 'Error: pods "nope" not found\n')
    assert invoke("pods", "-n", "batch", "web").exit_code == 1


def test_pods_as_yaml_and_json_are_what_kubectl_gives(invoke: Run) -> None:
    listed = yaml.safe_load(invoke("pods", "-o", "yaml").output)
    assert (listed["apiVersion"], listed["kind"], len(listed["items"])) == ("v1", "List", 2)
    one = msgspec.json.decode(invoke("pods", "web", "-o", "json").output)
    assert (one["kind"], one["metadata"]["name"]) == ("Pod", "web-node1")


def test_a_pod_is_described(invoke: Run) -> None:
    text = invoke("describe", "pod", "web").output
    assert text.startswith("Name:         web-node1\n")
    assert "Image is there" in text
    assert "    State:          Running\n" in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("logs", "web"), "line 0\nline 1\nline 2\n"),
        (("logs", "web", "-c", "web", "--tail=1"), "line 2\n"),
        (("logs", "web", "web", "--tail", "1"), "line 2\n"),
        (("logs", "web", "--since", "5m"), ""),
        (("logs", "web", "--since-time=2026-01-02T15:04:02Z"), "line 2\n"),
        (("logs", "web", "--limit-bytes=6"), "line 0"),
        (
            ("logs", "web", "--tail=1", "--timestamps"),
            "2026-01-02T15:04:02.000000000Z line 2\n",
        ),
        (("logs", "-f", "web", "-n", "default"), "line 0\nline 1\nline 2\n"),
    ],
)
def test_logs_are_printed_as_asked(invoke: Run, words: tuple[str, ...], expected: str) -> None:
    result = invoke(*words)
    assert (result.exit_code, result.output) == (0, expected)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("logs", "web", "-p"), 'previous terminated container "web" in pod "web-node1" not found'),
        (("logs", "web", "-c", "x"), 'container "x" in pod "web-node1" is not available'),
        (("logs", "none"), 'pods "none" not found'),
        (("logs", "web", "--since=x"), '--since: invalid duration "x"'),
        (("pods", "web", "-w"), "name no pods with --watch"),
    ],
)
def test_what_cannot_be_shown_is_an_error(
    invoke: Run, words: tuple[str, ...], message: str
) -> None:
    result = invoke(*words)
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert message in result.output


def test_one_of_many_containers_is_chosen_and_said(agent: ServedView, invoke: Run) -> None:
    spec: dict[str, Any] = {"nodeName": "node1", "containers": [{"name": "web"}, {"name": "b"}]}
    agent.do(lambda: agent.view.put(make_pod(spec=spec)))
    result = invoke("logs", "web", "--tail=1")
    assert result.stderr == 'Defaulted container "web" out of: web, b\n'
    assert result.stdout == "line 2\n"


def test_events_are_a_table_newest_last(invoke: Run) -> None:
    header, older, newer = invoke("events").output.splitlines()
    assert columns(header) == ["NAMESPACE", "LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert columns(older)[2:] == ["Warning", "Failed", "pod/job-node1", "no"]
    assert columns(newer)[3] == "Pulled"
    assert len(invoke("events", "--for", "pod/web-node1").output.splitlines()) == 2
    assert len(invoke("events", "-n", "batch").output.splitlines()) == 2
    assert yaml.safe_load(invoke("events", "-o", "yaml").output)["items"][0]["kind"] == "Event"
    assert invoke("events", "-n", "none").output == "No events found\n"


@pytest.mark.parametrize("name", ["pod/web", "pods/web", "po/web-node1", "pod/default/web"])
def test_events_of_a_pod_are_found_by_its_manifests_name(invoke: Run, name: str) -> None:
    shown = invoke("events", "--for", name)
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("web", 'Error: --for: "web": expected KIND/NAME, such as pod/web\n'),
        ("pod/", 'Error: --for: "pod/": expected KIND/NAME, such as pod/web\n'),
        ("pod/nosuch", 'Error: pod "nosuch" not found, nor any event of it\n'),
        ("node/other", 'Error: node "other" not found, nor any event of it\n'),
    ],
)
@pytest.mark.parametrize("flags", [(), ("-w",)])
def test_events_of_what_is_not_there_are_refused(
    invoke: Run, name: str, message: str, flags: tuple[str, ...]
) -> None:
    shown = invoke("events", "--for", name, *flags)
    assert (shown.exit_code, shown.output) == (1, message)


def test_a_node_without_events_is_no_mistake(invoke: Run) -> None:
    assert invoke("events", "--for", "node/node1").output == "No events found\n"


def test_the_tree_is_drawn(invoke: Run) -> None:
    text = invoke("tree").output
    assert "└── health" in text
    assert "last error: Boom" in text
    assert msgspec.json.decode(invoke("tree", "-o", "json").output)["name"] == "kubelet"


def test_status_is_one_page(invoke: Run) -> None:
    text = invoke("status").output
    assert "Node:      node1" in text
    assert "Runtime:   containerd v2.0.1 at unix:///run/c.sock: ok" in text
    assert "  runtime: connection refused" in text
    assert "    web.yaml: spec.containers: Required value" in text
    assert "  http:https://config: not read yet" in text
    assert "Not served:\n  healthz: healthzPort: taken\nEvents dropped: 3" in text
    assert msgspec.json.decode(invoke("status", "-o", "json").output)["events_dropped"] == 3


def test_the_version_is_told_with_and_without_an_agent(invoke: Run, tmp_path: Path) -> None:
    assert "behaves as kubelet v1.36" in invoke("version").output
    alone = CliRunner().invoke(cli, ["--root-dir", str(tmp_path / "none"), "version"])
    assert alone.exit_code == 0
    assert "is it running" in alone.output


def test_the_root_directory_may_stand_after_the_command(agent: ServedView) -> None:
    result = CliRunner().invoke(cli, ["pods", "--root-dir", str(agent.root)])
    assert result.exit_code == 0


def test_an_agent_that_is_not_there_is_said_with_its_path(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["--root-dir", str(tmp_path), "pods"])
    assert result.exit_code == 1
    assert f"no agent answers on {tmp_path}/kubelet-trio.sock" in result.output
    assert "--root-dir" in result.output


def test_a_watch_goes_on_with_every_change_and_ends_with_the_agent(tmp_path: Path) -> None:
    """What `pods -w` prints, with the agent ending so that the command does too."""
    view = FakeView(make_pod())
    with served(view, tmp_path) as agent:
        seen: list[str] = []
        arrived = threading.Semaphore(0)

        def read() -> None:
            for change in AgentClient(str(tmp_path)).watch("pods"):
                seen.append(change["type"])
                arrived.release()

        def watch() -> None:
            with pytest.raises(ClientError, match="the agent ended the connection"):
                read()

        watcher = threading.Thread(target=watch)
        watcher.start()
        assert all(arrived.acquire(timeout=10) for _ in range(2))
        agent.do(lambda: view.put(make_pod("b", uid="u9")))
        assert arrived.acquire(timeout=10)
    watcher.join(timeout=10)
    assert seen == ["ADDED", "BOOKMARK", "ADDED"]


def test_run_takes_flags_as_they_are_and_fails_with_their_names() -> None:
    result = CliRunner().invoke(cli, ["run", "--nope=1", "-v=2", "--pod-manifest-path", "/m"])
    assert result.exit_code == 1
    assert result.stderr == "Error: unknown flag: --nope\n"
    assert "--pod-manifest-path" in CliRunner().invoke(cli, ["run", "--help"]).output
