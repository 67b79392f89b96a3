"""Ids of the host for pods with users of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kubelet_trio.cri import v1
from kubelet_trio.model import PodUid, inline_offload
from kubelet_trio.pods import UserNamespaceManager
from kubelet_trio.pods.records import userns
from kubelet_trio.pods.records.userns import (
    IdRange,
    UserNamespaceError,
    check_range,
    host_range,
    parse_getsubids,
)

BLOCK = 65536


def namespaces(base: Path, blocks: int = 200) -> UserNamespaceManager:
    ids = IdRange(2 * BLOCK, blocks * BLOCK)
    return UserNamespaceManager(base, inline_offload, max_pods=2, find_range=lambda _per_pod: ids)


async def first_id(of: UserNamespaceManager, uid: str) -> int:
    found = await of.get_or_create(PodUid(uid))
    assert found.mode == v1.NamespaceMode.POD
    assert found.uids == found.gids
    (mapping,) = found.uids
    assert (mapping.container_id, mapping.length) == (0, BLOCK)
    return int(mapping.host_id)


async def test_every_pod_has_a_block_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    before = namespaces(tmp_path)
    ids = [await first_id(before, uid) for uid in ("a", "b", "a")]
    assert ids == [2 * BLOCK, 3 * BLOCK, 2 * BLOCK]
    after_a_restart = namespaces(tmp_path)
    assert await first_id(after_a_restart, "c") == 4 * BLOCK
    assert await first_id(after_a_restart, "b") == 3 * BLOCK


async def test_the_file_is_the_go_kubelets(tmp_path: Path) -> None:
    await first_id(namespaces(tmp_path), "a")
    mapping = {"hostId": 2 * BLOCK, "containerId": 0, "length": BLOCK}
    expected = {"uidMappings": [mapping], "gidMappings": [mapping]}
    assert json.loads((tmp_path / "a" / "userns").read_text()) == expected


async def test_what_a_pod_left_is_free_again(tmp_path: Path) -> None:
    of = namespaces(tmp_path, blocks=2)
    assert [await first_id(of, uid) for uid in ("a", "b")] == [2 * BLOCK, 3 * BLOCK]
    with pytest.raises(UserNamespaceError, match="could not find an empty slot"):
        await first_id(of, "c")
    (tmp_path / "a" / "userns").unlink()
    assert await first_id(of, "c") == 2 * BLOCK


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"uidMappings": [], "gidMappings": []}',
        '{"uidMappings": [{"hostId": 65536, "containerId": 1, "length": 65536}],'
        ' "gidMappings": [{"hostId": 65536, "containerId": 1, "length": 65536}]}',
        # The host's own users, no users at all, and more than there are.
        *(
            f'{{"uidMappings": [{each}], "gidMappings": [{each}]}}'
            for each in (
                '{"hostId": 0, "containerId": 0, "length": 65536}',
                '{"hostId": 131072, "containerId": 0, "length": 0}',
                '{"hostId": -65536, "containerId": 0, "length": 131072}',
                '{"hostId": 4294901760, "containerId": 0, "length": 131072}',
            )
        ),
    ],
)
async def test_a_file_that_cannot_be_right_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "userns").write_text(content)
    with pytest.raises(UserNamespaceError, match="a/userns: "):
        await first_id(namespaces(tmp_path), "a")


@pytest.mark.parametrize(
    ("mapped", "length"),
    [(0, 0), (65537, 0), (2 * BLOCK, BLOCK), (2 * BLOCK + 1, BLOCK), (111 * BLOCK, 110 * BLOCK)],
)
def test_in_a_user_namespace_pods_have_what_it_has_beside_the_first_block(
    mapped: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(userns, "in_user_namespace", lambda: True)
    monkeypatch.setattr(userns, "mapped_ids", lambda: mapped)
    found = host_range(BLOCK)
    assert (found.first, found.length) == (BLOCK, length)
    if length >= 110 * BLOCK:
        check_range(found, BLOCK, 110)
        return
    told = f"the {length} ids of the agent's user namespace, beside its own, are not enough"
    with pytest.raises(UserNamespaceError, match=told):
        check_range(found, BLOCK, 110)


def test_the_range_of_the_user_kubelet() -> None:
    assert parse_getsubids("0: kubelet 65536 7208960\n") == IdRange(65536, 7208960)
    for output in ("", "0: kubelet 65536", "0: kubelet 1 2\n1: kubelet 3 4\n"):
        with pytest.raises(UserNamespaceError, match="expected one range"):
            parse_getsubids(output)


def test_a_range_must_be_made_of_whole_blocks_for_every_pod() -> None:
    check_range(IdRange(BLOCK, 110 * BLOCK), BLOCK, 110)
    for ids in (IdRange(0, 110 * BLOCK), IdRange(BLOCK + 1, 110 * BLOCK), IdRange(BLOCK, 1)):
        with pytest.raises(UserNamespaceError, match="multiple of 65536"):
            check_range(ids, BLOCK, 110)
    with pytest.raises(UserNamespaceError, match="not enough for 110 pods"):
        check_range(IdRange(BLOCK, 109 * BLOCK), BLOCK, 110)


def test_this_machine_has_a_range() -> None:
    ids = host_range(BLOCK)
    assert ids.first >= BLOCK
