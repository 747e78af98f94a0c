#!/usr/bin/env bash
# Steps of many rows on a GPU host: builds, checks that every row has the bits of a single row, and times them.
#   scripts/gpu-rows.sh FOLDER [build] [tests] [bench] [sanitizer]     without parts: all; logs go to FOLDER
# A few minutes with the build; `bench` alone half a minute.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${LOOPSPEC_BUILD:-$root/build/gpu}
if [ $# -lt 1 ]; then
  echo "usage: gpu-rows.sh FOLDER [build] [tests] [bench] [sanitizer]" >&2
  exit 2
fi
out=$1
shift
parts=("$@")
[ ${#parts[@]} = 0 ] && parts=(build tests bench sanitizer)
mkdir -p "$out"
failed=0
for part in "${parts[@]}"; do
  echo "== $part ($SECONDS s)"
  case $part in
    build)
      "$root/scripts/gpu-check.sh" build 2>&1 | tail -40
      [ "${PIPESTATUS[0]}" = 0 ] || exit 1
      ;;
    tests)
      timeout 20 "$build/tests/backends/cuda/cuda_program_test" --gtest_brief=1 --gtest_filter='WideWork.*' || failed=1
      timeout 150 "$build/tests/backends/cuda/cuda_test" --gtest_brief=1 --gtest_filter='*CudaRows.*' 2>&1 |
        tail -60 | tee "$out/rows-tests.txt"
      [ "${PIPESTATUS[0]}" = 0 ] || failed=1
      ;;
    bench)
      for family in ouro raven; do
        timeout 60 "$build/bench/cuda/cuda_step_bench" "$family" --rows 32,64,128,256 2>&1 | tee "$out/rows-$family.txt"
        [ "${PIPESTATUS[0]}" = 0 ] || failed=1
      done
      ;;
    sanitizer)
      for tool in memcheck racecheck; do
        timeout 100 compute-sanitizer --tool "$tool" --error-exitcode 1 "$build/tests/backends/cuda/cuda_test" \
          --gtest_brief=1 --gtest_filter='*DoNotDependOnWhoFetches*/0:*DoNotDependOnWhoFetches*/1' > "$out/rows-$tool.txt" 2>&1 || failed=1
        tail -5 "$out/rows-$tool.txt"
      done
      ;;
    *)
      echo "gpu-rows.sh: $part is no part, expected build, tests, bench or sanitizer" >&2
      exit 2
      ;;
  esac
done
echo "== done ($SECONDS s), failed=$failed"
exit "$failed"
