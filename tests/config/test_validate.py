"""Bad values are told together; what is not built yet is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubelet_trio.config import (
    ConfigError,
    HostFacts,
    KubeletConfiguration,
    parse_swaps,
    startup_refusals,
)
from kubelet_trio.config.gates import GATES
from kubelet_trio.config.load import load_settings
from kubelet_trio.config.support import LEAVES
from kubelet_trio.config.table import BY_FLAG, FIELDS, FLAGS, Support
from kubelet_trio.config.types import DEFAULTS
from kubelet_trio.config.validate import CIPHER_SUITES, TLS_VERSIONS, validate
from kubelet_trio.server.tls.serving import CIPHERS, VERSIONS
from tests.config.test_load import config_file, problems_of


def test_the_defaults_are_valid() -> None:
    assert validate(DEFAULTS) == []


def test_actions_of_the_page_need_its_port() -> None:
    (problem,) = problems_of("--ui-actions")
    assert "--ui-actions needs the port of the page" in problem
    settings = load_settings(["--ui-actions", "--ui-port=4194"])
    assert settings.flags.ui_actions


@pytest.mark.parametrize("size", ["0", "1Mi", "32Mi", "1G", "64Gi"])
def test_sizes_of_the_flight_recorder(size: str) -> None:
    assert load_settings([f"--flight-recorder-size={size}"]).notes == ()


@pytest.mark.parametrize("size", ["1Ki", "1000000", "65Gi", "-1", "much", ""])
def test_a_size_of_the_flight_recorder_that_cannot_be_is_named(size: str) -> None:
    (problem,) = problems_of(f"--flight-recorder-size={size}")
    assert "flightRecorderSize (--flight-recorder-size)" in problem


def test_every_field_is_in_the_table_once() -> None:
    assert sorted(row.path for row in FIELDS) == sorted(LEAVES)
    flags = [row.flag for row in (*FIELDS, *FLAGS) if row.flag]
    assert len(flags) == len(set(flags)) == len(BY_FLAG)


def test_whatever_is_not_obeyed_says_why() -> None:
    assert all(row.why for row in (*FIELDS, *FLAGS) if row.support is not Support.YES)
    assert not any(row.why for row in (*FIELDS, *FLAGS) if row.support is Support.YES)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("nodeLeaseDurationSeconds: -1", "nodeLeaseDurationSeconds -1 must be greater than 0"),
        ("healthzPort: 70000", "healthzPort (--healthz-port) 70000 must be between 0 and 65535"),
        ("oomScoreAdj: 1001", "must be between -1000 and 1000, inclusive"),
        ("eventBurst: -1", "eventBurst (--event-burst) -1 must not be negative"),
        ("registryPullQPS: -1", "registryPullQPS (--registry-qps) -1 must not be negative"),
        ("cpuCFSQuotaPeriod: 2s", "2s must be between 1ms and 1sec, inclusive"),
        ("crashLoopBackOff: {maxContainerRestartPeriod: 301s}", "must be set between 1s and 300s"),
        ("crashLoopBackOff: {maxContainerRestartPeriod: 500ms}", "must be set between 1s and 300s"),
        ("podLogsDir: /var/log/../pods", "must be normalized"),
        ("podLogsDir: /var/log/pods/", "must be normalized"),
        ("podLogsDir: /var/log/pöds", "must contain ASCII characters only"),
        ("cgroupDriver: podman", 'must be one of: "cgroupfs", "systemd"'),
        ("maxParallelImagePulls: 0", "maxParallelImagePulls 0 must be a positive number"),
        ("healthzBindAddress: localhost", '"localhost" must be an IP address'),
        ("clusterDNS: [dns]", '"dns" must be an IP address'),
        ("staticPodURL: ftp://x", "must be an http or https URL"),
        ("staticPodURL: 'http://[::1'", "must be an http or https URL"),
        ("containerRuntimeEndpoint: npipe:////./pipe", "must be a unix socket: unix:///path"),
        ("syncFrequency: -1s", "syncFrequency (--sync-frequency) -1s must be greater than 0"),
        ("imageGCLowThresholdPercent: 90", "must be less than imageGCHighThresholdPercent"),
        ("imageMaximumGCAge: 1m", "must be greater than imageMinimumGCAge 2m0s"),
        ("containerLogMaxFiles: 1", "must be greater than 1"),
        ("containerLogMonitorInterval: 1s", "must be greater than or equal to 3s"),
        ("enforceNodeAllocatable: [none, pods]", "may not contain additional enforcements"),
        ("enforceNodeAllocatable: [pods, pods]", "duplicated enforcements"),
        ("enforceNodeAllocatable: [cows]", 'option "cows" specified'),
        ("enforceNodeAllocatable: [kube-reserved]", "kubeReservedCgroup (--kube-reserved-cgroup)"),
        ("cgroupsPerQOS: false", "(--cgroups-per-qos) must be true"),
        ("systemCgroups: /s", "systemCgroups (--system-cgroups) was specified"),
        ("systemCgroups: /\ncgroupRoot: /", "systemCgroups (--system-cgroups) cannot be the root"),
        ("shutdownGracePeriod: 500ms", "must be either zero or otherwise >= 1 sec"),
        ("shutdownGracePeriodCriticalPods: 5s", "must be <= shutdownGracePeriod 0s"),
        (
            "shutdownGracePeriod: 5s\nfeatureGates: {GracefulNodeShutdown: false}",
            "requires feature gate GracefulNodeShutdown",
        ),
        (
            "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]\n"
            "featureGates: {GracefulNodeShutdownBasedOnPodPriority: false}",
            "requires feature gate GracefulNodeShutdownBasedOnPodPriority",
        ),
        (
            "cpuCFSQuotaPeriod: 200ms\nfeatureGates: {CustomCPUCFSQuotaPeriod: false}",
            "(--cpu-cfs-quota-period) requires feature gate CustomCPUCFSQuotaPeriod",
        ),
        (
            "serverTLSBootstrap: true\nfeatureGates: {RotateKubeletServerCertificate: false}",
            "(--rotate-server-certificates) requires feature gate RotateKubeletServerCertificate",
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 9s}\n"
            "featureGates: {KubeletCrashLoopBackOffMax: false}",
            "maxContainerRestartPeriod requires feature gate KubeletCrashLoopBackOffMax",
        ),
        (
            "imagePullCredentialsVerificationPolicy: AlwaysVerify\n"
            "featureGates: {KubeletEnsureSecretPulledImages: false}",
            "VerificationPolicy requires feature gate KubeletEnsureSecretPulledImages",
        ),
        ("memorySwap: {swapBehavior: All}", "swapBehavior"),
        ("featureGates: {Nope: true}", "unrecognized feature gate: Nope"),
        (
            "preloadedImagesVerificationAllowlist: [reg.example/a]",
            'is "NeverVerifyAllowlistedImages"',
        ),
        (
            "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n"
            'preloadedImagesVerificationAllowlist: [reg.example/a, "reg.example/b*"]',
            "preloadedImagesVerificationAllowlist[1]: not a valid wildcard pattern",
        ),
        (
            "logging: {format: json, vmodule: [{filePattern: a, verbosity: 4}]}",
            "logging.vmodule (--vmodule) is only supported for the text log format",
        ),
        ("showHiddenMetricsForVersion: '1.34'", "must be left out or 1.35"),
        ("logging: {vmodule: [{filePattern: '', verbosity: 4}]}", "must not be empty"),
        ("logging: {vmodule: [{filePattern: 'a=b', verbosity: 4}]}", "must not have an equal sign"),
        ("logging: {vmodule: [{filePattern: a, verbosity: -1}]}", "verbosity -1 must be between"),
        (
            "logging: {options: {json: {splitStream: true}}}",
            "(--log-json-split-stream) needs the feature gate LoggingAlphaOptions",
        ),
        ("logging: {format: xml}", 'logging.format (--logging-format) "xml" must be one of'),
    ],
)
def test_a_bad_value_is_told_as_invalid_configuration(tmp_path: Path, body: str, told: str) -> None:
    problems = problems_of(f"--config={config_file(tmp_path / 'c', body)}")
    assert any(p.startswith("invalid configuration: ") and told in p for p in problems), problems


@pytest.mark.parametrize(
    ("tracing", "problem"),
    [
        (
            "samplingRatePerMillion: -1",
            "tracing.samplingRatePerMillion: Invalid value: -1: sampling rate must be positive",
        ),
        (
            "samplingRatePerMillion: 1000001",
            "tracing.samplingRatePerMillion: Invalid value: 1000001: sampling rate per million "
            "must be less than or equal to one million",
        ),
        (
            "endpoint: 'foo://localhost:4317'",
            'tracing.endpoint: Invalid value: "foo://localhost:4317": unsupported scheme: foo.  '
            "Options are none, dns, unix, or unix-abstract.  "
            "See https://github.com/grpc/grpc/blob/master/doc/naming.md",
        ),
        (
            "endpoint: 'localhost:port'",
            'tracing.endpoint: Invalid value: "dns://localhost:port": '
            'parse "dns://localhost:port": invalid port ":port" after host',
        ),
    ],
)
def test_tracing_is_refused_with_the_go_kubelets_texts(
    tmp_path: Path, tracing: str, problem: str
) -> None:
    path = config_file(tmp_path / "c", f"tracing: {{{tracing}}}")
    assert problems_of(f"--config={path}") == (problem,)


@pytest.mark.parametrize(
    "tracing",
    [
        "{}",
        "{samplingRatePerMillion: 0}",
        "{samplingRatePerMillion: 1000000, endpoint: 'dns:///collector:4317'}",
        "{endpoint: 'unix:///run/otel.sock'}",
    ],
)
def test_tracing_is_accepted(tmp_path: Path, tracing: str) -> None:
    path = config_file(tmp_path / "c", f"tracing: {tracing}")
    assert load_settings([f"--config={path}"]).config.tracing is not None


def test_all_bad_values_are_told_together(tmp_path: Path) -> None:
    path = config_file(
        tmp_path / "c", "healthzPort: -1\noomScoreAdj: 2000\ntlsCurvePreferences: [29]\n"
    )
    assert len(problems_of(f"--config={path}", "--exit-on-lock-contention")) == 4


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--tls-curve-preferences=29", "not supported yet: tlsCurvePreferences (--tls-curve-pr"),
        ("--keep-terminated-pod-volumes", "leave it at false"),
        ("--feature-gates=MemoryQoS=true,PodLevelResourceManagers=true", "PodLevelResourceMana"),
        ("--feature-gates=NodeSwap=false", "not supported yet: feature gate NodeSwap=false"),
        ("--machine-id-file=/x", "not supported yet: --machine-id-file: the node's machine ID"),
        ("--machine-id-file=/x", "leave it at its default (/etc/machine-id"),
        ("--experimental-mounter-path=/x", "not supported yet: --experimental-mounter-path: a m"),
    ],
)
def test_what_is_not_built_yet_is_refused_by_name(flag: str, told: str) -> None:
    [problem] = problems_of(flag)
    assert told in problem


@pytest.mark.parametrize(
    "argv",
    [
        ["--max-pods=110", "--kubeconfig=", "--anonymous-auth=false", "--read-only-port=0"],
        ["--enforce-node-allocatable=none", "--cgroups-per-qos=false"],
        ["--enforce-node-allocatable="],
        ["--make-iptables-util-chains=false", "--enable-debugging-handlers=false"],
        ["--feature-gates=SidecarContainers=true,MemoryQoS=false,EventedPLEG=true"],
        ["--feature-gates=CustomCPUCFSQuotaPeriod=true", "--cpu-cfs-quota-period=50ms"],
        ["--feature-gates=CustomCPUCFSQuotaPeriod=false,PodLevelResources=false"],
        ["--feature-gates=HPAScaleToZero=true,WatchList=false,RuntimeClassInImageCriApi=false"],
        [
            "--eviction-hard=memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,"
            "imagefs.available<15%,imagefs.inodesFree<5%"
        ],
    ],
)
def test_what_comes_to_the_default_is_fine(argv: list[str]) -> None:
    load_settings(argv)


def test_server_fields_mean_nothing_while_the_server_is_off() -> None:
    load_settings(["--enable-server=false", "--tls-curve-preferences=29", "--port=1"])
    with pytest.raises(ConfigError):
        load_settings(["--tls-curve-preferences=29"])


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--tls-min-version=VersionTLS11"], "must be one of: VersionTLS12, VersionTLS13"),
        (["--tls-cipher-suites=TLS_NULL"], '"TLS_NULL" is not supported or does not exist'),
        (["--tls-cert-file=/c"], "need each other"),
        (["--port=10250", "--read-only-port=10250"], "must differ"),
    ],
)
def test_what_the_server_cannot_be_told(argv: list[str], told: str) -> None:
    [problem] = problems_of(*argv)
    assert told in problem


def test_the_tls_names_are_those_that_the_server_knows() -> None:
    assert set(TLS_VERSIONS) == set(VERSIONS) - {""}
    assert set(CIPHERS) == CIPHER_SUITES


def test_every_default_only_row_refuses_by_its_name() -> None:
    for row in (*FIELDS, *FLAGS):
        assert row.name


def test_the_gates_are_those_of_the_kubelet() -> None:
    assert GATES["SidecarContainers"] is True
    assert GATES["EventedPLEG"] is False


@pytest.mark.parametrize(
    ("labels", "is_ok"),
    [
        ("a=b,example.com/c=d", True),
        ("kubernetes.io/hostname=x", True),
        ("node.kubernetes.io/x=y", True),
        ("kubelet.kubernetes.io/x=y", True),
        ("sub.node.kubernetes.io/x=y", True),
        ("node-role.kubernetes.io/master=", False),
        ("k8s.io/x=y", False),
        ("bad key=x", False),
        ("a=bad value", False),
        (f"{'a' * 64}=b", False),
    ],
)
def test_node_labels_are_checked_as_upstream(labels: str, is_ok: bool) -> None:
    if is_ok:
        load_settings([f"--node-labels={labels}"])
    else:
        assert "label" in problems_of(f"--node-labels={labels}")[0]


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--node-ip=x", "must be an IP address, or two"),
        ("--node-ip=10.0.0.1,10.0.0.2", "one address of each IP family"),
        ("--root-dir=", "must name a directory"),
        ("--hostname-override=no_good", "is not a valid node name"),
        ("--crash-loop-backoff-base=0s", "must be greater than 0"),
        ("--cloud-provider=aws", "unsupported cloud provider"),
        ("--exit-on-lock-contention", "needs a --lock-file"),
    ],
)
def test_flags_without_a_field_are_checked(flag: str, told: str) -> None:
    assert told in problems_of(flag)[0]


@pytest.mark.parametrize(
    ("version", "swaps", "changes", "told"),
    [
        (2, (), {}, []),
        (1, (), {}, ["failCgroupV1"]),
        (1, (), {"fail_cgroup_v1": False}, []),
        (2, ("/swapfile",), {}, ["failSwapOn"]),
        (2, ("/swapfile",), {"fail_swap_on": False}, []),
        (1, ("/swapfile",), {}, ["failCgroupV1", "failSwapOn"]),
        (1, (), {"fail_cgroup_v1": False, "single_process_oom_kill": False}, ["singleProcess"]),
    ],
)
def test_the_agent_refuses_hosts_that_the_go_kubelet_refuses(
    version: int, swaps: tuple[str, ...], changes: dict[str, bool], told: list[str]
) -> None:
    config = KubeletConfiguration(**changes)  # type: ignore[arg-type]
    refusals = startup_refusals(config, HostFacts(version, swaps))
    assert len(refusals) == len(told)
    assert all(word in line for word, line in zip(told, refusals, strict=True))


@pytest.mark.parametrize(
    ("facts", "changes", "told"),
    [
        (HostFacts(2, missing_cgroup_root=("/cg/pods",)), {"cgroup_root": "/pods"}, ["/cg/pods"]),
        (
            HostFacts(2, missing_cgroup_root=("/cg/pods",)),
            {"cgroup_root": "/pods", "cgroups_per_qos": False},
            [],
        ),
        (
            HostFacts(2, kernel=("kernel/panic is 1, expected 10", "vm/x is 0, expected 1")),
            {"protect_kernel_defaults": True},
            ["kernel/panic is 1, expected 10", "vm/x is 0, expected 1"],
        ),
        (HostFacts(2, missing_cgroup_root=("/c",)), {"container_runtime_endpoint": "process"}, []),
    ],
)
def test_what_a_host_lacks_is_told_each_by_name(
    facts: HostFacts, changes: dict[str, object], told: list[str]
) -> None:
    refusals = startup_refusals(KubeletConfiguration(**changes), facts)  # type: ignore[arg-type]
    assert len(refusals) == len(told)
    assert all(word in line for word, line in zip(told, refusals, strict=True))


def test_swaps_are_read_from_proc() -> None:
    text = "Filename\tType\tSize\tUsed\tPriority\n/swapfile file 1 0 -2\ntmpfs x 1 0 -3\n"
    assert parse_swaps(text) == ("/swapfile",)
    assert parse_swaps("Filename\tType\tSize\tUsed\tPriority\n") == ()


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--eviction-hard=disk.available<1Gi", "unsupported eviction signal disk.available"),
        ("--eviction-hard=memory.available<-1", "must be positive"),
        ("--eviction-soft=memory.available<1Gi", "grace period must be specified"),
    ],
)
def test_eviction_settings_are_checked(flag: str, told: str) -> None:
    [problem] = problems_of(flag)
    assert told in problem


@pytest.mark.parametrize(
    ("key", "value", "effect", "is_ok"),
    [
        ("example.com/dedicated", "gpu", "NoSchedule", True),
        ("a", "", "PreferNoSchedule", True),
        ("a", "", "NoExecute", True),
        ("", "b", "NoSchedule", False),
        ("bad key", "b", "NoSchedule", False),
        ("example.com/", "b", "NoSchedule", False),
        ("a", "bad value", "NoSchedule", False),
        ("a", "b", "Never", False),
    ],
)
def test_taints_are_checked_as_upstream(
    tmp_path: Path, key: str, value: str, effect: str, is_ok: bool
) -> None:
    taint = f"{{key: '{key}', value: '{value}', effect: {effect}}}"
    argv = ["--config", config_file(tmp_path / "c", f"registerWithTaints: [{taint}]\n")]
    if is_ok:
        assert load_settings(argv).config.register_with_taints[0].key == key
    else:
        (problem,) = problems_of(*argv)
        assert f'registerWithTaints (--register-with-taints): taint "{key}' in problem


def test_the_last_flag_with_taints_counts() -> None:
    argv = ["--register-with-taints=a:NoSchedule", "--register-with-taints=b=c:NoExecute"]
    (taint,) = load_settings(argv).config.register_with_taints
    assert (taint.key, taint.value, taint.effect) == ("b", "c", "NoExecute")
