"""The corpus' two images: busybox, and what stands in for agnhost."""

from __future__ import annotations

from dataclasses import replace

from tests.harness.images import Image, busybox_image
from tests.harness.machine import busybox

IMAGE = "localhost/kubelet-trio/golden:1"
AGNHOST = "localhost/kubelet-trio/agnhost:1"
# The names in the corpus, and the images they stand for here.
NAMES = {"IMAGE": IMAGE, "AGNHOST": AGNHOST}

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# `agnhost netexec` as far as the corpus' probes ask: it answers on every path.
_AGNHOST = b"#!/bin/sh\nexec httpd -f -p 8080 -h /www\n"


def corpus_images() -> tuple[Image, Image]:
    """Return the images, with an environment as the recorded ones have it."""
    program = busybox()
    assert program is not None
    base = busybox_image(program)
    plain = replace(base, name=IMAGE, config={"Cmd": ["sh"], "Env": [_PATH]})
    pages = {f"www/{page}": (0o644, b"ok\n") for page in ("hostname", "healthz", "nope")}
    agnhost = replace(
        base,
        name=AGNHOST,
        files={**base.files, **pages, "agnhost": (0o755, _AGNHOST)},
        directories=(*base.directories, "www"),
        config={"Entrypoint": ["/agnhost"], "Cmd": ["pause"], "Env": [_PATH]},
    )
    return plain, agnhost
