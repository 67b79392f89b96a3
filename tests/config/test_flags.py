"""A command line written for the Go kubelet parses as pflag parses it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.config import ConfigError, parse_flags
from kubelet_trio.config.flags import KubeletFlags, ParsedFlags, flag_type
from kubelet_trio.config.table import BY_FLAG, FLAGS

# Flags of the Go kubelet 1.36 (cmd/kubelet/app/options/options.go); each must be known here.
GO_FLAGS = """
address allowed-unsafe-sysctls anonymous-auth authentication-token-webhook
authentication-token-webhook-cache-ttl authorization-mode
authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl
bootstrap-kubeconfig cert-dir cgroup-driver cgroup-root cgroups-per-qos client-ca-file
cloud-provider cluster-dns cluster-domain config config-dir container-log-max-files
container-log-max-size container-runtime-endpoint contention-profiling cpu-cfs-quota
cpu-cfs-quota-period cpu-manager-policy cpu-manager-policy-options
cpu-manager-reconcile-period enable-controller-attach-detach enable-debugging-handlers
enable-server enforce-node-allocatable event-burst event-qps eviction-hard
eviction-max-pod-grace-period eviction-minimum-reclaim eviction-pressure-transition-period
eviction-soft eviction-soft-grace-period exit-on-lock-contention
experimental-allocatable-ignore-eviction fail-cgroupv1 fail-swap-on feature-gates
file-check-frequency hairpin-mode healthz-bind-address healthz-port hostname-override
housekeeping-interval http-check-frequency image-credential-provider-bin-dir
image-credential-provider-config image-gc-high-threshold image-gc-low-threshold
image-service-endpoint iptables-drop-bit iptables-masquerade-bit kernel-memcg-notification
kube-api-burst kube-api-content-type kube-api-qps kube-reserved kube-reserved-cgroup
kubeconfig kubelet-cgroups local-storage-capacity-isolation lock-file log-flush-frequency
log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size
log-text-split-stream logging-format make-iptables-util-chains manifest-url
manifest-url-header max-housekeeping-interval max-open-files max-pods
maximum-dead-containers maximum-dead-containers-per-container memory-manager-policy
minimum-container-ttl-duration minimum-image-ttl-duration node-ip node-labels
node-status-max-images node-status-update-frequency oom-score-adj pod-cidr
pod-manifest-path pod-max-pids pods-per-core port protect-kernel-defaults provider-id
qos-reserved read-only-port register-node register-with-taints registry-burst registry-qps
reserved-cpus reserved-memory resolv-conf root-dir rotate-certificates
rotate-server-certificates runonce runtime-cgroups runtime-request-timeout
seccomp-default serialize-image-pulls streaming-connection-idle-timeout sync-frequency
system-cgroups system-reserved system-reserved-cgroup tls-cert-file tls-cipher-suites
tls-min-version tls-private-key-file topology-manager-policy topology-manager-policy-options
topology-manager-scope v vmodule volume-plugin-dir volume-stats-agg-period
application-metrics-count-limit boot-id-file container-hints containerd containerd-namespace
enable-load-reader event-storage-age-limit event-storage-event-limit
global-housekeeping-interval log-cadvisor-usage machine-id-file storage-driver-buffer-duration
storage-driver-db storage-driver-host storage-driver-password storage-driver-secure
storage-driver-table storage-driver-user
"""


def said(line: ParsedFlags) -> dict[str, object]:
    return {row.flag: value for row, value in line.values}


def test_every_flag_of_the_go_kubelet_is_known() -> None:
    assert set(GO_FLAGS.split()) <= set(BY_FLAG)


def test_every_flag_without_a_field_has_a_place_to_go() -> None:
    assert {row.flag.replace("-", "_") for row in FLAGS} == set(KubeletFlags.__slots__)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--root-dir=/x"], {"root-dir": "/x"}),
        (["--root-dir", "/x"], {"root-dir": "/x"}),
        (["--root_dir", "/x"], {"root-dir": "/x"}),
        (["--root-dir="], {"root-dir": ""}),
        (["--root-dir", "--x"], {"root-dir": "--x"}),
        (["--fail-swap-on"], {"fail-swap-on": True}),
        (["--fail-swap-on=false"], {"fail-swap-on": False}),
        (["--fail-swap-on=F"], {"fail-swap-on": False}),
        (["-v=2"], {"v": 2}),
        (["-v", "2"], {"v": 2}),
        (["-v2"], {"v": 2}),
        (["--v=2"], {"v": 2}),
        (["--max-pods=0x10"], {"max-pods": 16}),
        (["--max-pods=010"], {"max-pods": 8}),
        (["--oom-score-adj=-500"], {"oom-score-adj": -500}),
        (["--sync-frequency=1m30s"], {"sync-frequency": 90.0}),
        (["--cluster-dns=10.0.0.10,10.0.0.11"], {"cluster-dns": ["10.0.0.10", "10.0.0.11"]}),
        (["--cluster-dns="], {"cluster-dns": []}),
        (["--node-labels=a=b, c=d"], {"node-labels": {"a": "b", "c": "d"}}),
        (["--feature-gates=A=true,B=false"], {"feature-gates": {"A": True, "B": False}}),
        (
            ["--eviction-hard=memory.available<1Gi,nodefs.available<5%"],
            {"eviction-hard": {"memory.available": "1Gi", "nodefs.available": "5%"}},
        ),
        (
            ["--manifest-url-header=a:hello,b:again,a:world"],
            {"manifest-url-header": {"a": ["hello", "world"], "b": ["again"]}},
        ),
        (
            ["--register-with-taints=k=v:NoSchedule,x:NoExecute"],
            {
                "register-with-taints": [
                    {"key": "k", "value": "v", "effect": "NoSchedule"},
                    {"key": "x", "value": "", "effect": "NoExecute"},
                ]
            },
        ),
        (
            ["--reserved-memory=0:memory=1Gi,hugepages-1M=2Gi"],
            {
                "reserved-memory": [
                    {"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-1M": "2Gi"}}
                ]
            },
        ),
        (
            ["--reserved-memory=0:memory=1Gi;1:memory=2Gi"],
            {
                "reserved-memory": [
                    {"numaNode": 0, "limits": {"memory": "1Gi"}},
                    {"numaNode": 1, "limits": {"memory": "2Gi"}},
                ]
            },
        ),
        (["--vmodule=kubelet*=3"], {"vmodule": [{"filePattern": "kubelet*", "verbosity": 3}]}),
        # As the Go kubelet: one that ends in a dash takes a taint away, and there is none yet.
        (["--register-with-taints=a:NoExecute-,b-"], {"register-with-taints": []}),
        # IPVar in pkg/util/flag: without an address the setting stays as it is.
        (["--address=", "--healthz-bind-address="], {}),
        (["--"], {}),
    ],
)
def test_a_flag_reads_as_in_pflag(argv: list[str], expected: dict[str, object]) -> None:
    assert said(parse_flags(argv)) == expected


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--max-pod=3"], "unknown flag: --max-pod (did you mean --max-pods?)"),
        (["--nothing-like-it", "3"], "unknown flag: --nothing-like-it"),
        (
            ["-root-dir=/x"],
            "unknown shorthand flag: 'r' in -root-dir=/x (did you mean --root-dir?)",
        ),
        (["-x"], "unknown shorthand flag: 'x' in -x"),
        (["start"], 'unknown command "start"'),
        (["--", "start"], 'unknown command "start"'),
        (["--fail-swap-on", "false"], 'unknown command "false"'),
        (["--root-dir"], "flag needs an argument: --root-dir"),
        (["---x"], "bad flag syntax: ---x"),
        (["--=3"], "bad flag syntax: --=3"),
        (
            ["--max-pods=ten"],
            'invalid argument "ten" for "--max-pods" flag: "ten" is not a whole number',
        ),
        (
            ["--fail-swap-on=maybe"],
            'invalid argument "maybe" for "--fail-swap-on" flag: "maybe" is not true or false',
        ),
        (
            ["--sync-frequency=20"],
            'invalid argument "20" for "--sync-frequency" flag: missing unit in duration "20"',
        ),
        (
            ["--node-labels=a"],
            'invalid argument "a" for "--node-labels" flag: malformed pair, expect string=string',
        ),
        (
            ["--healthz-bind-address=localhost"],
            'invalid argument "localhost" for "--healthz-bind-address" flag: '
            "'localhost' does not appear to be an IPv4 or IPv6 address",
        ),
        (
            ["--reserved-memory=0:"],
            'invalid argument "0:" for "--reserved-memory" flag: '
            "'0:' is not numaNodeID:type=quantity[,type=quantity...]",
        ),
        *(
            (
                [f"--register-with-taints={spec}"],
                f'invalid argument "{spec}" for "--register-with-taints" flag: {why}',
            )
            for spec, why in (
                ("a=b", "invalid taint spec: a=b"),
                ("a=b=c:NoSchedule", "invalid taint spec: a=b=c:NoSchedule"),
                ("a:NoSchedule:b", "invalid taint spec: a:NoSchedule:b"),
                ("a:NoSchedule,", "invalid taint spec: "),
                (
                    "a=b:NoSchedule,a=c:NoSchedule",
                    "duplicated taints with the same key and effect: a=c:NoSchedule",
                ),
            )
        ),
    ],
)
def test_a_wrong_flag_is_named(argv: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_flags(argv)
    assert caught.value.problems == (problem,)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_flags(["--nope", "1", "--max-pods=x", "-q", "extra"])
    assert len(caught.value.problems) == 4


def test_help_is_there_whatever_else_is_wrong() -> None:
    assert parse_flags(["--nope", "-h"]).wants_help
    assert parse_flags(["--help"]).wants_help
    assert parse_flags(["--version"]).wants_version


words = st.text(alphabet="abcdefv-_=/.:,<0123456789 ", max_size=12)
flags = st.sampled_from(sorted(BY_FLAG)).map("--{}".format)
arguments = st.one_of(words, flags, st.tuples(flags, words).map("=".join))


def problems_of(argv: list[str]) -> tuple[str, ...]:
    try:
        parse_flags(argv)
    except ConfigError as exc:
        return exc.problems
    return ()


@given(st.lists(arguments, max_size=6))
def test_any_command_line_parses_or_names_what_is_wrong(argv: list[str]) -> None:
    for problem in problems_of(argv):
        assert any(
            word.partition("=")[0].replace("_", "-") in problem
            or word in problem
            or (word[:1] == "-" and f"-{word[:2]}" in problem)  # -v: is the v flag of ":"
            for word in argv
        )


@given(st.sampled_from(sorted(BY_FLAG)), words)
def test_a_value_has_the_type_of_its_flag_or_is_refused(flag: str, text: str) -> None:
    argv = [f"--{flag}={text}"]
    if problems := problems_of(argv):
        assert all(f'for "--{flag}" flag' in problem for problem in problems)
        return
    values = parse_flags(argv).values
    if not values:  # an address that is not given
        assert text == ""
        return
    [(row, value)] = values
    kind = flag_type(row)
    origin = getattr(kind, "__origin__", kind)
    if isinstance(origin, type):
        assert isinstance(value, origin)
