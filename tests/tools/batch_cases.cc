#include "tests/tools/batch_cases.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "tests/tools/cli.h"

namespace loopspec::test {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// custom_id and text of every answer, in the order of the file.
std::vector<std::pair<std::string, std::string>> Texts(const std::string& file) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const Json& line : WholeLines(file))
    out.emplace_back(line["custom_id"], line["response"]["body"]["choices"][0]["text"]);
  return out;
}

}  // namespace

std::vector<Json> JsonLines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::vector<Json> WholeLines(const std::string& text) {
  return JsonLines(text.substr(0, text.rfind('\n') + 1));
}

std::string BatchRequest(const std::string& id, const std::string& url, const Json& body) {
  return Json{{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}}.dump() + "\n";
}

std::string Completion(int i, int max_tokens) {
  return BatchRequest("r" + std::to_string(i), "/v1/completions",
                      {{"prompt", "Tom has " + std::to_string(i) + " apples"},
                       {"max_tokens", max_tokens},
                       {"temperature", 0}});
}

std::vector<std::string> BatchArguments(const std::string& input, const std::string& output) {
  return {"batch", "-m", OuroDemo(), "--threads", "1", "--input", input, "--output", output};
}

void KillAtRandomMoments(int kills, int seed) {
  const Scratch scratch;
  std::string requests;
  constexpr int kRequests = 40;
  for (int i = 0; i < kRequests; ++i) requests += Completion(i, 1 + (i * 7) % 23);
  const std::string input = scratch.Write("in.jsonl", requests);
  ASSERT_EQ(Call(BatchArguments(input, scratch / "first.jsonl")).code, 0);  // fills the caches
  const std::string undisturbed = scratch / "undisturbed.jsonl";
  const auto start = Clock::now();
  ASSERT_EQ(Call(BatchArguments(input, undisturbed)).code, 0);
  const double seconds = SecondsSince(start);
  const auto expected = Texts(Slurp(undisturbed));
  ASSERT_EQ(expected.size(), static_cast<size_t>(kRequests));

  const std::string output = scratch / "out.jsonl";
  std::mt19937 random(static_cast<unsigned>(seed));
  // Beyond a run's length too: machines are busy.
  std::uniform_real_distribution<double> moment(0, 1.3 * seconds);
  std::map<std::string, std::string> before;  // what the file held after the kill before
  int killed = 0, with_answers = 0, finished = 0;
  for (int i = 0; killed < kills && i < 20 * kills; ++i) {
    const double at = moment(random);
    const auto begin = Clock::now();
    RunOptions options;
    options.kill_when = [&] { return SecondsSince(begin) > at; };
    const RunResult run = Call(BatchArguments(input, output), options);
    const auto now = Texts(Slurp(output));
    if (run.signal != SIGKILL) {
      ASSERT_EQ(run.code, 0) << run.err;
      EXPECT_EQ(now, expected);
      std::filesystem::remove(output);
      before.clear();
      ++finished;
      continue;
    }
    ++killed;
    with_answers += now.empty() ? 0 : 1;
    const std::map<std::string, std::string> after(now.begin(), now.end());
    ASSERT_EQ(after.size(), now.size()) << "a doubled answer after kill " << killed;
    for (const auto& [id, text] : before)
      ASSERT_TRUE(after.contains(id) && after.at(id) == text) << id << " lost by kill " << killed;
    before = after;
  }
  EXPECT_EQ(killed, kills);
  const RunResult last = Call(BatchArguments(input, output));
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_EQ(Texts(Slurp(output)), expected);
  testing::Test::RecordProperty("kills_with_answers", with_answers);
  std::printf("%d kills, %d of them with answers in the file, %d runs that ended by themselves\n",
              killed, with_answers, finished);
}

}  // namespace loopspec::test
