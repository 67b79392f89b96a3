"""A container's config becomes a process: its words, its environment, where its files are."""

from __future__ import annotations

import json
import resource
import signal

import pytest

from kubelet_trio.cri import v1
from kubelet_trio.cri.process.identity import Account, Identity, RefusedError
from kubelet_trio.cri.process.launch import (
    Spec,
    effective_stop_signal,
    make_spec,
    mount_variables,
    parse_rlimits,
    stop_signal,
    unapplied,
)

ENVIRON = {"PATH": "/bin", "LANG": "C", "SECRET": "of the agent"}
MESSAGE_FILE = {"io.kubernetes.container.terminationMessagePath": "/dev/termination-log"}


def config(**fields: object) -> v1.ContainerConfig:
    fields.setdefault("command", ["run"])
    fields.setdefault("metadata", v1.ContainerMetadata(name="main"))
    return v1.ContainerConfig(**fields)  # type: ignore[arg-type]


def mounts(**places: str) -> list[v1.Mount]:
    """Mounts by container path, with `_` for each slash."""
    return [
        v1.Mount(container_path=name.replace("_", "/"), host_path=path)
        for name, path in places.items()
    ]


def spec(
    container: v1.ContainerConfig,
    sandbox: v1.PodSandboxConfig | None = None,
    account: Account | None = None,
    *,
    switch_user: bool = False,
) -> Spec:
    return make_spec(
        "id1",
        container,
        sandbox or v1.PodSandboxConfig(),
        Identity(1000, 1000, (7,)),
        account,
        workdir="/work",
        switch_user=switch_user,
        environ=ENVIRON,
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"command": []}, r"it has no command: there are no images here.* expected `command`"),
        ({"command": [], "args": ["-v"]}, r"it has args \['-v'\] but no command: there are no"),
    ],
)
def test_a_container_without_a_command_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        spec(config(**fields))


def test_a_container_with_devices_is_refused() -> None:
    devices = [v1.Device(container_path=f"/dev/{name}", host_path="/h") for name in "ab"]
    with pytest.raises(RefusedError, match="it has the devices /dev/a, /dev/b: "):
        spec(config(devices=devices))


def test_only_what_every_process_needs_is_taken_from_the_agent() -> None:
    made = spec(
        config(envs=[v1.KeyValue(key="A", value=b"1"), v1.KeyValue(key="PATH", value=b"/own")]),
        v1.PodSandboxConfig(hostname="pod-name"),
        Account("me", 1000, "/home/me"),
    )
    assert made.env == {
        "PATH": "/own",
        "LANG": "C",
        "HOME": "/home/me",
        "HOSTNAME": "pod-name",
        "KUBELET_TRIO_MOUNTS": "{}",
        "KUBELET_TRIO_CONTAINER_ID": "id1",
        "A": "1",
    }


def test_a_container_cannot_take_away_its_own_mark() -> None:
    env = [v1.KeyValue(key="KUBELET_TRIO_CONTAINER_ID", value=b"another")]
    assert spec(config(envs=env)).env["KUBELET_TRIO_CONTAINER_ID"] == "id1"


def test_bytes_that_are_no_text_survive() -> None:
    env = [v1.KeyValue(key="RAW", value=b"\xff\xfe")]
    assert spec(config(envs=env)).env["RAW"].encode(errors="surrogateescape") == b"\xff\xfe"


def test_every_mount_is_in_the_environment() -> None:
    variables = mount_variables(
        config(
            mounts=[
                v1.Mount(container_path="/etc/nginx/conf.d", host_path="/host/conf"),
                v1.Mount(container_path="/a-b", host_path="/host/1"),
                v1.Mount(container_path="/a_b", host_path="/host/2"),
                v1.Mount(container_path="/", host_path="/host/all"),
                v1.Mount(container_path="/dev/termination-log", host_path="/host/message"),
            ],
            annotations=MESSAGE_FILE,
        )
    )
    everything = json.loads(variables.pop("KUBELET_TRIO_MOUNTS"))
    assert everything == {
        "/etc/nginx/conf.d": "/host/conf",
        "/a-b": "/host/1",
        "/a_b": "/host/2",
        "/": "/host/all",
        "/dev/termination-log": "/host/message",
    }
    assert variables == {
        "KUBELET_TRIO_MOUNT_ETC_NGINX_CONF_D": "/host/conf",
        "KUBELET_TRIO_MOUNT_A_B": "/host/1",
        "KUBELET_TRIO_MOUNT_A_B_2": "/host/2",
        "KUBELET_TRIO_MOUNT_ROOT": "/host/all",
        "KUBELET_TRIO_MOUNT_DEV_TERMINATION_LOG": "/host/message",
        "KUBELET_TRIO_TERMINATION_LOG": "/host/message",
    }


