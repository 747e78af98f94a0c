#include "backends/cuda/sampling/sampling_kernel.h"

#include "backends/cuda/sampling/cta_team.cuh"
#include "base/philox.h"
#include "sampling/filters.h"

// The team's functions run on the device alone; the shared sampling code that calls them is for
// both sides.
#pragma nv_diag_suppress 20014

namespace loopspec::cuda {
namespace {

constexpr int kBins = 2048;
constexpr double kMassUnit =
    0x1.0p-42;  // masses are added as whole multiples of this: the order cannot matter

struct Histogram {
  unsigned counts[kBins];
  unsigned long long masses[kBins];
};

// Floats as integers in the same order.
__device__ uint32_t OrderedBits(float value) {
  const uint32_t bits = __float_as_uint(value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// e^x for x <= 0, with the cut that the CPU's weights have (sampling/exp.h): 0 where it would be no
// normal float.
__device__ float TokenWeight(float x) {
  return x < -87.0f ? 0.0f : expf(x);
}

__device__ unsigned long long Mass(float weight) {
  return static_cast<unsigned long long>(static_cast<double>(weight) / kMassUnit);
}

// Where a ranking is cut: everything above `key` is kept, and of the tokens at `key` those with id
// up to `last_id`.
struct Cut {
  uint32_t key = 0;
  uint32_t last_id = 0xFFFFFFFFu;

  __device__ bool Keeps(uint32_t bits, uint32_t id) const {
    return bits > key || (bits == key && id <= last_id);
  }
};

class Ranking {
 public:
  __device__ Ranking(const CtaTeam& team, Histogram* histogram, const float* logits, int vocab,
                     float top, float inverse, float floor)
      : team_(team),
        histogram_(histogram),
        logits_(logits),
        vocab_(vocab),
        top_(top),
        inverse_(inverse),
        floor_(floor) {}

  // Cuts after `count` tokens, or, with count 0, as soon as their mass reaches `mass` (one token at
  // least).
  __device__ Cut Find(unsigned count, unsigned long long mass) {
    by_count_ = count > 0;
    count_left_ = count;
    mass_left_ = mass;
    Cut cut;
    // The key's bits in three turns, highest bins first.
    uint32_t prefix = 0;
    for (int turn = 0; turn < 3; ++turn) {
      const int shift = turn == 0 ? 21 : turn == 1 ? 10 : 0;
      const int width = turn == 2 ? 10 : 11;
      const int above = shift + width;
      Fill([&](uint32_t bits, uint32_t) { return above == 32 || bits >> above == prefix; },
           [&](uint32_t bits, uint32_t) {
             return static_cast<int>(bits >> shift & ((1u << width) - 1));
           });
      const int bin = Select(1 << width, true);
      if (bin < 0) {
        cut.key = 0;
        return cut;
      }
      prefix = prefix << width | static_cast<uint32_t>(bin);
    }
    cut.key = prefix;
    // Among equals, the lower ids.
    uint32_t high = 0;
    Fill([&](uint32_t bits, uint32_t) { return bits == cut.key; },
         [&](uint32_t, uint32_t id) { return static_cast<int>(id >> 11); });
    const int high_bin = Select(kBins, false);
    if (high_bin < 0) return cut;
    high = static_cast<uint32_t>(high_bin);
    Fill([&](uint32_t bits, uint32_t id) { return bits == cut.key && id >> 11 == high; },
         [&](uint32_t, uint32_t id) { return static_cast<int>(id & 2047u); });
    const int low_bin = Select(kBins, false);
    if (low_bin >= 0) cut.last_id = high << 11 | static_cast<uint32_t>(low_bin);
    return cut;
  }

  // Mass of what a cut keeps.
  __device__ unsigned long long MassOf(const Cut& cut) {
    __syncthreads();
    if (threadIdx.x == 0) histogram_->masses[0] = 0;
    __syncthreads();
    unsigned long long part = 0;
    for (int v = threadIdx.x; v < vocab_; v += kTeamThreads) {
      if (cut.Keeps(OrderedBits(logits_[v]), static_cast<uint32_t>(v))) part += Mass(Weight(v));
    }
    for (int mask = 1; mask < 32; mask <<= 1) part += __shfl_xor_sync(0xFFFFFFFFu, part, mask);
    if (threadIdx.x % 32 == 0) atomicAdd(&histogram_->masses[0], part);
    __syncthreads();
    return histogram_->masses[0];
  }

  __device__ float Weight(int v) const { return TokenWeight((logits_[v] - top_) * inverse_); }

 private:
  template <typename Match, typename Bin>
  __device__ void Fill(Match match, Bin bin_of) {
    __syncthreads();
    for (int i = threadIdx.x; i < kBins; i += kTeamThreads) {
      histogram_->counts[i] = 0;
      histogram_->masses[i] = 0;
    }
    __syncthreads();
    for (int base = 0; base < vocab_; base += kTeamThreads) {
      const int v = base + static_cast<int>(threadIdx.x);
      bool wanted = v < vocab_ && logits_[v] >= floor_;
      uint32_t bits = 0;
      if (wanted) {
        bits = OrderedBits(logits_[v]);
        wanted = match(bits, static_cast<uint32_t>(v));
      }
      const unsigned active = __ballot_sync(0xFFFFFFFFu, wanted);
      if (!wanted) continue;
      // Neighbours that fall into one bin add up first.
      const int bin = bin_of(bits, static_cast<uint32_t>(v));
      const unsigned peers = __match_any_sync(active, bin);
      const unsigned long long mass = Mass(Weight(v));
      const unsigned low = __reduce_add_sync(peers, static_cast<unsigned>(mass & 0x3FFFFFu));
      const unsigned high = __reduce_add_sync(peers, static_cast<unsigned>(mass >> 22));
      if (threadIdx.x % 32 == static_cast<unsigned>(__ffs(static_cast<int>(peers)) - 1)) {
        atomicAdd(&histogram_->counts[bin], static_cast<unsigned>(__popc(peers)));
        atomicAdd(&histogram_->masses[bin], (static_cast<unsigned long long>(high) << 22) + low);
      }
    }
    __syncthreads();
  }

  // The bin in which the cut lies, walking down or up; what lies before it is taken off. -1:
  // everything is kept.
  __device__ int Select(int bins, bool downwards) {
    // A warp sums stretches of 64 bins at a time; thread 0 then walks at most 32 stretches and 64
    // bins.
    __shared__ unsigned long long stretch_mass[32];
    __shared__ unsigned stretch_count[32];
    __shared__ int found;
    const int stretch = bins / 32;
    if (threadIdx.x < 32) {
      unsigned count = 0;
      unsigned long long mass = 0;
      for (int i = 0; i < stretch; ++i) {
        const int bin = At(static_cast<int>(threadIdx.x) * stretch + i, bins, downwards);
        count += histogram_->counts[bin];
        mass += histogram_->masses[bin];
      }
      stretch_count[threadIdx.x] = count;
      stretch_mass[threadIdx.x] = mass;
    }
    __syncthreads();
    unsigned count = count_left_;
    unsigned long long mass = mass_left_;
    int s = 0;
    while (s < 32 && !Reached(stretch_count[s], stretch_mass[s], count, mass)) {
      count -= stretch_count[s];
      mass -= stretch_mass[s];
      ++s;
    }
    int answer = -1;
    if (s < 32) {
      for (int i = s * stretch; i < (s + 1) * stretch; ++i) {
        const int bin = At(i, bins, downwards);
        if (histogram_->counts[bin] == 0) continue;
        answer = bin;
        if (Reached(histogram_->counts[bin], histogram_->masses[bin], count, mass)) break;
        count -= histogram_->counts[bin];
        mass -= histogram_->masses[bin];
      }
    }
    if (threadIdx.x == 0) found = answer;
    __syncthreads();
    answer = found;
    if (answer >= 0) {
      count_left_ = count;
      mass_left_ = mass;
    }
    return answer;
  }
  static __device__ int At(int i, int bins, bool downwards) { return downwards ? bins - 1 - i : i; }
  // Whether a group holds the last token to be kept.
  __device__ bool Reached(unsigned group_count, unsigned long long group_mass, unsigned count,
                          unsigned long long mass) const {
    if (group_count == 0) return false;
    return by_count_ ? group_count >= count : group_mass >= mass;
  }

  CtaTeam team_;
  Histogram* histogram_;
  const float* logits_;
  int vocab_;
  float top_, inverse_, floor_;
  bool by_count_ = false;
  unsigned count_left_ = 0;
  unsigned long long mass_left_ = 0;
};

__device__ bool IsFinite(float v) {
  return fabsf(v) <= 3.402823466e+38f;
}

// `finite`: whether all values are, in every thread.
__device__ int ArgMaxOf(const CtaTeam& team, const float* values, int n, float* best = nullptr,
                        bool* finite = nullptr) {
  float value = __int_as_float(0xFF800000);
  int index = -1;
  bool all_finite = true;
  const auto look = [&](float v, int i) {
    all_finite = all_finite && IsFinite(v);
    if (v > value || (index < 0 && v == value)) {
      value = v;
      index = i;
    }
  };
  // Many loads in flight at once: one CTA has the whole row, and the time is latency.
  constexpr int kAtOnce = 16;
  int i = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (; i + (kAtOnce - 1) * kTeamThreads < n; i += kAtOnce * kTeamThreads) {
    float v[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) v[k] = values[i + k * kTeamThreads];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) look(v[k], i + k * kTeamThreads);
  }
  for (; i < n; i += kTeamThreads) look(values[i], i);
  if (finite != nullptr) *finite = __syncthreads_and(all_finite) != 0;
  const int answer = team.ArgMax(value, index, best);
  return answer < 0 ? 0 : answer;
}

// The logit of a token that the mask allows, else -inf. `mask` null: all are allowed.
__device__ float MaskedLogit(const uint32_t* mask, const float* logits, int v) {
  return mask == nullptr || Allows(mask, v) ? logits[v] : __int_as_float(0xFF800000);
}

// Adjusted logits into `out`: mask, penalties, then bias. A token is listed once. False when the
// logits hold NaN or infinity.
__device__ bool Adjust(const ReadoutInfo& r, const PlanHeader* plan, const uint32_t* mask,
                       const float* logits, int vocab, float* out) {
  bool all_finite = true;
  for (int v = threadIdx.x; v < vocab; v += kTeamThreads) {
    out[v] = MaskedLogit(mask, logits, v);
    all_finite = all_finite && IsFinite(logits[v]);
  }
  if (__syncthreads_and(all_finite) == 0) return false;
  const char* base = reinterpret_cast<const char*>(plan);
  const auto* counts = reinterpret_cast<const TokenCount*>(base + r.counts_at);
  for (int i = threadIdx.x; i < r.counts_length; i += kTeamThreads) {
    float& logit = out[counts[i].token];
    logit = Penalised(logit, counts[i].generated, r.numbers.repetition_penalty,
                      r.numbers.presence_penalty, r.numbers.frequency_penalty);
  }
  __syncthreads();
  // Serial: a request may name a token twice.
  const auto* bias = reinterpret_cast<const TokenBias*>(base + r.bias_at);
  if (threadIdx.x == 0) {
    for (int i = 0; i < r.bias_length; ++i) out[bias[i].token] += bias[i].bias;
  }
  __syncthreads();
  return true;
}

// Adjusted logits to probabilities in place, as FilteredSoftmax of sampling/filters.cc.
__device__ void Filter(const CtaTeam& team, Histogram* histogram, const ReadoutInfo& r, int vocab,
                       float* values) {
  float top;
  const int first = ArgMaxOf(team, values, vocab, &top);
  const float inverse = 1.0f / r.numbers.temperature;
  // A penalty or a very low temperature took a value out of range: the likeliest token has all the
  // mass. Only an infinite largest value or an infinite factor can make a weight that is no number.
  if (!IsFinite((top - top) * inverse)) {
    for (int v = threadIdx.x; v < vocab; v += kTeamThreads) values[v] = v == first ? 1.0f : 0.0f;
    __syncthreads();
    return;
  }
  if (r.numbers.top_n_sigma > 0.0f) {
    const float floor = SigmaFloor(team, vocab, values, top, r.numbers.top_n_sigma);
    for (int v = threadIdx.x; v < vocab; v += kTeamThreads) {
      if (values[v] < floor) values[v] = __int_as_float(0xFF800000);
    }
    __syncthreads();
  }
  Cut cut;
  bool cuts = false;
  if (r.numbers.top_k > 0 && r.numbers.top_k < vocab) {
    Ranking all(team, histogram, values, vocab, top, inverse, __int_as_float(0xFF800000));
    cut = all.Find(static_cast<unsigned>(r.numbers.top_k), 0);
    cuts = true;
  }
  if (r.numbers.top_p < 1.0f) {
    // Tokens lighter than (1 - top_p) / vocab cannot be in the nucleus of the whole; under top-k
    // all are looked at.
    const double least = (1.0 - r.numbers.top_p) / vocab * 0.5;
    const float floor = cuts ? __int_as_float(0xFF800000)
                             : top + r.numbers.temperature * static_cast<float>(log(least) - 1e-3);
    Ranking ranking(team, histogram, values, vocab, top, inverse, floor);
    const double total = static_cast<double>(ranking.MassOf(cut));
    const double wanted = ceil(static_cast<double>(r.numbers.top_p) * total);
    cut = ranking.Find(0, static_cast<unsigned long long>(wanted < 1.0 ? 1.0 : wanted));
    cuts = true;
  }
  __syncthreads();
  double part = 0.0;
  for (int v = threadIdx.x; v < vocab; v += kTeamThreads) {
    float weight = TokenWeight((values[v] - top) * inverse);
    const bool kept = (!cuts || cut.Keeps(OrderedBits(values[v]), static_cast<uint32_t>(v))) &&
                      weight >= r.numbers.min_p;
    if (!kept && v != first) weight = 0.0f;
    values[v] = weight;
    part += static_cast<double>(weight);
  }
  const float scale = static_cast<float>(1.0 / team.Total(part));
  for (int v = threadIdx.x; v < vocab; v += kTeamThreads) values[v] *= scale;
  __syncthreads();
}

__device__ float GumbelNoise(const DrawKey& key, uint32_t token) {
  const PhiloxBlock block = Philox4x32(
      {{key.position, key.choice, static_cast<uint32_t>(DrawPurpose::kGumbel), token / 4}},
      key.seed);
  const uint32_t word = token % 4 == 0   ? block.v[0]
                        : token % 4 == 1 ? block.v[1]
                        : token % 4 == 2 ? block.v[2]
                                         : block.v[3];
  const double u = (static_cast<double>(word) + 0.5) * 0x1.0p-32;
  return static_cast<float>(-log(-log(u)));
}

// argmax of log p + noise. No noise exceeds 22.9, so only tokens that can still beat the likeliest
// one are looked at.
__device__ int CoupledToken(const CtaTeam& team, const DrawKey& key, const float* probabilities,
                            int vocab) {
  float p;
  const int likeliest = ArgMaxOf(team, probabilities, vocab, &p);
  const float score = logf(p) + GumbelNoise(key, static_cast<uint32_t>(likeliest));
  const float least = expf(score - 22.9f);
  float best = score;
  int token = likeliest;
  for (int v = threadIdx.x; v < vocab; v += kTeamThreads) {
    if (!(probabilities[v] > 0.0f) || probabilities[v] < least || v == likeliest) continue;
    const float s = logf(probabilities[v]) + GumbelNoise(key, static_cast<uint32_t>(v));
    if (CtaTeam::Before(s, v, best, token)) {
      best = s;
      token = v;
    }
  }
  return team.ArgMax(best, token);
}

// Greedy and coupled decisions compare choices: a distribution on one token, so that the residual
// of two is all or nothing.
__device__ void DecideByChoice(const ReadoutInfo& r, int choice, DecisionInfo& out) {
  int same = -1;
  for (int i = 0; i < r.recorded_count; ++i) {
    if (r.recorded[i].token == choice && same < 0) same = i;
  }
  if (r.verify) {
    out.token = choice;
    out.accepted = same;
    return;
  }
  out.gate_open = same < 0 || r.later == LaterProposal::kNonResidual;
  out.token = same < 0 ? choice : -1;
}

__device__ void DecideByCascade(const CtaTeam& team, const SamplingBuffers& b, const ReadoutInfo& r,
                                float* rho, DecisionInfo& out) {
  const auto slot = [&](int proposal) {
    return b.distributions + (static_cast<size_t>(r.cell) * b.proposals + proposal) * b.vocab;
  };
  Recorded<float> recorded[kMaxProposals];
  for (int i = 0; i < r.recorded_count; ++i)
    recorded[i] = {r.recorded[i].token, slot(r.recorded[i].proposal)};
  CtaTeam walkers = team;
  PhiloxDraw<CtaTeam> draw{r.draw, team};
  if (r.verify) {
    const Verdict verdict = Verify(walkers, draw, b.vocab, rho, recorded, r.recorded_count);
    out.token = verdict.token;
    out.accepted = verdict.accepted;
  } else {
    const ProposalOutcome outcome =
        Propose(walkers, draw, b.vocab, rho, recorded, r.recorded_count, r.proposal, r.later);
    out.token = outcome.token;
    out.gate_open = outcome.gate_open;
  }
}

// Log-probabilities of the softmax of `logits`: of the token, and the most likely ones by repeated
// search. Tokens that a mask took out (-inf) are not listed.
__device__ void Logprobs(const CtaTeam& team, const ReadoutInfo& r, const float* logits, int vocab,
                         DecisionInfo& out) {
  float top;
  const int first = ArgMaxOf(team, logits, vocab, &top);
  const double sum = team.Sum(
      vocab, [=](int v) { return exp(static_cast<double>(logits[v]) - static_cast<double>(top)); });
  const double log_sum = static_cast<double>(top) + log(sum);
  if (threadIdx.x == 0)
    out.logprob = static_cast<float>(static_cast<double>(logits[out.token]) - log_sum);
  float value = top;
  int token = first;
  for (int n = 0; n < r.logprobs; ++n) {
    if (threadIdx.x == 0) {
      out.top_tokens[n] = token;
      out.top_logprobs[n] = static_cast<float>(static_cast<double>(value) - log_sum);
    }
    float best = __int_as_float(0xFF800000);
    int index = -1;
    for (int v = threadIdx.x; v < vocab; v += kTeamThreads) {
      if (!CtaTeam::Before(value, token, logits[v], v)) continue;
      if (CtaTeam::Before(logits[v], v, best, index)) {
        best = logits[v];
        index = v;
      }
    }
    token = team.ArgMax(best, index, &value);
    if (token < 0 || !IsFinite(value)) break;
  }
}

__global__ void __launch_bounds__(kTeamThreads)
    SamplingKernel(const __grid_constant__ SamplingBuffers b) {
  __shared__ TeamScratch scratch;
  __shared__ Histogram histogram;
  __shared__ DecisionInfo out;
  const CtaTeam team{&scratch};
  const auto& r = reinterpret_cast<const ReadoutInfo*>(reinterpret_cast<const char*>(b.plan) +
                                                       b.plan->readouts_at)[blockIdx.x];
  const float* logits = b.logits + static_cast<size_t>(blockIdx.x) * b.vocab;
  const uint32_t* mask =
      r.mask < 0 ? nullptr : b.masks + static_cast<size_t>(r.mask) * MaskWords(b.vocab);
  if (threadIdx.x == 0) {
    out.token = -1;
    out.accepted = -1;
    out.gate_open = 0;
    out.finite = 1;
    out.logprob = 0.0f;
    for (int i = 0; i < kMaxTopLogprobs; ++i) out.top_tokens[i] = -1;
  }
  __syncthreads();

  const bool greedy = r.numbers.temperature <= 0.0f;
  const bool cascade = !greedy && r.sampler == Sampler::kCascade;
  const bool adjusted = mask != nullptr || r.counts_length > 0 || r.bias_length > 0;
  const float* from = logits;
  // A draft's distribution is made where it will be kept.
  float* work =
      cascade && !r.verify
          ? b.distributions + (static_cast<size_t>(r.cell) * b.proposals + r.proposal) * b.vocab
          : b.work + static_cast<size_t>(blockIdx.x) * b.vocab;
  bool finite = true;
  if (adjusted || !greedy) {
    finite = Adjust(r, b.plan, mask, logits, b.vocab, work);
    from = work;
  }
  DecisionInfo decision{};
  decision.token = -1;
  decision.accepted = -1;
  if (!finite) {
    // Nothing can be decided.
  } else if (cascade) {
    Filter(team, &histogram, r, b.vocab, work);
    DecideByCascade(team, b, r, work, decision);
  } else {
    int choice;
    if (greedy) {
      // Adjusted logits may be infinite: a mask or a bias can forbid a token.
      choice = ArgMaxOf(team, from, b.vocab, nullptr, adjusted ? nullptr : &finite);
    } else {
      Filter(team, &histogram, r, b.vocab, work);
      choice = CoupledToken(team, r.draw, work, b.vocab);
    }
    if (finite) DecideByChoice(r, choice, decision);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    out.token = decision.token;
    out.accepted = decision.accepted;
    out.gate_open = decision.gate_open;
    out.finite = finite ? 1 : 0;
  }
  __syncthreads();
  if (r.logprobs >= 0 && out.token >= 0) {
    const float* scored = logits;
    if (mask != nullptr) {  // a verdict's work has been used up
      for (int v = threadIdx.x; v < b.vocab; v += kTeamThreads)
        work[v] = MaskedLogit(mask, logits, v);
      __syncthreads();
      scored = work;
    }
    Logprobs(team, r, scored, b.vocab, out);
  }
  __syncthreads();
  if (threadIdx.x == 0) b.decisions[blockIdx.x] = out;
}

}  // namespace

void LaunchSampling(const SamplingBuffers& buffers, int readouts, cudaStream_t stream) {
  if (readouts == 0) return;
  SamplingKernel<<<static_cast<unsigned>(readouts), kTeamThreads, 0, stream>>>(buffers);
  Check(cudaGetLastError(), "launching the sampling kernel");
}

}  // namespace loopspec::cuda
