# Writes OUTPUT, a C++ file that holds the files NAMES (joined by '|') of FOLDER byte by byte; run by assets.cmake.
string(REPLACE "|" ";" names "${NAMES}")
set(arrays "")
set(rows "")
set(number 0)
foreach(name IN LISTS names)
  file(READ ${FOLDER}/${name} hex HEX)
  file(SIZE ${FOLDER}/${name} size)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" bytes "${hex}")
  # Literals of sixteen bytes, which the compiler joins.
  string(REGEX REPLACE "(................................................................)" "\\1\"\n    \"" bytes "${bytes}")
  string(APPEND arrays "constexpr char kFile${number}[] =\n    \"${bytes}\";\n")
  string(APPEND rows "    {\"${name}\", {kFile${number}, ${size}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT} "// Made by cmake/write_assets.cmake.
#include \"apps/server/assets.hpp\"

namespace attend::server {
namespace {

${arrays}
constexpr Asset kAssets[] = {
${rows}};

}  // namespace

std::span<const Asset> assets() {
  return kAssets;
}

}  // namespace attend::server
")
