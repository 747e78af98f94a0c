#include "backends/cuda/prefill/prefill_encoder.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace loopspec::cuda {
namespace {

class Encoder {
 public:
  Encoder(const PromptMemory& memory, int rows, int vocab, const KeptPlanes* kept)
      : memory_(memory), chunk_rows_(rows), vocab_(vocab), kept_(kept) {
    if (by_plan()) windows_.resize(static_cast<size_t>(kept->pages_per_turn()));
  }

  EncodedPrompt Encode(std::span<const PrefillPlan> parts) {
    for (const PrefillPlan& part : parts) {
      const auto length = static_cast<int>(part.tokens.size());
      const int pages = AddPages(part, 0, PagesFor(part.start + length));
      for (int done = 0; done < length;) {
        if (open_.rows == chunk_rows_ || (by_plan() && !MayJoin(part))) Close();
        int count = std::min(length - done, chunk_rows_ - open_.rows);
        if (by_plan())
          count = std::min(count, EndOfSecondSpan(part.start + done) - part.start - done);
        Add(part, done, count, pages);
        done += count;
      }
    }
    Close();
    if (kept_ != nullptr) NumberPages();
    return std::move(out_);
  }

 private:
  bool by_plan() const { return kept_ != nullptr && kept_->has_window(); }
  int EndOfSecondSpan(int position) const { return (position / kept_->span() + 2) * kept_->span(); }

  // Pages [first, end) of the part's sequence, to the list. Returns where they begin in it.
  int AddPages(const PrefillPlan& part, int first, int end) {
    const auto at = static_cast<int>(out_.pages.size());
    out_.pages.insert(out_.pages.end(), part.sequence.pages + first, part.sequence.pages + end);
    if (!by_plan()) return at;
    LOOPSPEC_CHECK(part.sequence.window != nullptr);
    for (int turn = 0; turn < kept_->pages_per_turn(); ++turn) {
      for (int i = first; i < end; ++i)
        windows_[static_cast<size_t>(turn)].push_back(
            part.sequence.window[kept_->WindowPage(i, turn * kept_->slots())]);
    }
    return at;
  }

  // By a plan of keys: what a chunk has of a sequence is of two spans, and texts of other loops
  // have their planes elsewhere.
  bool MayJoin(const PrefillPlan& part) const {
    return open_.rows == 0 || (open_.recurrences == part.recurrences &&
                               std::ranges::count(of_chunk_, part.sequence.pages) == 0);
  }

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
    if (by_plan()) {
      AddSpans(part, start, end, pages);
    } else {
      AddTiles(start, start, end, pages);
      if (kept_ != nullptr) AddStored(0, start, pages);
    }
    if (end % kPageSize != 0) {
      out_.tails.push_back({PageOf(pages, end), end % kPageSize});
      ++open_.tails;
    }
    const bool all = part.recurrences == 0 || (open_.rows > 0 && open_.recurrences == 0);
    open_.recurrences = all ? 0 : std::max(open_.recurrences, part.recurrences);
    open_.rows += count;
    of_chunk_.push_back(part.sequence.pages);
  }

  // The tiles of the queries at [start, end), of which the chunk's rows of this sequence begin at
  // `first`; their pages are listed from `pages` on.
  void AddTiles(int first, int start, int end, int pages) {
    for (int tile = start / kAttentionTile; tile * kAttentionTile < end; ++tile) {
      const int base = tile * kAttentionTile;
      out_.tiles.push_back({tile, open_.rows + base - first, std::max(start, base) - base,
                            std::min(end, base + kAttentionTile) - base, pages, PagesFor(end)});
      ++open_.tiles;
    }
  }

  // Positions [begin, end) of a sequence that were stored before the chunk.
  void AddStored(int begin, int end, int pages) {
    for (int at = begin; at < end; at += kPageSize) {
      out_.stored.push_back({PageOf(pages, at), std::min(kPageSize, end - at)});
      ++open_.stored_pages;
    }
  }
  void AddFar(int begin, int end, int pages) {
    for (int page = begin; page < end; ++page) {
      out_.far.push_back({pages + page, kPageSize});
      ++open_.far_pages;
    }
  }

  // The queries of the chunk's first span and of its second differ in what lies before their
  // windows: the second ones read the span before the first by the plan, from pages of PromptMemory
  // of its own.
  void AddSpans(const PrefillPlan& part, int start, int end, int pages) {
    const int border = EndOfSecondSpan(start) - kept_->span();
    const auto far = static_cast<int>(kept_->FarPages(start));
    AddFar(0, far, pages);
    AddStored(far * kPageSize, start, pages);
    AddTiles(start, start, std::min(end, border), pages);
    if (end <= border) return;
    const auto far_of_second = static_cast<int>(kept_->FarPages(border));
    const int copies = AddPages(part, far, far_of_second);
    AddFar(far, far_of_second, copies - far);
    const auto list = static_cast<int>(second_lists_.size());
    for (int page = 0; page < PagesFor(end); ++page)
      second_lists_.push_back((page >= far && page < far_of_second ? copies - far : pages) + page);
    AddTiles(start, border, end, -1 - list);
  }

  // The page of PromptMemory that holds a position of the sequence whose list begins at `pages`.
  int PageOf(int pages, int position) const {
    const int at = pages + position / kPageSize;
    const int page = out_.pages[static_cast<size_t>(at)];
    LOOPSPEC_CHECK(page >= 0 && page < memory_.page_count);
    return kept_ != nullptr ? at : page;
  }

  // Pages of PromptMemory are those of the list, in order; after them the lists of second spans.
  void NumberPages() {
    const auto count = static_cast<int32_t>(out_.pages.size());
    out_.numbers.resize(out_.pages.size());
    std::iota(out_.numbers.begin(), out_.numbers.end(), 0);
    out_.numbers.insert(out_.numbers.end(), second_lists_.begin(), second_lists_.end());
    for (AttentionTile& tile : out_.tiles) {
      if (tile.pages < 0) tile.pages = count - 1 - tile.pages;
    }
    for (const std::vector<int32_t>& turn : windows_)
      out_.windows.insert(out_.windows.end(), turn.begin(), turn.end());
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
    open_.far = static_cast<int>(out_.far.size());
    of_chunk_.clear();
  }

  PromptMemory memory_;
  int chunk_rows_, vocab_;
  const KeptPlanes* kept_;  // null without int8 keys
  PromptChunk open_;
  EncodedPrompt out_;
  std::vector<const int32_t*> of_chunk_;       // pages of the sequences in the open chunk
  std::vector<std::vector<int32_t>> windows_;  // [turn][page of `pages`]
  std::vector<int32_t> second_lists_;
};

}  // namespace

EncodedPrompt EncodePrompt(std::span<const PrefillPlan> parts, const PromptMemory& memory, int rows,
                           int vocab, const KeptPlanes* kept) {
  return Encoder(memory, rows, vocab, kept).Encode(parts);
}

}  // namespace loopspec::cuda
