#!/usr/bin/env bash
# A virtual environment in build/venv-python with what the Python module is built with and tested by. Where PyPI cannot be reached
# it says so in one line and leaves with 0: the build then goes without the module.
#   scripts/python-venv.sh [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/venv-python
packages=("nanobind>=3.1,<4" "nanobind-backend>=1,<2" numpy tqdm)

if "$venv/bin/python" -c 'import nanobind, nanobind_backend, numpy, tqdm' 2>/dev/null; then exit 0; fi
fail() {
  rm -rf "$venv"
  echo "no Python module: $1" >&2
  exit 0
}
mkdir -p build
"${1:-/usr/bin/python3}" -m venv "$venv" >/dev/null 2>&1 || fail "${1:-/usr/bin/python3} makes no virtual environment (Debian: python3-venv)"
"$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 15 "${packages[@]}" >/dev/null 2>&1 ||
  fail "nanobind cannot be installed from PyPI"
