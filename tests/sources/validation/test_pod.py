from __future__ import annotations

from typing import Any

import pytest

from tests.sources.make import container, manifest, problems

C = "spec.containers[0]"


def of_container(**fields: Any) -> dict[str, Any]:
    return manifest(containers=[container(**fields)])


def of_meta(**meta: Any) -> dict[str, Any]:
    raw = manifest()
    return {**raw, "metadata": {**raw["metadata"], **meta}}


def of_ports(*ports: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return manifest(containers=[container(ports=list(ports))], **spec)


def of_mount(**mount: Any) -> dict[str, Any]:
    volumes = [{"name": "v", "emptyDir": {}}]
    mounts = [{"name": "v", "mountPath": "/v", **mount}]
    return manifest(volumes=volumes, containers=[container(volumeMounts=mounts)])


def of_rules(*rules: dict[str, Any], policy: str | None = "Never") -> dict[str, Any]:
    return of_container(restartPolicy=policy, restartPolicyRules=list(rules))


PORT = {"containerPort": 80}
HOST = {"containerPort": 80, "hostPort": 8080}
IN_PLACE = {"resourceName": "cpu", "restartPolicy": "NotRequired"}
RESTARTED = {"resourceName": "memory", "restartPolicy": "RestartContainer"}
RULE = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        # metadata
        (of_meta(name=""), "metadata.name: Required value"),
        (of_meta(name=None), "metadata.name: Required value"),
        (of_meta(name="Web"), 'metadata.name: Invalid value: "Web-node1": must be lower'),
        (of_meta(name="a" * 250), "metadata.name: Invalid value: "),
        (of_meta(namespace="a.b"), 'metadata.namespace: Invalid value: "a.b"'),
        (of_meta(uid="../../etc"), 'metadata.uid: Invalid value: "../../etc"'),
        (of_meta(labels={"-a": "x"}), 'metadata.labels: Invalid value: "-a"'),
        (of_meta(labels={"A/b": "x"}), 'metadata.labels: Invalid value: "A/b"'),
        (of_meta(labels={"a/b/c": "x"}), 'metadata.labels: Invalid value: "a/b/c"'),
        (of_meta(labels={"a": "x y"}), 'metadata.labels[a]: Invalid value: "x y"'),
        (of_meta(labels={"a": "x" * 64}), "metadata.labels[a]: Invalid value: "),
        (of_meta(annotations={"a b": "x"}), 'metadata.annotations: Invalid value: "a b"'),
        (of_meta(annotations={"a": "x" * 2**18}), "metadata.annotations: Forbidden: larger"),
        # the pod
        (manifest(containers=[]), "spec.containers: Required value"),
        (
            manifest(restartPolicy="Sometimes"),
            'spec.restartPolicy: Unsupported value: "Sometimes": supported values: '
            '"Always", "OnFailure", "Never"',
        ),
        (manifest(terminationGracePeriodSeconds=-1), "spec.terminationGracePeriodSeconds: Inv"),
        (manifest(activeDeadlineSeconds=0), "spec.activeDeadlineSeconds: Invalid value: 0"),
        (manifest(activeDeadlineSeconds=2**31), "spec.activeDeadlineSeconds: Invalid value"),
        (manifest(hostname="a.b"), 'spec.hostname: Invalid value: "a.b"'),
        (manifest(subdomain="A"), 'spec.subdomain: Invalid value: "A"'),
        (manifest(hostnameOverride="_"), 'spec.hostnameOverride: Invalid value: "_"'),
        (manifest(hostnameOverride="a" * 65), "spec.hostnameOverride: Invalid value"),
        (
            manifest(hostnameOverride="a.b", hostNetwork=True),
            "spec.hostnameOverride: Forbidden: cannot be set together with hostNetwork",
        ),
        (
            manifest(shareProcessNamespace=True, hostPID=True),
            "spec.shareProcessNamespace: Invalid value: true",
        ),
        (manifest(dnsPolicy="Mine"), 'spec.dnsPolicy: Unsupported value: "Mine"'),
        (manifest(dnsPolicy="None"), "spec.dnsConfig: Required value"),
        (
            manifest(dnsPolicy="None", dnsConfig={"searches": ["a"]}),
            "spec.dnsConfig.nameservers: Required value",
        ),
        (
            manifest(dnsConfig={"nameservers": ["1.1.1.1"] * 4}),
            "spec.dnsConfig.nameservers: Too many: 4: must have at most 3 items",
        ),
        (
            manifest(dnsConfig={"nameservers": ["dns"]}),
            'spec.dnsConfig.nameservers[0]: Invalid value: "dns"',
        ),
        (manifest(dnsConfig={"searches": ["a"] * 33}), "spec.dnsConfig.searches: Too many: 33"),
        (manifest(dnsConfig={"searches": ["-"]}), "spec.dnsConfig.searches[0]: Invalid value"),
        (
            manifest(dnsConfig={"searches": [f"{i}" + "a" * 200 for i in range(11)]}),
            "spec.dnsConfig.searches: Invalid value",
        ),
        (manifest(dnsConfig={"options": [{}]}), "spec.dnsConfig.options[0].name: Required value"),
        (manifest(hostAliases=[{"ip": "x"}]), 'spec.hostAliases[0].ip: Invalid value: "x"'),
        (manifest(hostAliases=[{"ip": "fe80::1%eth0"}]), "spec.hostAliases[0].ip: Invalid"),
        (
            manifest(hostAliases=[{"ip": "::1", "hostnames": ["ok", "_"]}]),
            'spec.hostAliases[0].hostnames[1]: Invalid value: "_"',
        ),
        (manifest(tolerations=[{}]), "spec.tolerations[0].operator: Invalid value"),
        (
            manifest(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]),
            "spec.tolerations[0].value: Invalid value",
        ),
        (
            manifest(tolerations=[{"key": "a", "tolerationSeconds": 5}]),
            "spec.tolerations[0].effect: Invalid value",
        ),
        (manifest(nodeSelector={"a": "b c"}), "spec.nodeSelector[a]: Invalid value"),
        # volumes
        (manifest(volumes=[{"name": "A"}]), 'spec.volumes[0].name: Invalid value: "A"'),
        (
            manifest(volumes=[{"name": "a"}, {"name": "a"}]),
            'spec.volumes[1].name: Duplicate value: "a"',
        ),
        (
            manifest(volumes=[{"name": "a", "emptyDir": {}, "hostPath": {"path": "/"}}]),
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
        ),
        (
            manifest(volumes=[{"name": "a", "hostPath": {"path": ""}}]),
            "spec.volumes[0].hostPath.path: Required value",
        ),
        (
            manifest(volumes=[{"name": "a", "hostPath": {"path": "/a/../b"}}]),
            "spec.volumes[0].hostPath.path: Invalid value",
        ),
        (
            manifest(volumes=[{"name": "a", "hostPath": {"path": "/", "type": "Pipe"}}]),
            'spec.volumes[0].hostPath.type: Unsupported value: "Pipe"',
        ),
        (
            manifest(volumes=[{"name": "a", "emptyDir": {"medium": "Disk"}}]),
            'spec.volumes[0].emptyDir.medium: Unsupported value: "Disk"',
        ),
        (
            manifest(volumes=[{"name": "a", "emptyDir": {"sizeLimit": "-1"}}]),
            "spec.volumes[0].emptyDir.sizeLimit: Invalid value",
        ),
        # containers
        (of_container(name="a.b"), f'{C}.name: Invalid value: "a.b"'),
        (of_container(name=""), f"{C}.name: Required value"),
        (of_container(image=None), f"{C}.image: Required value"),
        (of_container(image=" x"), f'{C}.image: Invalid value: " x"'),
        (of_container(imagePullPolicy="Maybe"), f'{C}.imagePullPolicy: Unsupported value: "Maybe"'),
        (of_container(terminationMessagePolicy="X"), f"{C}.terminationMessagePolicy: Unsupported"),
        (
            manifest(containers=[container("a"), container("a")]),
            'spec.containers[1].name: Duplicate value: "a"',
        ),
        (
            manifest(initContainers=[container("main")]),
            'spec.containers[0].name: Duplicate value: "main"',
        ),
        (of_container(env=[{"name": "A=B"}]), f'{C}.env[0].name: Invalid value: "A=B"'),
        (of_container(env=[{"name": ""}]), f"{C}.env[0].name: Required value"),
        (of_container(env=[{"name": "A", "value": "\0"}]), f"{C}.env[0].value: Invalid value"),
        # ports
        (of_ports({"containerPort": 0}), f"{C}.ports[0].containerPort: Required value"),
        (
            of_ports({"containerPort": 65536}),
            f"{C}.ports[0].containerPort: Invalid value: 65536: must be between 1 and 65535",
        ),
        (of_ports({**PORT, "hostPort": -1}), f"{C}.ports[0].hostPort: Invalid value: -1"),
        (of_ports({**PORT, "protocol": "tcp"}), f'{C}.ports[0].protocol: Unsupported value: "tcp"'),
        (of_ports({**PORT, "hostIP": "x"}), f'{C}.ports[0].hostIP: Invalid value: "x"'),
        (of_ports({**PORT, "name": "HTTP"}), f'{C}.ports[0].name: Invalid value: "HTTP"'),
        (of_ports({**PORT, "name": "80"}), f'{C}.ports[0].name: Invalid value: "80"'),
        (of_ports({**PORT, "name": "a--b"}), f'{C}.ports[0].name: Invalid value: "a--b"'),
        (of_ports({**PORT, "name": "a" * 16}), f"{C}.ports[0].name: Invalid value"),
        (
            of_ports({**PORT, "name": "a"}, {"containerPort": 81, "name": "a"}),
            f'{C}.ports[1].name: Duplicate value: "a"',
        ),
        (of_ports(HOST, HOST), f'{C}.ports[1].hostPort: Duplicate value: "TCP/8080"'),
        (of_ports(HOST, hostNetwork=True), f"{C}.ports[0].hostPort: Invalid value: 8080"),
        (
            manifest(
                containers=[container(ports=[HOST])],
                initContainers=[container("side", restartPolicy="Always", ports=[HOST])],
            ),
            "spec.containers[0].ports[0].hostPort: Duplicate value",
        ),
        # mounts
        (of_mount(name="w"), f'{C}.volumeMounts[0].name: Not found: "w"'),
        (of_mount(name=""), f"{C}.volumeMounts[0].name: Required value"),
        (of_mount(mountPath=""), f"{C}.volumeMounts[0].mountPath: Required value"),
        (of_mount(subPath="/a"), f'{C}.volumeMounts[0].subPath: Invalid value: "/a"'),
        (of_mount(subPath="a/../../b"), f"{C}.volumeMounts[0].subPath: Invalid value"),
        (of_mount(subPathExpr="../$(A)"), f"{C}.volumeMounts[0].subPathExpr: Invalid value"),
        (
            of_mount(subPath="a", subPathExpr="b"),
            f"{C}.volumeMounts[0].subPathExpr: Invalid value",
        ),
        (of_mount(mountPropagation="X"), f"{C}.volumeMounts[0].mountPropagation: Unsupported"),
        (
            of_mount(mountPropagation="Bidirectional"),
            f"{C}.volumeMounts[0].mountPropagation: Forbidden",
        ),
        (
            of_mount(recursiveReadOnly="Enabled"),
            f"{C}.volumeMounts[0].recursiveReadOnly: Forbidden: needs readOnly",
        ),
        (
            manifest(
                volumes=[{"name": "v"}],
                containers=[container(volumeMounts=[{"name": "v", "mountPath": "/v"}] * 2)],
            ),
            f'{C}.volumeMounts[1].mountPath: Invalid value: "/v": must be unique',
        ),
        # resources
        (
            of_container(resources={"limits": {"cpu": "1x"}, "requests": {"cpu": "1"}}),
            f'{C}.resources.limits[cpu]: Invalid value: "1x": must be a quantity',
        ),
        (
            of_container(resources={"requests": {"memory": "-1Mi"}}),
            f"{C}.resources.requests[memory]: Invalid value",
        ),
        (
            of_container(resources={"requests": {"memory": "1e30"}}),
            f"{C}.resources.requests[memory]: Invalid value",
        ),
        (
            of_container(resources={"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}),
            f'{C}.resources.requests: Invalid value: "2": '
            "must be less than or equal to cpu limit of 1500m",
        ),
        (
            of_container(resizePolicy=[{"resourceName": "disk", "restartPolicy": "NotRequired"}]),
            f'{C}.resizePolicy[0].resourceName: Unsupported value: "disk"',
        ),
        (
            of_container(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "Maybe"}]),
            f'{C}.resizePolicy[0].restartPolicy: Unsupported value: "Maybe"',
        ),
        (
            of_container(resizePolicy=[{"resourceName": "", "restartPolicy": "NotRequired"}]),
            f"{C}.resizePolicy[0].resourceName: Required value",
        ),
        (
            of_container(resizePolicy=[{"resourceName": "cpu", "restartPolicy": ""}]),
            f"{C}.resizePolicy[0].restartPolicy: Required value",
        ),
        (
            of_container(resizePolicy=[IN_PLACE, RESTARTED, {**RESTARTED, "resourceName": "cpu"}]),
            f'{C}.resizePolicy[2].resourceName: Duplicate value: "cpu"',
        ),
        (
            manifest(containers=[container(resizePolicy=[RESTARTED])], restartPolicy="Never"),
            f'{C}.resizePolicy[0].restartPolicy: Invalid value: "RestartContainer": must be '
            "NotRequired when the pod's restartPolicy is Never",
        ),
        (
            manifest(initContainers=[container("i", resizePolicy=[IN_PLACE, RESTARTED])]),
            'spec.initContainers[0].resizePolicy[1].restartPolicy: Invalid value: "RestartCont',
        ),
        # restart
        (of_container(restartPolicy="No"), f'{C}.restartPolicy: Unsupported value: "No"'),
        (of_rules(RULE, policy=None), f"{C}.restartPolicy: Required value"),
        (of_rules(*[RULE] * 21), f"{C}.restartPolicyRules: Too many: 21"),
        (
            of_rules({"action": "Restart"}),
            f"{C}.restartPolicyRules[0].exitCodes: Required value",
        ),
        (
            of_rules({"action": "Restart", "exitCodes": {"operator": "Eq", "values": [1]}}),
            f'{C}.restartPolicyRules[0].exitCodes.operator: Unsupported value: "Eq"',
        ),
        (
            of_rules({"action": "Restart", "exitCodes": {"operator": "In"}}),
            f"{C}.restartPolicyRules[0].exitCodes.values: Required value",
        ),
        (
            of_rules({"action": "Restart", "exitCodes": {"operator": "In", "values": [1, 1]}}),
            f"{C}.restartPolicyRules[0].exitCodes.values[1]: Duplicate value: 1",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_its_path(raw: dict[str, Any], expected: str) -> None:
    found = problems(raw)
    assert len(found) == 1
    assert found[0].startswith(expected)


@pytest.mark.parametrize(
    "raw",
    [
        manifest(),
        of_meta(labels={"example.com/a_B.c": "", "x": "Y.z_1"}, annotations={"A.com/b": "any \n"}),
        of_meta(namespace="kube-system", uid="6f1e0a0c-0000-4000-8000-000000000000"),
        of_ports(HOST, {**HOST, "protocol": "UDP"}, {**HOST, "hostIP": "127.0.0.1"}),
        of_ports(PORT, PORT),
        of_ports({**PORT, "name": "http-1"}, hostNetwork=True),
        of_mount(subPath="a..b/c", mountPropagation="HostToContainer"),
        of_mount(recursiveReadOnly="IfPossible", readOnly=True),
        of_mount(mountPath="relative"),
        of_container(env=[{"name": "1 odd-name.x", "value": "$(A) $$"}]),
        of_container(resources={"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1"}}),
        of_container(resizePolicy=[IN_PLACE, RESTARTED]),
        manifest(containers=[container(resizePolicy=[IN_PLACE])], restartPolicy="Never"),
        manifest(
            initContainers=[
                container("i", resizePolicy=[IN_PLACE]),
                container("s", resizePolicy=[RESTARTED], restartPolicy="Always"),
            ]
        ),
        of_rules(RULE),
        manifest(
            initContainers=[container("i", ports=[HOST])], containers=[container(ports=[HOST])]
        ),
        manifest(initContainers=[container("i", restartPolicy="Never")]),
        manifest(
            dnsPolicy="None",
            dnsConfig={
                "nameservers": ["10.0.0.1", "::1"],
                "searches": ["a_b.example.com.", "."],
                "options": [{"name": "ndots", "value": "2"}],
            },
        ),
        manifest(hostnameOverride="a.b"),
        manifest(activeDeadlineSeconds=1, terminationGracePeriodSeconds=0),
        manifest(hostAliases=[{"ip": "1.2.3.4", "hostnames": ["a.b", "c"]}]),
    ],
)
def test_what_can_run_is_taken(raw: dict[str, Any]) -> None:
    assert problems(raw) == []


