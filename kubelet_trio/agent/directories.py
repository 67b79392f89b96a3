"""The directories of a node, laid out as the Go kubelet's (setupDataDirs in pkg/kubelet)."""

from __future__ import annotations

from pathlib import Path

from kubelet_trio.containers import NodeSettings

# Below the root directory. Plugins and device managers put their sockets there, and look for the
# directories before they do.
_FOR_PLUGINS = (
    ("plugins", 0o750),
    ("plugins_registry", 0o750),
    ("pod-resources", 0o750),
    ("checkpoints", 0o700),
)


def make_node_directories(node: NodeSettings, *, for_plugins: bool) -> None:
    """Make what is missing, with the Go kubelet's modes whatever the umask is. Blocks.

    A directory that is there keeps its mode: it is its owner's.

    Args:
        node: where they are.
        for_plugins: those too that only others use: a node has them, an embedded agent does not.
    """
    _make(node.root_dir, 0o750)
    _make(node.root_dir / "pods", 0o750)
    for name, mode in _FOR_PLUGINS if for_plugins else ():
        _make(node.root_dir / name, mode)
    _make(node.pod_logs_dir, 0o750)
    _make(node.container_logs_dir, 0o755)


def _make(path: Path, mode: int) -> None:
    if path.is_dir():
        return
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    path.chmod(mode)
