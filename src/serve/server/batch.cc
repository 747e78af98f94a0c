#include "serve/server/batch.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "serve/server/service.h"

namespace loopspec::serve {
namespace {

constexpr size_t kInFlight = 256;  // lines; enough that the engine is never without work

// ---- Input ----

std::string PlainBody(const PlainPrompts& plain, const std::string& prompt) {
  OrderedJson body;
  if (plain.chat)
    body["messages"] = OrderedJson::array({{{"role", "user"}, {"content", prompt}}});
  else
    body["prompt"] = prompt;
  if (plain.max_tokens > 0) body["max_tokens"] = plain.max_tokens;
  return body.dump();
}

// In the order of its members, which a schema means something by.
void ReadRequest(const OrderedJson& json, BatchLine& line) {
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
BatchLine ReadLine(const PlainPrompts& plain, const std::string& text, int number) {
  BatchLine line;
  line.number = number;
  line.id = fmt::format("line-{}", number);
  try {
    if (text[0] == '{') {
      ReadRequest(ParseOrderedJson(text, "the line"), line);
      return line;
    }
    std::string prompt = text;
    if (text[0] == '"') prompt = ParseJson(text, "the line").get<std::string>();
    line.plain = true;
    line.url = plain.chat ? "/v1/chat/completions" : "/v1/completions";
    line.body = PlainBody(plain, prompt);
  } catch (const std::exception& error) {
    line.error = error.what();
  }
  return line;
}

// ---- Output ----

std::string AnswerLine(const BatchLine& line, const HttpResponse& response) {
  OrderedJson answer = {{"status_code", response.status}, {"request_id", ""}};
  for (const auto& [name, value] : response.headers) {
    if (name == "X-Request-Id") answer["request_id"] = value;
    // What was left out of a request, or changed in it.
    if (name.starts_with("X-Loopspec-")) answer["headers"][name] = value;
  }
  OrderedJson body;
  try {
    body = ParseOrderedJson(response.body, "answer");
  } catch (const std::exception&) {
    body = response.body;
  }
  answer["body"] = std::move(body);
  const OrderedJson out = {{"id", fmt::format("batch_req_{}", line.number)},
                           {"custom_id", line.id},
                           {"response", std::move(answer)},
                           {"error", nullptr}};
  return out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// A line that never became a request.
std::string Refusal(const BatchLine& line) {
  const OrderedJson out = {{"id", fmt::format("batch_req_{}", line.number)},
                           {"custom_id", line.id},
                           {"response", nullptr},
                           {"error",
                            {{"code", "invalid_line"},
                             {"message", fmt::format("line {}: {}", line.number, line.error)}}}};
  return out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// Gives answers to the output: to a file at once, to a stream in the order of the lines if asked.
class BatchResults {
 public:
  BatchResults(const std::vector<BatchLine>& lines, BatchOutput& output, bool in_order)
      : lines_(lines), output_(output), wait_(in_order && !output.is_file()) {}
  // The answer to the `index`-th of the lines that are to be answered.
  void Add(size_t index, std::string text) {
    if (!wait_) return output_.Add(lines_[index].id, text);
    waiting_.emplace(index, std::move(text));
    for (; !waiting_.empty() && waiting_.begin()->first == next_; ++next_) {
      output_.Add(lines_[next_].id, waiting_.begin()->second);
      waiting_.erase(waiting_.begin());
    }
  }

 private:
  const std::vector<BatchLine>& lines_;
  BatchOutput& output_;
  const bool wait_;
  size_t next_ = 0;
  std::map<size_t, std::string> waiting_;
};

// ---- The run ----

// What other threads leave for the main one.
class BatchQueue {
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

using OnLineAnswer = std::function<void(HttpResponse response)>;

// Takes the answer to one line. Lines do not ask for streams, and nothing times out in a batch.
class LineWriter final : public ResponseWriter {
 public:
  LineWriter(std::shared_ptr<BatchQueue> queue, OnLineAnswer on_answer)
      : queue_(std::move(queue)), on_answer_(std::move(on_answer)) {}
  ~LineWriter() override {
    HttpResponse none;
    none.status = 500;
    none.body = R"({"error":{"message":"no answer was given","type":"server_error"}})";
    Send(std::move(none));
  }

  void Send(HttpResponse response) override {
    OnLineAnswer take;
    {
      const std::lock_guard lock(mutex_);
      take = std::exchange(on_answer_, {});
      gone_ = {};
    }
    if (!take) return;
    queue_->Post([take = std::move(take), response = std::move(response)]() mutable {
      take(std::move(response));
    });
  }
  void Begin(HttpResponse head, std::string) override { Send(std::move(head)); }
  bool Write(std::string_view) override { return true; }
  void End() override {}
  bool full() const override { return false; }
  void OnGone(Callback callback) override {
    const std::lock_guard lock(mutex_);
    if (on_answer_) gone_ = std::move(callback);
  }
  void OnDrained(Callback) override {}
  void Post(Callback callback) override { queue_->Post(std::move(callback)); }
  void After(std::chrono::milliseconds, Callback) override {}

  // As a client that hangs up.
  void GiveUp() {
    Callback gone;
    {
      const std::lock_guard lock(mutex_);
      gone = std::exchange(gone_, {});
      on_answer_ = {};
    }
    if (gone) queue_->Post(std::move(gone));
  }

 private:
  const std::shared_ptr<BatchQueue> queue_;
  std::mutex mutex_;
  OnLineAnswer on_answer_;
  Callback gone_;
};

class Batch {
 public:
  Batch(std::shared_ptr<Engine> engine, const std::vector<BatchLine>& lines,
        const BatchDefaults& defaults, BatchOutput& output, bool in_order)
      : lines_(lines), defaults_(defaults), results_(lines, output, in_order), service_([] {
          ServiceOptions service;
          service.log.file = "/dev/null";
          return service;
        }()) {
    service_.SetEngine(std::move(engine));
  }

  BatchCounts Run(const std::function<bool(const BatchCounts& counts)>& go_on) {
    size_t next = 0;
    while (counts_.done < lines_.size() && go_on(counts_)) {
      while (next < lines_.size() && writers_.size() < kInFlight) Start(next++);
      queue_->RunOne();
    }
    for (auto& [index, writer] : writers_) writer->GiveUp();
    writers_.clear();
    while (service_.running() > 0) queue_->RunOne();
    return counts_;
  }

 private:
  void Start(size_t index) {
    const BatchLine& line = lines_[index];
    if (!line.error.empty()) return Finish(index, Refusal(line), true);
    auto writer = std::make_shared<LineWriter>(queue_, [this, index](const HttpResponse& response) {
      writers_.erase(index);
      Finish(index, AnswerLine(lines_[index], response), response.status != 200);
    });
    writers_[index] = writer;
    HttpRequest request;
    request.method = "POST";
    request.path = line.url;
    const std::string name = fmt::format("batch-{}", line.number);
    request.headers = {
        {"Host", "localhost"}, {"Content-Type", "application/json"}, {"X-Request-Id", name}};
    request.body = line.body;
    CallDefaults defaults;
    defaults.sampling = defaults_.sampling;
    defaults.models_own = line.plain;
    defaults.seed = defaults_.seed + static_cast<uint64_t>(line.number) - 1;
    defaults.id = name;
    service_.Handle(std::move(request), std::move(writer), std::move(defaults));
  }

  void Finish(size_t index, std::string text, bool error) {
    results_.Add(index, std::move(text));
    ++counts_.done;
    counts_.errors += error ? 1 : 0;
  }

  const std::vector<BatchLine>& lines_;
  const BatchDefaults& defaults_;
  BatchResults results_;
  Service service_;
  const std::shared_ptr<BatchQueue> queue_ = std::make_shared<BatchQueue>();
  std::map<size_t, std::shared_ptr<LineWriter>> writers_;  // of the lines in flight
  BatchCounts counts_;
};

}  // namespace

std::vector<BatchLine> ReadBatch(std::string_view file, const std::string& name,
                                 const PlainPrompts& plain) {
  std::vector<BatchLine> lines;
  std::map<std::string, int> seen;
  size_t begin = 0;
  for (int number = 1; begin < file.size(); ++number) {
    size_t end = file.find('\n', begin);
    if (end == std::string_view::npos) end = file.size();
    std::string text(file.substr(begin, end - begin));
    begin = end + 1;
    if (!text.empty() && text.back() == '\r') text.pop_back();
    if (text.find_first_not_of(" \t") == std::string::npos) continue;
    lines.push_back(ReadLine(plain, text.substr(text.find_first_not_of(" \t")), number));
    const auto [before, fresh] = seen.emplace(lines.back().id, number);
    if (!fresh)
      Fail("{}, line {}: custom_id {} stands in line {} already", name, number, lines.back().id,
           before->second);
  }
  if (lines.empty()) Fail("{} holds no request", name);
  return lines;
}

BatchCounts AnswerBatch(std::shared_ptr<Engine> engine, const std::vector<BatchLine>& lines,
                        const BatchDefaults& defaults, BatchOutput& output, bool in_order,
                        const std::function<bool(const BatchCounts& counts)>& go_on) {
  return Batch(std::move(engine), lines, defaults, output, in_order).Run(go_on);
}

}  // namespace loopspec::serve
