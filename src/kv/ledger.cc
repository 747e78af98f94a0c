#include "kv/ledger.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace loopspec {

FreeList::FreeList(int count) : capacity_(count), taken_(static_cast<size_t>(count), false) {
  free_.reserve(static_cast<size_t>(count));
  for (int id = count - 1; id >= 0; --id) free_.push_back(id);  // the lowest first
}

int FreeList::Take() {
  if (free_.empty()) return -1;
  const int id = free_.back();
  free_.pop_back();
  taken_[static_cast<size_t>(id)] = true;
  return id;
}

void FreeList::Give(int id) {
  LOOPSPEC_CHECK(id >= 0 && id < capacity_ && taken_[static_cast<size_t>(id)]);
  taken_[static_cast<size_t>(id)] = false;
  free_.push_back(id);
}

int PagePool::Take() {
  const int page = free_.Take();
  if (page >= 0) references_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::Retain(int page) {
  LOOPSPEC_CHECK(page >= 0 && page < capacity() && references(page) > 0);
  const auto i = static_cast<size_t>(page);
  if (++references_[i] == 2 && kept_[i]) --kept_alone_;
}

void PagePool::Release(int page) {
  LOOPSPEC_CHECK(page >= 0 && page < capacity() && references(page) > 0);
  const auto i = static_cast<size_t>(page);
  if (--references_[i] == 0) free_.Give(page);
  if (references_[i] == 1 && kept_[i]) ++kept_alone_;
}

void PagePool::Keep(int page) {
  Retain(page);
  LOOPSPEC_CHECK(!kept_[static_cast<size_t>(page)]);
  kept_[static_cast<size_t>(page)] = true;
}

void PagePool::Drop(int page) {
  const auto i = static_cast<size_t>(page);
  LOOPSPEC_CHECK(kept_[i]);
  if (references_[i] == 1) --kept_alone_;
  kept_[i] = false;
  Release(page);
}

SequencePages::SequencePages(KvLedger& ledger, int64_t positions) : ledger_(&ledger) {
  if (!Grow(positions)) {
    Fail("{} positions need {} pages of key/value memory, {} are free", positions,
         Missing(positions), ledger.pages().available());
  }
}

SequencePages::~SequencePages() {
  Clear();
}

SequencePages::SequencePages(SequencePages&& other) noexcept
    : ledger_(other.ledger_),
      held_(std::exchange(other.held_, {})),
      window_(std::exchange(other.window_, {})) {}

SequencePages& SequencePages::operator=(SequencePages&& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(held_, other.held_);
  std::swap(window_, other.window_);
  return *this;
}

int SequencePages::Missing(int64_t positions) const {
  if (positions == 0) return 0;
  const int window = ledger_->window() - static_cast<int>(window_.size());
  return window + std::max(0, PagesFor(positions) - static_cast<int>(held_.size()));
}

bool SequencePages::Grow(int64_t positions) {
  if (Missing(positions) > ledger_->pages().available()) return false;
  const auto needed = static_cast<size_t>(PagesFor(positions));
  while (held_.size() < needed) held_.push_back(ledger_->pages().Take());
  if (positions == 0 || !window_.empty()) return true;
  for (int i = 0; i < ledger_->window(); ++i) window_.push_back(ledger_->pages().Take());
  return true;
}

void SequencePages::Share(int32_t page) {
  ledger_->pages().Retain(page);
  held_.push_back(page);
}

void SequencePages::ReplaceFront(SequencePages front) {
  LOOPSPEC_CHECK(front.held_.size() <= held_.size());
  std::swap_ranges(front.held_.begin(), front.held_.end(), held_.begin());
}

void SequencePages::Clear() {
  for (const int32_t page : held_) ledger_->pages().Release(page);
  for (const int32_t page : window_) ledger_->pages().Release(page);
  held_.clear();
  window_.clear();
}

}  // namespace loopspec
