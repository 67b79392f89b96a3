"""What kubeadm writes for a kubelet is taken as it is: command lines, flags file, configuration."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubelet_trio.config import ConfigError, parse_flags, settle
from kubelet_trio.config.load import Settings
from kubelet_trio.durations import Duration

# The arguments of the unit's drop-in (10-kubeadm.conf), in its order.
UNIT = (
    "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
    "--kubeconfig=/etc/kubernetes/kubelet.conf",
)
SOCKET = "unix:///var/run/containerd/containerd.sock"
# Go writes these durations of an unset KubeletConfiguration as 0s: they are structs, which
# `omitempty` does not leave out.
ZEROS = """
cpuManagerReconcilePeriod evictionPressureTransitionPeriod fileCheckFrequency
httpCheckFrequency imageMaximumGCAge imageMinimumGCAge nodeStatusReportFrequency
nodeStatusUpdateFrequency runtimeRequestTimeout shutdownGracePeriod
shutdownGracePeriodCriticalPods streamingConnectionIdleTimeout syncFrequency volumeStatsAggPeriod
"""


def written(**more: Any) -> dict[str, Any]:
    """Return /var/lib/kubelet/config.yaml with kubeadm's defaults, and Go's zeros."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"cacheTTL": "0s", "enabled": True},
            "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "0s", "cacheUnauthorizedTTL": "0s"},
        },
        "cgroupDriver": "systemd",
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": 10248,
        "rotateCertificates": True,
        "staticPodPath": "/etc/kubernetes/manifests",
        **dict.fromkeys(ZEROS.split(), "0s"),
        **more,
    }


_LOGGING = {
    "flushFrequency": 0,
    "options": {"json": {"infoBufferSize": "0"}, "text": {"infoBufferSize": "0"}},
    "verbosity": 0,
}
_RESOLVED = {"resolvConf": "/run/systemd/resolve/resolv.conf"}  # systemd-resolved is active
# kubeadm's minor version -> what its file has besides.
FILES: dict[str, dict[str, Any]] = {
    "1.20": {"logging": {}},
    "1.33": {"logging": _LOGGING, "memorySwap": {}, "crashLoopBackOff": {}, **_RESOLVED},
    "1.34": {"logging": _LOGGING, "memorySwap": {}, "crashLoopBackOff": {}}
    | {"containerRuntimeEndpoint": ""},
    "1.36": {"logging": _LOGGING, "memorySwap": {}, "crashLoopBackOff": {}}
    | {"containerRuntimeEndpoint": SOCKET, **_RESOLVED},
}
_PAUSE = "--pod-infra-container-image=registry.k8s.io/pause:3.10"  # the kubelet's until 1.34
# KUBELET_KUBEADM_ARGS of kubeadm-flags.env.
FLAGS = {
    "1.33": f"--container-runtime-endpoint={SOCKET} {_PAUSE}",
    "1.33, a worker with a name": f"--container-runtime-endpoint={SOCKET} --hostname-override=a "
    f"{_PAUSE} --register-with-taints=dedicated=a:NoSchedule",
    "1.35": f"--container-runtime-endpoint={SOCKET}",
    "1.36, socket in instance-config.yaml": "",
    "kubeletExtraArgs": "--cloud-provider=external --node-ip=10.0.0.7 --node-labels=a=b --v=2",
}


def take(tmp_path: Path, config: dict[str, Any], flags: str = "", extra: str = "") -> Settings:
    """Read what the unit would start, its variables split at blanks as systemd does."""
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return settle(parse_flags([*UNIT, f"--config={file}", *shlex.split(flags), *extra.split()]))


@pytest.mark.parametrize("minor", FILES)
@pytest.mark.parametrize("flags", FLAGS)
def test_files_are_taken_as_they_are(tmp_path: Path, minor: str, flags: str) -> None:
    taken = take(tmp_path, written(**FILES[minor]), FLAGS[flags])
    config = taken.config
    assert config.static_pod_path == "/etc/kubernetes/manifests"
    assert (config.healthz_bind_address, config.healthz_port) == ("127.0.0.1", 10248)
    assert config.authentication.x509.client_ca_file == "/etc/kubernetes/pki/ca.crt"
    assert config.rotate_certificates
    assert config.cgroup_driver == "systemd"
    assert taken.flags.bootstrap_kubeconfig == "/etc/kubernetes/bootstrap-kubelet.conf"
    assert taken.flags.cert_dir == "/var/lib/kubelet/pki"  # where kubeadm's kubelet.conf points to
    # Only what is deprecated upstream is remarked on.
    assert all("deprecated" in note for note in taken.notes)


def test_zeros_mean_the_defaults(tmp_path: Path) -> None:
    config = take(tmp_path, written(**FILES["1.36"])).config
    assert config.sync_frequency == Duration(60)
    assert config.file_check_frequency == Duration(20)
    assert config.node_status_update_frequency == Duration(10)
    assert config.node_status_report_frequency == Duration(300)
    assert config.runtime_request_timeout == Duration(120)
    assert config.eviction_pressure_transition_period == Duration(300)
    assert config.authorization.webhook.cache_unauthorized_ttl == Duration(30)
    assert config.crash_loop_back_off.max_container_restart_period == Duration(300)


def test_flags_file_wins_over_the_configuration_and_extra_args_over_both(tmp_path: Path) -> None:
    taken = take(
        tmp_path,
        written(containerRuntimeEndpoint=SOCKET),
        "--container-runtime-endpoint=unix:///run/crio/crio.sock --hostname-override=a",
        "--hostname-override=b",
    )
    assert taken.config.container_runtime_endpoint == "unix:///run/crio/crio.sock"
    assert taken.flags.hostname_override == "b"


def test_taints_of_a_worker_are_read_as_kubeadm_writes_them(tmp_path: Path) -> None:
    flags = "--register-with-taints=node-role.kubernetes.io/control-plane=:NoSchedule,a=b:NoExecute"
    taints = take(tmp_path, written(), flags).config.register_with_taints
    assert [(t.key, t.value, t.effect) for t in taints] == [
        ("node-role.kubernetes.io/control-plane", "", "NoSchedule"),
        ("a", "b", "NoExecute"),
    ]


@pytest.mark.parametrize(
    ("flags", "since", "cure"),
    [
        ("--network-plugin=cni", "1.24", "dockershim"),
        ("--cni-bin-dir=/opt/cni/bin", "1.24", "dockershim"),
        ("--container-runtime=remote", "1.27", "--container-runtime-endpoint alone"),
    ],
)
def test_a_flag_of_an_older_kubeadm_is_refused_with_its_cure(
    tmp_path: Path, flags: str, since: str, cure: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        take(tmp_path, written(), flags)
    (problem,) = caught.value.problems
    assert flags.partition("=")[0] in problem
    assert f"Kubernetes {since} removed it" in problem
    assert cure in problem
    assert "/var/lib/kubelet/kubeadm-flags.env" in problem
