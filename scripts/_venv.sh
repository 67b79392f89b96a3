# Sourced by scripts/check and scripts/test: puts the project's own virtual environment
# (.venv, made or brought up to date here) first in PATH. The stamp in it says what it was
# installed from, so a second run costs nothing. PYTHON picks the interpreter.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1

sudo_free() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# install_missing PACKAGE...: apt-get those that dpkg does not know as installed.
install_missing() {
    local package missing=()
    for package in "$@"; do
        dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
            missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return
    echo "installing with apt: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# What real containers take; `python -m tests.harness.machine` says what of it is missing.
RUNTIME=(containerd runc containernetworking-plugins busybox-static gcc libc6-dev iptables iproute2)

make_venv() {
    local python=${PYTHON:-python3} wanted
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        { echo "kubelet-trio needs Python 3.11 or later; set PYTHON" >&2; return 1; }
    wanted=$("$python" -V; pwd; cat pyproject.toml "${BASH_SOURCE[0]}")
    wanted=$(printf '%s' "$wanted" | sha256sum)
    if [ "$(cat .venv/stamp 2>/dev/null)" != "$wanted" ]; then
        # Debian keeps ensurepip, which venv needs, in a package of its own.
        "$python" -c 'import ensurepip' 2>/dev/null || { sudo_free && install_missing python3-venv; }
        "$python" -m venv .venv
        .venv/bin/pip install -qq -e '.[dev]'
        printf '%s' "$wanted" >.venv/stamp
    fi
    export PATH=$PWD/.venv/bin:$PATH
}

make_venv
