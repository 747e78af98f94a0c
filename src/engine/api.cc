// The public API over the engine's parts.
#include <algorithm>
#include <optional>

#include "backends/backend.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "decode/depths.h"
#include "engine/device.h"
#include "engine/generate.h"
#include "engine/model_path.h"
#include "loopspec/loopspec.h"
#include "text/chat_template.h"
#include "text/incremental_decoder.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace loopspec {

struct Engine::Parts {
  std::filesystem::path folder;
  Model model;
  std::vector<int> depths;
  std::optional<Tokenizer> tokenizer;
  SpecialTokens special;
  std::optional<ChatTemplate> chat_template;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Generator> generator;
};

Engine::Engine(const EngineOptions& options) : parts_(std::make_unique<Parts>()) {
  Parts& p = *parts_;
  p.folder = ResolveModel(options.model);
  p.model = Model::Load(p.folder, {}, options.recurrence);
  p.depths = options.depths.empty() ? DefaultDepths(p.model.spec.recurrence) : options.depths;
  CheckDepths(p.depths, p.model.spec.recurrence);
  if (FileExists(p.folder / "tokenizer.json")) p.tokenizer = Tokenizer::FromFolder(p.folder);
  p.special =
      ReadSpecialTokens(p.folder, p.tokenizer ? &*p.tokenizer : nullptr, p.model.spec.vocab);
  p.chat_template = ChatTemplate::FromFolder(p.folder);
  BackendOptions backend;
  backend.readout_depths = ReadoutDepths(p.depths, p.model.spec.recurrence);
  backend.kv_positions = options.context;
  backend.threads = options.threads;
  backend.compute = ParseCompute(options.compute);
  p.backend = MakeBackend(p.model, backend, options.device);
  p.generator = std::make_unique<Generator>(*p.backend, LoadStepCost(*p.backend));
}

Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

Result Engine::Generate(std::string_view prompt, const GenerateOptions& options,
                        const OnToken& on_token) {
  Parts& p = *parts_;
  if (!p.tokenizer)
    Fail("{} has no tokenizer.json: give the prompt as token ids", p.folder.string());
  if (!options.chat) return Generate(p.tokenizer->Encode(prompt), options, on_token);
  if (!p.chat_template) Fail("{} has no chat template", p.folder.string());
  const OrderedJson messages =
      OrderedJson::array({{{"role", "user"}, {"content", std::string(prompt)}}});
  return Generate(p.tokenizer->Encode(p.chat_template->Render(messages, {}), false), options,
                  on_token);
}

Result Engine::Generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                        const OnToken& on_token) {
  Parts& p = *parts_;
  DecodeRequest request;
  request.prompt.assign(prompt.begin(), prompt.end());
  request.max_tokens = options.max_tokens;
  request.group = 0;
  if (options.speculative) request.early = EarlyChildren::kLookup;
  if (options.speculative) request.depths = p.depths;
  request.sampling = options.sampling;
  request.seed = options.seed;
  if (!options.ignore_eos) request.stop_tokens = p.special.eos;
  std::optional<IncrementalDecoder> decoder;
  if (p.tokenizer) {
    IncrementalDecoder::Options how;
    how.stop = options.stop;
    decoder.emplace(*p.tokenizer, how);
  }
  Result result;
  const GenerateResult run = p.generator->Run(request, [&](const CommittedToken& token) {
    const std::string piece = decoder ? decoder->Push(token.token) : std::string();
    result.text += piece;
    const bool go_on = !on_token || on_token({token.token, token.source, piece});
    return go_on && !(decoder && decoder->stopped());
  });
  if (decoder && !decoder->stopped()) {
    const std::string rest = decoder->Finish();
    result.text += rest;
    if (on_token && !rest.empty())
      on_token({run.tokens.back().token, run.tokens.back().source, rest});
  }
  for (const CommittedToken& token : run.tokens) result.ids.push_back(token.token);
  const DecodeStatistics& counts = run.statistics;
  result.statistics = {
      NameOf(run.finish_reason),
      static_cast<int64_t>(prompt.size()),
      static_cast<int64_t>(run.tokens.size()),
      counts.accepted,
      counts.fallback,
      Gamma(counts.accepted, counts.fallback, request.depths, p.model.spec.recurrence),
      counts.rows_mean(),
      run.times.prefill,
      run.times.decode,
      run.tokens_per_second()};
  return result;
}

}  // namespace loopspec
