#include "experiments/experiment_run.h"

#include <fmt/ranges.h>

#include <sys/resource.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "decode/depths.h"
#include "engine/laboratory.h"
#include "engine/load/step_cost.h"
#include "experiments/checkpoint_hash.h"
#include "experiments/record_log.h"
#include "kv/kept_planes.h"

namespace loopspec::experiments {
namespace {

constexpr const char* kHeldout = "heldout_problems.jsonl";
constexpr const char* kDistance = "distance";  // key of a record of distances

// One task, ready to run.
struct PreparedTask {
  const ExperimentTask* declared;
  Task task;
  std::vector<MeasuredJob> jobs;
};

bool NeedsDistance(const Experiment& experiment) {
  return experiment.kind == ExperimentKind::kDistance || experiment.kind == ExperimentKind::kDepths;
}

PreparedTask Prepare(const ExperimentTask& declared, const ExperimentSubject& subject,
                     const ExperimentOptions& options) {
  const int context = subject.loaded->model().spec.max_positions;
  const bool shortened = options.max_tokens > 0;
  if (declared.max_length > context && !shortened) {
    Fail(
        "task {}: texts of up to {} tokens are declared, the model's context is {} (--max-tokens N "
        "runs shorter ones)",
        declared.name, declared.max_length, context);
  }
  PreparedTask prepared{&declared, {}, {}};
  prepared.task = MakeTask(declared.name,
                           {.data = TaskFolder(declared.name, subject.folder, options.benchmarks),
                            .shots = declared.shots,
                            .chat = declared.chat,
                            .limit = options.limit});
  Task& task = prepared.task;
  task.max_tokens = declared.max_tokens;
  task.max_length = declared.max_length;
  if (shortened) {
    task.max_tokens = std::min(task.max_tokens, options.max_tokens);
    task.max_length = std::min(task.max_length, context);
    if (task.max_tokens + 2 > task.max_length)
      Fail("--max-tokens {}: it leaves no room for a prompt in texts of {} tokens",
           options.max_tokens, task.max_length);
  }
  task.stop = declared.stop;
  OrderedJson arguments = OrderedJson::object();
  if (declared.thinking) arguments["enable_thinking"] = true;
  for (const TaskItem& item : task.items) {
    MeasuredJob job{item.id,
                    TaskPromptTokens(task, item, subject.loaded->tokenizer(),
                                     subject.chat_template(), arguments),
                    prepared.jobs.size(), item.answer};
    prepared.jobs.push_back(std::move(job));
  }
  if (prepared.jobs.empty()) Fail("task {} has no items", declared.name);
  return prepared;
}

// The tasks that the experiment has for a model; one that it does not name runs every task.
std::vector<PreparedTask> PrepareAll(const Experiment& experiment, const ExperimentModel& model,
                                     const ExperimentSubject& subject,
                                     const ExperimentOptions& options) {
  std::vector<PreparedTask> tasks;
  for (const ExperimentTask& task : experiment.tasks) {
    if (experiment.FindModel(model.name) == nullptr || Experiment::Runs(task, model))
      tasks.push_back(Prepare(task, subject, options));
  }
  if (tasks.empty()) Fail("experiment {} has no task for {}", experiment.name, model.name);
  return tasks;
}

SamplingParams SamplingOf(const ExperimentSampling& sampling, const ExperimentDecode& decode) {
  SamplingParams params;
  params.temperature = static_cast<float>(sampling.temperature);
  params.top_p = static_cast<float>(sampling.top_p);
  params.later = decode.later;
  return params;
}

Request RequestOf(const ExperimentDecode& decode, const ExperimentSampling& sampling,
                  const Task& task, uint64_t seed) {
  Request request;
  request.sampling = SamplingOf(sampling, decode);
  request.max_tokens = task.max_tokens;
  request.seed = seed;
  request.group = decode.schedule >= DecodeSchedule::kGroups ? 0 : 1;
  SetDecoding(
      decode.depths,
      decode.lookup || (!decode.depths.empty() && decode.schedule == DecodeSchedule::kChosen),
      request);
  ChangeLaboratory(request, [&](Laboratory& laboratory) {
    laboratory.every_branch = decode.schedule == DecodeSchedule::kPaper;
  });
  return request;
}

// Runs the texts of one experiment: every task under every sampling.
class TextRuns {
 public:
  TextRuns(const Experiment& experiment, std::vector<PreparedTask>& tasks,
           const std::vector<ExperimentDecode>& specs, int repeats)
      : experiment_(experiment), tasks_(tasks), specs_(specs), repeats_(repeats) {}

