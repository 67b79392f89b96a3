"""What kubeadm writes on a node, in its shapes and places, for a control plane of 1.20.

Certificates and kubeconfigs come from kubeadm itself; the rest it cannot write here: built with
the Go of Debian it dies where it encodes a map.
"""

from __future__ import annotations

import json
from typing import Any

from tests.harness.pods import Json

REPOSITORY = "localhost/kubeadm"
VERSION = "v1.20.2"
IMAGES = {
    "etcd": f"{REPOSITORY}/etcd:3.4.13-0",
    "kube-apiserver": f"{REPOSITORY}/kube-apiserver:{VERSION}",
    "kube-controller-manager": f"{REPOSITORY}/kube-controller-manager:{VERSION}",
    "kube-scheduler": f"{REPOSITORY}/kube-scheduler:{VERSION}",
}
MANIFESTS = "/etc/kubernetes/manifests"
_PKI = "/etc/kubernetes/pki"
_ZEROS = """
cpuManagerReconcilePeriod evictionPressureTransitionPeriod fileCheckFrequency httpCheckFrequency
imageMaximumGCAge imageMinimumGCAge nodeStatusReportFrequency nodeStatusUpdateFrequency
runtimeRequestTimeout shutdownGracePeriod shutdownGracePeriodCriticalPods
streamingConnectionIdleTimeout syncFrequency volumeStatsAggPeriod
"""


def init_config(name: str, address: str, socket: str) -> str:
    """Return the file for `kubeadm init phase ... --config`."""
    api = {"apiVersion": "kubeadm.k8s.io/v1beta2"}
    first = {
        **api,
        "kind": "InitConfiguration",
        "localAPIEndpoint": {"advertiseAddress": address},
        "nodeRegistration": {"name": name, "criSocket": socket},
    }
    second = {**api, "kind": "ClusterConfiguration", "kubernetesVersion": VERSION}
    return f"{json.dumps(first)}\n---\n{json.dumps(second)}\n"


def kubelet_config(socket: str) -> str:
    """Return config.yaml as kubeadm 1.36 writes it, Go's zeros included."""
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"cacheTTL": "0s", "enabled": True},
            "x509": {"clientCAFile": f"{_PKI}/ca.crt"},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "0s", "cacheUnauthorizedTTL": "0s"},
        },
        "cgroupDriver": "cgroupfs",
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": socket,
        "crashLoopBackOff": {},
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": 10248,
        "logging": {"flushFrequency": 0, "verbosity": 0},
        "memorySwap": {},
        "rotateCertificates": True,
        "staticPodPath": MANIFESTS,
        **dict.fromkeys(_ZEROS.split(), "0s"),
    }
    return json.dumps(config)


def bootstrap_config(server: str, authority: str, token: str) -> str:
    """Return bootstrap-kubelet.conf; `authority` is the CA's certificate in base64."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "kubernetes",
                    "cluster": {"server": server, "certificate-authority-data": authority},
                }
            ],
            "users": [{"name": "tls-bootstrap-token-user", "user": {"token": token}}],
            "contexts": [
                {
                    "name": "tls-bootstrap-token-user@kubernetes",
                    "context": {"cluster": "kubernetes", "user": "tls-bootstrap-token-user"},
                }
            ],
            "current-context": "tls-bootstrap-token-user@kubernetes",
        }
    )


def bootstrap_objects(token: str) -> list[Json]:
    """Return the token's Secret, and the rights to get and renew a certificate."""
    name, _, secret = token.partition(".")
    group = "system:bootstrappers:kubeadm:default-node-token"
    signer = "system:certificates.k8s.io:certificatesigningrequests"
    data = {
        "token-id": name,
        "token-secret": secret,
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": group,
    }
    bindings = {
        "kubelet-bootstrap": ("system:node-bootstrapper", group),
        "node-autoapprove-bootstrap": (f"{signer}:nodeclient", group),
        "node-autoapprove-certificate-rotation": (f"{signer}:selfnodeclient", "system:nodes"),
    }
    rbac = "rbac.authorization.k8s.io"
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"bootstrap-token-{name}", "namespace": "kube-system"},
            "type": "bootstrap.kubernetes.io/token",
            "stringData": data,
        },
        *(
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": f"kubeadm:{binding}"},
                "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": rbac, "kind": "Group", "name": subject}],
            }
            for binding, (role, subject) in bindings.items()
        ),
    ]


def manifests(address: str) -> dict[str, Json]:
    """Return the control plane's static pods by component."""
    flags = {
        "etcd": _etcd(address),
        "kube-apiserver": _apiserver(address),
        "kube-controller-manager": _controller_manager(),
        "kube-scheduler": _scheduler(),
    }
    ports = {
        "etcd": ("HTTP", 2381, "/health", "100m"),
        "kube-apiserver": ("HTTPS", 6443, "/livez", "250m"),
        "kube-controller-manager": ("HTTPS", 10257, "/healthz", "200m"),
        "kube-scheduler": ("HTTPS", 10259, "/healthz", "100m"),
    }
    hosts = {
        "etcd": {"etcd-certs": f"{_PKI}/etcd", "etcd-data": "/var/lib/etcd"},
        "kube-apiserver": {"ca-certs": "/etc/ssl/certs", "k8s-certs": _PKI},
        "kube-controller-manager": {
            "flexvolume-dir": "/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
            "k8s-certs": _PKI,
            "kubeconfig": "/etc/kubernetes/controller-manager.conf",
        },
        "kube-scheduler": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
    }
    local = "127.0.0.1"
    where = dict.fromkeys(flags, local) | {"kube-apiserver": address}
    return {name: _pod(name, flags[name], where[name], ports[name], hosts[name]) for name in flags}


