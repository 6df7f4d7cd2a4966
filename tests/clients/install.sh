#!/bin/sh
# Installs what the tests of real clients need: the packages of package-lock.json into node_modules, and on Debian, as
# root, Chromium and nginx. A second run finds the stamp of the same lock and does nothing.
set -eu
cd "$(dirname "$0")"

BIN=$(cd ../.. && pwd)/.venv/bin
STAMP=node_modules/.turnlog-clients

fail() {
    echo "Error: $1" >&2
    exit 1
}

# Install a Debian package unless its program is there, or say that it is needed.
system_package() {
    if PATH="$PATH:/usr/sbin" command -v "$1" >/dev/null 2>&1; then
        return
    fi
    if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
        echo "Installing the system package $2 for the tests"
        { apt-get install -y -q --no-install-recommends "$2" || {
            apt-get update -q && apt-get install -y -q --no-install-recommends "$2"
        }; } >install.log 2>&1 || fail "apt-get could not install $2; see tests/clients/install.log."
        rm -f install.log
    else
        fail "The tests need $1: install the package $2 (Debian, Ubuntu) or its equivalent, and run this again."
    fi
}

system_package chromium chromium
system_package nginx nginx-light

if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$(cksum <package-lock.json)" ]; then
    exit 0
fi
echo "Installing the clients of tests/clients/package-lock.json"
PATH="$BIN:$PATH" npm ci --silent --ignore-scripts --no-audit --no-fund || fail "npm ci failed in tests/clients."
cksum <package-lock.json >"$STAMP"
