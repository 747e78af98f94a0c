// How the Hub is reached: the variables that the huggingface_hub library reads, with its defaults.
#pragma once

#include <string>

namespace loopspec::hub {

struct Settings {
  std::string endpoint;  // HF_ENDPOINT, without a / at its end
  std::string token;     // HF_TOKEN, or the file that `hf auth login` writes; nothing: none
  bool offline = false;  // HF_HUB_OFFLINE
  int timeout = 30;      // HF_HUB_DOWNLOAD_TIMEOUT: seconds without a byte after which we try again
};

// Throws Error for an endpoint that is no http or https address and for a token of several words.
Settings ReadSettings();

}  // namespace loopspec::hub
