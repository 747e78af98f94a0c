// loopspec batch: a file of requests in, a file of answers out, in the form of OpenAI's batches.
//
// Every line goes through the server's own handler, without a socket, so that a body means the same
// in a batch and over HTTP. The engine's thread and the handler hand over their work here through
// one queue, which the main thread empties.
#include <fmt/format.h>

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "decode/depths.h"
#include "serve/loaded_engine.h"
#include "serve/service.h"
#include "tools/commands.h"
#include "tools/input_file.h"
#include "tools/interrupt.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

constexpr size_t kInFlight = 256;  // lines; enough that the engine is never without work

struct BatchOptions {
  ModelOptions model;
  std::vector<std::string> depths;
  std::string input, output, order = "input";
  bool chat = false;
  int max_tokens = 0;  // of plain prompts; 0: as the server does
};

// One line of the input: a request, or what is wrong with it.
struct Line {
  int number = 0;
  std::string id;  // custom_id
  std::string url, body;
  std::string error;
};

// What other threads leave for the main one.
class Strand {
 public:
  void Post(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    ready_.notify_one();
  }
  // Runs the next piece of work; false when none has come for a moment.
  bool RunOne() {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      if (!ready_.wait_for(lock, std::chrono::milliseconds(100), [&] { return !queue_.empty(); }))
        return false;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> queue_;
};

using OnAnswer = std::function<void(serve::HttpResponse response)>;

// Takes the answer to one line. Lines do not ask for streams, and nothing times out in a batch.
class LineWriter final : public serve::ResponseWriter {
 public:
  LineWriter(std::shared_ptr<Strand> strand, OnAnswer on_answer)
      : strand_(std::move(strand)), on_answer_(std::move(on_answer)) {}
  ~LineWriter() override {
    serve::HttpResponse none;
    none.status = 500;
    none.body = R"({"error":{"message":"no answer was given","type":"server_error"}})";
    Send(std::move(none));
  }

  void Send(serve::HttpResponse response) override {
    OnAnswer take;
    {
      const std::lock_guard lock(mutex_);
      take = std::exchange(on_answer_, {});
      gone_ = {};
    }
    if (!take) return;
    strand_->Post([take = std::move(take), response = std::move(response)]() mutable {
      take(std::move(response));
    });
  }
  void Begin(serve::HttpResponse head, std::string) override { Send(std::move(head)); }
  bool Write(std::string_view) override { return true; }
  void End() override {}
  bool full() const override { return false; }
  void OnGone(Callback callback) override {
    const std::lock_guard lock(mutex_);
    if (on_answer_) gone_ = std::move(callback);
  }
  void OnDrained(Callback) override {}
  void Post(Callback callback) override { strand_->Post(std::move(callback)); }
  void After(std::chrono::milliseconds, Callback) override {}

  // As a client that hangs up.
  void GiveUp() {
    Callback gone;
    {
      const std::lock_guard lock(mutex_);
      gone = std::exchange(gone_, {});
      on_answer_ = {};
    }
    if (gone) strand_->Post(std::move(gone));
  }

 private:
  const std::shared_ptr<Strand> strand_;
  std::mutex mutex_;
  OnAnswer on_answer_;
  Callback gone_;
};

// ---- Input ----

std::string PlainBody(const BatchOptions& options, const std::string& prompt) {
  OrderedJson body;
  if (options.chat)
    body["messages"] = OrderedJson::array({{{"role", "user"}, {"content", prompt}}});
  else
    body["prompt"] = prompt;
  if (options.max_tokens > 0) body["max_tokens"] = options.max_tokens;
  return body.dump();
}

void ReadRequest(const Json& json, Line& line) {
  const auto text = [&](const char* key) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_string()) Fail("{} is no text", key);
    return found->get<std::string>();
  };
  line.id = text("custom_id");
  if (const std::string method = json.contains("method") ? text("method") : "POST";
      method != "POST")
    Fail("method is {}, expected POST", method);
  line.url = text("url");
  const auto body = json.find("body");
  if (body == json.end() || !body->is_object()) Fail("body is no JSON object");
  const auto stream = body->find("stream");
  if (stream != body->end() && *stream == true) Fail("stream: a batch has no streams");
  line.body = body->dump();
}

