"""An edit is what `apply` would write, as the source would read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubelet_trio.model import pod_uid
from kubelet_trio.sources import Edit, ManifestError, SourceSnapshot, edited, load_manifest
from kubelet_trio.sources.manifest.static import manifest_of, mark_seen, seen_at

POD = """apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec: {{containers: [{{name: c, image: '{image}'}}]}}
"""
MAP = """apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a: b}
"""


def text(name: str = "web", image: str = "i:1") -> str:
    return POD.format(name=name, image=image)


def snapshot(**files: str) -> SourceSnapshot:
    """Return what a source delivers for these files of the directory /m."""
    loaded = [
        load_manifest(content.encode(), f"/m/{name}.yaml", node_name="n")
        for name, content in files.items()
    ]
    return SourceSnapshot(
        "file",
        tuple(mark_seen(pod, "then") for each in loaded for pod in each.pods),
        tuple(thing for each in loaded for thing in each.objects),
    )


def after(before: SourceSnapshot, *texts: str, prune: bool = False) -> SourceSnapshot:
    documents = {f"given-{index}": content for index, content in enumerate(texts)}
    return edited(before, Edit(documents, prune), "/m", "n")


def test_what_is_the_same_stays_the_very_same() -> None:
    before = snapshot(web=text(), other=text("other"))
    (web,) = [p for p in after(before, text()).pods if manifest_of(p) == "/m/web.yaml"]
    assert web is before.pods[0]


def test_an_edited_pod_keeps_its_file_and_is_a_new_pod() -> None:
    before = snapshot(web=text(), other=text("other"))
    found = after(before, text(image="i:2"))
    assert [manifest_of(pod) for pod in found.pods] == ["/m/other.yaml", "/m/web.yaml"]
    in_place = snapshot(web=text(image="i:2"))
    assert pod_uid(found.pods[1]) == pod_uid(in_place.pods[0]) != pod_uid(before.pods[0])
    assert found.pods[0] is before.pods[1]


def test_a_new_pod_has_the_file_that_apply_gives_it(tmp_path: Path) -> None:
    from kubelet_trio.cli.manifests import ManifestDirectory, read_given

    (given,) = read_given(text("new").encode(), "new.yaml", "n")
    _, path = ManifestDirectory(tmp_path).put(given, writes=True)
    written = load_manifest(path.read_bytes(), str(path), node_name="n").pods[0]
    (found,) = edited(SourceSnapshot("file"), Edit({"-": text("new")}), str(tmp_path), "n").pods
    assert (pod_uid(found), manifest_of(found)) == (pod_uid(written), str(path))


def test_a_pod_that_stays_the_same_pod_keeps_when_it_was_seen() -> None:
    sized = text().replace("image:", "resources: {requests: {cpu: '1'}}, image:")
    (pod,) = after(snapshot(web=sized), sized.replace("'1'", "'2'")).pods
    assert seen_at(pod) == "then"


def test_with_prune_nothing_else_stays() -> None:
    before = snapshot(web=text(), other=text("other"), settings=MAP)
    found = after(before, text(), prune=True)
    assert [manifest_of(pod) for pod in found.pods] == ["/m/web.yaml"]
    assert found.objects == ()
    assert after(before, text()).objects == before.objects


def test_many_objects_of_one_text_are_separate() -> None:
    found = after(snapshot(), f"{text('a')}---\n{text('b')}---\n{MAP}")
    assert len({manifest_of(pod) for pod in found.pods}) == 2
    assert len(found.objects) == 1


def test_an_object_given_twice_is_refused() -> None:
    with pytest.raises(ManifestError, match="Pod web is in given-0, too"):
        after(snapshot(), text(), text(image="i:2"))
