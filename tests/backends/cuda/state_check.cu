#include "tests/backends/cuda/state_check.h"

#include "backends/cuda/host/transfers.h"

namespace loopspec::cuda {
namespace {

__global__ void StartStatesKernel(StateParams start, int first, int hidden, float* to) {
  const int position = static_cast<int>(blockIdx.x);
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += static_cast<int>(blockDim.x))
    to[static_cast<size_t>(position) * hidden + i] = StartValue(start, first + position, i);
}

}  // namespace

std::vector<float> StartStates(const StateParams& start, int first, int positions, int hidden) {
  std::vector<float> states(static_cast<size_t>(positions) * static_cast<size_t>(hidden));
  const DeviceArray<float> device(states.size(), "the states of a test", true);
  const Stream stream;
  StartStatesKernel<<<static_cast<unsigned>(positions), 256, 0, stream.get()>>>(
      start, first, hidden, device.data());
  Check(cudaGetLastError(), "launching the states of a test");
  stream.Synchronize();
  CopyToHostAndWait(states.data(), device.data(), device.bytes(), "the states of a test");
  return states;
}

}  // namespace loopspec::cuda
