from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from lightkube.models.core_v1 import Container, Pod, PodSpec, PodStatus
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import PodUid, inline_offload
from kubelet_trio.pods.records.record import PodRecord, PodRecords, load_records, wanted_pods
from kubelet_trio.pods.types import EndReason, PodFailure, TerminationRequest

UID = PodUid("u1")
RECORD = PodRecord(
    uid=UID,
    pod=Pod(
        metadata=ObjectMeta(name="web", namespace="default", uid=UID),
        spec=PodSpec(containers=[Container(name="web", image="busybox")]),
        status=PodStatus(phase="Running"),
    ),
    start_time=12.5,
    termination=TerminationRequest(
        UID, EndReason.DEADLINE, 7, PodFailure("DeadlineExceeded", "too long"), requested_at=99.0
    ),
)


@pytest.fixture
def records(tmp_path: Path) -> PodRecords:
    return PodRecords(tmp_path / "pods", inline_offload)


async def test_a_record_comes_back_as_it_was_written(records: PodRecords, tmp_path: Path) -> None:
    await records.write(RECORD)
    assert load_records(tmp_path / "pods") == {UID: RECORD}


async def test_no_directory_is_no_records(records: PodRecords, tmp_path: Path) -> None:
    assert load_records(tmp_path / "pods") == {}


@pytest.mark.parametrize("content", [b"", b"{", b'{"uid": 3}', b"\xff\xfe", b"[]"], ids=repr)
async def test_a_corrupt_record_is_kept_aside_and_the_others_load(
    records: PodRecords, tmp_path: Path, content: bytes
) -> None:
    await records.write(RECORD)
    broken = tmp_path / "pods" / "u2"
    broken.mkdir()
    (broken / "kubelet-trio.json").write_bytes(content)
    assert load_records(tmp_path / "pods") == {UID: RECORD}
    assert (broken / "kubelet-trio.corrupt").read_bytes() == content


async def test_removing_leaves_no_directory(records: PodRecords, tmp_path: Path) -> None:
    await records.write(RECORD)
    directory = tmp_path / "pods" / UID
    (directory / "containers" / "web").mkdir(parents=True)
    (directory / "containers" / "web" / "0123abcd").write_text("bye")
    (directory / "volumes" / "kubernetes.io~empty-dir").mkdir(parents=True)
    (directory / "etc-hosts").write_text("127.0.0.1 localhost")
    await records.remove(UID)
    assert list((tmp_path / "pods").iterdir()) == []
    await records.remove(UID)


async def test_what_a_volume_left_behind_is_never_removed(
    records: PodRecords, tmp_path: Path
) -> None:
    await records.write(RECORD)
    data = tmp_path / "pods" / UID / "volumes" / "kubernetes.io~nfs" / "v" / "precious"
    data.parent.mkdir(parents=True)
    data.write_text("data")
    with pytest.raises(OSError, match=r"not empty|Not a directory"):
        await records.remove(UID)
    assert data.read_text() == "data"
    assert load_records(tmp_path / "pods") == {UID: RECORD}


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (None, True),
        (EndReason.FINISHED, True),
        (EndReason.DEADLINE, True),
        (EndReason.DELETED, False),
    ],
)
def test_only_a_pod_that_was_being_removed_is_not_wanted_any_more(
    reason: EndReason | None, expected: bool
) -> None:
    termination = TerminationRequest(UID, reason) if reason is not None else None
    record = msgspec.structs.replace(RECORD, termination=termination)
    assert (wanted_pods({UID: record}) == [RECORD.pod]) is expected


@pytest.mark.parametrize("reason", [None, EndReason.FINISHED, EndReason.DELETED])
def test_a_pod_that_comes_back_is_wanted_though_it_was_being_removed(
    reason: EndReason | None,
) -> None:
    termination = TerminationRequest(UID, reason) if reason is not None else None
    removed = msgspec.structs.replace(RECORD, termination=termination, removed=True)
    assert wanted_pods({UID: removed}) == []
    again = msgspec.structs.replace(RECORD.pod, status=None)
    assert wanted_pods({UID: msgspec.structs.replace(removed, returns=again)}) == [again]
