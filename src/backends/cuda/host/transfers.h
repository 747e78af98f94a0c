// The only way for data between host and device, and for filling device memory.
//
// The backend's streams do not wait for CUDA's default stream, and a copy from ordinary host memory
// may return before its bytes have arrived. So a copy is of one of two kinds. The waiting ones
// return when the bytes have arrived: whichever stream reads them next has them. The others name
// the stream that reads or wrote the data. Their host memory is pinned and left alone until that
// stream has passed the copy, or the caller waits for the stream at once.
//
// scripts/check-transfers.py, a test, fails on a copy, a fill or a launch that goes another way.
#pragma once

#include <string_view>

#include "backends/cuda/host/cuda_memory.h"

namespace loopspec::cuda {

// The stream of the copies and fills that wait: one for each host thread. For tests that hold it
// up.
cudaStream_t WaitingStream();

// These return when the copy or fill is done.
void CopyToDeviceAndWait(void* to, const void* from, size_t bytes, std::string_view what);
void CopyToHostAndWait(void* to, const void* from, size_t bytes, std::string_view what);
void FillAndWait(void* memory, int byte, size_t bytes);

// An array on the device with a copy of `from`, which has arrived. `what` names it in errors.
template <typename Container>
auto Upload(const Container& from, std::string_view what) {
  using T = typename Container::value_type;
  DeviceArray<T> to(from.size(), what);
  if (!from.empty()) CopyToDeviceAndWait(to.data(), from.data(), to.bytes(), what);
  return to;
}

// These are done when `stream` comes to them.
void CopyToDevice(void* to, const void* pinned, size_t bytes, cudaStream_t stream,
                  std::string_view what);
void CopyToHost(void* pinned, const void* from, size_t bytes, cudaStream_t stream,
                std::string_view what);
void CopyOnDevice(void* to, const void* from, size_t bytes, cudaStream_t stream,
                  std::string_view what);
// `rows` of `row_bytes` each, which lie one after the other in pinned memory, `pitch` bytes apart
// on the device.
void CopyRowsToDevice(void* to, size_t pitch, const void* pinned, size_t row_bytes, size_t rows,
                      cudaStream_t stream, std::string_view what);

}  // namespace loopspec::cuda
