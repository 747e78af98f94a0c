// Options that several commands share, and what they turn into.
#pragma once

#include "tools/command_line.h"

#include <functional>
#include <string>
#include <vector>

#include "decode/request.h"
#include "engine/load/calibration.h"
#include "engine/load/loaded_model.h"
#include "fields/choices.h"
#include "fields/sampling_fields.h"
#include "loopspec/loopspec.h"

namespace loopspec::tools {

// --model and how to run it.
struct ModelOptions {
  std::string model;
  int recurrence = 0;
  std::vector<std::string> set;
  std::string device = "auto";
  std::string compute = "auto";
  std::string kv_type = "auto";
  int threads = 0;
  uint64_t state_seed = 0;
  std::string kv_memory;
  bool no_calibration = false;

  // `may_lead`: the model may come as the first argument without dashes. `fallback`: what runs
  // where none is named; empty: one must be.
  void AddTo(Command command, bool may_lead = true, const std::string& fallback = "");
  // What they ask of an engine.
  EngineOptions ToEngineOptions() const;
  // The model alone.
  Model Load() const { return LoadModel(ToEngineOptions()); }
  // Proposal depths where the user names none: a calibration's, else by rule.
  ChosenDepths ChooseDepths(const Model& model_loaded) const;
};

// An option for each number of SamplingParams that `wanted` picks.
void AddSamplingNumbers(Command command, SamplingParams& params, const std::string& heading,
                        const std::function<bool(const SamplingField&)>& wanted);

// --temperature and the other options of sampling. What is not given is the model's own choice
// (generation_config.json), and greedy where the model makes none.
struct SamplingOptions {
  SamplingParams params;
  std::string sampler = kSamplers[0].name;
  std::string later = kLaterProposals[0].name;
  std::vector<std::string> bias;

  // `models_own`: the help says that defaults are the model's own.
  void AddTo(Command command, bool models_own = true);
  // What the command line, the variables and the settings say.
  SaidSampling Said() const;
  // The same over what the model asks for.
  SamplingParams Over(const SamplingParams& models_own) const { return Said().Over(models_own); }

 private:
  std::vector<Option> given_;  // one for each of SamplingFields
};

// --decode, --depths, --max-rows, --group, --early.
struct DecodeOptions {
  std::string decode = "loopspec";
  std::string depths = "auto";
  int max_rows = 0;  // 0: by cost
  std::string group = "auto";
  std::string early = "lookup";

  void AddTo(Command command);
  // Proposal depths for a loaded model; empty for autoregressive decoding. Says on stderr when they
  // cannot batch.
  std::vector<int> Depths(const ModelOptions& options, const Model& model) const;
  // An engine for a model, loaded already, that serves one text at a time in this way.
  EngineOptions ToEngineOptions(const ModelOptions& options, const Model& model) const;
  // Sets how `request` is decoded and chooses its rows.
  void Apply(Request& request) const;
};

// "80%" as 0.8.
double ParseShare(const std::string& text, const char* option);
// "8G", "512M", "1000000": bytes.
int64_t ParseBytes(const std::string& text, const char* option);

// Of a command that misses its text: "; \"Once upon a time\" stands where the model does" where
// what was named as the model is rather that text; else nothing.
std::string TextInPlaceOfModel(const std::string& model);

}  // namespace loopspec::tools
