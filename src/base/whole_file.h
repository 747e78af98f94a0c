// Files that are put in place when they are complete: others see all of one, or what was there
// before it.
#pragma once

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

namespace loopspec {

// Writes to a file beside `path`, with `suffix` at the end of its name, and renames that. Throws
// Error, also what `write` throws, and leaves nothing behind then.
void WriteWholeFile(const std::filesystem::path& path,
                    const std::function<void(std::ostream& out)>& write,
                    const std::string& suffix = ".partial");
void WriteWholeFile(const std::filesystem::path& path, std::string_view text,
                    const std::string& suffix = ".partial");

}  // namespace loopspec