def _pod(
    name: str,
    flags: dict[str, str],
    host: str,
    port: tuple[str, int, str, str],
    paths: dict[str, str],
) -> Json:
    scheme, number, path, cpu = port
    probe = {"httpGet": {"host": host, "path": path, "port": number, "scheme": scheme}}
    started = {"initialDelaySeconds": 10, "periodSeconds": 10, "timeoutSeconds": 15}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "kube-system",
            "labels": {"component": name, "tier": "control-plane"},
        },
        "spec": {
            "containers": [
                {
                    "name": name,
                    "image": IMAGES[name],
                    "imagePullPolicy": "IfNotPresent",
                    "command": [name, *(f"--{flag}={value}" for flag, value in flags.items())],
                    "livenessProbe": {**probe, **started, "failureThreshold": 8},
                    "startupProbe": {**probe, **started, "failureThreshold": 24},
                    "resources": {"requests": {"cpu": cpu}},
                    "volumeMounts": [
                        {"name": volume, "mountPath": where} for volume, where in paths.items()
                    ],
                }
            ],
            "hostNetwork": True,
            "priorityClassName": "system-node-critical",
            "volumes": [
                {"name": volume, "hostPath": {"path": where, "type": _kind(where)}}
                for volume, where in paths.items()
            ],
        },
    }


def _kind(path: str) -> str:
    return "FileOrCreate" if path.endswith(".conf") else "DirectoryOrCreate"


def _etcd(address: str) -> dict[str, str]:
    own = f"https://{address}"
    pki = f"{_PKI}/etcd"
    return {
        "advertise-client-urls": f"{own}:2379",
        "cert-file": f"{pki}/server.crt",
        "client-cert-auth": "true",
        "data-dir": "/var/lib/etcd",
        "initial-advertise-peer-urls": f"{own}:2380",
        "initial-cluster": f"control={own}:2380",
        "key-file": f"{pki}/server.key",
        "listen-client-urls": f"https://127.0.0.1:2379,{own}:2379",
        "listen-metrics-urls": "http://127.0.0.1:2381",
        "listen-peer-urls": f"{own}:2380",
        "name": "control",
        "peer-cert-file": f"{pki}/peer.crt",
        "peer-client-cert-auth": "true",
        "peer-key-file": f"{pki}/peer.key",
        "peer-trusted-ca-file": f"{pki}/ca.crt",
        "trusted-ca-file": f"{pki}/ca.crt",
    }


def _apiserver(address: str) -> dict[str, str]:
    return {
        "advertise-address": address,
        "allow-privileged": "true",
        "authorization-mode": "Node,RBAC",
        "client-ca-file": f"{_PKI}/ca.crt",
        "enable-admission-plugins": "NodeRestriction",
        "enable-bootstrap-token-auth": "true",
        "etcd-cafile": f"{_PKI}/etcd/ca.crt",
        "etcd-certfile": f"{_PKI}/apiserver-etcd-client.crt",
        "etcd-keyfile": f"{_PKI}/apiserver-etcd-client.key",
        "etcd-servers": "https://127.0.0.1:2379",
        "insecure-port": "0",
        "kubelet-client-certificate": f"{_PKI}/apiserver-kubelet-client.crt",
        "kubelet-client-key": f"{_PKI}/apiserver-kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP,ExternalIP,Hostname",
        "secure-port": "6443",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": f"{_PKI}/sa.pub",
        "service-account-signing-key-file": f"{_PKI}/sa.key",
        "service-cluster-ip-range": "10.96.0.0/12",
        "tls-cert-file": f"{_PKI}/apiserver.crt",
        "tls-private-key-file": f"{_PKI}/apiserver.key",
    }


def _controller_manager() -> dict[str, str]:
    own = "/etc/kubernetes/controller-manager.conf"
    return {
        "authentication-kubeconfig": own,
        "authorization-kubeconfig": own,
        "bind-address": "127.0.0.1",
        "client-ca-file": f"{_PKI}/ca.crt",
        "cluster-signing-cert-file": f"{_PKI}/ca.crt",
        "cluster-signing-key-file": f"{_PKI}/ca.key",
        "controllers": "*,bootstrapsigner,tokencleaner",
        "kubeconfig": own,
        "port": "0",
        "root-ca-file": f"{_PKI}/ca.crt",
        "service-account-private-key-file": f"{_PKI}/sa.key",
        "use-service-account-credentials": "true",
    }


def _scheduler() -> dict[str, str]:
    own = "/etc/kubernetes/scheduler.conf"
    return {
        "authentication-kubeconfig": own,
        "authorization-kubeconfig": own,
        "bind-address": "127.0.0.1",
        "kubeconfig": own,
        "port": "0",
    }
