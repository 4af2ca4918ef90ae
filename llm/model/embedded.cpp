// The bytes of the embedded model, put into the library by the assembler.
#include "llm/model/embedded.hpp"

#include <string>

// ATTEND_EMBEDDED_MODEL is the path of the file (llm/CMakeLists.txt).
asm(".pushsection .rodata\n"
    ".balign 64\n"
    ".globl attend_embedded_begin\n"
    ".hidden attend_embedded_begin\n"
    "attend_embedded_begin:\n"
    ".incbin \"" ATTEND_EMBEDDED_MODEL
    "\"\n"
    ".globl attend_embedded_end\n"
    ".hidden attend_embedded_end\n"
    "attend_embedded_end:\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" const std::byte attend_embedded_begin[], attend_embedded_end[];

namespace attend::llm {

std::filesystem::path embedded_path() {
  return std::string("embedded:") + kEmbeddedModel + ".gguf";
}

bool is_embedded(const std::filesystem::path& path) {
  return path == embedded_path();
}

std::span<const std::byte> embedded_bytes() {
  return {attend_embedded_begin, attend_embedded_end};
}

io::Gguf open_gguf(const std::filesystem::path& path) {
  if (!is_embedded(path)) return io::Gguf(path);
  return io::parse_gguf(embedded_bytes(), path.string());
}

}  // namespace attend::llm
