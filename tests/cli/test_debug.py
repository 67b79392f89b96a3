"""What `kubelet-trio debug` asks the agent for, and what it leaves to kubectl."""

from __future__ import annotations

from typing import Any

import pytest

from kubelet_trio.cli.client import ClientError
from kubelet_trio.cli.debug import Wanted, container, refuse_api_pod, security_context

SPEC = {
    "containers": [{"name": "main", "image": "app:1"}, {"name": "side", "image": "side:1"}],
    "ephemeralContainers": [{"name": "old", "image": "i"}],
}


def pod(source: str = "file") -> dict[str, Any]:
    marks = {"kubernetes.io/config.source": source} if source else {}
    meta = {"name": "web", "namespace": "shop", "annotations": marks}
    return {"metadata": meta, "spec": SPEC}


def test_the_container_is_kubectls() -> None:
    wanted = Wanted(
        image="busybox", target="main", name="d", with_input=True, with_terminal=True,
        env=[("A", "b")], command=["sh", "-c", "x"], pull_policy="Never",
    )  # fmt: skip
    assert container(pod(), wanted) == {
        "name": "d",
        "image": "busybox",
        "imagePullPolicy": "Never",
        "terminationMessagePolicy": "File",
        "targetContainerName": "main",
        "command": ["sh", "-c", "x"],
        "env": [{"name": "A", "value": "b"}],
        "stdin": True,
        "stdinOnce": False,
        "tty": True,
        "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},
    }


def test_the_end_of_a_pipe_ends_the_input() -> None:
    made = container(pod(), Wanted(image="i", with_input=True))
    assert (made["stdin"], made["stdinOnce"], made["tty"]) == (True, True, False)


def test_arguments_are_of_the_images_entrypoint() -> None:
    made = container(pod(), Wanted(image="i", command=["-v"], only_arguments=True))
    assert made["args"] == ["-v"]
    assert "command" not in made


def test_a_name_is_made_up() -> None:
    made = {container(pod(), Wanted(image="i"))["name"] for _ in range(20)}
    assert len(made) > 15
    assert all(name.startswith("debugger-") and len(name) == 14 for name in made)


@pytest.mark.parametrize(("target", "image"), [("", "app:1"), ("side", "side:1")])
def test_a_command_runs_with_the_image_that_is_there(target: str, image: str) -> None:
    assert container(pod(), Wanted(target=target, command=["ps"]))["image"] == image


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (Wanted(), "name an image"),
        (Wanted(image="i", target="old"), "--target old: the pod has: main, side"),
    ],
)
def test_mistakes_are_told(wanted: Wanted, why: str) -> None:
    with pytest.raises(ClientError, match=why):
        container(pod(), wanted)


@pytest.mark.parametrize("source", ["file", "http", "embedded"])
def test_a_pod_of_this_node_is_debugged_here(source: str) -> None:
    refuse_api_pod(pod(source), Wanted(image="i"))


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        (Wanted(image="busybox"), "kubectl debug -n shop web --image=busybox"),
        (Wanted(command=["ps"]), "kubectl debug -n shop web --image=app:1 -- ps"),
        (
            Wanted(
                image="i", target="main", name="d", profile="netadmin", env=[("A", "b c")],
                with_input=True, with_terminal=True, command=["sh", "-c", "echo $A"],
                only_arguments=True, pull_policy="Never",
            ),
            "kubectl debug -n shop web --image=i --target=main --container=d --profile=netadmin "
            "--image-pull-policy=Never '--env=A=b c' -i -t --arguments -- sh -c 'echo $A'",
        ),
    ],
)  # fmt: skip
def test_a_pod_of_the_api_server_is_kubectls(wanted: Wanted, line: str) -> None:
    with pytest.raises(ClientError) as caught:
        refuse_api_pod(pod(""), wanted)
    assert str(caught.value).endswith(f": {line}")


@pytest.mark.parametrize(
    ("profile", "context"),
    [
        ("legacy", {}),
        ("baseline", {}),
        ("netadmin", {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}}),
        ("sysadmin", {"privileged": True}),
        (
            "restricted",
            {
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
                "allowPrivilegeEscalation": False,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        ),
    ],
)
def test_a_profile_is_kubectls(profile: str, context: dict[str, Any]) -> None:
    assert security_context(profile) == context
