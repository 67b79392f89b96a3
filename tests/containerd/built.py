"""The packages that tests install, built once a session from one installation by pip."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from pack import deb, image, rootfs, tree, zipapp


@functools.cache
def _work() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kubelet-trio-packages-")


@functools.cache
def _installed() -> Path:
    packages = Path(_work().name, "site")
    tree.install(packages, python())
    return packages


@functools.cache
def python() -> tree.Python:
    """Return the Python of the tests, which is the packages' too."""
    return tree.Python.of(None)


def need_debian() -> None:
    """Skip where no Debian with this Python can be unpacked."""
    if reason := rootfs.why_not(python()):
        pytest.skip(f"no Debian to install into: {reason}")


@functools.cache
def debian_package() -> Path:
    """Return the Debian package, compressed as quickly as possible."""
    out = Path(_work().name)
    version = tree.version()
    return deb.build(out, python(), version=version, compression="none", installed=_installed())


@functools.cache
def one_file() -> Path:
    """Return the agent as one file."""
    return zipapp.build(Path(_work().name), python(), _installed())


@functools.cache
def oci_archive() -> Path:
    """Return the image with the agent."""
    return image.build(Path(_work().name), python(), installed=_installed())
