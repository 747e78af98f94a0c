#include "tools/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "decode/depths.h"
#include "tools/model_path.h"

namespace loopspec::tools {

void ModelOptions::AddTo(CLI::App& command) {
  command.add_option("--model,-m", model, "Folder of a released checkpoint, or ORG/NAME from the Hugging Face cache")->required();
  command.add_option("--recurrence", recurrence, "Run N recurrences per token instead of the model's own R")->check(CLI::Range(1, 4096));
  command.add_option("--set", set, "Override a key of config.json: key=value, dots descend (init_values.std=0)");
  command.add_option("--device", device, "Where to run: auto, cpu, cuda or cuda:N")->capture_default_str();
  command.add_option("--compute", compute, "Activations: f32, bf16 (as released models run), or auto")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))->capture_default_str();
  command.add_option("--threads,-t", threads, "CPU threads; 0 takes every usable core")->check(CLI::Range(0, 1024))->capture_default_str();
  command.add_option("--state-seed", state_seed, "Seed of Raven's random initial states")->capture_default_str();
  command.add_option("--kv-memory", kv_memory, "Key/value memory to set aside, such as 8G; default: what the text needs (CPU), what is free (GPU)");
}

Model ModelOptions::Load() const {
  ConfigOverrides overrides;
  for (const std::string& entry : set) overrides.push_back(ParseOverride(entry));
  return Model::Load(ResolveModel(model), overrides, recurrence);
}

int ResolveDevice(const std::string& device) {
  std::string why;
  if (device == "cpu") return -1;
  const int count = CudaDeviceCount(&why);
  if (device == "auto") return count > 0 ? 0 : -1;
  if (device != "cuda" && !device.starts_with("cuda:")) Fail("--device {}: expected auto, cpu, cuda or cuda:N", device);
  int index = 0;
  if (device != "cuda") {
    const char* begin = device.data() + 5;
    const auto [end, error] = std::from_chars(begin, device.data() + device.size(), index);
    if (error != std::errc() || end != device.data() + device.size()) Fail("--device {}: expected cuda:N", device);
  }
  if (count == 0) Fail("--device {}: {}", device, why);
  if (index < 0 || index >= count) Fail("--device {}: this machine has {} GPU(s), numbered from 0", device, count);
  return index;
}

std::unique_ptr<Backend> ModelOptions::MakeBackend(const Model& model_loaded, std::vector<int> depths, int64_t positions,
                                                   int max_rows) const {
  BackendOptions options;
  depths.push_back(model_loaded.spec.recurrence);
  std::sort(depths.begin(), depths.end());
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  options.readout_depths = std::move(depths);
  options.kv_positions = positions;
  if (!kv_memory.empty()) options.kv_memory = ParseBytes(kv_memory, "--kv-memory");
  if (max_rows > 0) options.max_rows = max_rows;
  options.compute = compute == "f32" ? ComputeMode::kF32 : compute == "bf16" ? ComputeMode::kBF16 : ComputeMode::kAuto;
  options.threads = threads;
  options.state_seed = state_seed;
  const int gpu = ResolveDevice(device);
  return gpu < 0 ? MakeCpuBackend(model_loaded, options) : MakeCudaBackend(model_loaded, options, gpu);
}

void SamplingOptions::AddTo(CLI::App& command) {
  command.add_option("--temperature", params.temperature, "0 is greedy: always the likeliest token")->capture_default_str();
  command.add_option("--top-k", params.top_k, "Keep the k likeliest tokens; 0 is off")->capture_default_str();
  command.add_option("--top-p", params.top_p, "Keep the likeliest tokens that together reach this probability")->capture_default_str();
  command.add_option("--min-p", params.min_p, "Drop tokens below this share of the likeliest one's probability")->capture_default_str();
  command.add_option("--repetition-penalty", params.repetition_penalty, "Divide positive and multiply negative logits of tokens already there")->capture_default_str();
  command.add_option("--presence-penalty", params.presence_penalty, "Subtract from the logits of tokens already written")->capture_default_str();
  command.add_option("--frequency-penalty", params.frequency_penalty, "The same, times how often")->capture_default_str();
  command.add_option("--logit-bias", bias, "Add to a token's logit: ID=BIAS; may be given several times");
  command.add_option("--sampler", sampler, "cascade: the paper's rejection sampling; coupled: sampled text that does not depend on the decoder")
      ->check(CLI::IsMember({"cascade", "coupled"}))->capture_default_str();
  command.add_option("--second-proposal", later, "What later proposals are drawn from (the paper's ablation): gated, residual, non-residual")
      ->check(CLI::IsMember({"gated", "residual", "non-residual"}))->capture_default_str();
}

