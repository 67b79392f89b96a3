"""Pods of an embedded kubelet that change size while they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio import Kubelet
from kubelet_trio.embed.intake import read_pod
from kubelet_trio.embed.resize import with_spec_of
from kubelet_trio.model import metadata, pod_uid, spec
from kubelet_trio.testing import FakeRuntime
from tests.embed.programs import Machine, pod

BURSTABLE = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}


def sized(main: Any = BURSTABLE, name: str = "web", **fields: Any) -> dict[str, object]:
    """Return a pod with an init container `init`, and these resources of `main`."""
    given = pod(name, **fields)
    body: Any = given["spec"]
    body["containers"][0]["resources"] = main
    body["initContainers"] = [
        {"name": "init", "image": "exit-0", "imagePullPolicy": "IfNotPresent"}
    ]
    return given


def read(given: Any) -> Pod:
    return read_pod(given, node_name="node", instance="i")[0]


def of_main(pod: Pod) -> dict[str, Any]:
    resources: dict[str, Any] = msgspec.to_builtins(spec(pod).containers[0].resources)
    return {which: amounts for which, amounts in resources.items() if amounts}


def test_the_same_amounts_are_the_same_generation() -> None:
    before, other = read(sized()), read(sized({**BURSTABLE, "limits": {"memory": "1Gi"}}))
    changed = with_spec_of(before, other)
    back = with_spec_of(changed, before)
    assert [metadata(p).generation for p in (changed, back)] == [2, 3]
    assert with_spec_of(back, before) is back


async def test_an_applied_pod_whose_amounts_changed_is_the_same_pod(
    kubelet: Kubelet, autojump_clock: MockClock, fake_runtime: FakeRuntime
) -> None:
    (old,) = await kubelet.apply(sized())
    await old.wait_ready()
    before = [c.id for c in fake_runtime.alive()]
    more = {"requests": {"cpu": "200m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
    (same,) = await kubelet.apply(sized(more))
    assert same is old
    await kubelet.pods.wait_value(lambda pods: of_main(pods[old.uid]) == more)
    assert of_main(same.pod) == more
    assert [c.id for c in fake_runtime.alive()] == before
    added = {**more, "limits": {"memory": "256Mi", "cpu": "1"}}
    (new,) = await kubelet.apply(sized(added))
    await new.wait_ready()
    assert old.is_gone
    await new.delete()


async def test_a_kept_pod_of_an_earlier_version_is_not_replaced_until_it_changes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    machine = Machine(tmp_path)
    async with machine.opened() as kubelet:
        instance = kubelet.instance
    (loaded, _) = read_pod(sized(), node_name="node", instance=instance, is_known=lambda _: True)
    kept = tmp_path / "a" / "kept.json"
    kept.write_bytes(msgspec.json.encode([{"pod": loaded}]))
    assert pod_uid(loaded) != pod_uid(read_pod(sized(), node_name="node", instance=instance)[0])
    async with machine.opened() as kubelet:
        (running,) = await kubelet.apply(sized())
        assert running.uid == pod_uid(loaded)
        await running.wait_ready()
        (other,) = await kubelet.apply(sized({**BURSTABLE, "limits": {"memory": "1Gi"}}))
        assert other.uid != running.uid
        await running.wait_gone()
        assert json.loads(kept.read_bytes())[0]["pod"]["metadata"]["uid"] == other.uid
        await other.delete()
