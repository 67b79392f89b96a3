"""`kubelet-trio apply` and `delete`: the files that they write, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubelet_trio.cli.apply import _lacks, _static_key
from kubelet_trio.cli.client import ClientError
from kubelet_trio.cli.manifests import Given, Key, ManifestDirectory, read_given

POD = """# mine
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: c, image: IMAGE}]}
"""
CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {'on': 'yes'}\n"
WEB = Key("Pod", "default", "web")


def given(text: str = POD) -> list[Given]:
    return read_given(text.encode(), "in.yaml", "node1")


@pytest.fixture
def directory(tmp_path: Path) -> ManifestDirectory:
    return ManifestDirectory.of_agent({"sources": [{"name": f"file:{tmp_path}"}]})


def put(directory: ManifestDirectory, text: str = POD) -> list[str]:
    return [directory.put(one, writes=True)[0] for one in given(text)]


def test_an_object_is_created_configured_unchanged_and_removed(
    directory: ManifestDirectory,
) -> None:
    assert put(directory) == ["created"]
    (file,) = directory.path.iterdir()
    assert file.read_text() == POD
    assert file.stat().st_mode & 0o777 == 0o600
    assert put(directory) == ["unchanged"]
    assert put(directory, POD.replace("IMAGE", "other")) == ["configured"]
    assert "other" in file.read_text()
    assert directory.remove(WEB, (), writes=True)
    assert list(directory.path.iterdir()) == []
    assert not directory.remove(WEB, (), writes=True)


def test_a_dry_run_changes_nothing(directory: ManifestDirectory) -> None:
    assert directory.put(given()[0], writes=False)[0] == "created"
    assert list(directory.path.iterdir()) == []


def test_several_documents_become_a_file_each(directory: ManifestDirectory) -> None:
    assert put(directory, f"{POD}---\n{CONFIG}") == ["created", "created"]
    assert len(list(directory.path.iterdir())) == 2
    found = directory.find(Key("ConfigMap", "default", "conf"))
    assert found is not None
    assert found[1]["data"] == {"on": "yes"}


def test_a_file_of_another_name_is_replaced_where_it_is(directory: ManifestDirectory) -> None:
    mine = directory.path / "mine.yaml"
    mine.write_text(POD)
    assert put(directory, POD.replace("IMAGE", "other")) == ["configured"]
    assert [p.name for p in directory.path.iterdir()] == ["mine.yaml"]


def test_files_that_hold_more_are_refused(directory: ManifestDirectory) -> None:
    both = directory.path / "both.yaml"
    both.write_text(f"{POD}---\n{CONFIG}")
    with pytest.raises(ClientError, match="together with configmap/conf: edit that file"):
        put(directory, POD.replace("IMAGE", "other"))
    with pytest.raises(ClientError, match="edit that file"):
        directory.remove(WEB, (), writes=True)
    assert both.read_text() == f"{POD}---\n{CONFIG}"
    assert directory.remove(WEB, [Key("ConfigMap", "default", "conf")], writes=True)


def test_links_and_taken_names_are_refused(directory: ManifestDirectory, tmp_path: Path) -> None:
    (directory.path / "kubelet-trio.pod.default.web.yaml").write_text(CONFIG)
    with pytest.raises(ClientError, match="holds something else"):
        put(directory)
    (directory.path / ".real").write_text(POD)
    (directory.path / "web.yaml").symlink_to(directory.path / ".real")
    with pytest.raises(ClientError, match="a link"):
        put(directory, POD.replace("IMAGE", "other"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (POD.replace("Pod", "Deployment"), r"Deployment.*spec\.template into a document"),
        (POD.replace("Pod", "CronJob"), r"spec\.jobTemplate\.spec\.template"),
        (POD.replace("image: ", "imagee: "), "did you mean"),
        (f"{POD}---\n{POD}", "pod/web is in it twice"),
    ],
)
def test_what_a_node_does_not_run_is_refused_with_the_cure(text: str, why: str) -> None:
    with pytest.raises(ClientError, match=why):
        given(text)


def test_an_agent_without_a_directory_is_told_how_to_have_one(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="set staticPodPath"):
        ManifestDirectory.of_agent({"sources": [{"name": "api"}]})
    with pytest.raises(ClientError, match="no directory"):
        ManifestDirectory.of_agent({"sources": [{"name": f"file:{tmp_path}/file.yaml"}]})


@pytest.mark.parametrize(
    ("annotations", "why"),
    [({}, "kubectl delete pod -n default web"), ({"kubernetes.io/config.source": "http"}, "http")],
)
def test_pods_of_others_are_refused(annotations: dict[str, str], why: str) -> None:
    meta = {"name": "web", "namespace": "default", "annotations": annotations}
    with pytest.raises(ClientError, match=why):
        _static_key({"metadata": meta}, "node1")


def test_waiting_ends_when_a_pod_is_ready_or_completed_and_says_why_before() -> None:
    waiting = {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "c", **waiting}]}
    assert "no such image" in _lacks(WEB, {"metadata": {}, "spec": {}, "status": status})
    assert _lacks(WEB, {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}) == ""
    assert _lacks(WEB, {"status": {"phase": "Succeeded"}}) == ""
    assert "waits for" in _lacks(WEB, None)
    with pytest.raises(ClientError, match="Evicted"):
        _lacks(WEB, {"status": {"phase": "Failed", "reason": "Evicted"}})