  std::vector<Measurement> Measurements(Engine& engine) {
    std::vector<Measurement> all;
    for (PreparedTask& task : tasks_) {
      for (const ExperimentSampling& sampling : experiment_.samplings)
        all.push_back(MeasurementOf(task, sampling, engine));
    }
    return all;
  }

 private:
  Measurement MeasurementOf(PreparedTask& prepared, const ExperimentSampling& sampling,
                            Engine& engine) {
    Measurement m;
    // What is counted and not timed is the same every time.
    const bool timed =
        experiment_.kind == ExperimentKind::kSpeedup || experiment_.kind == ExperimentKind::kDepths;
    m.repeats = timed ? repeats_ : 1;
    m.group = GroupOf(prepared.declared->name, sampling.name);
    m.stop = prepared.task.stop;
    const bool greedy = sampling.temperature == 0;
    for (const ExperimentDecode& decode : specs_) {
      if (decode.depths.empty() && !decode.lookup && !greedy && !NeedsBaseline()) continue;
      m.specs.push_back({SpecName(decode),
                         RequestOf(decode, sampling, prepared.task, experiment_.seed), &engine,
                         greedy ? "greedy" : ""});
    }
    m.jobs = prepared.jobs;
    return m;
  }

  // Sampled texts of gates, rows and sources need no autoregressive ones beside them.
  bool NeedsBaseline() const {
    return experiment_.kind == ExperimentKind::kSpeedup || NeedsDistance(experiment_);
  }

