"""`--offline-pods`: whether and where what was last known of the API server is kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from kubelet_trio.config import Settings
from kubelet_trio.model import Purpose, get_logger, thread_offload

if TYPE_CHECKING:
    from kubelet_trio.offline import Keeper

log = get_logger()

_DIRECTORY = "offline"


def make_keeper(settings: Settings) -> Keeper | None:
    """Return the keeper that is asked for; where none is, nothing stays on disk of an earlier one.

    Raises OSError where that cannot be removed: it holds secrets. Blocks for as long.
    """
    path = Path(settings.flags.root_dir) / _DIRECTORY
    if settings.config.offline_pods:
        from kubelet_trio.offline import Folder, Keeper

        return Keeper(Folder(path), thread_offload.of(Purpose.OFFLINE))
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
        log.info("offline.removed", path=str(path))
    return None
