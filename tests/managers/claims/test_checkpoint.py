"""The checkpoint of claims, against files of the Go kubelet."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

import pytest

from kubelet_trio.managers import ManagerStateError
from kubelet_trio.managers.claims import Claim, ClaimDevice, ClaimKey, ClaimRef, load_claims
from kubelet_trio.managers.claims.checkpoint import decode_claims, encode_claims
from kubelet_trio.model import PodUid

POD, UID = "139cdb46-f989-4f17-9561-ca10cfb509a6", "067798be-454e-4be4-9047-1aa06aea63f7"
# As pkg/kubelet/cm/dra/state of 1.32 and 1.33 writes it: TestCheckpointStateStore.
_OLD_DATA = (
    r'{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1",'
    rf'"ClaimInfoStateList":[{{"ClaimUID":"{UID}","ClaimName":"example","Namespace":"default",'
    rf'"PodUIDs":{{"{POD}":{{}}}},"DriverState":{{"test-driver.cdi.k8s.io":{{"Devices":['
    r'{"PoolName":"worker-1","DeviceName":"dev-1","RequestNames":["test request"],'
    r'"CDIDeviceIDs":["example.com/example=cdi-example"]}]}}}]}'
)
_OLD_SUM = 1656016162
CLAIM = Claim(
    ClaimRef("default", "example", UID),
    frozenset({PodUid(POD)}),
    {
        "test-driver.cdi.k8s.io": (
            ClaimDevice(
                "worker-1", "dev-1", ("test request",), ("example.com/example=cdi-example",)
            ),
        )
    },
)
KEY = ClaimKey("default", "example")


def file_of(data: str, checksum: int | None = None) -> bytes:
    actual = crc32(data.encode()) if checksum is None else checksum
    return json.dumps({"Data": data, "Checksum": actual}, separators=(",", ":")).encode()


def test_a_file_of_an_older_kubelet_is_read() -> None:
    assert decode_claims(file_of(_OLD_DATA, _OLD_SUM)) == {KEY: CLAIM}


def test_a_file_is_written_as_by_the_newest_kubelet() -> None:
    # 1.34 put ShareID before RequestNames, and writes it always.
    data = _OLD_DATA.replace('"RequestNames"', '"ShareID":null,"RequestNames"')
    assert encode_claims({KEY: CLAIM}) == file_of(data)


def test_nothing_is_an_empty_list() -> None:
    data = r'{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1",'
    assert encode_claims({}) == file_of(data + '"ClaimInfoStateList":[]}')
    assert decode_claims(encode_claims({})) == {}


def test_what_is_written_is_read_again() -> None:
    other = Claim(
        ClaimRef("a", "z", "<u&>"),
        frozenset({PodUid("b"), PodUid("a")}),
        {"one": (), "two": (ClaimDevice("p", "d", share_id="s"), ClaimDevice("p", "e"))},
    )
    table = {KEY: CLAIM, ClaimKey("a", "z"): other}
    data = encode_claims(table)
    assert decode_claims(data) == table
    assert rb"\\u003cu\\u0026\\u003e" in data  # as Go's encoder escapes HTML
    assert data.index(b'\\"a\\":{}') < data.index(b'\\"b\\":{}')
    assert b'\\"ShareID\\":\\"s\\",\\"RequestNames\\":null,\\"CDIDeviceIDs\\":null' in data
    assert b'\\"one\\":{\\"Devices\\":null}' in data


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{", "not a checkpoint of resource claims"),
        (b"", "not a checkpoint of resource claims"),
        # Before 1.32.
        (b'{"version":"v1","entries":[],"checksum":1}', "of Kubernetes 1.32 or later"),
        (file_of(_OLD_DATA, 5), "its checksum is 5, expected 1656016162"),
        (file_of("{}"), "it is no kind of no version"),
        (file_of(_OLD_DATA.replace("io/v1", "io/v9")), "DRACheckpoint of .*io/v9, and not"),
        (file_of('{"kind":1}'), "not a checkpoint of resource claims"),
    ],
)
def test_a_damaged_file_keeps_the_agent_from_starting(
    tmp_path: Path, content: bytes, text: str
) -> None:
    path = tmp_path / "dra_manager_state"
    path.write_bytes(content)
    with pytest.raises(ManagerStateError, match=text) as caught:
        load_claims(tmp_path)
    assert f'delete the checkpoint file "{path}"' in str(caught.value)


def test_without_a_file_nothing_is_loaded(tmp_path: Path) -> None:
    assert load_claims(tmp_path) is None
