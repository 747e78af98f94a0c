// The work that overhead_check.py gives to Python, done with the C++ interface: each line of
// standard input is a measurement.
//   overhead_reference MODEL PROMPTS THREADS
//     PROMPTS: a file with a prompt on each line
//     "stream N": the first prompt, N tokens; "bulk N": all prompts at once, N tokens each
//   Prints seconds, seconds of CPU time of the thread that reads, and tokens.
#include <time.h>

#include <chrono>
#include <exception>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "loopspec/loopspec.h"

namespace {

loopspec::Request RequestOf(const std::string& prompt, int tokens) {
  loopspec::Request request;
  request.prompt = prompt;
  request.max_tokens = tokens;
  request.ignore_eos = true;
  return request;
}

// CPU time of this thread in seconds.
double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Reads all tokens of all streams; how many there were.
int64_t ReadAll(std::vector<loopspec::Stream>& streams) {
  int64_t count = 0;
  for (loopspec::Stream& stream : streams) {
    loopspec::Token token;
    for (loopspec::Stream::Status status;
         (status = stream.Next(token)) != loopspec::Stream::Status::kDone;) {
      count += status == loopspec::Stream::Status::kToken ? 1 : 0;
    }
  }
  return count;
}

void Run(const std::string& model, const std::string& file, int threads) {
  std::ifstream in(file);
  std::vector<std::string> prompts;
  for (std::string line; std::getline(in, line);) prompts.push_back(line);
  loopspec::Engine engine({.model = model, .threads = threads, .cache_bytes = 0});
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string what;
    int tokens = 0;
    words >> what >> tokens;
    const auto start = std::chrono::steady_clock::now();
    const double busy = ThreadSeconds();
    std::vector<loopspec::Stream> streams;
    for (const std::string& prompt : prompts) {
      streams.push_back(engine.Submit(RequestOf(prompt, tokens)));
      if (what == "stream") break;
    }
    const int64_t count = ReadAll(streams);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::cout << seconds.count() << " " << ThreadSeconds() - busy << " " << count << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    Run(argv[1], argv[2], std::stoi(argv[3]));
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
