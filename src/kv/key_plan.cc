#include "kv/key_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "base/check.h"
#include "base/error.h"
#include "kv/ledger.h"
#include "kv/planes.h"
#include "tensor/dtype.h"

namespace loopspec {
namespace {

std::optional<int> ParseNumber(std::string_view text) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || at != end) return std::nullopt;
  return number;
}

std::optional<KeyForm> ParseForm(std::string_view text) {
  if (text == "int8") return kOwnKeys;
  if (text == "last") return kLastKeys;
  if (!text.starts_with('r')) return std::nullopt;
  const std::optional<int> bits = ParseNumber(text.substr(1));
  if (!bits || *bits < kFewestResidualBits || *bits > kMostResidualBits) return std::nullopt;
  return ResidualKeys(*bits);
}

std::string FormText(KeyForm form) {
  switch (form.kind) {
    case KeyForm::Kind::kInt8:
      return "int8";
    case KeyForm::Kind::kResidual:
      return fmt::format("r{}", form.bits);
    case KeyForm::Kind::kLast:
      break;
  }
  return "last";
}

// The largest magnitude; infinity where one is no number.
float Largest(const float* x, int n) {
  float largest = 0;
  for (int i = 0; i < n; ++i) {
    const float size = std::fabs(x[i]);
    if (!std::isfinite(size)) return std::numeric_limits<float>::infinity();
    largest = std::max(largest, size);
  }
  return largest;
}

}  // namespace

KeyPlan::KeyPlan(std::vector<KeyForm> forms) : forms_(std::move(forms)) {
  LOOPSPEC_CHECK(!forms_.empty());
}

KeyPlan KeyPlan::Parse(const std::string& text, int recurrence) {
  const auto fail = [&](const std::string& why) {
    Fail(
        "plan of keys {}: {}, expected forms of the depths from 1 to {} with commas between them, "
        "each int8, r2 to r8 or last, with *N behind it for N depths, as in int8*2,r4,last",
        text, why, recurrence - 1);
  };
  LOOPSPEC_CHECK(recurrence >= 2);
  const auto depths = static_cast<size_t>(recurrence - 1);
  std::vector<KeyForm> forms;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = std::string_view(text).substr(begin, end - begin);
    const size_t star = std::min(part.find('*'), part.size());
    const std::optional<KeyForm> form = ParseForm(part.substr(0, star));
    if (!form) fail(fmt::format("{} is no form", part.empty() ? "nothing" : part));
    int count = 1;
    if (star < part.size()) {
      const std::optional<int> times = ParseNumber(part.substr(star + 1));
      if (!times || *times < 1) fail(fmt::format("{} is no count", part.substr(star)));
      count = *times;
    }
    if (static_cast<size_t>(count) > depths - forms.size())
      fail(fmt::format("it has forms for more than {} depths", depths));
    forms.insert(forms.end(), static_cast<size_t>(count), *form);
    begin = end + 1;
  }
  forms.resize(depths, forms.back());
  return KeyPlan(std::move(forms));
}

KeyForm KeyPlan::At(int depth) const {
  LOOPSPEC_CHECK(depth >= 1 && depth <= recurrence());
  return depth == recurrence() ? kOwnKeys : forms_[static_cast<size_t>(depth) - 1];
}

bool KeyPlan::HasResiduals() const {
  return std::ranges::any_of(forms_,
                             [](KeyForm form) { return form.kind == KeyForm::Kind::kResidual; });
}

std::string KeyPlan::text() const {
  std::string text;
  for (size_t begin = 0; begin < forms_.size();) {
    size_t end = begin;
    while (end < forms_.size() && forms_[end] == forms_[begin]) ++end;
    if (!text.empty()) text += ',';
    text += FormText(forms_[begin]);
    if (end < forms_.size() && end - begin > 1) text += fmt::format("*{}", end - begin);
    begin = end;
  }
  return text;
}

int64_t KeyPlan::BytesPerPosition(const ModelSpec& spec, int readouts) const {
  const PlaneMap planes(spec, readouts);
  const int own = planes.count() - (recurrence() - 1) * spec.core_calls();
  int64_t bytes = own * KeyBytes(kOwnKeys, spec.head_dim);
  for (const KeyForm form : forms_) bytes += spec.core_calls() * KeyBytes(form, spec.head_dim);
  return bytes * 2 * spec.kv_heads;
}

int64_t KeyBytes(KeyForm form, int head_dim) {
  switch (form.kind) {
    case KeyForm::Kind::kInt8:
      return head_dim + 4;
    case KeyForm::Kind::kResidual:
      return (int64_t{head_dim} * form.bits + 7) / 8 + 2;
    case KeyForm::Kind::kLast:
      break;
  }
  return 0;
}

int64_t ResidualPageBytes(int bits, int head_dim) {
  return 2 * kPageSize * (int64_t{head_dim} * bits + 16) / 8;
}

void RoundToInt8(float* x, int head_dim) {
  const float largest = Largest(x, head_dim);
  if (std::isinf(largest) || largest < 1e-30f) {
    std::fill_n(x, head_dim, std::isinf(largest) ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
    return;
  }
  const float inverse = 127.0f / largest, scale = largest / 127.0f;
  for (int i = 0; i < head_dim; ++i) x[i] = std::nearbyint(x[i] * inverse) * scale;
}

float RoundResidual(int bits, const float* last, const float* x, int head_dim, int8_t* levels) {
  int32_t top = 0;
  for (int i = 0; i < head_dim; ++i)
    top = std::max(top, std::bit_cast<int32_t>(x[i] - last[i]) & 0x7FFFFFFF);
  const int32_t most = (1 << (bits - 1)) - 1;
  const float scale =
      BF16ToFloat(FloatToBF16(std::bit_cast<float>(top) / static_cast<float>(most)));
  if (!std::isfinite(scale) || scale == 0.0f) {
    std::fill_n(levels, head_dim, int8_t{0});
    return scale == 0.0f ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  for (int i = 0; i < head_dim; ++i) {
    // Adding 1.5 * 2^23 rounds to the nearest integer, halves to the even one, and leaves it in the
    // low bits.
    const float level = (x[i] - last[i]) / scale + 12582912.0f;
    levels[i] =
        static_cast<int8_t>(std::clamp(std::bit_cast<int32_t>(level) - 0x4B400000, -most, most));
  }
  return scale;
}

void RoundToForm(KeyForm form, const float* last, float* x, int head_dim) {
  if (form.kind == KeyForm::Kind::kInt8) return;
  if (form.kind == KeyForm::Kind::kLast) {
    std::copy_n(last, head_dim, x);
    return;
  }
  std::vector<int8_t> levels(static_cast<size_t>(head_dim));
  const float scale = RoundResidual(form.bits, last, x, head_dim, levels.data());
  for (int i = 0; i < head_dim; ++i)
    x[i] = last[i] + static_cast<float>(levels[static_cast<size_t>(i)]) * scale;
}

}  // namespace loopspec
