"""Defaults, file, drop-ins, flags: later ones win, and every mistake is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from kubelet_trio.config import ConfigError, encode_shown_config, reservations
from kubelet_trio.config.files import merge_patch
from kubelet_trio.config.load import load_settings
from kubelet_trio.config.show import encode_config
from kubelet_trio.config.types import DEFAULTS, KubeletConfiguration
from kubelet_trio.config.walk import leaves
from kubelet_trio.durations import Duration
from kubelet_trio.model import DEFAULT_EVICTION_HARD

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


def config_file(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEAD + body)
    return str(path)


def problems_of(*argv: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_settings(argv)
    return caught.value.problems


def test_without_anything_the_defaults_are_upstreams_and_the_safe_ones() -> None:
    settings = load_settings([])
    assert settings.config == DEFAULTS
    assert settings.notes == ()
    assert settings.flags.root_dir == "/var/lib/kubelet"
    assert settings.config.sync_frequency == 60.0
    assert settings.config.read_only_port == 0
    assert settings.config.authentication.anonymous.enabled is False
    assert settings.config.authorization.mode == "Webhook"


def test_a_flag_wins_over_a_drop_in_and_a_drop_in_over_the_file(tmp_path: Path) -> None:
    main = config_file(
        tmp_path / "config.yaml",
        "fileCheckFrequency: 1s\nhttpCheckFrequency: 1s\nruntimeRequestTimeout: 1s\n",
    )
    config_file(tmp_path / "d/10.conf", "httpCheckFrequency: 2s\nruntimeRequestTimeout: 2s\n")
    config = load_settings(
        ["--config", main, "--config-dir", str(tmp_path / "d"), "--runtime-request-timeout=3s"]
    ).config
    assert config.file_check_frequency == 1.0
    assert config.http_check_frequency == 2.0
    assert config.runtime_request_timeout == 3.0


def test_drop_ins_apply_in_lexical_order_at_any_depth_and_only_conf_files(tmp_path: Path) -> None:
    config_file(tmp_path / "20.conf", "clusterDomain: twenty\n")
    config_file(tmp_path / "10/99.conf", "clusterDomain: ten\nhealthzPort: 99\n")
    config_file(tmp_path / "30.yaml", "clusterDomain: ignored\n")
    config = load_settings([f"--config-dir={tmp_path}"]).config
    assert config.cluster_domain == "twenty"
    assert config.healthz_port == 99


def test_a_drop_in_merges_maps_and_replaces_lists(tmp_path: Path) -> None:
    main = config_file(
        tmp_path / "config.yaml",
        "clusterDNS: [10.0.0.1]\nfeatureGates: {NodeSwap: true}\nhealthzPort: 1\n",
    )
    config_file(
        tmp_path / "d/a.conf",
        "clusterDNS: [10.0.0.2]\nfeatureGates: {EventedPLEG: true}\nhealthzPort: null\n",
    )
    config = load_settings([f"--config={main}", f"--config-dir={tmp_path}/d"]).config
    assert config.cluster_dns == ["10.0.0.2"]
    assert config.feature_gates == {"NodeSwap": True, "EventedPLEG": True}
    assert config.healthz_port == 10248


@pytest.mark.parametrize(
    ("body", "drop_in", "flags", "expected"),
    [
        ("", "", [], DEFAULT_EVICTION_HARD),
        # An empty map is a map: without a threshold (loadConfigFile tells nil from empty).
        ("evictionHard: {}\n", "", [], {}),
        ("evictionHard: null\n", "", [], DEFAULT_EVICTION_HARD),
        ("evictionHard: {pid.available: 5%}\n", "", [], {"pid.available": "5%"}),
        (
            "evictionHard: {pid.available: 5%}\nmergeDefaultEvictionSettings: true\n",
            "",
            [],
            {**DEFAULT_EVICTION_HARD, "pid.available": "5%"},
        ),
        # A drop-in is merged into what the file means, and a flag replaces all of it.
        (
            "",
            "evictionHard: {memory.available: 1Gi}\n",
            [],
            {**DEFAULT_EVICTION_HARD, "memory.available": "1Gi"},
        ),
        (
            "mergeDefaultEvictionSettings: true\n",
            "",
            ["--eviction-hard=pid.available<5%"],
            {"pid.available": "5%"},
        ),
        ("", "", ["--eviction-hard="], {}),
    ],
)
def test_the_defaults_of_eviction_are_those_of_the_file(
    tmp_path: Path, body: str, drop_in: str, flags: list[str], expected: dict[str, str]
) -> None:
    argv = ["--config", config_file(tmp_path / "config.yaml", body), *flags]
    if drop_in:
        config_file(tmp_path / "d/a.conf", drop_in)
        argv.append(f"--config-dir={tmp_path}/d")
    config = load_settings(argv).config
    assert config.eviction_hard == expected
    assert reservations(config, range(4)).eviction_hard == expected
    shown = msgspec.json.decode(encode_shown_config(config))
    assert shown["evictionHard"] == expected


def test_feature_gates_of_flags_merge_with_those_of_the_file(tmp_path: Path) -> None:
    main = config_file(tmp_path / "c", "featureGates: {NodeSwap: true}\n")
    config = load_settings([f"--config={main}", "--feature-gates=EventedPLEG=false"]).config
    assert config.feature_gates == {"NodeSwap": True, "EventedPLEG": False}


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        ("kind: KubeletConfiguration\n", "apiVersion must be kubelet.config.k8s.io/v1beta1"),
        ("apiVersion: kubelet.config.k8s.io/v1beta1\n", "kind must be KubeletConfiguration"),
        ("- a list\n", "is not a KubeletConfiguration"),
        ("{", "while parsing"),
        (f"{HEAD}port: 1\nport: 2\n", 'duplicate field "port"'),
    ],
)
def test_a_drop_in_must_say_what_it_is(tmp_path: Path, head: str, problem: str) -> None:
    (tmp_path / "a.conf").write_text(head)
    [told] = problems_of(f"--config-dir={tmp_path}")
    assert str(tmp_path / "a.conf") in told
    assert problem in told


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert problems_of(f"--config={tmp_path}/none") == (
        f"{tmp_path}/none: No such file or directory",
    )
    assert problems_of(f"--config-dir={tmp_path}/none") == (
        f"--config-dir {tmp_path}/none: no such directory",
    )


def test_unknown_fields_are_named_with_their_path_and_the_nearest_name(tmp_path: Path) -> None:
    main = config_file(
        tmp_path / "c",
        "maxpods: 3\nauthentication: {anonymus: {enabled: true}}\nqwertz: 1\n"
        "logging: {options: {text: {split: true}}}\n",
    )
    assert problems_of(f"--config={main}") == (
        "unknown field: maxpods (did you mean maxPods?)",
        "unknown field: authentication.anonymus (did you mean anonymous?)",
        "unknown field: qwertz",
        "unknown field: logging.options.text.split (did you mean splitStream?)",
    )


def test_unknown_fields_inside_lists_are_named(tmp_path: Path) -> None:
    main = config_file(
        tmp_path / "c", "registerWithTaints: [{key: a, effect: NoExecute, valu: c}]\n"
    )
    assert problems_of(f"--config={main}") == (
        "unknown field: registerWithTaints[0].valu (did you mean value?)",
    )


def test_every_value_of_a_wrong_type_is_named(tmp_path: Path) -> None:
    main = config_file(
        tmp_path / "c",
        "maxPods: many\nfailSwapOn: 3\nsyncFrequency: 20\nclusterDNS: 10.0.0.1\n"
        "fileCheckFrequency: 20\nauthentication: {anonymous: {enabled: x}}\n",
    )
    told = problems_of(f"--config={main}")
    for path in ("maxPods", "failSwapOn", "clusterDNS", "authentication.anonymous.enabled"):
        assert any(line.startswith(f"invalid configuration: {path}: ") for line in told), path


def test_durations_in_files_are_text_as_upstream(tmp_path: Path) -> None:
    main = config_file(tmp_path / "c", 'syncFrequency: "5"\n')
    [told] = problems_of(f"--config={main}")
    assert told == 'invalid configuration: syncFrequency: missing unit in duration "5"'


def test_a_zero_means_the_default_only_where_upstream_cannot_tell(tmp_path: Path) -> None:
    main = config_file(
        tmp_path / "c",
        'syncFrequency: 0s\nhealthzPort: 0\nregistryPullQPS: 0\nport: 0\nresolvConf: ""\n'
        'cgroupDriver: ""\nfailSwapOn: false\nclusterDomain: null\n',
    )
    config = load_settings([f"--config={main}"]).config
    assert config.sync_frequency == 60.0
    assert config.port == 10250
    assert config.cgroup_driver == "cgroupfs"
    assert config.healthz_port == 0
    assert config.registry_pull_qps == 0
    assert config.resolv_conf == ""
    assert config.fail_swap_on is False


def test_relative_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    main = config_file(tmp_path / "etc/c", "staticPodPath: manifests\nresolvConf: /etc/r\n")
    config = load_settings([f"--config={main}"]).config
    assert config.static_pod_path == str(tmp_path / "etc/manifests")
    assert config.resolv_conf == "/etc/r"


def test_parallel_pulls_switch_serial_ones_off_unless_it_was_said(tmp_path: Path) -> None:
    main = config_file(tmp_path / "c", "maxParallelImagePulls: 4\n")
    assert load_settings([f"--config={main}"]).config.serialize_image_pulls is False
    [told] = problems_of(f"--config={main}", "--serialize-image-pulls=true")
    assert "maxParallelImagePulls cannot be larger than 1" in told


def test_repeated_list_and_map_flags_grow_and_others_are_replaced() -> None:
    config = load_settings(
        [
            "--cluster-dns=10.0.0.1",
            "--cluster-dns=10.0.0.2",
            "--manifest-url-header=a:1",
            "--manifest-url-header=a:2,b:3",
            "--healthz-port=1",
            "--healthz-port=2",
        ]
    ).config
    assert config.cluster_dns == ["10.0.0.1", "10.0.0.2"]
    assert config.static_pod_url_header == {"a": ["1", "2"], "b": ["3"]}
    assert config.healthz_port == 2


def test_a_deprecated_flag_works_and_says_what_to_use() -> None:
    settings = load_settings(["--pod-manifest-path=/m", "-v=4", "--provider-id="])
    assert settings.config.static_pod_path == "/m"
    assert settings.notes == (
        "--pod-manifest-path is deprecated: set staticPodPath in the --config file instead",
    )


def test_a_setting_without_effect_is_accepted_and_said() -> None:
    settings = load_settings(["--housekeeping-interval=20s"])
    assert settings.flags.housekeeping_interval == Duration(20)
    assert settings.notes == ("--housekeeping-interval has no effect: there is no cAdvisor here",)
    assert load_settings(["--provider-id=x", "--kubeconfig=/k"]).notes == ()
    *_, note = load_settings(["--feature-gates=HPAScaleToZero=true,NodeSwap=true"]).notes
    assert note == "feature gate HPAScaleToZero has no effect: it is of other components"


@pytest.mark.parametrize(
    ("argv", "form"),
    [([], ""), (["--logging-format=json"], "json"), (["--logging-format=text"], "text")],
)
def test_the_log_format_is_known_to_have_been_said(argv: list[str], form: str) -> None:
    assert load_settings(argv).log_format == form


def test_the_configuration_goes_out_as_it_comes_in(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(encode_config(DEFAULTS))
    assert load_settings([f"--config={path}"]).config == DEFAULTS
    raw = msgspec.json.decode(encode_config(DEFAULTS))
    assert raw["authentication"]["webhook"]["cacheTTL"] == "2m0s"
    assert raw["imageGCHighThresholdPercent"] == 85


# The fields of v1beta1 KubeletConfiguration in Kubernetes 1.36 whose names bend a rule.
@pytest.mark.parametrize(
    "name",
    [
        "enableServer",
        "staticPodURL",
        "staticPodURLHeader",
        "tlsCertFile",
        "serverTLSBootstrap",
        "registryPullQPS",
        "authentication.x509.clientCAFile",
        "authentication.webhook.cacheTTL",
        "oomScoreAdj",
        "clusterDNS",
        "imageMinimumGCAge",
        "imageGCHighThresholdPercent",
        "cgroupsPerQOS",
        "singleProcessOOMKill",
        "qosReserved",
        "podCIDR",
        "podPidsLimit",
        "resolvConf",
        "cpuCFSQuota",
        "cpuCFSQuotaPeriod",
        "kubeAPIQPS",
        "kubeAPIBurst",
        "iptablesMasqueradeBit",
        "makeIPTablesUtilChains",
        "reservedSystemCPUs",
        "providerID",
        "failCgroupV1",
        "httpCheckFrequency",
        "userNamespaces.idsPerPod",
        "tlsCurvePreferences",
        "memoryReservationPolicy",
        "configMapAndSecretChangeDetectionStrategy",
        "shutdownGracePeriodByPodPriority",
    ],
)
def test_fields_are_spelled_as_upstream_spells_them(name: str) -> None:
    assert name in dict(leaves(KubeletConfiguration))


def test_a_merge_patch_does_what_rfc_7386_shows() -> None:
    # The table in its appendix A.
    for target, patch, result in (
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ):
        assert merge_patch(target, patch) == result


def test_pods_are_kept_for_a_start_cut_off_if_flag_or_file_ask_for_it(tmp_path: Path) -> None:
    asked = config_file(tmp_path / "c", "offlinePods: true\n")
    assert not load_settings(["--kubeconfig=k"]).config.offline_pods
    by_flag = load_settings(["--kubeconfig=k", "--offline-pods"])
    by_file = load_settings(["--kubeconfig=k", f"--config={asked}"])
    assert by_flag.config.offline_pods
    assert by_file.config.offline_pods
    assert not [note for note in (*by_flag.notes, *by_file.notes) if "ffline" in note]
    won = load_settings(["--kubeconfig=k", f"--config={asked}", "--offline-pods=false"])
    assert not won.config.offline_pods
    (note,) = load_settings(["--offline-pods"]).notes
    assert note.startswith("offlinePods (--offline-pods) has no effect")


def test_a_relative_root_directory_is_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings(["--root-dir=state"]).flags.root_dir == str(tmp_path / "state")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        *(
            (name, False)
            for name in ("Authorization", "Proxy-Authorization", "Cookie", "x-api-key")
        ),
        *((name, False) for name in ("X-Vault-Token", "PRIVATE-TOKEN", "X-Secret", "Password")),
        ("Accept", True),
        ("X-Custom-Header", True),
        # https://github.com/kubernetes/kubernetes/blob/v1.36.2/test/e2e_node/kubelet_config_dir_test.go#L108
        ("kubelet-api-support", True),
        ("custom-static-pod", True),
    ],
)
def test_configz_hides_the_headers_of_the_manifest_url_that_carry_credentials(
    name: str, shown: bool
) -> None:
    config = replace(DEFAULTS, static_pod_url_header={name: ["one x", "two y"]})
    encoded = msgspec.json.decode(encode_shown_config(config))
    values = ["one x", "two y"] if shown else ["<hidden>", "<hidden>"]
    assert encoded == {
        **msgspec.json.decode(encode_config(DEFAULTS)),
        "staticPodURLHeader": {name: values},
    }