  const Experiment& experiment_;
  std::vector<PreparedTask>& tasks_;
  const std::vector<ExperimentDecode>& specs_;
  const int repeats_;
};

// The checkpoint's own name: as the Hub calls it, or its folder's.
std::string CheckpointName(const ExperimentSubject& subject) {
  std::error_code error;
  return std::filesystem::exists(subject.name, error) ? subject.folder.filename().string()
                                                      : subject.name;
}

// Keys and values of one position, on all planes that this backend keeps of a long text.
int64_t KvBytes(const ModelSpec& spec, const BackendOptions& options) {
  const KeptPlanes planes(spec, static_cast<int>(options.readout_depths.size()), options.key_plan);
  return planes.BytesPerPosition(spec.kv_heads * 2 * KvHeadBytes(options, spec.head_dim));
}

// The most memory that this process has had so far.
int64_t PeakMemory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

OrderedJson SettingsOf(const Experiment& experiment, const Experiment* paper,
                       const ExperimentModel& as, const ExperimentSubject& subject,
                       const std::vector<PreparedTask>& tasks, Backend& backend, double bandwidth,
                       const ExperimentOptions& options) {
  const BackendOptions& granted = backend.options();
  OrderedJson settings = {
      {"experiment", OrderedJson::parse(experiment.declaration)},
      {"model", as.name},
      {"checkpoint", CheckpointName(subject)},
      {"as", options.as},
      {"parameters", subject.loaded->model().weights.parameters},
      {"dtype", std::string(subject.loaded->model().weights.head.parts[0].type_name())},
      {"weights_sha256", HashWeights(subject.folder)},
      {"clock", kPromptClock},
      {"recurrence", subject.loaded->model().spec.recurrence},
      {"device", backend.device()},
      {"chip", backend.chip()},
      {"compute", granted.compute == ComputeMode::kF32 ? "f32" : "bf16"},
      {"kv_type", NameOfKvType(granted)},
      {"threads", granted.threads},
      {"version", options.version},
      {"date", options.date},
      {"command", options.command},
      {"kv_bytes_per_token", KvBytes(subject.loaded->model().spec, granted)},
      {"bandwidth", bandwidth},
      {"paper", nullptr}};
  OrderedJson notes = OrderedJson::array();
  for (const PreparedTask& task : tasks) {
    if (!task.task.note.empty()) notes.push_back(task.task.note);
  }
  settings["prompt_notes"] = notes;
  if (options.max_tokens > 0) settings["max_tokens"] = options.max_tokens;
  if (paper != nullptr) settings["paper"] = OrderedJson::parse(paper->declaration);
  return settings;
}

int64_t LongestText(const std::vector<PreparedTask>& tasks) {
  size_t longest = 0;
  for (const PreparedTask& task : tasks) {
    for (const MeasuredJob& job : task.jobs)
      longest = std::max(longest, job.tokens.size() + static_cast<size_t>(task.task.max_tokens));
  }
  return static_cast<int64_t>(longest);
}

std::vector<int> DepthsOf(const std::vector<ExperimentDecode>& specs) {
  std::set<int> depths;
  for (const ExperimentDecode& decode : specs)
    depths.insert(decode.depths.begin(), decode.depths.end());
  return {depths.begin(), depths.end()};
}

std::vector<int> DistanceDepths(const Experiment& experiment, int recurrence) {
  std::vector<int> depths;
  for (const int depth : experiment.distance_depths) {
    if (depth < recurrence) depths.push_back(depth);
  }
  for (int depth = 1; experiment.distance_depths.empty() && depth < recurrence; ++depth)
    depths.push_back(depth);
  return depths;
}

std::string DistanceKey(const std::string& group, const std::string& item) {
  return fmt::format("{}\n{}", group, item);
}

// Distances over prompts and the autoregressive texts that are recorded. False when interrupted.
bool MeasureDistances(const Experiment& experiment, const ExperimentSubject& subject,
                      const std::vector<PreparedTask>& tasks, const Records& records,
                      std::set<std::string>& done, RecordLog& log, const ExperimentHooks& hooks,
                      int64_t before, int64_t total) {
  const auto backend = subject.make_backend(
      DistanceDepths(experiment, subject.loaded->model().spec.recurrence), LongestText(tasks));
  for (const PreparedTask& task : tasks) {
    for (const ExperimentSampling& sampling : experiment.samplings) {
      const std::string group = GroupOf(task.declared->name, sampling.name);
      for (const MeasuredJob& job : task.jobs) {
        RunRecord name;
        name.group = group;
        name.way = "ar";
        name.item = job.item;
        const RunRecord* text = records.Find(name.Key());
        if (text == nullptr || done.contains(DistanceKey(group, job.item))) continue;
        std::vector<int32_t> tokens = job.tokens;
        tokens.insert(tokens.end(), text->tokens.begin(), text->tokens.end());
        tokens.pop_back();  // nothing was decided after the last one
        const DistanceSums sums = MeasureDistance(*backend, tokens, job.tokens.size() - 1,
                                                  SamplingOf(sampling, {}), hooks.interrupted);
        if (hooks.interrupted()) return false;
        log.Append(ToJson(sums, group, job.item));
        done.insert(DistanceKey(group, job.item));
        hooks.progress(before + static_cast<int64_t>(done.size()), total);
      }
    }
  }
  return true;
}

// What an earlier start wrote: runs go to `records`; the keys of the distances are returned.
std::set<std::string> Restore(const RecordLog& log, const std::string& file, Records& records) {
  std::set<std::string> distances;
  for (const Json& record : log.found()) {
    if (record.is_object() && record.contains(kPeakMemory)) continue;
    if (IsDistance(record))
      distances.insert(DistanceKey(record.value("group", ""), record.value("item", "")));
    else
      records.Restore(ParseRunRecord(record, file));
  }
  return distances;
}

void CountEqual(const Records& records, ExperimentOutcome& outcome) {
  for (const RunRecord& record : records.all()) {
    if (!record.equal) continue;
    ++outcome.compared;
    outcome.equal += *record.equal ? 1 : 0;
    if (!*record.equal && outcome.first_unequal.empty())
      outcome.first_unequal = fmt::format("{}, {}, {}", record.group, record.way, record.item);
  }
}

std::filesystem::path RecordPath(const ExperimentOptions& options, const Experiment& experiment,
                                 const ExperimentModel& model, const BackendOptions& granted) {
  std::error_code error;
  std::filesystem::create_directories(options.output, error);
  if (error) Fail("{} cannot be made: {}", options.output.string(), error.message());
  // Runs in all precisions can lie beside each other.
  const std::string compute = granted.compute == ComputeMode::kF32 ? "--f32" : "";
  std::string keys;
  if (granted.kv_type != KvType::kCompute) {
    keys = "--keys-" + NameOfKvType(granted);
    std::ranges::replace_if(
        keys, [](unsigned char c) { return std::isalnum(c) == 0; }, '-');
  }
  return options.output /
         fmt::format("{}--{}{}{}.jsonl", experiment.name, model.name, compute, keys);
}

}  // namespace

ExperimentModel ModelOf(const Experiment& experiment, const ExperimentSubject& subject,
                        const std::string& as) {
  const int recurrence = subject.loaded->model().spec.recurrence;
  if (!as.empty()) {
    const ExperimentModel* model = experiment.FindModel(as);
    std::vector<std::string> names;
    for (const ExperimentModel& m : experiment.models) names.push_back(m.name);
    if (model == nullptr)
      Fail("--as {}: experiment {} has no such model, expected one of {}", as, experiment.name,
           fmt::join(names, ", "));
    if (model->recurrence != recurrence)
      Fail("--as {}: it runs {} recurrences, this model {}", as, model->recurrence, recurrence);
    return *model;
  }
  const std::string folder = subject.folder.filename().string();
  for (const ExperimentModel& model : experiment.models) {
    const std::string last = std::filesystem::path(model.checkpoint).filename().string();
    const bool named = subject.name == model.checkpoint || folder == last || folder == model.name;
    if (named && model.recurrence == recurrence) return model;
  }
  return {folder, subject.name, recurrence};
}

std::vector<ExperimentDecode> SpecsOf(const Experiment& experiment, int recurrence) {
  std::vector<ExperimentDecode> specs = {{.depths = {}}};  // autoregressive first
  if (experiment.kind == ExperimentKind::kSpeedup) specs.push_back({.lookup = true});
  bool any = experiment.decodes.empty();
  for (ExperimentDecode decode : experiment.decodes) {
    if (decode.recurrence != 0 && decode.recurrence != recurrence) continue;
    decode.recurrence = 0;
    if (!decode.depths.empty() && decode.depths.back() >= recurrence) continue;
    any = any || !decode.depths.empty();
    if (std::find(specs.begin(), specs.end(), decode) == specs.end()) specs.push_back(decode);
  }
  if (any || recurrence < 2) return specs;
  // A model of another R than the paper's: depths that suit it in place of the declared ones.
  for (ExperimentDecode decode : experiment.decodes) {
    if (decode.depths.empty()) continue;
    const size_t proposals = decode.depths.size();
    decode.depths = DefaultDepths(recurrence);
    decode.depths.resize(std::min(decode.depths.size(), proposals));
    decode.recurrence = 0;
    if (std::find(specs.begin(), specs.end(), decode) == specs.end()) specs.push_back(decode);
  }
  return specs;
}

std::string GroupOf(const std::string& task, const std::string& sampling) {
  return fmt::format("{}/{}", task, sampling);
}

std::filesystem::path TaskFolder(const std::string& task, const std::filesystem::path& model,
                                 const std::filesystem::path& benchmarks) {
  const std::vector<std::string> names = TaskNames();
  // An unknown task is refused where it is made.
  if (task == "stories" || std::find(names.begin(), names.end(), task) == names.end()) return {};
  const bool given = !benchmarks.empty() && std::filesystem::exists(benchmarks / kHeldout);
  if (task == "heldout_problems" && !given)
    return std::filesystem::weakly_canonical(model).parent_path();
  if (benchmarks.empty()) {
    Fail(
        "task {} needs --benchmarks DIR, a folder of benchmark files as "
        "scripts/fetch-benchmarks.py makes it",
        task);
  }
  return benchmarks;
}

std::vector<int32_t> TaskPromptTokens(const Task& task, const TaskItem& item,
                                      const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                                      const OrderedJson& template_arguments) {
  std::string text = item.prompt;
  if (!item.messages.empty()) {
    if (chat_template == nullptr)
      Fail("task {} asks for the chat form, and the model has no chat template", task.name);
    OrderedJson messages = OrderedJson::array();
    for (const TaskMessage& message : item.messages)
      messages.push_back({{"role", message.role}, {"content", message.content}});
    ChatTemplate::Options options;
    options.arguments = template_arguments;
    text = chat_template->Render(messages, options);
    text += item.answer_prefix;
  }
  std::vector<int32_t> tokens = tokenizer.Encode(text, false);
  if (tokens.empty()) Fail("task {}, item {}: the prompt has no tokens", task.name, item.id);
  CutPrompt(task.max_length, task.max_tokens, tokens);
  return tokens;
}

OrderedJson ToJson(const DistanceSums& sums, const std::string& group, const std::string& item) {
  return {{kDistance, sums.distance},    {"agreed", sums.agreed}, {"depths", sums.depths},
          {"positions", sums.positions}, {"group", group},        {"item", item}};
}

bool IsDistance(const Json& record) {
  return record.is_object() && record.contains(kDistance);
}

DistanceSums ParseDistance(const Json& record, const std::string& what) {
  DistanceSums sums;
  try {
    sums.depths = record.at("depths").get<std::vector<int>>();
    sums.agreed = record.at("agreed").get<std::vector<double>>();
    sums.distance = record.at(kDistance).get<std::vector<double>>();
    sums.positions = record.at("positions").get<int64_t>();
  } catch (const Json::exception&) {
    Fail("{}: no record of distances", what);
  }
  if (sums.agreed.size() != sums.depths.size() || sums.distance.size() != sums.depths.size())
    Fail("{}: a record of distances with lists of different lengths", what);
  return sums;
}

ExperimentOutcome RunExperiment(const Experiment& experiment, const Experiment* paper,
                                const ExperimentSubject& subject, const ExperimentOptions& options,
                                const ExperimentHooks& hooks) {
  const ExperimentModel as = ModelOf(experiment, subject, options.as);
  const int recurrence = subject.loaded->model().spec.recurrence;
  const std::vector<ExperimentDecode> specs = SpecsOf(experiment, recurrence);
  std::vector<PreparedTask> tasks = PrepareAll(experiment, as, subject, options);

  ExperimentOutcome outcome;
  std::shared_ptr<Backend> backend = subject.make_backend(DepthsOf(specs), LongestText(tasks));
  outcome.file = RecordPath(options, experiment, as, backend->options());
  const OrderedJson settings = SettingsOf(experiment, paper, as, subject, tasks, *backend,
                                          backend->ReadBandwidth(), options);
  RecordLog log(outcome.file, settings, {"bandwidth", "paper", "date", "command"});
  Records records([&](const RunRecord& record) { log.Append(ToJson(record)); });
  std::set<std::string> distances = Restore(log, outcome.file.string(), records);

  std::vector<std::vector<int>> sets;
  for (const ExperimentDecode& spec : specs) sets.push_back(spec.depths);
  std::optional<Engine> engine =
      MakeLaboratoryEngine(subject.loaded, backend, LoadStepCost(*backend), std::move(sets));
  TextRuns runs(experiment, tasks, specs, options.repeats);
  const std::vector<Measurement> measurements = runs.Measurements(*engine);
  int64_t total = 0, before = 0;
  for (const Measurement& m : measurements)
    total += CountRuns(m) + (NeedsDistance(experiment) ? static_cast<int64_t>(m.jobs.size()) : 0);
  bool going = true;
  for (const Measurement& m : measurements) {
    MeasureHooks inner{hooks.interrupted,
                       [&](int64_t done, int64_t) { hooks.progress(before + done, total); }};
    going = RunMeasurement(m, inner, records);
    if (!going) break;
    before += CountRuns(m);
    hooks.finished(m.group, records);
  }
  if (going) log.Append({{kPeakMemory, PeakMemory()}});
  if (going && NeedsDistance(experiment)) {
    engine.reset();
    backend.reset();
    going =
        MeasureDistances(experiment, subject, tasks, records, distances, log, hooks, before, total);
  }
  outcome.complete = going;
  CountEqual(records, outcome);
  return outcome;
}

}  // namespace loopspec::experiments
