"""What an import brings along: it is part of every node's footprint."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded_by(code: str) -> set[str]:
    """Return the top-level names of what a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport sys\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_models_come_without_the_client() -> None:
    modules = loaded_by("import kubelet_trio\nimport lightkube.models.core_v1")
    assert "lightkube.models.core_v1" in modules
    assert not {"httpx2", "asyncio.events", "lightkube.core.client"} & modules


@pytest.mark.parametrize(
    "code",
    [
        "import kubelet_trio, lightkube; lightkube.Client",
        "import kubelet_trio; from lightkube import Client, ApiError",
        "import lightkube, kubelet_trio; lightkube.Client",
        "import kubelet_trio, lightkube.models.core_v1; from lightkube import KubeConfig",
    ],
)
def test_other_code_still_finds_the_client(code: str) -> None:
    assert "lightkube.core.client" in loaded_by(code)


def test_the_daemon_imports_no_http_client_and_nothing_built_on_asyncio() -> None:
    # asyncio itself stands there unexecuted: structlog imports it, and nobody uses it.
    modules = loaded_by("import kubelet_trio.daemon")
    unwanted = {"httpx2", "yaml", "kubernetes_asyncio", "grpclib", "asyncio.events"}
    assert not (unwanted | {"importlib.metadata", "zipfile", "_ssl", "_hashlib"}) & modules
    # Plugins are asked only when a socket appears.
    assert {"kubelet_trio.plugins"} <= modules
    assert not {"kubelet_trio.plugins.registrar", "kubelet_trio.plugins.generated"} & modules
    # Of drivers, servers and devices only the seams: most nodes have none of their volumes.
    csi = {name for name in modules if name.startswith("kubelet_trio.volumes.csi.")}
    assert csi == {"kubelet_trio.volumes.csi.services", "kubelet_trio.volumes.csi.types"}
    kinds = ("block", "disks", "fibre_channel", "flex", "format", "iscsi", "local", "migration")
    programs = ("inventory", "loop", "scsi")
    assert not {f"kubelet_trio.volumes.{name}" for name in (*kinds, *programs)} & modules
    # Until the first client connects, the sockets of the node's programs are only listened on.
    assert (
        not {
            "kubelet_trio.managers.podresources.service",
            "kubelet_trio.managers.podresources.generated",
            "kubelet_trio.server.pods_api",
        }
        & modules
    )
    # Of traces only the seam, which does nothing without a configured tracing.
    assert not any(name.startswith("opentelemetry") for name in modules)
    traced = {name for name in modules if name.startswith("kubelet_trio.tracing.")}
    assert traced == {"kubelet_trio.tracing.about", "kubelet_trio.tracing.seam"}
    # Standalone needs nothing of a cluster.
    assert not {"kubelet_trio.agent.cluster", "kubelet_trio.status.manager"} & modules
    cluster = ("cluster", "services", "tokens")
    assert not {"kubelet_trio.kube", *(f"kubelet_trio.objects.{n}" for n in cluster)} & modules
    # What is used where it is configured.
    assert (
        not {
            "kubelet_trio.cgroups.systemd",
            "kubelet_trio.credentials.plugins",
            "kubelet_trio.credentials.provider_config",
            "kubelet_trio.shutdown.logind",
            "kubelet_trio.shutdown.manager",
            "kubelet_trio.sources.http",
        }
        & modules
    )


def test_a_daemon_comes_without_what_its_libraries_import_for_others() -> None:
    modules = loaded_by(
        "import sys\nsys.modules['rich'] = None\n"
        "from kubelet_trio.lean import import_libraries, load_lean\n"
        "load_lean()\nimport_libraries()\n"
        "import kubelet_trio.daemon, kubelet_trio.cri.remote.runtime, yaml\n"
        "from kubelet_trio.cri import v1\nv1.PodSandboxConfig\n"
    )
    unused = {"ast", "async_generator", "bz2", "colorama", "decimal", "difflib", "dis", "lzma"}
    unused |= {"pickle", "shutil", "tempfile", "trio._dtls", "typing_extensions", "uuid", "_ssl"}
    unused |= {"platform", "structlog.dev", "structlog.tracebacks"}
    if sys.version_info >= (3, 14):
        unused.remove("ast")  # `annotationlib` has classes of it, and resolves what messages name
    assert not unused & modules
    # 762 on Python 3.11, of which 436 are of this package.
    assert len(modules) < 790
    assert sum(name.startswith("kubelet_trio") for name in modules) < 450


def test_the_flight_recorder_brings_nothing_along() -> None:
    before = loaded_by("import kubelet_trio.daemon")
    # Only an agent that records loads it.
    assert not [name for name in before if name.startswith("kubelet_trio.recorder")]
    code = "import kubelet_trio.daemon, kubelet_trio.agent.recording"
    more = loaded_by(code) - before
    assert {name.partition(".")[0] for name in more} == {"kubelet_trio"}
    # Packing and showing is for the commands.
    commands = {f"kubelet_trio.recorder.{name}" for name in ("collect", "select", "show")}
    assert not commands & more


def test_what_is_deferred_is_whole_once_it_is_used() -> None:
    modules = loaded_by(
        "import kubelet_trio.daemon, asyncio, betterproto2\n"
        "from kubelet_trio.cri import v1\n"
        "assert asyncio.run(asyncio.sleep(0, 7)) == 7\n"
        "assert v1.PodSandboxConfig(hostname='a').hostname == 'a'\n"
        "from importlib.metadata import version\n"
        "assert betterproto2.__version__ == version('betterproto2')"
    )
    assert "asyncio.events" in modules


def test_logging_tells_task_names_again_once_asyncio_is_used() -> None:
    modules = loaded_by(
        "import kubelet_trio.daemon, asyncio, logging, sys\n"
        "record = logging.makeLogRecord({})\n"
        "assert 'asyncio.events' not in sys.modules\n"
        "async def main():\n"
        "    record = logging.LogRecord('', 0, '', 0, '', None, None)\n"
        "    if sys.version_info >= (3, 12):\n"
        "        assert record.taskName == asyncio.current_task().get_name()\n"
        "asyncio.run(main())"
    )
    assert "asyncio.events" in modules


def test_what_is_deferred_waits_for_the_thread_that_executes_it() -> None:
    code = (
        "import kubelet_trio, ssl\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(8) as threads:\n"
        "    looks = [threads.submit(lambda: ssl.SSLSession) for _ in range(64)]\n"
        "assert {look.result() for look in looks} == {ssl.SSLSession}"
    )
    assert "_ssl" in loaded_by(code)


def test_the_library_builds_no_message_before_one_is_used() -> None:
    modules = loaded_by("from kubelet_trio import open_kubelet")
    assert not {"betterproto2", "kubelet_trio.agent", "asyncio.events"} & modules
