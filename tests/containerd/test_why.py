"""`kubelet-trio why`, `plan` and `diff` on real containers."""

from __future__ import annotations

import json

import pytest

from tests.containerd.conftest import MakeAgent
from tests.harness import Agent, Json, container, container_status, eventually, pod
from tests.harness.pods import NODE

LIMIT: Json = {"limits": {"memory": "40Mi"}}
LONG = ("--crash-loop-backoff-base", "60s")  # a crash is looked at while it waits


@pytest.fixture
def agent(make_agent: MakeAgent) -> Agent:
    agent = make_agent(arguments=LONG)
    agent.start()
    return agent


def ask(agent: Agent, *arguments: str) -> tuple[int, str]:
    """Run a command whose exit code is an answer; return it and the output."""
    with agent.open_cli(*arguments) as running:
        shown, _ = running.communicate(timeout=60)
    return running.returncode, shown


def test_a_crash_loop_by_oom_is_explained_on_one_screen(agent: Agent) -> None:
    agent.put(pod("hog", container("main", "exec tail /dev/zero", resources=LIMIT)))

    def waits(shown: Json) -> bool:
        state = container_status(shown, "main")["state"]
        reason = (state.get("waiting") or {}).get("reason")
        return bool(reason == "CrashLoopBackOff")

    agent.wait("hog", waits, what="CrashLoopBackOff")
    shown = agent.cli("why", "hog")
    assert len(shown.splitlines()) <= 24
    told = " ".join(shown.split())  # long lines are wrapped
    assert "it exited with code 137 (OOMKilled, its memory limit is 40Mi)" in told
    assert "container main starts again" in shown
    found = json.loads(agent.cli("why", "hog", "-o", "json"))
    (reason,) = [r for r in found["reasons"] if r["kind"] == "back-off"]
    assert found["now"] < reason["until"] <= found["now"] + 60
    assert found["next"][0] == {"at": reason["until"], "text": "container main starts again"}
    assert "Why:" in agent.cli("describe", "hog")
    agent.drop("hog")
    agent.wait_gone("hog")


def test_a_plan_says_what_the_edit_then_does(agent: Agent) -> None:
    small: Json = {"requests": {"cpu": "10m"}}
    agent.put(pod("web", container("main", "sleep 1000", resources=small)))
    uid = agent.wait_ready("web")["metadata"]["uid"]
    file = agent.root / "edit.json"

    def plan(edited: Json, *options: str) -> tuple[int, Json]:
        file.write_text(json.dumps(edited))
        code, shown = ask(agent, "plan", "-f", str(file), "-o", "json", *options)
        return code, json.loads(shown)

    same = pod("web", container("main", "sleep 1000", resources=small))
    assert plan(same)[0] == 0
    larger = pod("web", container("main", "sleep 1000", resources={"requests": {"cpu": "20m"}}))
    code, found = plan(larger)
    (change,) = found["pods"]
    assert (code, change["action"], change["uid"]) == (1, "update", uid)
    assert [(c["name"], c["action"]) for c in change["containers"]] == [("main", "resize")]
    other = pod("web", container("main", "sleep 2000", resources=small))
    code, found = plan(other)
    (change,) = found["pods"]
    assert (code, change["action"], change["was_uid"]) == (1, "replace", uid)
    assert [(c["name"], c["action"]) for c in change["containers"]] == [("main", "restart")]
    file.write_text(json.dumps(other))
    code, shown = ask(agent, "diff", "-f", str(file))
    assert code == 1
    assert "sleep 2000" in shown
    assert agent.pods()["web"]["metadata"]["uid"] == uid  # nothing has been done
    agent.put(other)
    eventually(lambda: agent.pods()["web"]["metadata"]["uid"] == change["uid"], what="the new pod")
    assert agent.wait_ready("web")["metadata"]["name"] == f"web-{NODE}"
    agent.drop("web")
    agent.wait_gone("web")
