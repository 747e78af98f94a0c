// Copies and fills that are held up, as they are beside other programs: a host function that sleeps
// stands in front of them in their stream. Whoever reads their result all the same gets it right.
#include "backends/cuda/host/transfers.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "cuda_rows.h"

namespace loopspec {
namespace {

void CUDART_CB Sleep(void*) {
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
}

// What comes next in the stream waits.
void HoldUp(cudaStream_t stream) {
  cuda::Check(cudaLaunchHostFunc(stream, Sleep, nullptr), "holding a stream up");
}

// What a stream of its own reads, without waiting for any other.
std::vector<int32_t> ReadAtOnce(const int32_t* from, size_t count) {
  const cuda::Stream reader;
  cuda::PinnedArray<int32_t> to(count);
  cuda::CopyToHost(to.data(), from, count * sizeof(int32_t), reader.get(), "a test");
  reader.Synchronize();
  return {to.data(), to.data() + count};
}

TEST(CudaTransfers, UploadsAreThereForEveryStream) {
  LOOPSPEC_NEEDS_GPU();
  std::vector<int32_t> numbers(5000);
  std::iota(numbers.begin(), numbers.end(), 7);
  for (const size_t count : {size_t{1}, size_t{200}, numbers.size()}) {
    const std::vector<int32_t> part(numbers.begin(),
                                    numbers.begin() + static_cast<std::ptrdiff_t>(count));
    const cuda::DeviceArray<int32_t> before(count, "a test", true);  // perhaps the same memory
    HoldUp(cuda::WaitingStream());
    const cuda::DeviceArray<int32_t> uploaded = cuda::Upload(part, "a test");
    EXPECT_EQ(ReadAtOnce(uploaded.data(), count), part);
    const std::vector<int32_t> again(count, 3);
    HoldUp(cuda::WaitingStream());
    cuda::CopyToDeviceAndWait(uploaded.data(), again.data(), uploaded.bytes(), "a test");
    EXPECT_EQ(ReadAtOnce(uploaded.data(), count), again);
  }
}

TEST(CudaTransfers, FillsAreThereForEveryStream) {
  LOOPSPEC_NEEDS_GPU();
  const cuda::DeviceArray<int32_t> memory(1000, "a test", true);
  HoldUp(cuda::WaitingStream());
  cuda::FillAndWait(memory.data(), 0x11, memory.bytes());
  EXPECT_EQ(ReadAtOnce(memory.data(), 1000), std::vector<int32_t>(1000, 0x11111111));
  HoldUp(cuda::WaitingStream());
  cuda::ClearAndWait(memory.data(), memory.bytes());
  EXPECT_EQ(ReadAtOnce(memory.data(), 1000), std::vector<int32_t>(1000, 0));
}

TEST(CudaTransfers, DownloadsAreThereWhenTheyReturn) {
  LOOPSPEC_NEEDS_GPU();
  const std::vector<int32_t> numbers(1000, 42);
  const cuda::DeviceArray<int32_t> memory = cuda::Upload(numbers, "a test");
  std::vector<int32_t> back(1000);
  HoldUp(cuda::WaitingStream());
  cuda::CopyToHostAndWait(back.data(), memory.data(), memory.bytes(), "a test");
  EXPECT_EQ(back, numbers);
}

class CudaHeldUp : public CudaRows {
 protected:
  void SetUp() override { LOOPSPEC_NEEDS_GPU(); }

  // Of one token after the prompt, at every depth.
  std::vector<std::vector<float>> FirstLogits() {
    std::vector<std::vector<float>> out;
    for (int d = 0; d < backend_->spec().recurrence; ++d) {
      driver_->Begin(1);
      driver_->AddRow(0, Token(0), kPrompt, d);
      driver_->AddReadout(0, d);
      driver_->Run();
      out.push_back(driver_->Logits(0));
    }
    return out;
  }
  void PlanRow(int i) {
    driver_->Begin(backend_->spec().recurrence);
    driver_->AddRow(i, Token(i), kPrompt, 0);
    driver_->AddReadout(0, backend_->spec().recurrence - 1);
  }
};

// A backend is made and used at once while its uploads are held up.
TEST_P(CudaHeldUp, ABackendIsReadyWhenItIsMade) {
  Start(64);
  const auto expected = FirstLogits();
  backend_.reset();
  HoldUp(cuda::WaitingStream());
  Start(64);  // with a prompt, whose buffers and tables are made for it
  EXPECT_EQ(FirstLogits(), expected);
}

// Two steps are prepared while the stream has not come to the first one's copy.
TEST_P(CudaHeldUp, StepsInFlightKeepTheirOwnPlans) {
  Start(64);
  std::vector<int> expected;
  for (int i = 0; i < 6; ++i) {
    PlanRow(i);
    expected.push_back(driver_->Run().decisions.at(0).token);
  }
  for (int i = 0; i < 6; i += 2) {
    HoldUp(backend_->stream());
    PlanRow(i);
    const Ticket first = backend_->Submit(driver_->plan);
    PlanRow(i + 1);
    const Ticket second = backend_->Submit(driver_->plan);
    EXPECT_EQ(backend_->Wait(first).decisions.at(0).token, expected[static_cast<size_t>(i)]);
    EXPECT_EQ(backend_->Wait(second).decisions.at(0).token, expected[static_cast<size_t>(i) + 1]);
  }
}

// Pages that travel are complete when the call returns, and their host memory is free again.
TEST_P(CudaHeldUp, PagesTravelWhole) {
  Start(64);
  const auto bytes = static_cast<size_t>(backend_->page_bytes());
  const std::vector<int32_t> pages = {driver_->pages[0], driver_->pages[1]};
  const std::vector<int32_t> free_pages = {backend_->pages() - 1, backend_->pages() - 2};
  const auto save = [&](const std::vector<int32_t>& from, bool held) {
    std::vector<std::byte> to(2 * bytes);
    if (held) HoldUp(backend_->stream());
    backend_->SavePages(from, to.data());
    return to;
  };
  const auto expected = save(pages, false);
  EXPECT_EQ(save(pages, true), expected);
  std::vector<std::byte> from = expected;
  HoldUp(backend_->stream());
  backend_->LoadPages(free_pages, from.data());
  std::memset(from.data(), 0xFF, from.size());
  EXPECT_EQ(save(free_pages, false), expected);
  HoldUp(backend_->stream());
  backend_->CopyPage(pages[0], free_pages[1]);
  const auto copied = save(free_pages, false);
  EXPECT_TRUE(std::equal(copied.begin() + static_cast<std::ptrdiff_t>(bytes), copied.end(),
                         expected.begin()));
}

// Logits are read behind the step that makes them.
TEST_P(CudaHeldUp, LogitsAreThoseOfTheStep) {
  Start(64);
  PlanRow(1);
  driver_->Run();
  const std::vector<float> expected = driver_->Logits(0);
  PlanRow(2);
  driver_->Run();
  HoldUp(backend_->stream());
  PlanRow(1);
  const Ticket ticket = backend_->Submit(driver_->plan);
  EXPECT_EQ(driver_->Logits(0), expected);
  backend_->Wait(ticket);
}

INSTANTIATE_TEST_SUITE_P(Families, CudaHeldUp, testing::Values(0, 2, 4, 9, 13));

}  // namespace
}  // namespace loopspec