SamplingParams SamplingOptions::Get() const {
  SamplingParams out = params;
  out.sampler = sampler == "coupled" ? Sampler::kCoupled : Sampler::kCascade;
  out.later = later == "residual"       ? LaterProposal::kResidual
              : later == "non-residual" ? LaterProposal::kNonResidual
                                        : LaterProposal::kGatedResidual;
  for (const std::string& entry : bias) {
    TokenBias parsed;
    const size_t equals = entry.find('=');
    char* end = nullptr;
    if (equals != std::string::npos) {
      const auto [at, error] = std::from_chars(entry.data(), entry.data() + equals, parsed.token);
      parsed.bias = std::strtof(entry.c_str() + equals + 1, &end);
      if (error == std::errc() && at == entry.data() + equals && end != entry.c_str() + equals + 1 && *end == '\0') {
        out.bias.push_back(parsed);
        continue;
      }
    }
    Fail("--logit-bias {}: expected ID=BIAS, such as 42=-5", entry);
  }
  return out;
}

void DecodeOptions::AddTo(CLI::App& command) {
  command.add_option("--decode", decode, "loopspec, or ar for plain autoregressive decoding: the same text, more slowly")
      ->check(CLI::IsMember({"loopspec", "ar"}))->capture_default_str();
  command.add_option("--depths", depths, "Depths that draft the next token, such as 1,2; auto chooses by the model's R")->capture_default_str();
  command.add_option("--max-rows", max_rows, "Branches computed at once at most; 0 is no limit")->check(CLI::Range(0, 256))->capture_default_str();
}

std::vector<int> DecodeOptions::Depths(int recurrence) const {
  if (decode == "ar") {
    if (depths != "auto") Fail("--depths {} goes with --decode loopspec, not with --decode ar", depths);
    return {};
  }
  std::vector<int> chosen = depths == "auto" ? DefaultDepths(recurrence) : ParseDepths(depths);
  CheckDepths(chosen, recurrence);
  if (const auto advice = DepthsAdvice(chosen, recurrence)) LogWarning("{}", *advice);
  return chosen;
}

TextParts TextParts::Load(const std::filesystem::path& folder) {
  TextParts parts;
  if (std::filesystem::exists(folder / "tokenizer.json")) parts.tokenizer = Tokenizer::FromFolder(folder);
  parts.special = ReadSpecialTokens(folder, parts.tokenizer ? &*parts.tokenizer : nullptr);
  parts.chat_template = ChatTemplate::FromFolder(folder);
  return parts;
}

const Tokenizer& TextParts::RequireTokenizer(const std::filesystem::path& folder) const {
  if (!tokenizer) Fail("{} has no tokenizer.json: give the prompt as --tokens 1,2,3", folder.string());
  return *tokenizer;
}

const ChatTemplate& TextParts::RequireTemplate(const std::filesystem::path& folder) const {
  if (!chat_template) Fail("{} has no chat template: use --prompt without --chat", folder.string());
  return *chat_template;
}

std::vector<int32_t> ParseTokenList(const std::string& text) {
  std::vector<int32_t> tokens;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    while (at != end && (*at == ' ' || *at == ',' || *at == '\n' || *at == '\t')) ++at;
    if (at == end) break;
    int32_t token = 0;
    const auto [next, error] = std::from_chars(at, end, token);
    if (error != std::errc() || (next != end && *next != ' ' && *next != ',' && *next != '\n' && *next != '\t')) {
      Fail("token list \"{}\": expected whole numbers with commas between, such as 1,2,3", text.size() > 60 ? text.substr(0, 60) + "..." : text);
    }
    tokens.push_back(token);
    at = next;
  }
  return tokens;
}

int64_t ParseBytes(const std::string& text, const char* option) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  double unit = 1;
  if (*end == 'K' || *end == 'k') unit = 1e3;
  if (*end == 'M' || *end == 'm') unit = 1e6;
  if (*end == 'G' || *end == 'g') unit = 1e9;
  if (unit > 1) ++end;
  if (end == text.c_str() || *end != '\0' || !(value > 0) || value * unit > 1e15) Fail("{} {}: expected a size such as 8G", option, text);
  return static_cast<int64_t>(value * unit);
}

}  // namespace loopspec::tools
