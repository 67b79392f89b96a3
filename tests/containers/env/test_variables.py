from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from lightkube.models.core_v1 import (
    ConfigMap,
    ConfigMapEnvSource,
    ConfigMapKeySelector,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    ObjectFieldSelector,
    ResourceFieldSelector,
    Secret,
    SecretEnvSource,
    SecretKeySelector,
    VolumeMount,
)

from kubelet_trio.containers import ContainerConfigError, PodFacts, container_env, sub_path
from kubelet_trio.containers.env.variables import command_line, encode_value
from kubelet_trio.objects import ObjectView, config_map_key, secret_key
from tests.containers.make import container, pod, sized

OBJECTS = ObjectView(
    {
        config_map_key("default", "app"): ConfigMap(data={"HOST": "db", "PORT": "$(HOST)"}),
        secret_key("default", "keys"): Secret(data={"token": "c2VjcmV0", "raw": "/w=="}),
    }
)


def env(*variables: EnvVar, **fields: Any) -> Mapping[str, str]:
    spec = container(env=list(variables), **fields)
    return container_env(pod(spec), spec, objects=OBJECTS).variables


def from_config_map(name: str = "app", prefix: str | None = None, **fields: Any) -> EnvFromSource:
    return EnvFromSource(prefix=prefix, configMapRef=ConfigMapEnvSource(name=name, **fields))


def from_secret(name: str = "keys", prefix: str | None = None, **fields: Any) -> EnvFromSource:
    return EnvFromSource(prefix=prefix, secretRef=SecretEnvSource(name=name, **fields))


def config_map_value(key: str, name: str = "app", optional: bool | None = None) -> EnvVarSource:
    return EnvVarSource(configMapKeyRef=ConfigMapKeySelector(key, name, optional))


def secret_value(key: str, name: str = "keys", optional: bool | None = None) -> EnvVarSource:
    return EnvVarSource(secretKeyRef=SecretKeySelector(key, name, optional))


def test_a_value_refers_to_what_was_declared_before_it() -> None:
    assert env(
        EnvVar("A", value="1"),
        EnvVar("B", value="$(A)-$(C)"),
        EnvVar("C", value="3"),
        EnvVar("D"),
    ) == {"A": "1", "B": "1-$(C)", "C": "3", "D": ""}


def test_a_later_duplicate_wins_and_may_refer_to_the_former() -> None:
    variables = env(EnvVar("PATH", value="/bin"), EnvVar("PATH", value="/opt:$(PATH)"))
    assert variables == {"PATH": "/opt:/bin"}


def test_env_from_comes_first_and_is_not_expanded_but_may_be_referred_to() -> None:
    variables = env(
        EnvVar("HOST", value="other"),
        EnvVar("URL", value="$(C_HOST):$(token)"),
        envFrom=[from_config_map(), from_config_map(prefix="C_"), from_secret()],
    )
    assert variables == {
        "HOST": "other",
        "PORT": "$(HOST)",
        "C_HOST": "db",
        "C_PORT": "$(HOST)",
        "token": "secret",
        "raw": "\udcff",
        "URL": "db:secret",
    }
    assert encode_value(variables["raw"]) == b"\xff"


def test_keys_are_read_from_config_maps_and_secrets() -> None:
    assert env(
        EnvVar("A", valueFrom=config_map_value("HOST")),
        EnvVar("B", valueFrom=secret_value("token")),
        EnvVar("C", valueFrom=config_map_value("NONE", optional=True)),
        EnvVar("D", valueFrom=secret_value("x", "none", optional=True)),
    ) == {"A": "db", "B": "secret"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"envFrom": [from_config_map("none")]}, 'configmap "none" not found'),
        ({"envFrom": [from_secret("none")]}, 'secret "none" not found'),
        (
            {"env": [EnvVar("A", valueFrom=config_map_value("NONE"))]},
            "couldn't find key NONE in ConfigMap default/app",
        ),
        (
            {"env": [EnvVar("A", valueFrom=secret_value("NONE"))]},
            "couldn't find key NONE in Secret default/keys",
        ),
        ({"env": [EnvVar("A", valueFrom=secret_value("x", "none"))]}, 'secret "none" not found'),
        (
            {
                "env": [
                    EnvVar("A", valueFrom=EnvVarSource(fileKeyRef=FileKeySelector("a", "b", "c")))
                ]
            },
            "couldn't parse env file: volume c has no file b",
        ),
    ],
)
def test_what_is_missing_is_said_in_upstreams_words(fields: dict[str, Any], message: str) -> None:
    spec = container(**fields)
    with pytest.raises(ContainerConfigError) as caught:
        container_env(pod(spec), spec, objects=OBJECTS)
    assert str(caught.value) == message


def test_optional_sources_may_be_missing() -> None:
    sources = [from_config_map("none", optional=True), from_secret("none", optional=True)]
    assert env(envFrom=sources) == {}


