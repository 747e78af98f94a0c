#!/usr/bin/env bash
# Checks and times the CUDA backend on a GPU host with a compiler, CMake, CUDA and the header packages (nlohmann-json, fmt,
# spdlog, googletest) but no network, and prints one table.
#   scripts/gpu-check.sh [--prefix DIR] [PART ...]     without parts: all of them, in this order
#     build   the backend, its tests and its benchmarks (tests/backends/cuda/standalone)
#     tests   the GPU tests, and the GPU against the CPU where Highway is installed
#     bench   steps at the shapes of the released models; LoopSpec on full-size synthetic twins at assumed acceptance
#     peer    the PyTorch peer, where LOOPSPEC_PEER names its script
#     prefill_peer  the peer of prompts, where LOOPSPEC_PREFILL_PEER names its script; not without being named
#     wide_prefill_peer  prompts of Nanbeige and Huginn in PyTorch (bench/cuda/prefill_peer.py); not without being named
#     twins   LoopSpec against autoregressive decoding bit for bit: demo models and twins
#     table   what the results folder has, against what is asked
# Figures are kept in the results folder, so that the table can be drawn from several calls; a part that is run again
# replaces its own.
#   LOOPSPEC_BUILD       build folder (build/gpu)         LOOPSPEC_RESULTS  results folder (build/gpu-results)
#   LOOPSPEC_TWINS       where twins are made, 17 GB for the first five, 32 GB for all seven (build/gpu-twins)
#   LOOPSPEC_TWIN_NAMES  which (ouro-1.4b ouro-2.6b raven-llama raven-olmo raven-tinyllama; nanbeige4.2-3b huginn-0125)
#   LOOPSPEC_BUDGET      seconds that one call may take (570); a part that does not fit is cut short or left out, and says so
#   LOOPSPEC_PEER_RUNS   family:rows to time the peer at (ouro:1 raven:1 ouro:4 raven:32); those in the results are not repeated
#   LOOPSPEC_SANITIZER=1 has `tests` run a few of them under compute-sanitizer, memcheck and racecheck
#   --prefix DIR         where packages lie that the system lacks (Highway), as CMAKE_PREFIX_PATH: DIR or DIR/usr
#   LOOPSPEC_CUDA_ARCHITECTURES  instead of the card's own
# shellcheck disable=SC2317  # parts are called by name
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${LOOPSPEC_BUILD:-$root/build/gpu}
results=${LOOPSPEC_RESULTS:-$root/build/gpu-results}
twins=${LOOPSPEC_TWINS:-$root/build/gpu-twins}
read -ra twin_names <<< "${LOOPSPEC_TWIN_NAMES:-ouro-1.4b ouro-2.6b raven-llama raven-olmo raven-tinyllama}"
read -ra peer_runs <<< "${LOOPSPEC_PEER_RUNS:-ouro:1 raven:1 ouro:4 raven:32}"
budget=${LOOPSPEC_BUDGET:-570}
check=$build/tests/backends/cuda/gpu_check
failed=0
declare -A twin_job=()

say() { printf '\n== %s (%d of %d s)\n' "$*" "$SECONDS" "$budget"; }
left() { echo $((budget - SECONDS)); }
fail() { echo "FAILED: $*"; failed=1; }

# limited SECONDS COMMAND...: with what is left of the budget as the outer bound.
limited() {
  local seconds=$1 rest
  shift
  rest=$(left)
  [ "$seconds" -lt "$rest" ] && rest=$seconds
  if [ "$rest" -le 5 ]; then
    echo "left out, no time left: $*"
    return 125
  fi
  if declare -F "$1" > /dev/null; then
    "$@"
  else
    timeout --kill-after=5 "$rest" "$@"
  fi
}

part_build() {
  local architecture=${LOOPSPEC_CUDA_ARCHITECTURES:-}
  [ -n "$architecture" ] ||
    architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)-real
  say "build for $architecture"
  mkdir -p "$build"
  if ! cmake -S "$root/tests/backends/cuda/standalone" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DLOOPSPEC_CUDA_ARCHITECTURES="$architecture" ${prefix:+"-DCMAKE_PREFIX_PATH=$prefix/usr;$prefix;${CMAKE_PREFIX_PATH:-}"} \
    > "$build/configure.log" 2>&1; then
    cat "$build/configure.log"
    fail "configuring"
    return 1
  fi
  grep Highway "$build/configure.log"
  if ! cmake --build "$build" --parallel > "$build/build.log" 2>&1; then
    grep -v '^\[' "$build/build.log" | tail -60
    fail "building"
    return 1
  fi
}

