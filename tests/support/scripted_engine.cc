#include "tests/support/scripted_engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "backends/backend.h"
#include "backends/cpu/decide.h"
#include "base/check.h"
#include "base/json.h"
#include "engine/session.h"
#include "text/bpe.h"

namespace loopspec::test {
namespace {

constexpr int kRecurrence = 4;

// Which token comes next is a function of how much of the answer a text ends with: that number
// stands where a real backend keeps keys and values, so a wrong chain, a lost commit or a reused
// cell changes the output.
class ScriptedBackend : public Backend {
 public:
  explicit ScriptedBackend(const ScriptedOptions& script)
      : script_(script),
        answer_(script.tokens),
        vocab_(kScriptWords + static_cast<int>(script.words.size())),
        pages_(PagesFor(std::max<int64_t>(2 * script.context, 1 << 16))) {
    if (answer_.empty()) {
      for (const char c : script.answer) answer_.push_back(static_cast<unsigned char>(c));
    }
    spec_.family = "scripted";
    spec_.vocab = vocab_;
    spec_.recurrence = spec_.trained_recurrence = kRecurrence;
    spec_.max_positions = static_cast<int>(script.context);
    options_.readout_depths = {1, 2, kRecurrence};
    options_.cells = 256;
    options_.compute = ComputeMode::kF32;
    matched_.resize(static_cast<size_t>(pages_) * kPageSize, -1);
    cells_.resize(256);
    distributions_.resize(cells_.size() * kMaxProposals * logits_.size());
  }

  const ModelSpec& spec() const override { return spec_; }
  const BackendOptions& options() const override { return options_; }
  BackendLimits limits() const override { return {.max_logprobs = vocab_}; }
  std::string device() const override { return "script"; }
  int pages() const override { return pages_; }
  int64_t page_bytes() const override { return kPageSize * sizeof(int32_t); }
  int64_t device_bytes() const override { return 0; }
  int64_t weight_bytes() const override { return 0; }

  Ticket SubmitPrefill(std::span<const PrefillPlan> parts) override {
    for (const PrefillPlan& part : parts) Prompt(part, [](int32_t, int32_t) {});
    return 0;
  }
  bool PrefillDone(Ticket) override { return true; }
  void WaitPrefill(Ticket) override {}
  bool prefill_equals_decode() const override { return true; }
  void Score(const PrefillPlan& plan, const LogitsSink& sink) override {
    Prompt(plan, [&](int32_t position, int32_t matched) {
      for (size_t i = 0; i < options_.readout_depths.size(); ++i)
        sink(position, static_cast<int32_t>(i), Logits(Expected(matched)));
    });
  }

  Ticket Submit(const StepPlan& plan) override {
    for (const CommitPlan& commit : plan.commits) {
      const Cell& cell = cells_[static_cast<size_t>(commit.cell)];
      // At the last of its request's depths, which is one of those that are read out.
      LOOPSPEC_CHECK(cell.position == commit.position &&
                     std::find(options_.readout_depths.begin(), options_.readout_depths.end(),
                               cell.depth) != options_.readout_depths.end());
      At(plan.sequences[static_cast<size_t>(commit.sequence)], commit.position) = cell.matched;
    }
    for (const RowPlan& row : plan.rows) {
      Cell& cell = cells_[static_cast<size_t>(row.cell)];
      if (row.depth == 0)
        cell = {row.token, row.position, 0, Advance(Before(plan, row), row.token)};
      LOOPSPEC_CHECK(cell.token == row.token && cell.position == row.position &&
                     cell.depth == row.depth);
      cell.depth += plan.recurrences;
    }
    result_.decisions.clear();
    bool decides = false;
    for (const ReadoutPlan& readout : plan.readouts) {
      decides = decides || readout.purpose == ReadoutPurpose::kVerify;
      result_.decisions.push_back(Decide(plan, readout));
    }
    if (!decides) return 0;
    if (decided_++ == script_.fail_at) throw std::runtime_error("The engine was told to fail.");
    if (script_.token_seconds > 0)
      std::this_thread::sleep_for(std::chrono::duration<double>(script_.token_seconds));
    return 0;
  }
  const StepResult& Wait(Ticket) override { return result_; }

