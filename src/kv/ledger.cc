#include "kv/ledger.h"

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

SequencePages::SequencePages(KvLedger& ledger, int64_t positions) : ledger_(ledger) {
  const int needed = PagesFor(positions);
  if (needed > ledger.pages().available()) {
    Fail("{} positions need {} pages of key/value memory, {} are free", positions, needed,
         ledger.pages().available());
  }
  for (int i = 0; i < needed; ++i) held_.push_back(ledger.pages().Take());
}

SequencePages::~SequencePages() {
  for (const int32_t page : held_) ledger_.pages().Give(page);
}

}  // namespace loopspec