# Full-size twins, several at a time: writing them takes the processors, not the GPU.
start_twins() {
  local name
  mkdir -p "$twins" "$results"
  for name in "$@"; do
    [ -n "${twin_job[$name]:-}" ] && continue  # under way
    grep -qs Measured "$twins/$name/README.md" && continue
    rm -rf "${twins:?}/$name"
    rm -f "$results/synth-$name.txt"
    timeout --kill-after=5 "$(left)" "$check" synth "$name" "$twins/$name" --results "$results/synth-$name.txt" \
      > "$results/synth-$name.log" 2>&1 &
    twin_job[$name]=$!
  done
}

# have_twin NAME: waits until it is written.
have_twin() {
  if [ -n "${twin_job[$1]:-}" ]; then
    wait "${twin_job[$1]}" || true
    cat "$results/synth-$1.log"
    unset "twin_job[$1]"
  fi
  grep -qs Measured "$twins/$1/README.md" && return 0
  fail "there is no twin of $1"
  return 1
}

await_twins() {
  local name
  for name in "${!twin_job[@]}"; do have_twin "$name"; done
}

stop_twins() {
  local job
  for job in "${twin_job[@]}"; do kill "$job" 2> /dev/null; done
}

run_test() {
  local name=$1 status=ok log=$results/$1.log
  shift
  limited 300 "$@" 2>&1 | grep -v '^Running main' | tee "$log"
  if [ "${PIPESTATUS[0]}" != 0 ]; then
    status=FAILED
    fail "$name"
  elif grep -q SKIPPED "$log"; then
    status=partly-skipped
  fi
  echo "tests.$name $status" >> "$results/tests.txt"
}

part_tests() {
  say "tests"
  : > "$results/tests.txt"
  run_test cuda_test "$build/tests/backends/cuda/cuda_test" --gtest_brief=1
  run_test cuda_prefill_test "$build/tests/backends/cuda/cuda_prefill_test" --gtest_brief=1
  if [ -x "$build/tests/backends/cuda/cuda_cpu_test" ] && ! grep -qs "Highway NOT found" "$build/configure.log"; then
    run_test cuda_cpu_test "$build/tests/backends/cuda/cuda_cpu_test" --gtest_brief=1
  else
    echo "Highway is not here: the GPU was NOT compared with the CPU"
    echo "tests.cuda_cpu_test not-built" >> "$results/tests.txt"
  fi
  run_test cuda_equality_test "$build/tests/backends/cuda/cuda_equality_test" --gtest_brief=1
  if [ -n "${LOOPSPEC_SANITIZER:-}" ]; then
    local few='Families/CudaGolden.*:CudaSampling.Greedy*:Families/CudaRows.DoNotDependOnHowRecurrences*/3:Families/CudaRows.DoNotDependOnHowRecurrences*/4:Families/CudaRows.DoNotDependOnWhoFetches*/3'
    run_test sanitizer_memcheck compute-sanitizer --tool memcheck --error-exitcode 1 "$build/tests/backends/cuda/cuda_test" \
      --gtest_brief=1 --gtest_filter="$few"
    run_test sanitizer_racecheck own_races
  fi
}

# Races in our own kernels; cuBLASLt's own pipelines are reported as hazards too.
own_races() {
  local log=$results/racecheck.log
  timeout --kill-after=5 200 compute-sanitizer --tool racecheck --racecheck-report all --print-limit 1000000 --show-backtrace no \
    "$build/tests/backends/cuda/cuda_test" --gtest_brief=1 \
    --gtest_filter='CudaSampling.Greedy*:*.DoNotDependOnHowRecurrences*/0:*.DoNotDependOnHowRecurrences*/4:*.DoNotDependOnWhoFetches*/3' > "$log" 2>&1 || return 1
  grep -E '(Read|Write) Thread' "$log" | grep -v ' at nvjet' | sed 's/.*) at //; s/+0x.*//' | sort | uniq -c | head
  ! grep -E '(Read|Write) Thread' "$log" | grep -qv ' at nvjet'
}