  void SavePages(std::span<const int32_t> pages, std::byte* to) override {
    for (size_t i = 0; i < pages.size(); ++i)
      std::memcpy(to + i * kPageSize * sizeof(int32_t), Page(pages[i]),
                  kPageSize * sizeof(int32_t));
  }
  void LoadPages(std::span<const int32_t> pages, const std::byte* from) override {
    for (size_t i = 0; i < pages.size(); ++i)
      std::memcpy(Page(pages[i]), from + i * kPageSize * sizeof(int32_t),
                  kPageSize * sizeof(int32_t));
  }
  void CopyPage(int32_t from, int32_t to) override { std::copy_n(Page(from), kPageSize, Page(to)); }
  void ReadLogits(int, std::span<float>) override { LOOPSPEC_CHECK(false); }

 private:
  struct Cell {
    int32_t token = -1, position = -1, depth = -1, matched = 0;
  };

  // ---- The script ----

  int32_t Expected(int32_t matched) const {
    if (matched < std::ssize(answer_)) return answer_[static_cast<size_t>(matched)];
    return script_.endless ? answer_[0] : kScriptEnd;
  }
  int32_t Advance(int32_t matched, int32_t token) const {
    if (token == Expected(matched)) {
      if (matched < std::ssize(answer_)) return matched + 1;
      return script_.endless ? 1 : matched;
    }
    return token == answer_[0] ? 1 : 0;
  }
  // What a readout says: early ones are wrong now and then.
  int32_t Said(const Cell& cell) const {
    const bool wrong =
        (cell.depth == 1 && cell.position % 3 == 2) || (cell.depth == 2 && cell.position % 5 == 4);
    return wrong ? '!' : Expected(cell.matched);
  }
  std::span<const float> Logits(int32_t token) {
    for (size_t v = 0; v < logits_.size(); ++v) logits_[v] = -3.0f - 0.01f * static_cast<float>(v);
    logits_[static_cast<size_t>(token)] = 3.0f;
    return logits_;
  }

  // ---- Memory ----

  int32_t* Page(int32_t page) { return matched_.data() + static_cast<size_t>(page) * kPageSize; }
  int32_t& At(const SequencePlan& sequence, int32_t position) {
    return Page(sequence.pages[position / kPageSize])[position % kPageSize];
  }

  template <typename F>
  void Prompt(const PrefillPlan& plan, F seen) {
    int32_t matched = plan.start > 0 ? At(plan.sequence, plan.start - 1) : 0;
    for (size_t i = 0; i < plan.tokens.size(); ++i) {
      const int32_t position = plan.start + static_cast<int32_t>(i);
      matched = Advance(matched, plan.tokens[i]);
      At(plan.sequence, position) = matched;
      seen(position, matched);
    }
  }

  // Of the text before a row.
  int32_t Before(const StepPlan& plan, const RowPlan& row) {
    if (row.chain_length > 0) {
      const Cell& parent = cells_[static_cast<size_t>(
          plan.chains[static_cast<size_t>(row.chain_begin + row.chain_length - 1)])];
      LOOPSPEC_CHECK(parent.position == row.position - 1);
      return parent.matched;
    }
    if (row.position == 0) return 0;
    return At(plan.sequences[static_cast<size_t>(row.sequence)], row.position - 1);
  }

  Decision Decide(const StepPlan& plan, const ReadoutPlan& readout) {
    const int32_t number = plan.rows[static_cast<size_t>(readout.row)].cell;
    const Cell& cell = cells_[static_cast<size_t>(number)];
    LOOPSPEC_CHECK(cell.depth == options_.readout_depths[static_cast<size_t>(readout.readout)]);
    return cpu::Decide(readout, number, Logits(Said(cell)),
                       {distributions_.data(), kMaxProposals, vocab_}, scratch_);
  }

