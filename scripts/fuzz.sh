#!/usr/bin/env bash
# Builds every fuzz target (preset "fuzz": clang, AddressSanitizer and UndefinedBehaviorSanitizer) and runs each for N
# inputs, or for a time, as many at a time as there are cores. Prints one line per target; the exit code is 1 when any of
# them found something.
#   scripts/fuzz.sh [N|SECONDSs] [target ...]     such as 1000000 (the default) or 30s; targets default to all in fuzz/
# Several times as many inputs in a time, without the sanitizers, in a build folder of its own:
#   LOOPSPEC_FUZZ_BUILD=build/fuzz-plain LOOPSPEC_CMAKE_ARGS="-DLOOPSPEC_SANITIZE= -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2" scripts/fuzz.sh
set -euo pipefail
cd "$(dirname "$0")/.."

amount=${1:-1000000}
case "$amount" in
  *s) amount=-max_total_time=${amount%s} ;;
  *) amount=-runs=$amount ;;
esac
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for file in fuzz/*_fuzz.cc; do targets+=("$(basename "$file" .cc)"); done
fi

build=${LOOPSPEC_FUZZ_BUILD:-build/fuzz}
# Whole stacks of every allocation take a quarter of the time; who looks at a report sets another number.
export ASAN_OPTIONS=${ASAN_OPTIONS:-malloc_context_size=2}
generator=()
command -v ninja > /dev/null && [ ! -f "$build/CMakeCache.txt" ] && generator=(-G Ninja)
# shellcheck disable=SC2086  # several options
cmake --preset fuzz -B "$build" "${generator[@]}" ${LOOPSPEC_CMAKE_ARGS:-} > /dev/null
cmake --build "$build" --parallel "$(nproc)" --target "${targets[@]}"

# fuzz TARGET: runs it and says what came of it.
fuzz() {
  local target=$1 work="$build/fuzzing/$1"
  mkdir -p "$work/corpus"
  # -entropic=0: the bookkeeping of rare features takes a third of the time of targets that reach much code.
  local options=("$amount" -entropic=0 -max_len=4096 -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$work/")
  local dictionary="fuzz/${target%_fuzz}.dict"
  if [ -f "$dictionary" ]; then options+=(-dict="$dictionary"); fi
  if "$build/fuzz/$target" "${options[@]}" "$work/corpus" > "$work/log" 2>&1; then
    echo "$target: $(grep -oP 'number_of_executed_units: *\K[0-9]+' "$work/log") inputs, clean"
  else
    echo "$target: FAILED, see $work/log"
    return 1
  fi
}

# As many at a time as there are cores.
status=0
running=0
for target in "${targets[@]}"; do
  if [ "$running" -ge "$(nproc)" ]; then
    wait -n || status=1
    running=$((running - 1))
  fi
  fuzz "$target" &
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
  wait -n || status=1
  running=$((running - 1))
done
exit $status
