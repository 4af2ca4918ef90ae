// The families and their marks.
#include "llm/model/family_marks.hpp"

#include <algorithm>
#include <iterator>

#include "llm/model/config.hpp"

namespace attend::llm {
namespace {

constexpr std::string_view kRealWeights[] = {"llama", "qwen2", "bert"};
constexpr std::string_view kArchitecture[] = {"minimind", "minimind-v1", "qwen3"};

template <std::size_t N>
bool holds(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

std::string_view family_mark(std::string_view family) {
  if (family == kOwnFamily) return "";
  if (holds(kRealWeights, family)) return "real weights";
  return holds(kArchitecture, family) ? "architecture" : "experimental";
}

std::string marked_families(std::span<const std::string_view> families) {
  std::string text;
  for (const std::string_view family : families) {
    text += (text.empty() ? "" : ", ") + std::string(family);
    if (family_mark(family) == "experimental") text += " (experimental)";
  }
  return text;
}

}  // namespace attend::llm