def test_names_that_no_variable_can_have_are_skipped_and_told() -> None:
    objects = ObjectView({config_map_key("default", "app"): ConfigMap(data={"a=b": "1", "c": "2"})})
    spec = container(envFrom=[from_config_map()])
    made = container_env(pod(spec), spec, objects=objects)
    assert made.variables == {"c": "2"}
    assert made.warnings == (
        "Keys [a=b] from the EnvFrom configMap default/app were skipped since they are "
        "considered invalid environment variable names.",
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "default"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['app.io/name']", "it's"),
        ("metadata.annotations['note']", "n"),
        ("metadata.labels['none']", ""),
        ("spec.nodeName", "node-1"),
        ("spec.host", "node-1"),  # its name of old, which the API still takes
        ("spec.serviceAccountName", ""),
        ("status.podIP", "10.0.0.2"),
        ("status.podIPs", "10.0.0.2,fd00::2"),
        ("status.hostIP", "192.0.2.1"),
        ("status.hostIPs", "192.0.2.1,2001:db8::1"),
    ],
)
def test_a_pods_own_fields(path: str, value: str) -> None:
    spec = container(env=[EnvVar("A", valueFrom=EnvVarSource(fieldRef=ObjectFieldSelector(path)))])
    of_pod = pod(
        spec,
        meta={"labels": {"app.io/name": "it's"}, "annotations": {"note": "n"}},
        nodeName="node-1",
    )
    facts = PodFacts(("10.0.0.2", "fd00::2"), ("192.0.2.1", "2001:db8::1"))
    assert container_env(of_pod, spec, facts).variables == {"A": value}


ALLOCATABLE = {"cpu": 4 * 10**9, "memory": 8 * 2**30 * 10**9}


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.cpu", None, "2"),  # 1500m, rounded up
        ("limits.cpu", "1m", "1500"),
        ("requests.cpu", "1m", "250"),
        ("requests.cpu", "0", "1"),
        ("limits.memory", None, str(8 * 2**30)),  # none: what the node has
        ("limits.memory", "1Gi", "8"),
        ("requests.memory", "1Mi", "1"),  # 1M is a little less than that
        ("requests.memory", "1k", "1000"),
        ("limits.ephemeral-storage", None, "0"),
        ("requests.ephemeral-storage", None, "0"),
    ],
)
def test_resources_in_units_of_a_divisor(resource: str, divisor: str | None, value: str) -> None:
    ref = ResourceFieldSelector(resource=resource, divisor=divisor)
    spec = sized(
        requests={"cpu": "250m", "memory": "1M"},
        limits={"cpu": "1500m"},
        env=[EnvVar("A", valueFrom=EnvVarSource(resourceFieldRef=ref))],
    )
    facts = PodFacts(allocatable=ALLOCATABLE)
    assert container_env(pod(spec), spec, facts).variables == {"A": value}


def test_another_containers_resources() -> None:
    ref = ResourceFieldSelector(resource="limits.cpu", containerName="peer", divisor="1m")
    spec = container(env=[EnvVar("A", valueFrom=EnvVarSource(resourceFieldRef=ref))])
    peer = sized("peer", limits={"cpu": "3"})
    assert container_env(pod(spec, peer), spec).variables == {"A": "3000"}
    with pytest.raises(ContainerConfigError, match="container peer not found"):
        container_env(pod(spec), spec)


def test_sub_path_expressions_are_expanded_and_plain_ones_are_not() -> None:
    variables = {"POD": "web-0", "EMPTY": ""}
    assert sub_path(VolumeMount("/x", "v", subPathExpr="$(POD)/logs"), variables) == "web-0/logs"
    assert sub_path(VolumeMount("/x", "v", subPath="$(POD)"), variables) == "$(POD)"
    assert sub_path(VolumeMount("/x", "v"), variables) == ""


def test_sub_path_expressions_need_values() -> None:
    mount = VolumeMount("/x", "v", subPathExpr="$(MISSING)/$(EMPTY)")
    with pytest.raises(ContainerConfigError, match="missing value for EMPTY, MISSING"):
        sub_path(mount, {"EMPTY": ""})


def test_variables_that_double_are_refused_by_name() -> None:
    doubled = [EnvVar("V0", value="x" * 16)]
    doubled += [EnvVar(f"V{i}", value=f"$(V{i - 1})$(V{i - 1})") for i in range(1, 40)]
    spec = container(env=doubled)
    with pytest.raises(ContainerConfigError, match="env V14: expands to more than 131072"):
        container_env(pod(spec), spec)


def test_the_variables_together_are_bounded() -> None:
    wide = [EnvVar("V", value="x" * 100_000), *(EnvVar(f"W{i}", value="$(V)") for i in range(99))]
    spec = container(env=wide)
    with pytest.raises(ContainerConfigError, match=r"env W19: .* 2097152 bytes together"):
        container_env(pod(spec), spec)
    again = [EnvVar("V", value="x" * 100_000) for _ in range(99)]  # of one name the last counts
    spec = container(env=again)
    assert len(container_env(pod(spec), spec).variables) == 1


def test_a_literal_that_no_program_takes_is_refused_by_name() -> None:
    spec = container(env=[EnvVar("V", value="é" * 70_000)])
    with pytest.raises(ContainerConfigError, match="env V: has more than 131072 bytes"):
        container_env(pod(spec), spec)


def test_words_of_a_command_are_bounded() -> None:
    spec = container(command=["ok", "$(V)$(V)"])
    with pytest.raises(ContainerConfigError, match=r"command\[1\]: expands to more than"):
        command_line(spec, {"V": "x" * 100_000})
