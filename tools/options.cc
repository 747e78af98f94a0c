#include "tools/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "decode/depths.h"
#include "decode/row_choice.h"
#include "engine/load/model_path.h"
#include "fields/choices.h"
#include "fields/request_fields.h"
#include "tools/offer_pull.h"

namespace loopspec::tools {

namespace {

// What other programs call options of sampling.
constexpr std::pair<std::string_view, const char*> kAliases[] = {
    {"temperature", "--temp"}, {"repetition_penalty", "--repeat-penalty"}};

}  // namespace

void ModelOptions::AddTo(Command command, bool may_lead, const std::string& fallback) {
  const auto group = [](Option option) { return option.Group("Model"); };
  const char* const help =
      "Folder of a checkpoint, an installed model (ouro-demo), or ORG/NAME or ORG/NAME@REVISION "
      "from the Hugging Face cache";
  model = fallback;
  const Option named =
      group(may_lead ? command.AddModel(model, help)
                     : command.AddOption("--model,-m", model, help).TypeName("DIR"));
  if (fallback.empty())
    named.Required();
  else
    named.ShowDefault();
  AddPullFlag(command);
  group(command.AddOption("--recurrence", recurrence,
                          "Run N recurrences per token instead of the model's own R"))
      .Range(1, 4096);
  group(command.AddOption("--set", set,
                          "Override a key of config.json: key=value, dots descend "
                          "(init_values.std=0); may be given several times"))
      .OneValueEach();
  group(command.AddOption("--device", device, "Where to run: auto, cpu, cuda or cuda:N"))
      .Examples({"auto", "cpu", "cuda", "cuda:0"})
      .ShowDefault();
  group(command.AddOption("--compute", compute,
                          "Activations: f32, bf16 (as released models run), or auto"))
      .OneOf({"auto", "f32", "bf16"})
      .ShowDefault();
  group(command.AddOption("--kv-type", kv_type,
                          "Keys and values: bf16, int8 (half the memory), auto (as --compute), or "
                          "loops: int8, and beyond the last positions only what the model's plan "
                          "keeps; loops:PLAN names one: loops:int8*8,last keeps the first 8 loops "
                          "and the last, on a CPU loops:int8,r5,r4 residuals of 5 and 4 bits "
                          "against the last"))
      .Examples({"auto", "bf16", "int8", "loops", "loops:int8*8,last"})
      .ShowDefault();
  group(command.AddOption("--threads,-t", threads, "CPU threads; 0 takes every usable core"))
      .Range(0, 1024)
      .ShowDefault();
  group(command.AddOption("--state-seed", state_seed, "Seed of Raven's random initial states"))
      .ShowDefault();
  group(command.AddFlag("--no-calibration", no_calibration,
                        "Choose depths by rule, as if the model had never been calibrated"));
  group(command.AddOption("--kv-memory", kv_memory,
                          "Key/value memory to reserve, such as 8G, or 80% of what is free beside "
                          "the weights; default: what the text needs (CPU), less than half of the "
                          "GPU"));
}

EngineOptions ModelOptions::ToEngineOptions() const {
  EngineOptions engine;
  engine.model = model;
  engine.device = device;
  engine.compute = compute;
  engine.kv_type = kv_type;
  engine.threads = threads;
  engine.recurrence = recurrence;
  engine.config = set;
  engine.state_seed = state_seed;
  engine.calibration = !no_calibration;
  if (kv_memory.ends_with('%'))
    engine.kv_share = ParseShare(kv_memory, "--kv-memory");
  else if (!kv_memory.empty())
    engine.kv_memory = ParseBytes(kv_memory, "--kv-memory");
  return engine;
}

ChosenDepths ModelOptions::ChooseDepths(const Model& model_loaded) const {
  return ChooseDefaultDepths(TextFolder(ResolveModel(model)), model_loaded, ToEngineOptions());
}

void AddSamplingNumbers(Command command, SamplingParams& params, const std::string& heading,
                        const std::function<bool(const SamplingField&)>& wanted) {
  for (const SamplingField& field : SamplingFields()) {
    if (!wanted(field)) continue;
    std::visit(
        [&](auto member) {
          command.AddOption(OptionOf(field.name), params.*member, field.help)
              .Group(heading)
              .ShowDefault();
        },
        field.member);
  }
}

void SamplingOptions::AddTo(Command command, bool models_own) {
  for (const SamplingField& field : SamplingFields()) {
    std::visit(
        [&](auto member) {
          const std::string value = field.Shown(params);
          const Option option = command.AddOption(OptionOf(field.name), params.*member, field.help)
                                    .Group("Sampling")
                                    .ShowDefault(models_own ? "the model's, else " + value : value);
          for (const auto& [name, alias] : kAliases) {
            if (name == field.name) option.Alias(alias);
          }
          given_.push_back(option);
        },
        field.member);
  }
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.AddOption(name, value, help).Group("Sampling");
  };
  add("--logit-bias", bias,
      "Add to a token's logit: ID=BIAS, such as 42=-5; may be given several times")
      .OneValueEach();
  add("--sampler", sampler, kSamplerHelp).OneOf(NamesOf(kSamplers)).ShowDefault();
  add("--second-proposal", later,
      "What later proposals are drawn from (the paper's ablation): gated, residual, non-residual")
      .OneOf(NamesOf(kLaterProposals))
      .ShowDefault();
}

