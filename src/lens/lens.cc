#include "lens/lens.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "kv/ledger.h"
#include "lens/npz.h"
#include "sampling/filters.h"

namespace loopspec {
namespace {

constexpr size_t kBufferFloats = size_t{1} << 26;  // logits of all depths that are kept at once
constexpr size_t kMostPositions = 64;

// Logits become log-probabilities in place.
void LogSoftmax(std::span<float> logits) {
  const double sum = LogSumExp(logits);
  for (float& value : logits) value = static_cast<float>(static_cast<double>(value) - sum);
}

double Norm(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

double Cosine(std::span<const float> x, std::span<const float> y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i)
    sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  const double norms = Norm(x) * Norm(y);
  return norms > 0 ? sum / norms : 0.0;
}

// What log-probabilities say, beside those of the last depth.
void ReadDistribution(std::span<const float> now, std::span<const float> last, int top,
                      LensCell& cell) {
  constexpr double kBits = 1.4426950408889634;  // of a nat
  double entropy = 0, divergence = 0;
  for (size_t v = 0; v < now.size(); ++v) {
    const double q = now[v], p = last[v];
    entropy -= std::exp(q) * q;
    divergence += std::exp(p) * (p - q);
  }
  std::vector<int32_t> order(now.size());
  std::iota(order.begin(), order.end(), 0);
  const auto shown = static_cast<int64_t>(std::min(now.size(), static_cast<size_t>(top)));
  const auto listed =
      std::max<int64_t>(shown, std::min<int64_t>(2, static_cast<int64_t>(now.size())));
  std::partial_sort(order.begin(), order.begin() + listed, order.end(), [&](int32_t a, int32_t b) {
    const float x = now[static_cast<size_t>(a)], y = now[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  const auto probability = [&](int64_t i) {
    return i < listed ? std::exp(now[static_cast<size_t>(order[static_cast<size_t>(i)])]) : 0.0f;
  };
  cell.tokens.assign(order.begin(), order.begin() + shown);
  for (int64_t i = 0; i < shown; ++i) cell.probabilities.push_back(probability(i));
  cell.entropy = static_cast<float>(kBits * entropy);
  cell.margin = probability(0) - probability(1);
  cell.divergence = static_cast<float>(kBits * std::max(divergence, 0.0));
}

}  // namespace

size_t Lens::Settled(size_t position) const {
  size_t depth = depths.size() - 1;
  const int32_t choice = At(position, depth).tokens[0];
  while (depth > 0 && At(position, depth - 1).tokens[0] == choice) --depth;
  return depth;
}

Lens LookThrough(Backend& backend, std::span<const int32_t> tokens, int top, const ExitGate* gate,
                 const std::function<void()>& before_part) {
  Lens lens;
  lens.kv_type = NameOfKvType(backend.options());
  lens.depths = backend.options().readout_depths;
  lens.tokens.assign(tokens.begin(), tokens.end());
  lens.top = std::min(top, backend.spec().vocab);
  const auto vocab = static_cast<size_t>(backend.spec().vocab);
  const auto hidden = static_cast<size_t>(backend.spec().hidden);
  const size_t depths = lens.depths.size();
  const size_t most = std::clamp<size_t>(kBufferFloats / (depths * vocab), 1, kMostPositions);
  std::vector<float> logits(std::min(most, tokens.size()) * depths * vocab);
  std::vector<float> states(std::min(most, tokens.size()) * depths * hidden);
  KvLedger ledger(backend.pages(), 1, backend.window_pages());
  const SequencePages pages(ledger, static_cast<int64_t>(tokens.size()));
  for (size_t at = 0; at < tokens.size(); at += most) {
    before_part();
    const size_t count = std::min(most, tokens.size() - at);
    const auto place = [&](int32_t position, int32_t readout) {
      return (static_cast<size_t>(position) - at) * depths + static_cast<size_t>(readout);
    };
    backend.ScoreStates(
        {PlanOf(pages), static_cast<int32_t>(at), tokens.subspan(at, count)},
        [&](int32_t position, int32_t readout, std::span<const float> row) {
          if (!AllFinite(row)) {
            Fail(
                "the logits at position {}, depth {} hold NaN or infinity: are the weights "
                "damaged?",
                position, lens.depths[static_cast<size_t>(readout)]);
          }
          std::copy(row.begin(), row.end(),
                    logits.begin() + static_cast<int64_t>(place(position, readout) * vocab));
        },
        [&](int32_t position, int32_t readout, std::span<const float> row) {
          std::copy(row.begin(), row.end(),
                    states.begin() + static_cast<int64_t>(place(position, readout) * hidden));
        });
    for (size_t i = 0; i < count; ++i) {
      const auto row = [&](size_t d) {
        return std::span(logits).subspan((i * depths + d) * vocab, vocab);
      };
      const auto state = [&](size_t d) {
        return std::span<const float>(states).subspan((i * depths + d) * hidden, hidden);
      };
      for (size_t d = 0; d < depths; ++d) LogSoftmax(row(d));
      for (size_t d = 0; d < depths; ++d) {
        LensCell cell;
        ReadDistribution(row(d), row(depths - 1), lens.top, cell);
        if (at + i + 1 < tokens.size())
          cell.next = std::exp(row(d)[static_cast<size_t>(tokens[at + i + 1])]);
        cell.norm = static_cast<float>(Norm(state(d)));
        cell.cosine = static_cast<float>(Cosine(state(d), state(depths - 1)));
        if (gate != nullptr) cell.exit = static_cast<float>(gate->Lambda(state(d)));
        lens.cells.push_back(std::move(cell));
      }
    }
  }
  return lens;
}

OrderedJson LensJson(const Lens& lens, const TokenText& text_of) {
  OrderedJson json = {
      {"kv_type", lens.kv_type}, {"depths", lens.depths}, {"positions", OrderedJson::array()}};
  for (size_t t = 0; t < lens.tokens.size(); ++t) {
    OrderedJson position = {{"token", lens.tokens[t]},
                            {"text", text_of(lens.tokens[t])},
                            {"settled", lens.depths[lens.Settled(t)]},
                            {"depths", OrderedJson::array()}};
    for (size_t d = 0; d < lens.depths.size(); ++d) {
      const LensCell& cell = lens.At(t, d);
      OrderedJson top = OrderedJson::array();
      for (size_t i = 0; i < cell.tokens.size(); ++i) {
        top.push_back({{"token", cell.tokens[i]},
                       {"text", text_of(cell.tokens[i])},
                       {"probability", cell.probabilities[i]}});
      }
      OrderedJson entry = {{"depth", lens.depths[d]},      {"top", std::move(top)},
                           {"entropy_bits", cell.entropy}, {"margin", cell.margin},
                           {"kl_bits", cell.divergence},   {"norm", cell.norm},
                           {"cosine", cell.cosine}};
      if (t + 1 < lens.tokens.size()) entry["next_probability"] = cell.next;
      if (cell.exit >= 0) entry["exit_lambda"] = cell.exit;
      position["depths"].push_back(std::move(entry));
    }
    json["positions"].push_back(std::move(position));
  }
  return json;
}

void WriteLensNpz(const Lens& lens, const std::filesystem::path& path) {
  const auto positions = static_cast<int64_t>(lens.tokens.size());
  const auto depths = static_cast<int64_t>(lens.depths.size());
  std::vector<int32_t> tokens, settled;
  std::vector<float> probabilities;
  for (const LensCell& cell : lens.cells) {
    tokens.insert(tokens.end(), cell.tokens.begin(), cell.tokens.end());
    probabilities.insert(probabilities.end(), cell.probabilities.begin(), cell.probabilities.end());
  }
  for (size_t t = 0; t < lens.tokens.size(); ++t) settled.push_back(lens.depths[lens.Settled(t)]);
  std::vector<NpyArray> arrays;
  arrays.push_back(IntArray("tokens", {positions}, lens.tokens));
  arrays.push_back(IntArray("depths", {depths}, lens.depths));
  arrays.push_back(IntArray("settled", {positions}, settled));
  arrays.push_back(IntArray("top_tokens", {positions, depths, lens.top}, tokens));
  arrays.push_back(FloatArray("top_probabilities", {positions, depths, lens.top}, probabilities));
  const auto add = [&](const char* name, float LensCell::*field) {
    std::vector<float> values;
    for (const LensCell& cell : lens.cells) values.push_back(cell.*field);
    arrays.push_back(FloatArray(name, {positions, depths}, values));
  };
  add("entropy_bits", &LensCell::entropy);
  add("margin", &LensCell::margin);
  add("kl_bits", &LensCell::divergence);
  add("next_probability", &LensCell::next);
  add("norm", &LensCell::norm);
  add("cosine", &LensCell::cosine);
  if (!lens.cells.empty() && lens.cells[0].exit >= 0) add("exit_lambda", &LensCell::exit);
  WriteNpz(path, arrays);
}

}  // namespace loopspec
