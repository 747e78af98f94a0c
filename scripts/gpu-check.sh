#!/usr/bin/env bash
# Builds the CUDA backend alone, runs its tests and its benchmarks and prints one table; for a GPU host with a compiler,
# CMake, CUDA and the header packages (nlohmann-json, fmt, spdlog, googletest) but no network.
#   scripts/gpu-check.sh [BUILD_DIR]
# LOOPSPEC_PEER=path/to/torch_step.py times the PyTorch peer in the same run.
# LOOPSPEC_SANITIZER=1 runs the goldens under compute-sanitizer (memcheck and racecheck) as well.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build/gpu}
architecture=${LOOPSPEC_CUDA_ARCHITECTURES:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)-real}

mkdir -p "$(dirname "$build")"
cmake -S "$root/tests/cuda/standalone" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DLOOPSPEC_CUDA_ARCHITECTURES="$architecture" > "$build.configure.log" 2>&1 || { cat "$build.configure.log"; exit 1; }
cmake --build "$build" --parallel > "$build.build.log" 2>&1 || { tail -60 "$build.build.log"; exit 1; }

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
"$build/tests/cuda/cuda_test" --gtest_brief=1
if [ -n "${LOOPSPEC_SANITIZER:-}" ]; then
  for tool in memcheck racecheck; do
    compute-sanitizer --tool "$tool" --error-exitcode 1 "$build/tests/cuda/cuda_test" --gtest_brief=1 \
      --gtest_filter='Families/CudaGolden.*:CudaSampling.Greedy*'
  done
fi
"$build/bench/cuda/cuda_step_bench" ouro
"$build/bench/cuda/cuda_step_bench" raven
if [ -n "${LOOPSPEC_PEER:-}" ]; then
  echo "peer (PyTorch, compiled, CUDA graph):"
  python3 "$LOOPSPEC_PEER"
fi
