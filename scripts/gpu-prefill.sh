#!/usr/bin/env bash
# Checks and times prompts on a GPU host, quickly: builds what that needs, runs the tests of prompts, the benchmark and
# compute-sanitizer on small cases, and leaves all output in a folder. What hangs is ended after its time.
#   scripts/gpu-prefill.sh FOLDER [PART ...]     without parts: build parts bench power tests variants sanitizer others
# shellcheck disable=SC2317  # parts are called by name
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?a folder for the output}
shift
build=${LOOPSPEC_BUILD:-$root/build/gpu}
mkdir -p "$out" "$build"
prefill_test=$build/tests/backends/cuda/cuda_prefill_test
bench=$build/bench/cuda/cuda_prefill_bench
failed=0

# note FILE SECONDS COMMAND...: output into the folder and, its end, onto the terminal.
note() {
  local file=$out/$1.txt seconds=$2 status
  shift 2
  printf '\n== %s (%d s)\n' "$*" "$SECONDS" | tee -a "$file"
  timeout --kill-after=5 "$seconds" "$@" >> "$file" 2>&1
  status=$?
  tail -n "${LINES_SHOWN:-25}" "$file"
  if [ "$status" != 0 ]; then
    echo "FAILED with exit code $status: $*" | tee -a "$file"
    failed=1
  fi
  return "$status"
}

part_build() {
  note build 60 cmake -S "$root/tests/backends/cuda/standalone" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DLOOPSPEC_CUDA_ARCHITECTURES=90-real || exit 1
  LINES_SHOWN=12 note build 280 cmake --build "$build" --parallel --target cuda_prefill_test cuda_prefill_bench cuda_test ||
    exit 1
}
part_parts() { LINES_SHOWN=60 note parts 60 "$prefill_test" --gtest_filter='Prompt*:*/PromptAttention*:Gemm*'; }
part_bench() {
  LINES_SHOWN=90 note bench 60 "$bench" parts
  LINES_SHOWN=10 note bench 60 "$bench"
}
part_tests() {
  LINES_SHOWN=60 note tests 150 "$prefill_test" --gtest_filter='*CudaPrefill*'
}
part_variants() {
  local rows width
  for rows in 1024 2048 8192; do note variants 30 "$bench" --rows "$rows" --repeat 3; done
  for width in 128 256; do note variants 30 "$bench" --width "$width" --repeat 3 --lengths 1024,4096; done
  note variants 30 "$bench" --cluster 2 --repeat 3
}
part_sanitizer() {
  local few='*PromptAttention*:PromptProducts.Fused*:*CudaPrefill.LogitsDoNotDepend*'
  LINES_SHOWN=15 note sanitizer 120 compute-sanitizer --tool memcheck "$prefill_test" --gtest_filter="$few"
  LINES_SHOWN=15 note sanitizer 120 compute-sanitizer --tool racecheck "$prefill_test" --gtest_filter='*PromptAttention*:PromptProducts.Fused*'
}
# Clocks and power while long prompts run, and what each kernel takes among the others.
part_power() {
  nvidia-smi --query-gpu=clocks.sm,clocks.max.sm,power.draw,power.limit,clocks_event_reasons.active --format=csv,noheader \
    -lms 50 > "$out/power.txt" 2>&1 &
  local watch=$!
  LINES_SHOWN=3 note bench 60 "$bench" ouro --lengths 16384 --repeat 8
  kill "$watch"
  sort "$out/power.txt" | uniq -c | sort -rn | head -25
  LINES_SHOWN=90 note kernels 90 ncu --clock-control none --cache-control none --launch-skip 1200 --launch-count 28 \
    --metrics gpu__time_duration.sum,sm__cycles_elapsed.avg.per_second,dram__bytes.sum,lts__t_bytes.sum \
    "$bench" ouro --lengths 4096 --repeat 1
}
part_others() { LINES_SHOWN=30 note others 120 "$build/tests/backends/cuda/cuda_test" --gtest_brief=1; }

[ $# = 0 ] && set -- build parts bench power tests variants sanitizer others
for part in "$@"; do "part_$part"; done
exit "$failed"
