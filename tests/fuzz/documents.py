"""Targets: JSON and YAML that a person, an API server or a program writes."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import yaml
from lightkube.models.core_v1 import (
    Container,
    EmptyDirVolumeSource,
    Pod,
    PodSpec,
    Secret,
    Volume,
)
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.config import ConfigError
from kubelet_trio.config.load import load_settings
from kubelet_trio.credentials.docker_config import config_logins, legacy_logins, secret_logins
from kubelet_trio.credentials.errors import ProviderError
from kubelet_trio.credentials.plugins import read_response
from kubelet_trio.credentials.provider_config import Provider, load_providers
from kubelet_trio.kube.errors import CredentialsError, KubeconfigError
from kubelet_trio.kube.exec_plugin import read_credentials
from kubelet_trio.kube.kubeconfig import parse_kubeconfig
from kubelet_trio.sources import ManifestError
from kubelet_trio.sources.manifest.ephemeral import load_ephemeral
from kubelet_trio.sources.manifest.load import load_manifest
from tests.fuzz.mutate import documents, edited, encode_tree
from tests.fuzz.target import Target

_EXAMPLES = Path(__file__).parents[2] / "examples"
_EPHEMERAL = {
    "name": "debugger",
    "image": "busybox",
    "targetContainerName": "main",
    "command": ["sh"],
    "env": [{"name": "A", "value": "1"}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},
    "stdin": True,
}
_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web",
        "namespace": "default",
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "creationTimestamp": "2024-01-02T03:04:05Z",
    },
    "spec": {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 5,
        "securityContext": {"runAsUser": 1000, "fsGroup": 1, "sysctls": []},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
        "dnsConfig": {"nameservers": ["10.0.0.1"], "options": [{"name": "ndots", "value": "2"}]},
        "topologySpreadConstraints": [],
        "initContainers": [{"name": "i", "image": "b", "restartPolicy": "Always"}],
        "containers": [
            {
                "name": "main",
                "image": "busybox:1.36",
                "command": ["sh", "-c", "sleep $(A)"],
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {
                        "name": "C",
                        "valueFrom": {
                            "resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}
                        },
                    },
                ],
                "envFrom": [{"prefix": "p", "configMapRef": {"name": "c", "optional": True}}],
                "ports": [{"containerPort": 80, "name": "http", "protocol": "TCP"}],
                "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}},
                "livenessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1},
                "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
                "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
                "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "a"}],
            }
        ],
        "volumes": [
            {"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "h", "hostPath": {"path": "/tmp", "type": "Directory"}},
            {"name": "nfs", "nfs": {"server": "s", "path": "/x"}},
            {
                "name": "p",
                "projected": {
                    "sources": [
                        {"configMap": {"name": "c", "items": [{"key": "k", "path": "p"}]}},
                        {
                            "downwardAPI": {
                                "items": [
                                    {
                                        "path": "l",
                                        "fieldRef": {"fieldPath": "metadata.labels['a']"},
                                    }
                                ]
                            }
                        },
                    ]
                },
            },
        ],
    },
}
_OBJECTS = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s"},
            "type": "Opaque",
            "data": {"k": "dg=="},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "pv"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/tmp"},
                "claimRef": {"name": "c", "namespace": "default"},
            },
        },
    ],
}
_CONFIG = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "staticPodPath": "manifests",
    "syncFrequency": "1m",
    "nodeStatusUpdateFrequency": "10s",
    "maxPods": 110,
    "podPidsLimit": 100,
    "evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%"},
    "evictionSoft": {"memory.available": "200Mi"},
    "evictionSoftGracePeriod": {"memory.available": "30s"},
    "systemReserved": {"cpu": "100m"},
    "reservedSystemCPUs": "",
    "featureGates": {"GracefulNodeShutdown": True},
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"cacheTTL": "2m"}},
    "logging": {"format": "json", "flushFrequency": 5, "vmodule": []},
    "registerWithTaints": [{"key": "a", "value": "b", "effect": "NoSchedule"}],
    "shutdownGracePeriodByPodPriority": [{"priority": 1, "shutdownGracePeriodSeconds": 2}],
    "memorySwap": {"swapBehavior": "NoSwap"},
    "clusterDNS": ["10.0.0.10"],
    "containerLogMaxSize": "10Mi",
    "tlsCipherSuites": [],
}
_KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
    "clusters": [
        {
            "name": "k",
            "cluster": {
                "server": "https://[::1]:6443",
                "certificate-authority-data": base64.b64encode(b"x").decode(),
                "proxy-url": "http://proxy.example:3128",
                "tls-server-name": "kube",
                "extensions": [
                    {
                        "name": "client.authentication.k8s.io/exec",
                        "extension": {"audience": "a"},
                    }
                ],
            },
        }
    ],
    "users": [
        {
            "name": "u",
            "user": {
                "as": "me",
                "as-groups": ["g"],
                "as-user-extra": {"k": ["v"]},
                "exec": {
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "command": "./login",
                    "args": ["a"],
                    "env": [{"name": "A", "value": "1"}],
                    "interactiveMode": "Never",
                },
            },
        }
    ],
}
_TOKEN_CONFIG = _KUBECONFIG | {"users": [{"name": "u", "user": {"token": "t"}}]}
_DOCKER = {
    "auths": {
        "https://registry.example/v1/": {"auth": base64.b64encode(b"me:secret").decode()},
        "*.other.example": {"username": "u", "password": "p", "email": "e"},
    }
}
_PROVIDERS = {
    "apiVersion": "kubelet.config.k8s.io/v1",
    "kind": "CredentialProviderConfig",
    "providers": [
        {
            "name": "ecr",
            "matchImages": ["*.example"],
            "defaultCacheDuration": "12h",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "args": ["a"],
            "env": [{"name": "A", "value": "1"}],
            "tokenAttributes": {
                "serviceAccountTokenAudience": "a",
                "requireServiceAccount": True,
                "cacheType": "Token",
                "requiredServiceAccountAnnotationKeys": ["k"],
                "optionalServiceAccountAnnotationKeys": ["o"],
            },
        }
    ],
}
_PROVIDED = {
    "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
    "kind": "CredentialProviderResponse",
    "cacheKeyType": "Registry",
    "cacheDuration": "5m",
    "auth": {"*.example": {"username": "u", "password": "p"}},
}
_CREDENTIAL = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {"token": "t", "expirationTimestamp": "2030-01-02T03:04:05Z"},
}
_PROVIDER = Provider("ecr", ("*.example",), 60.0, "credentialprovider.kubelet.k8s.io/v1")
_YAML_TOKENS = (
    b"&a ",
    b"*a",
    b"<<: *a\n",
    b"!!binary ",
    b"!!python/object:os.system ",
    b"!!set ",
    b"? ",
    b"---\n",
    b"...\n",
    b"|\n",
    b"- ",
    b"{",
    b"}",
    b"[",
    b"2024-01-02",
    b"0x",
    b"1:2",
    b"%YAML 9\n",
)


def _manifest(data: bytes) -> object:
    manifest = load_manifest(data, "/etc/m.yaml", node_name="n")
    for pod in manifest.pods:
        msgspec.json.encode(pod)  # what was taken can be told of
    return manifest


def _in_file(load: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    def run(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, name)
            path.write_bytes(data)
            return load(path)

    return run


def _settings(path: Path) -> object:
    return load_settings(["--config", str(path)])


def _docker(data: bytes) -> object:
    secret = Secret(
        metadata=ObjectMeta(name="s", namespace="d"),
        type="kubernetes.io/dockerconfigjson",
        data={".dockerconfigjson": base64.b64encode(data).decode()},
    )
    try:
        legacy: object = legacy_logins(data)
    except ValueError:
        legacy = None
    return config_logins(data), secret_logins(secret), legacy


def _document(
    name: str,
    run: Callable[[bytes], object],
    examples: Sequence[object],
    *errors: type[Exception],
    is_yaml: bool = False,
    per_byte: int = 16,
    most: int = 64 * 1024,
) -> list[Target]:
    """Return the target of a format: as JSON, and as YAML where it may be that too."""
    written = [encode_tree(example) for example in examples]
    found = [Target(name, run, written, documents(written), errors, per_byte, most)]
    if is_yaml:
        texts = [yaml.safe_dump(example).encode() for example in examples]
        tree = documents(written).map(_as_yaml)
        strategy = edited(tree, _YAML_TOKENS)
        found.append(Target(f"{name} in YAML", run, texts, strategy, errors, per_byte, most))
    return found


def _as_yaml(data: bytes) -> bytes:
    try:
        return yaml.safe_dump(json.loads(data)).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return data


_PLACE = Pod(
    spec=PodSpec(
        containers=[Container(name="main")],
        volumes=[Volume(name="data", emptyDir=EmptyDirVolumeSource())],
    )
)


def _ephemeral(data: bytes) -> object:
    return load_ephemeral(data, _PLACE)


TARGETS = [
    *_document("debug container", _ephemeral, [_EPHEMERAL], ManifestError, per_byte=64),
    *_document("manifest", _manifest, [_POD, _OBJECTS], ManifestError, is_yaml=True, per_byte=64),
    *_document(
        "KubeletConfiguration",
        _in_file(_settings, "kubelet.yaml"),
        [_CONFIG],
        ConfigError,
        is_yaml=True,
    ),
    *_document(
        "kubeconfig",
        lambda data: parse_kubeconfig(data, Path("/etc/kubeconfig")),
        [_KUBECONFIG, _TOKEN_CONFIG],
        KubeconfigError,
        is_yaml=True,
    ),
    *_document(
        "credential providers",
        _in_file(load_providers, "providers.yaml"),
        [_PROVIDERS],
        ValueError,
        is_yaml=True,
    ),
    *_document("docker config", _docker, [_DOCKER, _DOCKER["auths"]], ValueError),
    *_document(
        "answer of a credential provider",
        lambda data: read_response(data, _PROVIDER, None),
        [_PROVIDED],
        ProviderError,
    ),
    *_document(
        "ExecCredential",
        lambda data: read_credentials(data, "client.authentication.k8s.io/v1", "here"),
        [_CREDENTIAL],
        CredentialsError,
    ),
]
