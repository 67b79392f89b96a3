"""Images that are pulled, that cannot be, and that take their time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from pack import oci
from tests.harness import Agent, Json, container, container_status, forever, images, machine, pod
from tests.harness.registry import Registry, open_registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    with open_registry() as opened:
        yield opened


@pytest.fixture
def busybox(request: pytest.FixtureRequest) -> images.Image:
    """A busybox image that is no other's: a runtime tells one image by whichever name."""
    program = machine.busybox()
    assert program is not None
    image = images.busybox_image(program)
    mark = {"etc/mark": (0o644, request.node.name.encode())}
    return dataclasses.replace(image, files={**image.files, **mark})


def waiting_for(pod: Json, name: str = "main") -> str:
    """Return the reason for which a container waits, "" if it does not."""
    reason: str = container_status(pod, name).get("state", {}).get("waiting", {}).get("reason", "")
    return reason


def test_the_same_image_is_made_twice(busybox: images.Image) -> None:
    assert images.encode(busybox) == images.encode(busybox)


def test_an_image_that_is_not_there_is_pulled(
    agent: Agent, registry: Registry, busybox: images.Image
) -> None:
    image = registry.add("pulled:1", busybox)
    agent.put(pod("pulled", container("main", forever(), image=image)))
    ready = agent.wait_ready("pulled")
    status = container_status(ready, "main")
    assert status["image"] == image
    assert status["imageID"] == (
        f"127.0.0.1:{registry.port}/pulled@{oci.digest(images.encode(busybox).manifest)}"
    )
    events = agent.cli("events")
    assert f'Pulling image "{image}"' in events
    assert f'Successfully pulled image "{image}"' in events
    agent.drop("pulled")
    agent.wait_gone("pulled")


def test_an_image_that_cannot_be_pulled_backs_off_until_it_can(
    agent: Agent, registry: Registry, busybox: images.Image
) -> None:
    image = registry.reference("late:1")
    agent.put(pod("late", container("main", forever(), image=image), container("side", forever())))
    agent.wait("late", lambda p: waiting_for(p) == "ErrImagePull", what="ErrImagePull")
    held = agent.wait("late", lambda p: waiting_for(p) == "ImagePullBackOff", what="back-off")
    message = container_status(held, "main")["state"]["waiting"]["message"]
    assert message.startswith(f'Back-off pulling image "{image}"')
    agent.wait("late", lambda p: "running" in container_status(p, "side")["state"])
    registry.add("late:1", busybox)
    agent.wait_ready("late", within=40)
    agent.drop("late")
    agent.wait_gone("late")


def test_an_image_never_to_be_pulled_is_not(agent: Agent, registry: Registry) -> None:
    image = registry.reference("never:1")
    agent.put(pod("never", container("main", "true", image=image, imagePullPolicy="Never")))
    agent.wait("never", lambda p: waiting_for(p) == "ErrImageNeverPull", what="ErrImageNeverPull")
    assert not registry.asked.is_set()
    agent.drop("never")
    agent.wait_gone("never")


def test_a_pull_that_hangs_delays_no_other_pod_and_not_its_own_end(
    agent: Agent, registry: Registry, busybox: images.Image
) -> None:
    image = registry.add("slow:1", busybox)
    registry.let_through.clear()
    agent.put(pod("slow", container("main", forever(), image=image)))
    assert registry.asked.wait(60)
    agent.put(pod("quick"))
    agent.wait_ready("quick")
    agent.drop("slow")
    agent.wait_gone("slow")  # while the pull still hangs
    assert not registry.let_through.is_set()
    agent.drop("quick")
    agent.wait_gone("quick")
