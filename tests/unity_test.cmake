# Files that use the same name in their anonymous namespaces are not compiled as one (cmake/LoopspecUnity.cmake).
#   cmake -DSOURCE_DIR=... -DFOLDER=scratch -P unity_test.cmake
cmake_minimum_required(VERSION 3.25)
include("${SOURCE_DIR}/cmake/LoopspecUnity.cmake")
file(REMOVE_RECURSE "${FOLDER}")
set(files)
function(put name text)
  file(WRITE "${FOLDER}/${name}.cc" "#include <string>\n\nnamespace loopspec {\n${text}\n}  // namespace loopspec\n")
  set(files ${files} "${FOLDER}/${name}.cc" PARENT_SCOPE)
endfunction()
function(expect what found expected)
  if(NOT found STREQUAL expected)
    message(FATAL_ERROR "${what}: ${found}, expected ${expected}")
  endif()
endfunction()

put(all "namespace {

namespace fs = std::filesystem;
constexpr char kText[] = \"a; b [\";
using Clock = int;
struct Pipe {
  int Inner(int x) { return x; }
};
std::map<std::string, int> Split(const std::string& text,
                                 int limit) {
  const int local = Other(text);
  return {};
}
int* Pointer(int n) {
  return nullptr;
}
std::atomic<int> counter{0};

}  // namespace

int Public(int x) {
  return x;
}

namespace {

void Later() {
}

}  // namespace")
loopspec_local_names(names "${FOLDER}/all.cc")
list(SORT names)
expect("names" "${names}" "Clock;Later;Pipe;Pointer;Split;counter;kText")
loopspec_local_names(names "${FOLDER}/none.cc")
expect("names of a file that is made later" "${names}" "")

put(same "namespace {\n\nint Split(int x) {\n  return x;\n}\n\n}  // namespace")
put(other "namespace {\n\nint Public(int x) {\n  return x;\n}\nint Inner = 0;\n\n}  // namespace")
put(plain "int Plain() {\n  return Split(1);\n}")
put(third "namespace {\n\nclass Split {};\n\n}  // namespace")
loopspec_unity_groups(groups 16 ${files})
expect("groups" "${groups}" "0;1;0;1;2")
loopspec_unity_groups(groups 2 ${files})
expect("groups of two" "${groups}" "0;1;2;0;2")