// A line is a request of OpenAI's batches (an object), or a prompt: a JSON string or plain text.
Line ReadLine(const BatchOptions& options, const std::string& text, int number) {
  Line line;
  line.number = number;
  line.id = fmt::format("line-{}", number);
  try {
    if (text[0] == '{') {
      ReadRequest(ParseJson(text, "the line"), line);
      return line;
    }
    std::string prompt = text;
    if (text[0] == '"') prompt = ParseJson(text, "the line").get<std::string>();
    line.url = options.chat ? "/v1/chat/completions" : "/v1/completions";
    line.body = PlainBody(options, prompt);
  } catch (const std::exception& error) {
    line.error = error.what();
  }
  return line;
}

std::vector<Line> ReadLines(const BatchOptions& options) {
  const std::string file = ReadInput(options.input);
  std::vector<Line> lines;
  std::map<std::string, int> seen;
  size_t begin = 0;
  for (int number = 1; begin < file.size(); ++number) {
    size_t end = file.find('\n', begin);
    if (end == std::string::npos) end = file.size();
    std::string text = file.substr(begin, end - begin);
    begin = end + 1;
    if (!text.empty() && text.back() == '\r') text.pop_back();
    if (text.find_first_not_of(" \t") == std::string::npos) continue;
    lines.push_back(ReadLine(options, text.substr(text.find_first_not_of(" \t")), number));
    const auto [before, fresh] = seen.emplace(lines.back().id, number);
    if (!fresh)
      Fail("{}, line {}: custom_id {} stands in line {} already", NameOfInput(options.input),
           number, lines.back().id, before->second);
  }
  if (lines.empty()) Fail("{} holds no request", NameOfInput(options.input));
  return lines;
}

// ---- Output ----