def test_all_errors_come_at_once() -> None:
    raw = manifest(
        restartPolicy="x", containers=[container("A", image=""), container("b", tty=True, image="")]
    )
    assert [line.partition(":")[0] for line in problems(raw)] == [
        "spec.containers[0].name",
        "spec.containers[0].image",
        "spec.containers[1].image",
        "spec.restartPolicy",
    ]


def of_pod(own: dict[str, Any], *containers: dict[str, Any]) -> dict[str, Any]:
    return manifest(
        resources=own,
        containers=[container(name=f"c{n}", resources=r) for n, r in enumerate(containers)],
    )


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            of_pod({"requests": {"cpu": "1"}}, *[{"requests": {"cpu": "550m"}}] * 2),
            'spec.resources.requests[cpu]: Invalid value: "1": '
            "must be greater than or equal to aggregate container requests of 1100m",
        ),
        (
            of_pod({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "2Gi"}}),
            'spec.containers[0].resources.limits[memory]: Invalid value: "2Gi": '
            "must be less than or equal to pod limits of 1Gi",
        ),
        (
            of_pod({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}, {}),
            'spec.resources.requests: Invalid value: "2": '
            "must be less than or equal to cpu limit of 1",
        ),
    ],
)
def test_a_pods_own_resources_fit_its_containers(raw: dict[str, Any], expected: str) -> None:
    assert expected in problems(raw)


def test_a_pod_may_have_resources_of_its_own() -> None:
    own = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    assert problems(of_pod(own, {"limits": {"cpu": "1"}}, {})) == []
    storage = {"limits": {"ephemeral-storage": "1Gi"}}
    assert problems(of_container(resources=storage)) == []