part_bench() {
  start_twins ouro-1.4b raven-llama
  await_twins  # nothing else may run beside a timing
  say "steps"
  rm -f "$results/bench.txt" "$results/time.txt"
  limited 120 "$build/bench/cuda/cuda_step_bench" ouro --results "$results/bench.txt" || fail "Ouro steps"
  local family
  for family in raven nanbeige huginn; do
    limited 120 "$build/bench/cuda/cuda_step_bench" "$family" --results "$results/bench.txt" || fail "$family steps"
  done
  say "prompts"
  limited 60 "$build/bench/cuda/cuda_prefill_bench" --results "$results/bench.txt" || fail "prompts"
  say "LoopSpec at assumed acceptance"
  local context
  if have_twin ouro-1.4b; then
    for context in 128 1024; do
      limited 120 "$check" time "$twins/ouro-1.4b" --context "$context" --depths 1,2 --assume 0.90,0.075 \
        --tokens 512 --repeat 3 --results "$results/time.txt" || fail "timing at context $context"
    done
  fi
  if have_twin ouro-1.4b; then  # types of keys in turn
    for context in 1024 16384; do
      limited 120 "$check" time "$twins/ouro-1.4b" --context "$context" --depths 1,2 --assume 0.90,0.075 --groups 0 \
        --tokens 256 --repeat 2 --kv-type bf16,int8 --results "$results/time.txt" || fail "timing int8 keys at context $context"
    done
    limited 60 "$build/bench/cuda/cuda_step_bench" ouro --rows 128 --requests 32 --kv-type bf16,int8 \
      --results "$results/bench.txt" || fail "timing int8 keys of 32 requests"
  fi
  if have_twin raven-llama; then
    limited 120 "$check" time "$twins/raven-llama" --context 1024 --depths 2,8 --assume 0.92,0.075 \
      --tokens 512 --repeat 3 --results "$results/time.txt" || fail "timing at context 1024"
  fi
}

# The peer takes a family; its list of rows is narrowed in a copy, since each entry is compiled for minutes.
part_peer() {
  if [ -z "${LOOPSPEC_PEER:-}" ]; then
    say "peer: left out, LOOPSPEC_PEER names no script"
    return
  fi
  await_twins
  # In a call for everything, the parts after this one keep half of the time.
  local run family rows log share=$(($(left) * ${1:-100} / 100)) until
  until=$((SECONDS + share))
  export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$build/inductor} PYTHONUNBUFFERED=1
  for run in "${peer_runs[@]}"; do
    family=${run%:*} rows=${run#*:}
    log=$results/peer-$family-$rows.log
    say "peer, $family, $rows row(s)"
    if grep -qs " C rows=$rows .* ms=" "$log"; then
      echo "measured before, see $log"
    else
      sed -e "/\"ouro\"/s/\[1, 4\]/[$rows]/" -e "/\"raven\"/s/\[1, 16, 32\]/[$rows]/" "$LOOPSPEC_PEER" > "$build/peer.py"
      limited $((until - SECONDS)) python3 "$build/peer.py" "$family" 2> "$results/peer-$family-$rows.err" | tee "$log"
    fi
    grep -qs " B rows=$rows .* ms=" "$log" || echo "the peer gave nothing for $run (see peer-$family-$rows.err)"
  done
}

# The peer of prompts; it compiles for each length.
part_prefill_peer() {
  if [ -z "${LOOPSPEC_PREFILL_PEER:-}" ]; then
    say "peer of prompts: left out, LOOPSPEC_PREFILL_PEER names no script"
    return
  fi
  local family
  for family in ouro raven; do
    say "peer of prompts, $family"
    grep -qs "^$family prefill" "$results/peer-prefill-$family.log" && continue
    limited 200 python3 "$LOOPSPEC_PREFILL_PEER" "$family" 2> "$results/peer-prefill-$family.err" |
      tee "$results/peer-prefill-$family.log"
  done
}

# Our own, for the shapes of wide models.
part_wide_prefill_peer() {
  local run
  for run in "nanbeige 1024 8000" "huginn 1024 4000"; do
    local family=${run%% *}
    say "peer of prompts, $family"
    grep -qs "^$family prefill" "$results/peer-prefill-$family.log" && continue
    # shellcheck disable=SC2086  # the lengths are words of their own
    limited 200 python3 "$root/bench/cuda/prefill_peer.py" $run 2> "$results/peer-prefill-$family.err" |
      tee "$results/peer-prefill-$family.log"
  done
}

