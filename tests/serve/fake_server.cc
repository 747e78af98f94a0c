// The whole server with an engine of made-up tokens, for clients in other languages: prints its
// port and serves until standard input ends or a signal comes.
//
//   fake_server [SECONDS_PER_TOKEN [API_KEY]]
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "serve/server/run_server.h"
#include "tests/support/scripted_engine.h"

int main(int argc, char** argv) {
  using namespace loopspec;
  serve::RunOptions options;
  options.http.port = 0;
  options.service.log.file = "/dev/null";
  if (argc > 2) options.service.keys.Add(argv[2], "argument");
  std::shared_ptr<Engine> engine;
  std::thread commands;
  const auto load = [&] {
    test::ScriptedOptions script;
    if (argc > 1) script.token_seconds = std::atof(argv[1]);
    engine = test::MakeScriptedEngine(script);
    // "running", "cancelled" and "submitted" are answered with numbers.
    commands = std::thread([&] {
      for (std::string line; std::getline(std::cin, line);) {
        const int64_t number = line == "cancelled"   ? engine->metrics().cancelled
                               : line == "submitted" ? test::Submitted(*engine)
                                                     : test::Running(*engine);
        std::printf("%d\n", static_cast<int>(number));
        std::fflush(stdout);
      }
      kill(getpid(), SIGTERM);
    });
    return engine;
  };
  serve::RunServer(options, load, [](int port) {
    std::printf("%d\n", port);
    std::fflush(stdout);
  });
  std::printf("ended\n");
  std::fflush(stdout);
  _exit(0);  // the reader of standard input may still wait for it
}
