#include "quantize/quantize_report.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/check.h"
#include "kv/ledger.h"

namespace loopspec {
namespace {

void Softmax(std::span<const float> logits, std::vector<double>& p) {
  const double top = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  p.resize(logits.size());
  for (size_t i = 0; i < p.size(); ++i)
    sum += p[i] = std::exp(static_cast<double>(logits[i]) - top);
  for (double& value : p) value /= sum;
}

size_t Likeliest(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Reads a text; sums up agreement by depth and keeps the last depth's distributions.
struct ReadText {
  std::vector<std::vector<float>> last;     // logits by position
  std::vector<std::vector<size_t>> choice;  // [readout][position]
};
ReadText Read(Backend& backend, const std::vector<int32_t>& text) {
  const size_t readouts = backend.options().readout_depths.size();
  ReadText result;
  result.last.resize(text.size());
  result.choice.assign(readouts, std::vector<size_t>(text.size()));
  KvLedger ledger(backend.pages(), 1, backend.window_pages());
  const SequencePages pages(ledger, static_cast<int64_t>(text.size()));
  backend.Score({PlanOf(pages), 0, text},
                [&](int32_t position, int32_t readout, std::span<const float> logits) {
                  const auto at = static_cast<size_t>(position);
                  result.choice[static_cast<size_t>(readout)][at] = Likeliest(logits);
                  if (static_cast<size_t>(readout) + 1 == readouts)
                    result.last[at].assign(logits.begin(), logits.end());
                });
  return result;
}

// The first depth whose likeliest token at `position` is the last one's.
int AcceptedAt(const ReadText& read, size_t position, std::span<const int> depths) {
  size_t d = 0;
  while (read.choice[d][position] != read.choice.back()[position]) ++d;
  return depths[d];
}

}  // namespace

QuantizeReport CompareModels(Backend& source, Backend& quantized,
                             const std::vector<std::vector<int32_t>>& texts,
                             const std::function<void(int64_t done, int64_t total)>& progress) {
  QuantizeReport report;
  const std::vector<int>& depths = source.options().readout_depths;
  LOOPSPEC_CHECK(depths == quantized.options().readout_depths);
  report.depths.assign(depths.begin(), depths.end() - 1);
  const size_t proposals = report.depths.size();
  report.source_accepted.resize(proposals);
  report.accepted.resize(proposals);
  int64_t total = 0, done = 0, next_tokens = 0;
  for (const auto& text : texts) total += static_cast<int64_t>(text.size());
  double source_loss = 0, loss = 0, source_depth = 0, depth = 0;
  std::vector<double> p, q;
  for (const auto& text : texts) {
    const ReadText a = Read(source, text), b = Read(quantized, text);
    for (size_t i = 0; i < text.size(); ++i) {
      Softmax(a.last[i], p);
      Softmax(b.last[i], q);
      double distance = 0;
      for (size_t v = 0; v < p.size(); ++v) distance += std::fabs(p[v] - q[v]) / 2;
      report.distance += distance;
      report.agreed += a.choice[proposals][i] == b.choice[proposals][i];
      for (size_t d = 0; d < proposals; ++d) {
        report.source_accepted[d] += a.choice[d][i] == a.choice[proposals][i];
        report.accepted[d] += b.choice[d][i] == b.choice[proposals][i];
      }
      source_depth += AcceptedAt(a, i, depths);
      depth += AcceptedAt(b, i, depths);
      if (i + 1 < text.size()) {
        const auto next = static_cast<size_t>(text[i + 1]);
        source_loss -= std::log(std::max(p[next], 1e-300));
        loss -= std::log(std::max(q[next], 1e-300));
        ++next_tokens;
      }
    }
    done += static_cast<int64_t>(text.size());
    if (progress) progress(done, total);
  }
  report.positions = total;
  const auto n = static_cast<double>(std::max<int64_t>(1, total));
  report.distance /= n;
  report.agreed /= n;
  for (double& share : report.source_accepted) share /= n;
  for (double& share : report.accepted) share /= n;
  report.source_gamma = depths.back() * n / std::max(1.0, source_depth);
  report.gamma = depths.back() * n / std::max(1.0, depth);
  const auto predicted = static_cast<double>(std::max<int64_t>(1, next_tokens));
  report.source_perplexity = std::exp(source_loss / predicted);
  report.perplexity = std::exp(loss / predicted);
  return report;
}

}  // namespace loopspec
