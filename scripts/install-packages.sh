#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that the given lists name and that are missing; says which ones where it may not.
#   scripts/install-packages.sh scripts/packages.txt ...
set -euo pipefail

if ! command -v dpkg-query >/dev/null; then
  echo "not a Debian system: assuming that what $* list is there" >&2
  exit 0
fi
missing=()
while read -r package; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -q '^installed$' || missing+=("$package")
done < <(grep -hv '^#' "$@")
[ ${#missing[@]} -gt 0 ] || exit 0
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    sudo=(sudo)
  else
    echo "missing packages, install them with: sudo apt-get install ${missing[*]}" >&2
    exit 2
  fi
fi
echo "installing ${missing[*]}" >&2
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
