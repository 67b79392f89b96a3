"""The commands against a real control socket."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.colour import is_wanted
from kubelet_trio.cli.main import cli
from kubelet_trio.cli.reading import status_lines
from kubelet_trio.containers.logs.cri_log import format_line
from kubelet_trio.model import Event, pod_ref, recent_log
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
    assert (result.exit_code, result.output) == (1, 'error: pods "nope" not found\n')
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
    assert result.output.startswith("error: ")
    assert message in result.output


def test_one_of_many_containers_is_chosen_and_said(agent: ServedView, invoke: Run) -> None:
    spec: dict[str, Any] = {"nodeName": "node1", "containers": [{"name": "web"}, {"name": "b"}]}
    agent.do(lambda: agent.view.put(make_pod(spec=spec)))
    result = invoke("logs", "web", "--tail=1")
    assert result.stderr == 'Defaulted container "web" out of: web, b\n'
    assert result.stdout == "line 2\n"


def test_events_are_a_table_newest_last(invoke: Run) -> None:
    header, older, newer = invoke("events").output.splitlines()
    assert columns(header)[2:] == ["TYPE", "REASON", "OBJECT", "CONTAINER", "MESSAGE"]
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
        ("pod/nosuch", 'error: pod "nosuch" not found, nor any event of it\n'),
        ("node/other", 'error: node "other" not found, nor any event of it\n'),
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


def test_events_name_their_container_and_are_chosen_by_type(agent: ServedView, invoke: Run) -> None:
    web = pod_ref("default", "web-node1", "u1", "spec.containers{web}")
    agent.do(lambda: agent.view.events.fold(Event(web, "Warning", "BackOff", "again", 3.0)))
    warnings = invoke("events", "--types", "Warning", "-n", "default").output.splitlines()
    assert columns(warnings[1])[2:] == ["Warning", "BackOff", "pod/web-node1", "web", "again"]
    assert len(warnings) == 2
    wide = invoke("events", "-A", "-o", "wide", "--field-selector", "reason=BackOff").output
    assert columns(wide.splitlines()[0])[-4:] == ["SOURCE", "FIRST SEEN", "COUNT", "NAME"]
    assert "again" in wide
    refused = invoke("events", "--types=Bad")
    assert refused.exit_code == 2
    assert '"bad": expected Normal, Warning' in refused.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("pods", "-o", "name"), "pod/job-node1\npod/web-node1\n"),
        (("get", "po", "-o", "jsonpath={.items[*].metadata.name}"), "job-node1 web-node1"),
        (("get", "pod/web", "-o", "jsonpath={.status.phase}"), "Running"),
        (("get", "pod", "web", "-o", "name"), "pod/web-node1\n"),
        (("pods", "-A", "-n", "batch", "-o", "name"), "pod/job-node1\npod/web-node1\n"),
        (("pods", "-l", "app=web", "-o", "name"), "No resources found\n"),
        (("pods", "-l", "!app", "-n", "batch", "-o", "name"), "pod/job-node1\n"),
        (("pods", "--field-selector", "status.phase=Failed", "-o", "name"), "pod/job-node1\n"),
        (("pods", "--sort-by", ".metadata.uid", "-o", "name"), "pod/web-node1\npod/job-node1\n"),
        (("get", "pods", "-o", "custom-columns=N:.metadata.name"), "N\njob-node1\nweb-node1\n"),
        (("get", "events", "-n", "batch", "-o", "jsonpath={.items[*].reason}"), "Failed"),
        (("get", "volumes"), "No resources found\n"),
    ],
)
def test_kubectls_words_and_forms_work(invoke: Run, words: tuple[str, ...], expected: str) -> None:
    shown = invoke(*words)
    assert (shown.exit_code, shown.output) == (0, expected)


def test_labels_have_columns(agent: ServedView, invoke: Run) -> None:
    meta = {"name": "a", "namespace": "default", "uid": "u7", "labels": {"x/app": "a", "b": "c"}}
    agent.do(lambda: agent.view.put(make_pod(metadata=meta)))
    header, line = invoke("pods", "-l", "b in (c)", "--show-labels", "-L", "x/app").output.split(
        "\n"
    )[:2]
    assert columns(header)[-2:] == ["APP", "LABELS"]
    assert columns(line)[-2:] == ["a", "b=c,x/app=a"]
    assert len(invoke("pods", "--no-headers").output.splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("get",), "name a type of object: pods"),
        (("get", "deployments"), 'this node does not list "deployments": there are pods'),
        (("get", "pdos"), 'did you mean "pods"?'),
        (("get", "pod/web", "db"), '"db": expected pod/NAME'),
        (("get", "volumes", "-w"), "-w shows changes of pods and events"),
        (("get", "events", "x"), "name no events"),
        (("pods", "-o", "xml"), '"xml": expected one of wide'),
        (("pods", "-o", "go-template={{.x}}"), "use jsonpath"),
        (("pods", "-l", "a b"), '-l: "a b": expected KEY=VALUE'),
        (("pods", "--field-selector", "a"), '--field-selector: "a": expected FIELD=VALUE'),
        (("logs",), "name one pod, or choose pods by -l"),
        (("logs", "web", "-l", "a=b"), "name one pod, or choose pods by -l"),
        (("logs", "web", "-c", "x", "--all-containers"), "name one container, or"),
        (("events", "--for", "web"), '--for: "web": expected KIND/NAME, such as pod/web'),
        (("events", "--for", "pod/", "-w"), '--for: "pod/": expected KIND/NAME'),
        (("top", "x"), '"x": expected pods or node'),
        (("describe", "events", "x"), "describe shows pods and the node"),
    ],
)
def test_words_that_are_none_are_usage_errors(
    invoke: Run, words: tuple[str, ...], message: str
) -> None:
    refused = invoke(*words)
    assert refused.exit_code == 2
    first, last = refused.stderr.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert last.endswith(f"{words[0]} --help' for usage.")


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("drain", ("`kubectl drain NODE`", "`delete NAME... --wait`", "`reset`", "shutdown")),
        ("cordon", ("`kubectl cordon NODE`",)),
        ("uncordon", ("`kubectl uncordon NODE`",)),
    ],
)
def test_a_command_that_cannot_be_had_says_what_to_do_instead(
    word: str, instead: tuple[str, ...]
) -> None:
    refused = CliRunner().invoke(cli, (word, "node1"))
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"error: there is no command '{word}': ")
    assert [text for text in instead if text not in refused.stderr] == []


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("pod",), "unknown command 'pod'; did you mean 'pods'?"),
        (("descrbe",), "unknown command 'descrbe'; did you mean 'describe'?"),
        (("zzz",), "unknown command 'zzz'"),
        (("help", "evnts"), "unknown command 'evnts'; did you mean 'events'?"),
    ],
)
def test_an_unknown_command_is_refused_with_the_nearest(words: tuple[str, ...], error: str) -> None:
    refused = CliRunner().invoke(cli, words)
    assert refused.exit_code == 2
    assert refused.stderr.splitlines()[0] == f"error: {error}"


def test_help_is_a_command_too() -> None:
    whole = CliRunner().invoke(cli, ["help"])
    assert (whole.exit_code, whole.output) == (0, CliRunner().invoke(cli, ["--help"]).output)
    one = CliRunner().invoke(cli, ["help", "logs"])
    assert "--max-log-requests" in one.output
    assert "--pod-manifest-path" in CliRunner().invoke(cli, ["help", "run"]).output
    assert CliRunner().invoke(cli, ["--version"]).output.startswith("kubelet-trio ")


def test_an_agent_of_another_user_is_said_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    shown = CliRunner().invoke(cli, ["--root-dir", str(tmp_path), "pods"])
    assert "no agent answers on" in shown.stderr
    assert "An agent of root needs sudo." in shown.stderr


@pytest.mark.parametrize("words", [("web",), ("pod", "web"), ("pod/web",), ("pods", "web-node1")])
def test_a_pod_is_described_in_kubectls_ways(invoke: Run, words: tuple[str, ...]) -> None:
    assert invoke("describe", *words).output.startswith("Name:         web-node1\n")


def test_all_pods_are_described(invoke: Run) -> None:
    text = invoke("describe", "pods").output
    assert text.index("Name:         job-node1") < text.index("\n\nName:         web-node1")


def test_logs_of_several_containers_are_printed_in_turn(agent: ServedView, invoke: Run) -> None:
    labels = {"name": "two", "namespace": "default", "uid": "u8", "labels": {"app": "two"}}
    spec = {"nodeName": "node1", "containers": [{"name": "web"}, {"name": "b"}]}
    agent.do(lambda: agent.view.put(make_pod(metadata=labels, spec=spec)))
    shown = invoke("logs", "-l", "app=two", "--tail=1", "--prefix")
    assert shown.stdout == "[pod/two/web] line 2\n"
    every = invoke("logs", "pod/two", "--all-containers", "--ignore-errors")
    assert every.stdout == "line 0\nline 1\nline 2\n"
    assert every.stderr.startswith('error: container "b" in pod "two" is not available')
    assert invoke("logs", "two", "--all-containers").exit_code == 1
    assert invoke("logs", "-l", "app=none").output == "No resources found\n"


def test_logs_are_followed_together_up_to_a_limit(agent: ServedView, invoke: Run) -> None:
    both = ("logs", "-f", "-l", "!app", "--prefix", "--ignore-errors")
    shown = invoke(*both)
    lines = [f"[pod/web-node1/web] line {n}" for n in range(3)]
    assert [line for line in shown.stdout.splitlines() if "web-node1" in line] == lines
    refused = invoke(*both, "--max-log-requests=1")
    assert refused.exit_code == 1
    assert "2 logs to follow are more than --max-log-requests=1" in refused.output


def test_the_tree_is_drawn(invoke: Run) -> None:
    text = invoke("tree").output
    assert "└── health" in text
    assert "last error: Boom" in text
    assert msgspec.json.decode(invoke("tree", "-o", "json").output)["name"] == "kubelet"


def test_profiles_are_written_and_the_agents_log_is_printed(invoke: Run, tmp_path: Path) -> None:
    file = tmp_path / "tasks.pb.gz"
    done = invoke("profile", "tasks", "-o", str(file))
    assert f"go tool pprof {file}" in done.output
    assert file.read_bytes()[:2] == b"\x1f\x8b"  # gzip
    assert "task " in invoke("profile", "tasks", "--text").output
    refused = invoke("profile", "tasks", "-o", str(tmp_path / "none" / "file"))
    assert refused.exit_code == 1
    assert "No such file or directory" in refused.output
    recent_log.add("warning", "W a.warning of=this.test")
    recent_log.add("info", "I an.info")
    assert invoke("agent-log", "--tail", "1").output == "I an.info\n"
    shown = invoke("agent-log", "--level", "warning", "--tail", "1").output
    assert shown == "W a.warning of=this.test\n"


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
    assert result.exit_code == 2
    assert result.stderr == (
        "error: unknown flag: --nope\nRun 'kubelet-trio run --help' for usage.\n"
    )
    assert "--pod-manifest-path" in CliRunner().invoke(cli, ["run", "--help"]).output


def test_words_of_states_are_coloured_if_wanted(invoke: Run) -> None:
    plain = invoke("pods").output
    assert "\x1b" not in plain
    for words in (("--color=always", "pods"), ("pods", "--color", "always")):
        coloured = invoke(*words).output
        assert "\x1b[32mRunning\x1b[0m" in coloured
        assert "\x1b[31mError\x1b[0m" in coloured
        assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    events = invoke("--color=always", "events").output
    assert "\x1b[33mWarning\x1b[0m" in events
    assert "Normal    Pulled" in events
    tree = invoke("--color=always", "tree").output
    assert "\x1b[32mrunning\x1b[0m" in tree
    assert "\x1b[31mlast error: Boom\x1b[0m" in tree
    assert "syncloop: \x1b[32mok\x1b[0m" in invoke("--color=always", "status").output


@pytest.mark.parametrize(
    ("environment", "is_terminal", "is_coloured"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"CLICOLOR_FORCE": "1"}, False, True),
        ({"CLICOLOR_FORCE": "0"}, False, False),
        ({"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_the_environment_decides_on_colour(
    environment: dict[str, str], is_terminal: bool, is_coloured: bool
) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    assert is_wanted("auto", Stream(), environment) is is_coloured
    assert is_wanted("always", Stream(), environment)
    assert not is_wanted("never", Stream(), environment)


def test_a_runtime_that_is_away_is_said_with_the_cure() -> None:
    state = {"runtime": {"endpoint": "unix:///run/c.sock", "problem": "cannot connect"}}
    lines = status_lines(state, 0.0)
    at = next(n for n, line in enumerate(lines) if line.endswith("cannot connect"))
    assert lines[at + 1].strip() == "is containerd running? systemctl status containerd"
