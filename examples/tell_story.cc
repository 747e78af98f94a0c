// Streams a story and says how it was decoded.
#include <exception>
#include <iostream>

#include "loopspec/loopspec.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: tell_story MODEL_FOLDER\n";
    return 2;
  }
  try {
    loopspec::Engine engine({.model = argv[1]});
    loopspec::Request request;
    request.messages = {{"user", "Tell me a story about a cat."}};
    request.max_tokens = 100;
    const loopspec::Result result = engine.Generate(request, [](const loopspec::Token& token) {
      std::cout << token.text << std::flush;
      return true;
    });
    const loopspec::Statistics& s = result.statistics();
    std::cout << "\n"
              << s.decoded_tokens << " tokens, " << s.tokens_per_second << " per second, gamma "
              << s.gamma << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