std::string Answer(const Line& line, const serve::HttpResponse& response) {
  std::string request_id;
  for (const auto& [name, value] : response.headers) {
    if (name == "X-Request-Id") request_id = value;
  }
  OrderedJson body;
  try {
    body = ParseOrderedJson(response.body, "answer");
  } catch (const std::exception&) {
    body = response.body;
  }
  const OrderedJson out = {
      {"id", fmt::format("batch_req_{}", line.number)},
      {"custom_id", line.id},
      {"response",
       {{"status_code", response.status}, {"request_id", request_id}, {"body", std::move(body)}}},
      {"error", nullptr}};
  return out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// A line that never became a request.
std::string Refusal(const Line& line) {
  const OrderedJson out = {{"id", fmt::format("batch_req_{}", line.number)},
                           {"custom_id", line.id},
                           {"response", nullptr},
                           {"error",
                            {{"code", "invalid_line"},
                             {"message", fmt::format("line {}: {}", line.number, line.error)}}}};
  return out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// What an earlier run has left. A line that it could not finish is taken away.
std::set<std::string> Done(const std::string& path) {
  std::set<std::string> done;
  if (!FileExists(path)) return done;
  const std::string file = ReadFile(path);
  size_t begin = 0;
  for (int number = 1; begin < file.size(); ++number) {
    const size_t end = file.find('\n', begin);
    if (end == std::string::npos) {
      std::filesystem::resize_file(path, begin);
      break;
    }
    const std::string where = fmt::format("{}, line {}", path, number);
    const Json json = ParseJson(file.substr(begin, end - begin), where);
    const auto id = json.is_object() ? FindString(json, "custom_id", where) : std::nullopt;
    if (!id) Fail("{}: no answer of a batch: is this the right file?", where);
    done.insert(*id);
    begin = end + 1;
  }
  return done;
}

class Results {
 public:
  Results(const std::string& path, bool in_order) : path_(path), in_order_(in_order) {
    if (path == "-") return;
    file_ = std::fopen(path.c_str(), "ab");
    if (file_ == nullptr) Fail("{} cannot be written", path);
  }
  ~Results() {
    if (file_ != stdout) std::fclose(file_);
  }
  // The answer to the `index`-th of the lines that are to be answered.
  void Add(size_t index, std::string text) {
    if (!in_order_) return Write(text);
    waiting_.emplace(index, std::move(text));
    for (; !waiting_.empty() && waiting_.begin()->first == next_; ++next_) {
      Write(waiting_.begin()->second);
      waiting_.erase(waiting_.begin());
    }
  }

 private:
  void Write(const std::string& text) {
    // Whole lines: a run that is broken off loses at most the one being written.
    if (std::fwrite((text + "\n").data(), 1, text.size() + 1, file_) != text.size() + 1 ||
        std::fflush(file_) != 0)
      Fail("{} cannot be written", path_ == "-" ? "standard output" : path_);
  }

  const std::string path_;
  const bool in_order_;
  std::FILE* file_ = stdout;
  size_t next_ = 0;
  std::map<size_t, std::string> waiting_;
};

// ---- The run ----

class Batch {
 public:
  Batch(const BatchOptions& options, std::vector<Line> lines)
      : lines_(std::move(lines)), results_(options.output, options.order == "input"), service_([] {
          serve::ServiceOptions service;
          service.log.file = "/dev/null";
          return service;
        }()) {
    serve::LoadOptions load;
    load.engine = options.model.ToEngineOptions();
    for (const std::string& depths : options.depths)
      load.engine.depths.push_back(ParseDepths(depths));
    load.engine.max_queued = 1 << 20;
    service_.SetEngine(serve::LoadCompletionEngine(load));
  }

  // Returns how many lines had no answer but an error.
  size_t Run() {
    ProgressLine progress(0.5);
    size_t next = 0;
    while (done_ < lines_.size() && !Interrupted()) {
      while (next < lines_.size() && writers_.size() < kInFlight) Start(next++);
      strand_->RunOne();
      progress.Show("batch", static_cast<int64_t>(done_), static_cast<int64_t>(lines_.size()),
                    "requests");
    }
    for (auto& [index, writer] : writers_) writer->GiveUp();
    writers_.clear();
    while (service_.running() > 0) strand_->RunOne();
    return errors_;
  }
  size_t done() const { return done_; }

 private:
  void Start(size_t index) {
    const Line& line = lines_[index];
    if (!line.error.empty()) return Finish(index, Refusal(line), true);
    auto writer =
        std::make_shared<LineWriter>(strand_, [this, index](const serve::HttpResponse& response) {
          writers_.erase(index);
          Finish(index, Answer(lines_[index], response), response.status != 200);
        });
    writers_[index] = writer;
    serve::HttpRequest request;
    request.method = "POST";
    request.path = line.url;
    request.body = line.body;
    service_.Handle(std::move(request), std::move(writer));
  }

  void Finish(size_t index, std::string text, bool error) {
    results_.Add(index, std::move(text));
    ++done_;
    errors_ += error ? 1 : 0;
  }

  const std::vector<Line> lines_;
  Results results_;
  serve::Service service_;
  const std::shared_ptr<Strand> strand_ = std::make_shared<Strand>();
  std::map<size_t, std::shared_ptr<LineWriter>> writers_;  // of the lines in flight
  size_t done_ = 0, errors_ = 0;
};

void RunBatch(const BatchOptions& options) {
  CatchInterrupt();
  std::vector<Line> lines = ReadLines(options);
  const size_t all = lines.size();
  if (options.output != "-") {
    const std::set<std::string> done = Done(options.output);
    std::erase_if(lines, [&](const Line& line) { return done.contains(line.id); });
  }
  const size_t known = all - lines.size();
  if (lines.empty()) {
    fmt::print(stderr, "all {} requests are answered already\n", all);
    return;
  }
  Batch batch(options, std::move(lines));
  const size_t errors = batch.Run();
  fmt::print(stderr, "{} of {} requests answered{}{}\n", known + batch.done(), all,
             known > 0 ? fmt::format(", {} of them before", known) : "",
             errors > 0 ? fmt::format(", {} with an error", errors) : "");
  if (Interrupted()) fmt::print(stderr, "the same command goes on from here\n");
}

}  // namespace

void AddBatchCommand(Command app) {
  auto options = std::make_shared<BatchOptions>();
  const Command command = app.AddCommand("batch", "Answer a file of requests");
  command
      .AddOption(
          "--input,-i", options->input,
          "Requests of OpenAI's batches, a JSON object per line, or prompts, one per line; - "
          "is standard input")
      .Required();
  command
      .AddOption("--output,-o", options->output,
                 "Answers, one per line; what it holds already is not asked again")
      .Required();
  command.AddOption("--order", options->order, "input: as the requests; free: as they end")
      .OneOf({"input", "free"})
      .ShowDefault();
  command.AddFlag("--chat", options->chat, "Put prompts into the model's chat template");
  command
      .AddOption("--max-tokens,-n", options->max_tokens,
                 "Most tokens for a prompt; default: as the server has it")
      .Range(1, 1 << 30)
      .TypeName("N");
  options->model.AddTo(command);
  command
      .AddOption("--depths", options->depths,
                 "Proposal depths, such as 1,2; given several times, requests may choose")
      .OneValueEach();
  command.SetFooter(
      "\nExample:\n"
      "  loopspec batch -m models/ouro-demo --input requests.jsonl --output results.jsonl");
  command.SetAction([options] { RunBatch(*options); });
}

}  // namespace loopspec::tools
