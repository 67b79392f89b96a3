"""A certificate for a node that was given none: `<cert-dir>/kubelet.crt` and `kubelet.key`.

Made once, found again after a restart. Nobody can check it, so clients have to be told not
to, as the API server does unless it has a CA for its nodes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kubelet_trio.model import write_aside

_PROGRAM = Path(__file__).with_name("certificate.py")
_LIMIT = 60.0  # seconds


def ensure_self_signed(cert_dir: Path, host: str, addresses: tuple[str, ...]) -> tuple[Path, Path]:
    """Return certificate and key of this node, made now if they are not there. Blocks.

    Made in a process of its own, which takes the library's memory with it when it ends.
    Raises OSError.
    """
    cert_file, key_file = cert_dir / "kubelet.crt", cert_dir / "kubelet.key"
    if cert_file.exists() and key_file.exists():
        return cert_file, key_file
    try:
        made = subprocess.run(
            [sys.executable, "-I", str(_PROGRAM), host, *addresses],
            capture_output=True,
            check=True,
            timeout=_LIMIT,
        ).stdout
    except subprocess.SubprocessError as exc:
        raise OSError(f"no serving certificate could be made in {cert_dir}: {exc}") from exc
    head = b"-----BEGIN CERTIFICATE-----"
    key, _, rest = made.partition(head)
    cert_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_aside(key_file, key, sync=True)
    write_aside(cert_file, head + rest, mode=0o644, sync=True)
    return cert_file, key_file
