// A control group for one program, where this user may make one: it bounds memory of every kind and
// the number of threads, which limits of a process do only in part.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace loopspec::measure {

class ControlGroup {
 public:
  // Empty where none may be made.
  ControlGroup() = default;
  ControlGroup(size_t memory_bytes, int threads);
  ~ControlGroup();  // its processes have ended
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  bool holds() const { return !folders_.empty(); }
  // Files that a process writes 0 to when it joins.
  std::vector<std::string> joins() const;

 private:
  void MakeVersion2(const std::filesystem::path& mount, const std::filesystem::path& own,
                    const std::string& name, size_t memory_bytes, int threads);
  // The older kind, which has a tree for each resource.
  void MakeVersion1(const std::filesystem::path& own, const std::string& name,
                    const std::string& file, const std::string& value);
  void Remove();

  std::vector<std::filesystem::path> folders_;
};

}  // namespace loopspec::measure