SaidSampling SamplingOptions::Said() const {
  SaidSampling said;
  for (size_t i = 0; i < given_.size(); ++i) {
    const SamplingField& field = SamplingFields()[i];
    if (given_[i].Count() > 0) said.Set(field, field.Get(params));
  }
  said.SetSampler(ValueOf(kSamplers, sampler));
  said.SetLater(ValueOf(kLaterProposals, later));
  std::vector<TokenBias> biases;
  for (const std::string& entry : bias) {
    TokenBias parsed;
    const size_t equals = entry.find('=');
    char* end = nullptr;
    if (equals != std::string::npos) {
      const auto [at, error] = std::from_chars(entry.data(), entry.data() + equals, parsed.token);
      parsed.bias = std::strtof(entry.c_str() + equals + 1, &end);
      if (error == std::errc() && at == entry.data() + equals &&
          end != entry.c_str() + equals + 1 && *end == '\0') {
        biases.push_back(parsed);
        continue;
      }
    }
    Fail("--logit-bias {}: expected ID=BIAS, such as 42=-5", entry);
  }
  said.SetBias(std::move(biases));
  return said;
}

void DecodeOptions::AddTo(Command command) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.AddOption(name, value, help).Group("Decoding").ShowDefault();
  };
  add("--decode", decode, kDecodingHelp).OneOf(NamesOf(kDecodings));
  add("--depths", depths,
      "Depths that draft the next token, such as 1,2; auto: those of a calibration, else by the "
      "model's R");
  add("--max-rows", max_rows, RequestFieldNamed("max_rows").help).Range(0, 256);
  add("--group", group,
      "Tokens that pass the later depths together, sharing what is read of the context: 1 to 16, "
      "or auto: by the length of the context");
  add("--early", early,
      "Begin tokens before they are drafted, guessed from what followed the same words before: "
      "lookup or off")
      .OneOf({"lookup", "off"});
}

std::vector<int> DecodeOptions::Depths(const ModelOptions& options, const Model& model) const {
  if (decode != "loopspec") {
    if (depths != "auto")
      Fail("--depths {} goes with --decode loopspec, not with --decode {}", depths, decode);
    return {};
  }
  if (depths.empty())
    Fail("--depths is empty, expected depths such as 1,2 (--decode ar runs without drafts)");
  const int recurrence = model.spec.recurrence;
  std::vector<int> chosen =
      depths == "auto" ? options.ChooseDepths(model).depths : ParseDepths(depths);
  CheckDepths(chosen, recurrence);
  if (const auto advice = DepthsAdvice(chosen, recurrence)) LogWarning("{}", *advice);
  return chosen;
}

EngineOptions DecodeOptions::ToEngineOptions(const ModelOptions& options,
                                             const Model& model) const {
  EngineOptions engine = options.ToEngineOptions();
  // Else the engine chooses, for greedy and for sampled text apart.
  if (decode != "loopspec" || depths != "auto") engine.depths = {Depths(options, model)};
  engine.max_running = 1;
  engine.background = false;  // one reader, who takes the steps
  if (max_rows > 0) engine.cells = max_rows;
  return engine;
}

void DecodeOptions::Apply(Request& request) const {
  request.decoding = ValueOf(kDecodings, decode);
  request.max_rows = max_rows;
  request.group = 0;
  if (group != "auto") {
    const char* const end = group.data() + group.size();
    const auto [at, error] = std::from_chars(group.data(), end, request.group);
    if (error != std::errc() || at != end || request.group < 1 || request.group > kMaxGroup)
      Fail("--group {}: expected auto, or a whole number from 1 to {}", group, kMaxGroup);
  }
  if (decode == "lookup" && early == "off")
    Fail("--early off leaves nothing of --decode lookup, which is early children alone");
  request.guesses = early != "off";
}

double ParseShare(const std::string& text, const char* option) {
  char* end = nullptr;
  const double percent = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || std::string_view(end) != "%" || !(percent > 0) || percent > 100)
    Fail("{} {}: expected a share from 0% to 100%, such as 80%, or a size such as 8G", option,
         text);
  return percent / 100;
}

int64_t ParseBytes(const std::string& text, const char* option) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  double unit = 1;
  if (*end == 'K' || *end == 'k') unit = 1e3;
  if (*end == 'M' || *end == 'm') unit = 1e6;
  if (*end == 'G' || *end == 'g') unit = 1e9;
  if (unit > 1) ++end;
  if (end == text.c_str() || *end != '\0' || !(value > 0) || value * unit > 1e15)
    Fail("{} {}: expected a size such as 8G", option, text);
  return static_cast<int64_t>(value * unit);
}

std::string TextInPlaceOfModel(const std::string& model) {
  std::error_code error;
  const bool like_name = model.find('/') != std::string::npos && model.find(' ') == model.npos;
  if (model.empty() || like_name || std::filesystem::exists(model, error) ||
      !FindInstalledModel(model).empty())
    return "";
  return fmt::format("; \"{}\" stands where the model does", model);
}

}  // namespace loopspec::tools