def test_references_to_mounts_are_replaced_and_others_left_alone() -> None:
    made = spec(
        config(
            command=["serve", "--dir=$(KUBELET_TRIO_MOUNT_DATA)/x", "$(HOME)"],
            args=["$(KUBELET_TRIO_MOUNT_NOTHING)"],
            envs=[v1.KeyValue(key="DATA", value=b"$(KUBELET_TRIO_MOUNT_DATA)")],
            mounts=mounts(_data="/host/data"),
        )
    )
    assert made.argv == [
        "serve",
        "--dir=/host/data/x",
        "$(HOME)",
        "$(KUBELET_TRIO_MOUNT_NOTHING)",
    ]
    assert made.env["DATA"] == "/host/data"


@pytest.mark.parametrize(
    ("asked", "becomes"),
    [
        ("", "/work"),
        ("/srv", "/srv"),
        ("/data", "/host/data"),
        ("/data/in/side", "/host/data/in/side"),
        ("/data/sub/x", "/host/sub/x"),
        ("/database", "/database"),
        ("$(KUBELET_TRIO_MOUNT_DATA)", "/host/data"),
    ],
)
def test_a_working_directory_in_a_mount_is_the_mounts(asked: str, becomes: str) -> None:
    places = mounts(_data="/host/data", _data_sub="/host/sub")
    assert spec(config(working_dir=asked, mounts=places)).cwd == becomes


def test_a_process_changes_users_only_where_it_has_to() -> None:
    assert (spec(config()).uid, spec(config()).gid) == (None, None)
    made = spec(config(), switch_user=True)
    assert (made.uid, made.gid, made.groups) == (1000, 1000, [7])


def test_rlimits_are_read_from_their_annotation() -> None:
    limits = parse_rlimits("nofile=1024:4096, core=0,stack=unlimited")
    assert limits == {
        str(resource.RLIMIT_NOFILE): (1024, 4096),
        str(resource.RLIMIT_CORE): (0, 0),
        str(resource.RLIMIT_STACK): (resource.RLIM_INFINITY,) * 2,
    }
    assert parse_rlimits("") == {}


@pytest.mark.parametrize("text", ["nofile", "nofile=many", "files=1", "nofile=1:x"])
def test_what_is_no_rlimit_is_refused_by_name(text: str) -> None:
    with pytest.raises(RefusedError, match=r"rlimits: 'n?o?files?.*' is no limit"):
        parse_rlimits(text)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("RUNTIME_DEFAULT", signal.SIGTERM),
        ("SIGINT", signal.SIGINT),
        ("SIGUSR1", signal.SIGUSR1),
        ("SIGRTMIN", signal.SIGRTMIN),
        ("SIGRTMINPLUS2", signal.SIGRTMIN + 2),
        ("SIGRTMAXMINUS1", signal.SIGRTMAX - 1),
        ("SIGRTMAX", signal.SIGRTMAX),
    ],
)
def test_a_stop_signal_has_the_kernels_number(name: str, number: int) -> None:
    assert stop_signal(config(stop_signal=v1.Signal[name])) == number


def test_the_effective_stop_signal_is_told() -> None:
    assert effective_stop_signal(config()) == v1.Signal.SIGTERM
    assert effective_stop_signal(config(stop_signal=v1.Signal.SIGUSR1)) == v1.Signal.SIGUSR1


def test_what_cannot_be_had_is_named() -> None:
    security = v1.LinuxContainerSecurityContext(
        readonly_rootfs=True, capabilities=v1.Capability(drop_capabilities=["ALL"])
    )
    asked = config(linux=v1.LinuxContainerConfig(security_context=security))
    assert list(unapplied(asked)) == ["capabilities", "a read-only root filesystem"]
    assert list(unapplied(config())) == []
