"""Whether tmpfs can be kept out of swap: by the kernel's age, and for root of the machine only.

Source: IsTmpfsNoswapOptionSupported in pkg/kubelet/util/swap; shmem_parse_one in mm/shmem.c.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_ALL_IDS = ["0", "0", "4294967295"]  # what the first user namespace maps


def in_user_namespace(uid_map: Path = Path("/proc/self/uid_map")) -> bool:
    """Whether the user IDs of this process are mapped. A kernel without namespaces maps none."""
    try:
        words = uid_map.read_text().split()
    except OSError:
        return False
    return words not in ([], _ALL_IDS)


def tmpfs_noswap_supported(kernel_release: str) -> bool:
    """Whether a kernel (`6.8.0-45-generic`) takes tmpfs' `noswap`, in Linux since 6.4."""
    numbers = re.match(r"(\d+)\.(\d+)", kernel_release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (6, 4)


def has_tmpfs_noswap() -> bool:
    """Whether volumes in memory can be kept out of swap here."""
    return tmpfs_noswap_supported(os.uname().release) and not in_user_namespace()
