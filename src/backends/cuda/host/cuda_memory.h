// Memory on the device and pinned memory on the host, owned; and the check that every CUDA call
// goes through.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace loopspec::cuda {

// These throw Error; they live in a file of their own because the CUDA compiler does not take the
// formatting library.
[[noreturn]] void FailStatus(cudaError_t status, std::string_view doing);
[[noreturn]] void FailMemory(size_t bytes, std::string_view what);
[[noreturn]] void FailText(const std::string& text);

inline void Check(cudaError_t status, std::string_view doing) {
  if (status != cudaSuccess) FailStatus(status, doing);
}

// Bytes free for allocation on the current device.
size_t FreeMemory();

// Sets device memory to zero, and returns when that is done, so that every stream sees it
// (transfers.cc).
void ClearAndWait(void* memory, size_t bytes);

// An array on the device. `what` names it when memory does not suffice.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(size_t count, std::string_view what, bool zeroed = false) : count_(count) {
    if (count == 0) return;
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes()) != cudaSuccess) {
      (void)cudaGetLastError();
      FailMemory(bytes(), what);
    }
    data_ = static_cast<T*>(memory);
    if (zeroed) ClearAndWait(data_, bytes());
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }

  T* data() const { return data_; }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

// Page-locked memory on the host: copies to and from the device run beside the host's own work.
template <typename T>
class PinnedArray {
 public:
  PinnedArray() = default;
  explicit PinnedArray(size_t count) : count_(count) {
    if (count == 0) return;
    void* memory = nullptr;
    Check(cudaMallocHost(&memory, count * sizeof(T)), "allocating pinned memory");
    data_ = static_cast<T*>(memory);
  }
  ~PinnedArray() { cudaFreeHost(data_); }
  PinnedArray(PinnedArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  PinnedArray& operator=(PinnedArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }

  T* data() const { return data_; }
  size_t size() const { return count_; }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

class Stream {
 public:
  // `priority`: lower numbers go first; 0 is the last.
  explicit Stream(int priority = 0) {
    Check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority),
          "creating a stream");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void Synchronize() const { Check(cudaStreamSynchronize(stream_), "waiting for the GPU"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  // With cudaEventBlockingSync, waiting for it leaves the processor to others.
  explicit Event(unsigned flags = 0) {
    Check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | flags), "creating an event");
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace loopspec::cuda