  const ScriptedOptions script_;
  std::vector<int32_t> answer_;
  const int vocab_;
  ModelSpec spec_;
  BackendOptions options_;
  const int pages_;
  std::vector<int32_t>
      matched_;  // by page and position: tokens of the answer that the text ends with
  std::vector<Cell> cells_;
  std::vector<float> logits_ = std::vector<float>(static_cast<size_t>(vocab_));
  std::vector<float> distributions_;
  cpu::DecideScratch scratch_;
  StepResult result_;
  int decided_ = 0;
};

Tokenizer ScriptTokenizer(const ScriptedOptions& script) {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocab[std::string(ByteAlphabet::Get().Character(static_cast<unsigned char>(byte)))] = byte;
  vocab["<s>"] = kScriptBegin;
  vocab["</s>"] = kScriptEnd;
  vocab[std::string(kScriptWordBytes, 'y')] = kScriptWord;
  const auto special = [](int id, const std::string& content) {
    return Json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  Json added = {special(kScriptBegin, "<s>"), special(kScriptEnd, "</s>")};
  for (size_t i = 0; i < script.words.size(); ++i) {
    const int id = kScriptWords + static_cast<int>(i);
    std::string characters;
    for (const char c : script.words[i])
      characters += ByteAlphabet::Get().Character(static_cast<unsigned char>(c));
    vocab[script.special_words ? script.words[i] : characters] = id;
    if (script.special_words) added.push_back(special(id, script.words[i]));
  }
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", true}};
  const Json begin = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", bytes},
                     {"post_processor",
                      {{"type", "TemplateProcessing"},
                       {"single", Json::array({begin, text})},
                       {"pair", Json::array({begin, text})},
                       {"special_tokens",
                        {{"<s>",
                          {{"id", "<s>"},
                           {"ids", Json::array({kScriptBegin})},
                           {"tokens", Json::array({"<s>"})}}}}}}},
                     {"decoder", bytes},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", vocab},
                       {"merges", Json::array()}}}};
  return Tokenizer::FromJson(json.dump(), "the script's tokenizer");
}

constexpr const char* kTemplate =
    "{% for message in messages %}"
    "{% if message.content == 'refuse me' %}{{ raise_exception('no') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}"
    "{% if enable_thinking %}<think>\n{% endif %}";

}  // namespace

std::shared_ptr<Engine> MakeScriptedEngine(const ScriptedOptions& script) {
  auto backend = std::make_shared<ScriptedBackend>(script);
  Model model;
  model.spec = backend->spec();
  SpecialTokens special;
  special.bos = kScriptBegin;
  special.eos = {kScriptEnd};
  auto loaded = std::make_shared<const LoadedModel>(
      std::move(model), ScriptTokenizer(script), std::move(special),
      ChatTemplate::FromSource(kTemplate, OrderedJson::object()));
  EngineOptions options;
  options.model = "fake";
  options.depths = {{1, 2}, {2}};
  options.max_running = script.max_running;
  options.max_queued = script.max_queued;
  options.background = script.background;
  SessionParts parts;
  parts.backend = std::move(backend);
  parts.sampling.temperature = 0.7f;
  parts.sampling.top_k = 1;  // the likeliest token, which the script decides
  return std::make_shared<Engine>(
      std::make_unique<Session>(options, std::move(loaded), std::move(parts)));
}

int64_t Running(const Engine& engine) {
  const EngineMetrics now = engine.metrics();
  return now.waiting + now.prefilling + now.decoding + now.preempted;
}

int64_t Submitted(const Engine& engine) {
  const EngineMetrics now = engine.metrics();
  return now.finished + now.cancelled + now.failed + Running(engine);
}

bool WaitIdle(const Engine& engine, double seconds) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (Running(engine) > 0) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace loopspec::test
