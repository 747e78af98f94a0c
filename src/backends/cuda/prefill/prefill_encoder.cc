#include "backends/cuda/prefill/prefill_encoder.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace loopspec::cuda {
namespace {

class Encoder {
 public:
  Encoder(const PromptMemory& memory, int rows, int vocab, bool int8_keys)
      : memory_(memory), chunk_rows_(rows), vocab_(vocab), int8_keys_(int8_keys) {}

  EncodedPrompt Encode(std::span<const PrefillPlan> parts) {
    for (const PrefillPlan& part : parts) {
      const auto length = static_cast<int>(part.tokens.size());
      const auto pages = static_cast<int>(out_.pages.size());
      out_.pages.insert(out_.pages.end(), part.sequence.pages,
                        part.sequence.pages + PagesFor(part.start + length));
      for (int done = 0; done < length;) {
        if (open_.rows == chunk_rows_) Close();
        const int count = std::min(length - done, chunk_rows_ - open_.rows);
        Add(part, done, count, pages);
        done += count;
      }
    }
    Close();
    if (int8_keys_) {
      out_.numbers.resize(out_.pages.size());
      std::iota(out_.numbers.begin(), out_.numbers.end(), 0);
    }
    return std::move(out_);
  }

 private:
  // `count` positions of the part, from its token `done` on, into the open chunk.
  void Add(const PrefillPlan& part, int done, int count, int pages) {
    const int start = part.start + done, end = start + count;
    const int64_t page_elements =
        int64_t{memory_.planes} * memory_.kv_heads * 2 * kPageSize * memory_.head_stride;
    for (int position = start; position < end; ++position) {
      const int32_t token = part.tokens[static_cast<size_t>(position - part.start)];
      LOOPSPEC_CHECK(token >= 0 && token < vocab_);
      out_.rows.push_back({PageOf(pages, position) * page_elements +
                               int64_t{position % kPageSize} * memory_.head_stride,
                           position, token});
    }
    for (int tile = start / kAttentionTile; tile * kAttentionTile < end; ++tile) {
      const int base = tile * kAttentionTile;
      out_.tiles.push_back({tile, open_.rows + base - start, std::max(start, base) - base,
                            std::min(end, base + kAttentionTile) - base, pages, PagesFor(end)});
      ++open_.tiles;
    }
    if (end % kPageSize != 0) {
      out_.tails.push_back({PageOf(pages, end), end % kPageSize});
      ++open_.tails;
    }
    for (int at = 0; int8_keys_ && at < start; at += kPageSize) {
      out_.stored.push_back({PageOf(pages, at), std::min(kPageSize, start - at)});
      ++open_.stored_pages;
    }
    open_.rows += count;
  }

  // The page of PromptMemory that holds a position of the sequence whose list begins at `pages`.
  int PageOf(int pages, int position) const {
    const int at = pages + position / kPageSize;
    const int page = out_.pages[static_cast<size_t>(at)];
    LOOPSPEC_CHECK(page >= 0 && page < memory_.page_count);
    return int8_keys_ ? at : page;
  }

  void Close() {
    if (open_.rows == 0) return;
    std::stable_sort(
        out_.tiles.begin() + open_.tile, out_.tiles.end(),
        [](const AttentionTile& a, const AttentionTile& b) { return a.tile > b.tile; });
    out_.chunks.push_back(open_);
    open_ = {};
    open_.row = static_cast<int>(out_.rows.size());
    open_.tile = static_cast<int>(out_.tiles.size());
    open_.tail = static_cast<int>(out_.tails.size());
    open_.stored = static_cast<int>(out_.stored.size());
  }

  PromptMemory memory_;
  int chunk_rows_, vocab_;
  bool int8_keys_;
  PromptChunk open_;
  EncodedPrompt out_;
};

}  // namespace

EncodedPrompt EncodePrompt(std::span<const PrefillPlan> parts, const PromptMemory& memory, int rows,
                           int vocab, bool int8_keys) {
  return Encoder(memory, rows, vocab, int8_keys).Encode(parts);
}

}  // namespace loopspec::cuda