part_twins() {
  say "LoopSpec against autoregressive decoding, bit for bit"
  start_twins "${twin_names[@]}"
  local name folder tokens depths text seconds status models=(ouro-demo raven-demo "${twin_names[@]}")
  local count=${#models[@]}
  for name in "${models[@]}"; do
    depths="" tokens=10000 text=500 folder=$root/models/$name
    if [[ $name != *-demo ]]; then
      folder=$twins/$name tokens=1000 text=250 depths="1,2;1;1,3"
      [[ $name == raven* ]] && depths="2,8;4,8;3,7"
      [[ $name == nanbeige* ]] && depths="1"
      [[ $name == huginn* ]] && depths="4,16;4,8;8"
      have_twin "$name" || { count=$((count - 1)); continue; }
    fi
    seconds=$(($(left) * 4 / 5 / count))
    count=$((count - 1))
    rm -f "$results/equal-$name.txt"
    limited 600 "$check" equal "$folder" --tokens "${LOOPSPEC_TOKENS:-$tokens}" --text "$text" --seconds "$seconds" \
      --depths "$depths" --results "$results/equal-$name.txt"
    status=$?
    [ "$status" = 0 ] || fail "equality on $name (exit code $status)"
    if [ "$name" = ouro-1.4b ] || [[ $name == *-demo ]]; then
      limited 120 "$check" equal "$folder" --tokens "${LOOPSPEC_TOKENS:-2000}" --text "$text" --seconds "$((seconds / 4))" \
        --depths "$depths" --kv-type int8 || fail "equality with int8 keys on $name"
    fi
  done
}

part_table() {
  say "table"
  cat "$results/host.txt" 2> /dev/null
  # The peer's lines become keys like ours.
  { cat "$results"/{tests,bench,time}.txt "$results"/{synth,equal}-*.txt
    sed -nE 's/^([^ ]+) ([BC]) rows=([0-9]+) .* ms=([0-9.]+) .* TBps=([0-9.]+).*/peer.\1.\2.rows\3.ms \4\npeer.\1.\2.rows\3.TBps \5/p' \
      "$results"/peer-*.log
    sed -nE 's/^([^ ]+) prefill T=([0-9]+) ms=([0-9.]+) .*/peer.\1.prefill.\2.ms \3/p' "$results"/peer-prefill-*.log
  } 2> /dev/null | awk -v names="${twin_names[*]}" -f "$root/scripts/gpu-table.awk"
}

prefix=""
parts=()
while [ $# -gt 0 ]; do
  case $1 in
    --prefix)
      if [ ! -d "${2:-}" ]; then
        echo "gpu-check.sh: --prefix ${2:-}: expected a folder" >&2
        exit 2
      fi
      prefix=$(cd "$2" && pwd)
      shift
      ;;
    *) parts+=("$1") ;;
  esac
  shift
done
all=$((${#parts[@]} == 0))
share=100
if [ ${#parts[@]} = 0 ]; then
  parts=(build tests bench peer twins table)
  share=50
fi
for part in "${parts[@]}"; do
  case $part in
    build | tests | bench | peer | prefill_peer | wide_prefill_peer | twins | table) ;;
    *)
      echo "gpu-check.sh: $part is no part, expected build, tests, bench, peer, prefill_peer, wide_prefill_peer, twins or table" >&2
      exit 2
      ;;
  esac
done
mkdir -p "$results"
# Whatever is still being made ends with this script.
trap stop_twins EXIT
for part in "${parts[@]}"; do
  if [ "$part" != table ] && [ "$part" != build ]; then
    if ! nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader > "$results/host.txt"; then
      echo "gpu-check.sh: nvidia-smi finds no GPU here, which $part needs" >&2
      exit 2
    fi
  fi
  case $part in
    build)
      part_build || exit 1
      # Made while the tests run.
      [ "$all" = 1 ] && start_twins "${twin_names[@]}"
      ;;
    peer) part_peer "$share" ;;
    *) "part_$part" ;;
  esac
done
exit "$failed"
