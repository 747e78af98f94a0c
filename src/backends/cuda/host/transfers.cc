#include "backends/cuda/host/transfers.h"

#include <string>

namespace loopspec::cuda {
namespace {

std::string Copying(std::string_view what) {
  return "copying " + std::string(what);
}

void CopyAndWait(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                 std::string_view what) {
  const cudaStream_t stream = WaitingStream();
  Check(cudaMemcpyAsync(to, from, bytes, kind, stream), Copying(what));
  Check(cudaStreamSynchronize(stream), Copying(what));
}

}  // namespace

cudaStream_t WaitingStream() {
  return cudaStreamPerThread;
}

void CopyToDeviceAndWait(void* to, const void* from, size_t bytes, std::string_view what) {
  CopyAndWait(to, from, bytes, cudaMemcpyHostToDevice, what);
}

void CopyToHostAndWait(void* to, const void* from, size_t bytes, std::string_view what) {
  CopyAndWait(to, from, bytes, cudaMemcpyDeviceToHost, what);
}

void FillAndWait(void* memory, int byte, size_t bytes) {
  const cudaStream_t stream = WaitingStream();
  Check(cudaMemsetAsync(memory, byte, bytes, stream), "filling device memory");
  Check(cudaStreamSynchronize(stream), "filling device memory");
}

void ClearAndWait(void* memory, size_t bytes) {
  FillAndWait(memory, 0, bytes);
}

void CopyToDevice(void* to, const void* pinned, size_t bytes, cudaStream_t stream,
                  std::string_view what) {
  Check(cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, stream), Copying(what));
}

void CopyToHost(void* pinned, const void* from, size_t bytes, cudaStream_t stream,
                std::string_view what) {
  Check(cudaMemcpyAsync(pinned, from, bytes, cudaMemcpyDeviceToHost, stream), Copying(what));
}

void CopyOnDevice(void* to, const void* from, size_t bytes, cudaStream_t stream,
                  std::string_view what) {
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), Copying(what));
}

void CopyRowsToDevice(void* to, size_t pitch, const void* pinned, size_t row_bytes, size_t rows,
                      cudaStream_t stream, std::string_view what) {
  Check(cudaMemcpy2DAsync(to, pitch, pinned, row_bytes, row_bytes, rows, cudaMemcpyHostToDevice,
                          stream),
        Copying(what));
}

}  // namespace loopspec::cuda
