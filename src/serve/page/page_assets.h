// The page at /, embedded at build time: src/serve/page.
#pragma once

#include <string>
#include <vector>

namespace loopspec::serve {

// A file that is served as it is.
struct Asset {
  std::string path;  // "/" or "/page/style.css"
  std::string content_type;
  std::string body;
};

std::vector<Asset> PageAssets();

}  // namespace loopspec::serve
