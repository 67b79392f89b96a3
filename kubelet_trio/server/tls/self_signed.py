"""The self-signed serving certificate of a node without another one.

`<cert-dir>/kubelet.crt` and `kubelet.key` are made once and reused after a restart. Clients must
skip verification, as the API server does unless it has a CA for its nodes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kubelet_trio.model import write_aside

_PROGRAM = Path(__file__).with_name("make_certificate.py")
_LIMIT = 60.0  # seconds


def ensure_self_signed(cert_dir: Path, host: str, addresses: tuple[str, ...]) -> tuple[Path, Path]:
    """Return the files of certificate and key; make them if they do not exist. Blocks.

    Raises OSError.
    """
    cert_file, key_file = cert_dir / "kubelet.crt", cert_dir / "kubelet.key"
    if cert_file.exists() and key_file.exists():
        return cert_file, key_file
    try:
        # In a process of its own: `cryptography` would stay in the agent's memory.
        made = subprocess.run(
            [sys.executable, "-I", str(_PROGRAM), host, *addresses],
            capture_output=True,
            check=True,
            timeout=_LIMIT,
        ).stdout
    except subprocess.SubprocessError as exc:
        raise OSError(f"cannot make a serving certificate in {cert_dir}: {exc}") from exc
    # The program prints the key first.
    head = b"-----BEGIN CERTIFICATE-----"
    key, _, rest = made.partition(head)
    cert_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_aside(key_file, key, sync=True)
    write_aside(cert_file, head + rest, mode=0o644, sync=True)
    return cert_file, key_file
