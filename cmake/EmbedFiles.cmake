# Writes a C++ file that holds files of the page, so that the binary needs nothing beside it.
#   cmake -DOUTPUT=page_assets.cc -DFOLDER=src/serve/page "-DFILES=index.html,style.css" -P EmbedFiles.cmake
string(REPLACE "," ";" FILES "${FILES}")
set(arrays "")
set(entries "")
set(index 0)
foreach(file IN LISTS FILES)
  file(READ "${FOLDER}/${file}" bytes HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char kFile${index}[] = {\n${bytes}};\n")
  if(file MATCHES "\\.html$")
    set(type "text/html; charset=utf-8")
  elseif(file MATCHES "\\.css$")
    set(type "text/css; charset=utf-8")
  elseif(file MATCHES "\\.js$")
    set(type "text/javascript; charset=utf-8")
  elseif(file MATCHES "\\.svg$")
    set(type "image/svg+xml")
  else()
    message(FATAL_ERROR "${file}: expected a name that ends in .html, .css, .js or .svg")
  endif()
  if(file STREQUAL "index.html")
    set(path "/")
  else()
    set(path "/page/${file}")
  endif()
  string(APPEND entries "      {\"${path}\", \"${type}\", Text(kFile${index})},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUTPUT}" "// Made by cmake/EmbedFiles.cmake.
#include \"serve/page/page_assets.h\"

namespace loopspec::serve {
namespace {

${arrays}
template <size_t N>
std::string Text(const unsigned char (&bytes)[N]) {
  return std::string(reinterpret_cast<const char*>(bytes), N);
}

}  // namespace

std::vector<Asset> PageAssets() {
  return {
${entries}  };
}

}  // namespace loopspec::serve
")
