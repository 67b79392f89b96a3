"""What is left out is said once: by a line each on a machine, by one in a user namespace."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kubelet_trio.cgroups import Delegation
from kubelet_trio.host import Denied, LeftOut, denied_parts, kernel_log_problem, report

SCORE = LeftOut("process.oom_score_adj", "the OOM score -999", "as others", {"wanted": -999})
KERNEL = LeftOut("kernel.settings_refused", "kernel/panic", "stays", {"settings": ["kernel/panic"]})
GATE = "featureGates: {KubeletInUserNamespace: true}"


@pytest.mark.parametrize("has_gate", [False, True])
def test_on_a_machine_each_refusal_has_its_own_line_whatever_the_gate(has_gate: bool) -> None:
    with capture_logs() as logs:
        notes = report([SCORE, KERNEL], in_namespace=False, has_gate=has_gate)
    assert notes == ()
    assert logs == [
        {"event": "process.oom_score_adj", "log_level": "warning", "wanted": -999},
        {"event": "kernel.settings_refused", "log_level": "warning", "settings": ["kernel/panic"]},
    ]


def test_with_the_gate_a_user_namespace_has_one_line_that_is_no_warning() -> None:
    with capture_logs() as logs:
        [note] = report([SCORE, KERNEL], in_namespace=True, has_gate=True)
    [line] = logs
    parts = ["the OOM score -999 (as others)", "kernel/panic (stays)"]
    assert line == {"event": "user_namespace.left_out", "log_level": "info", "parts": parts}
    assert note == f"left out in this user namespace: {'; '.join(parts)}"


def test_without_the_gate_line_and_note_name_it() -> None:
    with capture_logs() as logs:
        [note] = report([SCORE], in_namespace=True, has_gate=False)
    [line] = logs
    assert (line["event"], line["log_level"]) == ("user_namespace.left_out", "warning")
    assert GATE in line["hint"]
    assert note.startswith("left out in this user namespace: the OOM score -999 (as others). ")
    assert GATE in note


@pytest.mark.parametrize("has_gate", [False, True])
def test_where_nothing_is_refused_nothing_is_said(has_gate: bool) -> None:
    with capture_logs() as logs:
        assert report([], in_namespace=True, has_gate=has_gate) == ()
    assert logs == []


@pytest.mark.parametrize(
    ("denied", "told"),
    [
        (Denied(), []),
        (Denied("EPERM"), ["/dev/kmsg (no events SystemOOM)"]),
        (
            Denied("", Delegation("/sys/fs/cgroup/cpu")),
            [
                "cgroups below /sys/fs/cgroup/cpu "
                "(pods have no limits but those that the runtime sets)"
            ],
        ),
        (
            Denied("", Delegation(missing=frozenset({"cpuset"}), busy=frozenset({"cpu"}))),
            ["the cgroup controllers cpu, cpuset (pods are not limited by them)"],
        ),
    ],
)
def test_each_part_that_is_denied_is_named_with_what_follows(
    denied: Denied, told: list[str]
) -> None:
    assert list(map(str, denied_parts(denied))) == told


def test_the_kernels_log_is_opened_to_know_whether_it_may_be_read(tmp_path: Path) -> None:
    (tmp_path / "kmsg").touch()
    assert kernel_log_problem(tmp_path / "kmsg") == ""
    assert "No such file" in kernel_log_problem(tmp_path / "none")
