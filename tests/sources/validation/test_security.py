"""Security contexts as the API server would take or refuse them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sources.make import container, manifest, problems

POD = "spec.securityContext"
OWN = "spec.containers[0].securityContext"


def of_pod(**context: Any) -> dict[str, Any]:
    return manifest(securityContext=context)


def own(context: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return manifest(containers=[container(securityContext=context)], **spec)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (of_pod(runAsUser=-1), f"{POD}.runAsUser: Invalid value: -1: must be between 0 and"),
        (of_pod(supplementalGroups=[1, 2**31]), f"{POD}.supplementalGroups[1]: Invalid value"),
        (
            of_pod(supplementalGroupsPolicy="Some"),
            f'{POD}.supplementalGroupsPolicy: Unsupported value: "Some"',
        ),
        (of_pod(windowsOptions={}), f"{POD}.windowsOptions: Forbidden: Windows options"),
        (
            of_pod(sysctls=[{"name": "Net.A", "value": "1"}]),
            f"{POD}.sysctls[0].name: Invalid value",
        ),
        (
            of_pod(
                sysctls=[{"name": "net.a", "value": "1"}, {"name": "net/a", "value": "2"}],
            ),
            f'{POD}.sysctls[1].name: Duplicate value: "net/a"',
        ),
        (
            of_pod(seccompProfile={"type": "Localhost"}),
            f"{POD}.seccompProfile.localhostProfile: Required value",
        ),
        (
            of_pod(seccompProfile={"type": "Localhost", "localhostProfile": "../x"}),
            f"{POD}.seccompProfile.localhostProfile: Invalid value",
        ),
        (
            of_pod(seccompProfile={"type": "RuntimeDefault", "localhostProfile": "x"}),
            f"{POD}.seccompProfile.localhostProfile: Invalid value",
        ),
        (
            of_pod(appArmorProfile={"type": "Other"}),
            f'{POD}.appArmorProfile.type: Unsupported value: "Other"',
        ),
        (
            own({"appArmorProfile": {"type": "Localhost", "localhostProfile": " x"}}),
            f"{OWN}.appArmorProfile.localhostProfile: Invalid value",
        ),
        (own({"runAsGroup": -5}), f"{OWN}.runAsGroup: Invalid value: -5"),
        (own({"windowsOptions": {"hostProcess": True}}), f"{OWN}.windowsOptions: Forbidden"),
        (own({"procMount": "Unmasked"}), f'{OWN}.procMount: Invalid value: "Unmasked"'),
        (
            own({"privileged": True, "allowPrivilegeEscalation": False}),
            f"{OWN}.allowPrivilegeEscalation: Invalid value: false: cannot set",
        ),
        (
            own({"allowPrivilegeEscalation": False, "capabilities": {"add": ["CAP_SYS_ADMIN"]}}),
            f"{OWN}.allowPrivilegeEscalation: Invalid value: false: cannot set",
        ),
        (
            manifest(hostUsers=False, hostNetwork=True),
            "spec.hostNetwork: Forbidden: must not be set where `hostUsers` is false",
        ),
        (manifest(os={"name": "plan9"}), 'spec.os.name: Unsupported value: "plan9"'),
        (manifest(runtimeClassName="A_B"), 'spec.runtimeClassName: Invalid value: "A_B"'),
        (
            manifest(runtimeClassName="kata", overhead={"cpu": "-1"}),
            "spec.overhead[cpu]: Invalid value",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_path(raw: dict[str, Any], expected: str) -> None:
    (problem,) = problems(raw)
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    "raw",
    [
        of_pod(
            runAsUser=1,
            runAsGroup=2,
            runAsNonRoot=True,
            fsGroup=3,
            supplementalGroups=[4],
            supplementalGroupsPolicy="Strict",
            seLinuxOptions={"level": "s0"},
            seLinuxChangePolicy="Recursive",
            seccompProfile={"type": "Localhost", "localhostProfile": "a/b.json"},
            appArmorProfile={"type": "RuntimeDefault"},
            sysctls=[{"name": "net/ipv4/tcp_syncookies", "value": "1"}],
        ),
        own(
            {
                "allowPrivilegeEscalation": False,
                "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
                "procMount": "Unmasked",
                "seccompProfile": {"type": "Unconfined"},
            },
            hostUsers=False,
        ),
        manifest(runtimeClassName="kata", overhead={"cpu": "100m"}, os={"name": "windows"}),
    ],
)
def test_what_can_be_is_taken(raw: dict[str, Any]) -> None:
    assert problems(raw) == []


def test_init_containers_are_looked_at_as_well() -> None:
    raw = manifest(initContainers=[container("init", securityContext={"runAsUser": -1})])
    (problem,) = problems(raw)
    assert problem.startswith("spec.initContainers[0].securityContext.runAsUser")
