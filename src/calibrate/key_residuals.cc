#include "calibrate/key_residuals.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kv/planes.h"

namespace loopspec {
namespace {

constexpr double kTolerances[] = {1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48};

double Square(const float* x, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

double SquaredDistance(const float* x, const float* y, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    const double off = static_cast<double>(x[i]) - static_cast<double>(y[i]);
    sum += off * off;
  }
  return sum;
}

double Ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

}  // namespace

std::vector<KeyForm> AllKeyForms() {
  std::vector<KeyForm> forms = {kOwnKeys};
  for (int bits = kMostResidualBits; bits >= kFewestResidualBits; --bits)
    forms.push_back(ResidualKeys(bits));
  forms.push_back(kLastKeys);
  return forms;
}

KeyResiduals::KeyResiduals(const ModelSpec& spec)
    : spec_(spec), depths_(spec.recurrence - 1), layers_(spec.core_calls()) {
  LOOPSPEC_CHECK(depths_ > 0);
  sums_.resize(static_cast<size_t>(depths_ * layers_));
  errors_.assign(static_cast<size_t>(depths_), std::vector<double>(AllKeyForms().size()));
  for (std::vector<float>* head : {&own_, &coded_, &last_})
    head->resize(static_cast<size_t>(spec.head_dim));
}

void KeyResiduals::Add(Backend& backend, std::span<const int32_t> pages, int64_t positions) {
  for (int64_t position = 0; position < positions; ++position) {
    for (int layer = 0; layer < layers_; ++layer) {
      AddPosition(backend, pages[static_cast<size_t>(position / kPageSize)],
                  static_cast<int>(position % kPageSize), layer);
    }
  }
  positions_ += positions;
}

void KeyResiduals::AddPosition(Backend& backend, int32_t page, int offset, int layer) {
  const PlaneMap planes(spec_, static_cast<int>(backend.options().readout_depths.size()));
  const std::vector<KeyForm> forms = AllKeyForms();
  const int d = spec_.head_dim;
  std::vector<double> errors(forms.size());
  for (int depth = 1; depth <= depths_; ++depth) {
    Norms& sums = sums_[static_cast<size_t>((depth - 1) * layers_ + layer)];
    for (const bool values : {false, true}) {
      // Over all heads together.
      double norm = 0, distance = 0;
      std::fill(errors.begin(), errors.end(), 0.0);
      for (int head = 0; head < spec_.kv_heads; ++head) {
        const auto at = [&](int of_depth) {
          const Backend::FloatKeys keys = backend.KeysOf(page, planes.Core(layer, of_depth), head);
          return (values ? keys.values : keys.keys).data() + int64_t{offset} * d;
        };
        const float *exact = at(depth), *exact_last = at(spec_.recurrence);
        norm += Square(exact, d);
        distance += SquaredDistance(exact, exact_last, d);
        std::copy_n(exact, d, own_.data());
        std::copy_n(exact_last, d, last_.data());
        RoundToInt8(own_.data(), d);
        RoundToInt8(last_.data(), d);
        for (size_t f = 0; f < forms.size(); ++f) {
          coded_ = own_;
          RoundToForm(forms[f], last_.data(), coded_.data(), d);
          errors[f] += SquaredDistance(exact, coded_.data(), d);
        }
      }
      (values ? sums.values : sums.keys) += std::sqrt(Ratio(distance, norm));
      for (size_t f = 0; f < forms.size(); ++f)
        errors_[static_cast<size_t>(depth - 1)][f] += Ratio(errors[f], norm);
    }
  }
}

const KeyResiduals::Norms& KeyResiduals::At(int depth, int layer) const {
  LOOPSPEC_CHECK(depth >= 1 && depth <= depths_ && layer >= 0 && layer < layers_);
  return sums_[static_cast<size_t>((depth - 1) * layers_ + layer)];
}

double KeyResiduals::Keys(int depth, int layer) const {
  return At(depth, layer).keys / static_cast<double>(std::max<int64_t>(1, positions_));
}

double KeyResiduals::Values(int depth, int layer) const {
  return At(depth, layer).values / static_cast<double>(std::max<int64_t>(1, positions_));
}

double KeyResiduals::Keys(int depth) const {
  double sum = 0;
  for (int layer = 0; layer < layers_; ++layer) sum += Keys(depth, layer);
  return sum / layers_;
}

double KeyResiduals::Values(int depth) const {
  double sum = 0;
  for (int layer = 0; layer < layers_; ++layer) sum += Values(depth, layer);
  return sum / layers_;
}

double KeyResiduals::Error(int depth, KeyForm form) const {
  LOOPSPEC_CHECK(depth >= 1 && depth <= depths_);
  const std::vector<KeyForm> forms = AllKeyForms();
  const auto f = static_cast<size_t>(std::find(forms.begin(), forms.end(), form) - forms.begin());
  const auto count = 2.0 * layers_ * static_cast<double>(std::max<int64_t>(1, positions_));
  return std::sqrt(errors_[static_cast<size_t>(depth - 1)].at(f) / count);
}

std::vector<KeyPlan> PlansFor(const KeyResiduals& residuals, const ModelSpec& spec, int readouts) {
  std::vector<KeyPlan> plans;
  for (const bool map_alone : {true, false}) {
    for (const double tolerance : kTolerances) {
      std::vector<KeyForm> forms;
      for (int depth = 1; depth <= residuals.depths(); ++depth) {
        KeyForm best = kOwnKeys;
        for (const KeyForm form : AllKeyForms()) {
          if (map_alone && form.kind == KeyForm::Kind::kResidual) continue;
          const bool near =
              residuals.Error(depth, form) <= tolerance * residuals.Error(depth, kOwnKeys);
          if (near && KeyBytes(form, spec.head_dim) < KeyBytes(best, spec.head_dim)) best = form;
        }
        forms.push_back(best);
      }
      const KeyPlan plan(std::move(forms));
      const bool int8 = plan.text() == "int8";
      if (!int8 && std::find(plans.begin(), plans.end(), plan) == plans.end())
        plans.push_back(plan);
    }
  }
  std::stable_sort(plans.begin(), plans.end(), [&](const KeyPlan& a, const KeyPlan& b) {
    return a.BytesPerPosition(spec, readouts) < b.BytesPerPosition(spec, readouts);
  });
  return plans;
}

}  // namespace loopspec
