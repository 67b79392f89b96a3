"""Which images go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.gc import ImagePolicy
from kubelet_trio.gc.images import (
    ImageBook,
    ImageRecord,
    ImageVerdict,
    bytes_to_free,
    enough,
    removal_order,
    used_images,
)
from kubelet_trio.model import full_name
from tests.gc.make import image

NOW = 10_000.0


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        (1000, 0),
        (160, 0),  # 84%
        (151, 49),  # 84.9% counts as 85, as upstream rounds
        (150, 50),  # 85%: down to 80
        (0, 200),
        (5000, 0),  # more than there is room for
    ],
)
def test_how_much_is_to_be_freed(available: int, expected: int) -> None:
    assert bytes_to_free(1000, available, ImagePolicy()) == expected


def gone(
    images: list[ImageRecord],
    to_free: int | None,
    policy: ImagePolicy | None = None,
    in_use: dict[str, str] | None = None,
    sandbox_image: str = "",
) -> list[str]:
    verdicts = removal_order(
        images, policy or ImagePolicy(), NOW, in_use=in_use or {}, sandbox_image=sandbox_image
    )
    return [image.id.removeprefix("sha256:") for image in removed(verdicts, to_free)]


def removed(verdicts: list[ImageVerdict], to_free: int | None) -> list[ImageRecord]:
    found: list[ImageRecord] = []
    for verdict in verdicts:
        if verdict.remove and not enough(verdict, sum(i.size for i in found), to_free):
            found.append(verdict.image)
    return found


def why(name: str, images: list[ImageRecord], policy: ImagePolicy, **given: object) -> str:
    verdicts = removal_order(images, policy, NOW, **given)  # type: ignore[arg-type]
    return next(v.why for v in verdicts if v.image.id == f"sha256:{name}" and not v.remove)


def test_those_unused_for_longest_go_first_and_no_more_than_needed() -> None:
    images = [
        image("new", used=900),
        image("old", used=100),
        image("never"),
        image("mid", used=500),
    ]
    assert gone(images, 150) == ["never", "old"]
    assert gone(images, 0) == []
    assert gone(images, None) == ["never", "old", "mid", "new"]


def test_never_used_ones_go_in_the_order_they_came() -> None:
    assert gone([image("b", seen=20), image("a", seen=10)], 1) == ["a"]


def test_what_came_just_now_stays() -> None:
    images = [image("fresh", seen=NOW - 60), image("settled", seen=NOW - 121)]
    assert gone(images, None) == ["settled"]
    assert why("fresh", images, ImagePolicy(), in_use={}) == "on the node for 60 s, less than 120 s"


def test_what_is_used_pinned_the_sandboxes_or_kept_stays_whatever_its_age() -> None:
    images = [image(n) for n in ("used", "pause", "kept")] + [image("pinned", pinned=True)]
    policy = ImagePolicy(max_age=1.0, keep=("other", "*/kep?:*"))
    in_use = {"sha256:used": "container web of ns/pod"}
    assert gone(images, None, policy, in_use, "pause") == []
    given = {"in_use": in_use, "sandbox_image": "pause:latest"}
    assert why("used", images, policy, **given) == "used by container web of ns/pod"
    assert why("pinned", images, policy, **given) == "pinned by the runtime"
    assert why("pause", images, policy, **given) == "the sandbox image"
    assert why("kept", images, policy, **given) == "on the keep list: */kep?:*"


def test_what_nobody_has_used_for_too_long_goes_though_there_is_room() -> None:
    policy = ImagePolicy(max_age=1000)
    images = [image("old", seen=0, used=NOW - 1001), image("young", seen=0, used=NOW - 999)]
    assert gone(images, 0, policy) == ["old"]


def test_ages_are_counted_from_when_uses_are_known() -> None:
    verdicts = removal_order(
        [image("before")], ImagePolicy(max_age=1000), NOW, in_use={}, began=NOW - 10
    )
    assert removed(verdicts, 0) == []


def test_the_book_knows_when_images_came_and_were_used() -> None:
    book = ImageBook(began=5.0)
    (first,) = book.note([image("a")], set(), 10.0)
    # It may have come just before the agent.
    assert (first.first_seen, first.last_used) == (5.0, float("-inf"))
    first, second = book.note([image("a"), image("b")], {"sha256:a"}, 20.0)
    assert (first.first_seen, first.last_used) == (5.0, 20.0)
    assert (second.first_seen, second.last_used) == (20.0, float("-inf"))
    (first,) = book.note([image("a")], set(), 30.0)
    assert first.last_used == 20.0
    _, second = book.note([image("a"), image("b")], set(), 40.0)
    assert second.first_seen == 40.0  # it was gone meanwhile


@pytest.mark.parametrize(
    ("reference", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("library/busybox", "docker.io/library/busybox:latest"),
        ("localhost/a:1", "localhost/a:1"),
        ("localhost:5000/a", "localhost:5000/a:latest"),
        ("quay.io/x/y", "quay.io/x/y:latest"),
        ("busybox@sha256:00", "docker.io/library/busybox@sha256:00"),
        ("busybox:1@sha256:00", "docker.io/library/busybox@sha256:00"),
        ("sha256:00", "sha256:00"),
    ],
)
def test_references_are_written_as_runtimes_list_them(reference: str, full: str) -> None:
    assert full_name(reference) == full


def test_users_are_found_by_id_digest_and_name() -> None:
    digest = "docker.io/library/c@sha256:cc"
    images = [image("a"), image("b"), ImageRecord("sha256:c", (digest,)), image("d")]
    users = [("sha256:a", "one"), ("b", "two"), (digest, "three"), ("", "four"), ("e", "five")]
    assert used_images(images, users) == {"sha256:a": "one", "sha256:b": "two", "sha256:c": "three"}


names = st.sampled_from("abcdefgh")
moments = st.floats(0, NOW) | st.just(float("-inf"))
some_images = st.lists(
    st.builds(image, names, st.integers(1, 500), seen=moments, used=moments, pinned=st.booleans()),
    unique_by=lambda i: i.id,
)


@given(some_images, st.integers(0, 2000), st.sets(names.map("sha256:{}".format)), names)
def test_nothing_wanted_goes_and_no_more_than_it_takes(
    images: list[ImageRecord], to_free: int, in_use: set[str], sandbox: str
) -> None:
    verdicts = removal_order(
        images, ImagePolicy(), NOW, in_use=dict.fromkeys(in_use, "x"), sandbox_image=sandbox
    )
    assert sorted(v.image.id for v in verdicts) == sorted(i.id for i in images)
    went = removed(verdicts, to_free)
    for one in went:
        assert one.id not in in_use
        assert not one.pinned
        assert one.id != f"sha256:{sandbox}"
        assert NOW - one.first_seen >= 120
    assert sum(i.size for i in went[:-1]) < max(1, to_free)
    if sum(i.size for i in went) < to_free:  # then nothing more could go
        assert len(went) == sum(v.remove for v in verdicts)
