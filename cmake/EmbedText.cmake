# Writes a C++ file that holds text files, so that the binary needs nothing beside it: a function that gives them by name.
#   cmake -DOUTPUT=python_sources.cc -DFOLDER=src/.../python "-DFILES=wire.py,program.py" -DHEADER=experiments/scoring/python_sources.h
#     -DFUNCTION=PythonSource -DNAMESPACE=loopspec::measure -P EmbedText.cmake
string(REPLACE "," ";" FILES "${FILES}")
set(arrays "")
set(cases "")
set(index 0)
foreach(file IN LISTS FILES)
  file(READ "${FOLDER}/${file}" bytes HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char kText${index}[] = {\n${bytes}};\n")
  string(APPEND cases "  if (name == \"${file}\") return {reinterpret_cast<const char*>(kText${index}), sizeof kText${index}};\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUTPUT}" "// Made by cmake/EmbedText.cmake.
#include \"${HEADER}\"

#include \"base/error.h\"

namespace ${NAMESPACE} {
namespace {

${arrays}
}  // namespace

std::string ${FUNCTION}(std::string_view name) {
${cases}  Fail(\"{}: no such file in this program\", name);
}

}  // namespace ${NAMESPACE}
")
