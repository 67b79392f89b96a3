from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kubelet_trio.cli.main import cli
from kubelet_trio.cli.run import run

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
    - name: main
      image: busybox
"""
CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
"""


def validate(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["validate", *arguments], input=stdin)


def test_good_files_of_every_kind_pass(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(POD)
    (tmp_path / "kubelet.yaml").write_text(CONFIG + "maxPods: 50\n")
    (tmp_path / ".hidden.yaml").write_text("no manifest")
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    (tmp_path / "map.json").write_text(json.dumps({**held, "data": {"k": CONFIG}}))
    result = validate(str(tmp_path))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "3 files, 3 objects, 0 errors\n"


def test_an_error_has_its_line_and_an_excerpt() -> None:
    result = validate("-", stdin=POD.replace("image", "imagee"))
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        '<stdin>:7:7: spec.containers[0].imagee: unknown field; did you mean "image"?',
        "          imagee: busybox",
        "          ^",
    ]


def test_the_lines_of_a_secret_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {'a b': hush}\n"
    )
    result = validate(str(path))
    assert result.exit_code == 1
    assert f"{path}:4:" in result.stdout
    assert "hush" not in result.output


def test_two_files_may_not_have_one_pod(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(POD)
    result = validate(str(tmp_path))
    assert result.exit_code == 1
    assert (
        f"b.yaml: metadata.name: Duplicate value: Pod default/web is also in {tmp_path}/a.yaml"
        in (result.stdout)
    )


def test_json_is_for_programs(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(POD)
    (tmp_path / "kubelet.yaml").write_text(CONFIG + "maxPods: many\n")
    result = validate(str(tmp_path), "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "valid": False,
        "files": [
            {
                "file": f"{tmp_path}/kubelet.yaml",
                "kind": "KubeletConfiguration",
                "valid": False,
                "objects": [],
                "errors": [
                    {
                        "line": 3,
                        "column": 10,
                        "document": 0,
                        "field": "",
                        "message": 'maxPods: expected an integer, got "many"',
                    }
                ],
                "warnings": [],
            },
            {
                "file": f"{tmp_path}/web.yaml",
                "kind": "manifest",
                "valid": True,
                "objects": [{"kind": "Pod", "namespace": "default", "name": "web"}],
                "errors": [],
                "warnings": [],
            },
        ],
    }


def test_strict_takes_warnings_for_errors(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.yaml"
    path.write_text(CONFIG + "rotateCertificates: true\nenableDebuggingHandlers: true\n")
    warned = validate(str(path), "-o", "json")
    assert warned.exit_code == 0
    has_warnings = bool(json.loads(warned.stdout)["files"][0]["warnings"])
    assert validate(str(path), "--strict").exit_code == int(has_warnings)


@pytest.mark.parametrize("arguments", [(), ("-o", "yaml", "-"), ("--nope", "-")])
def test_a_wrong_command_line_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    assert validate(*arguments).exit_code == 2


def test_a_file_that_is_not_there_is_named() -> None:
    result = validate("/nowhere/web.yaml")
    assert result.exit_code == 1
    assert "/nowhere/web.yaml: cannot be read: No such file or directory" in result.stdout


def test_run_check_says_what_run_would_do_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests, root = tmp_path / "manifests", tmp_path / "root"
    manifests.mkdir()
    (manifests / "web.yaml").write_text(POD)
    config = tmp_path / "kubelet.yaml"
    config.write_text(f"{CONFIG}staticPodPath: {manifests}\ncontainerRuntimeEndpoint: process\n")
    argv = ["--check", f"--config={config}", f"--root-dir={root}"]
    assert run(argv) == 0
    out, err = capsys.readouterr()
    assert f"root directory:  {root}\n" in out
    assert "cluster:         none: standalone\n" in out
    assert err == "1 file, 1 object, 0 errors\n"
    assert not root.exists()
    (manifests / "web.yaml").write_text(POD.replace("image", "imagee"))
    assert run(argv) == 1
    config.write_text(CONFIG + "maxPods: many\ncgroupDriver: x\nevictionHard: {memry.x: 1Mi}\n")
    capsys.readouterr()
    assert run(argv) == 1
    assert capsys.readouterr().err.splitlines() == [
        f'error: {config}:3:10: maxPods: expected an integer, got "many"',
        f'error: {config}:4:1: cgroupDriver (--cgroup-driver) "x" must be one of: '
        '"cgroupfs", "systemd"',
        f"error: {config}:5:16: eviction settings: unsupported eviction signal memry.x",
    ]


def test_the_drop_in_that_is_wrong_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main, late = tmp_path / "kubelet.yaml", tmp_path / "conf.d" / "90-late.conf"
    late.parent.mkdir()
    main.write_text(CONFIG + "maxPods: 5\n")
    late.write_text(CONFIG + "\nmaxPods: -5\n")
    assert run(["--check", f"--config={main}", f"--config-dir={late.parent}"]) == 1
    assert capsys.readouterr().err.startswith(f"error: {late}:4:1: maxPods (--max-pods) -5")
