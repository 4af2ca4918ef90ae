// The marks of families, as docs/guide/models.md explains them.
#include "llm/model/family_marks.hpp"

#include <gtest/gtest.h>

#include "llm/model/config.hpp"

namespace attend::llm {
namespace {

TEST(FamilyMarks, AFamilyWithoutATableRowOrItsOwnCodeIsExperimental) {
  for (const char* family : {"llama", "qwen2", "bert"}) EXPECT_EQ(family_mark(family), "real weights") << family;
  for (const char* family : {"minimind", "minimind-v1", "qwen3"})
    EXPECT_EQ(family_mark(family), "architecture") << family;
  for (const char* family : {"mistral", "qwen3_moe", "qwen3moe", "gpt2", "unheard-of"})
    EXPECT_EQ(family_mark(family), "experimental") << family;
  EXPECT_EQ(family_mark(kOwnFamily), "");
}

TEST(FamilyMarks, MessagesNameTheMark) {
  constexpr std::string_view kFamilies[] = {"llama", "mistral", "minimind", "gpt2"};
  EXPECT_EQ(marked_families(kFamilies), "llama, mistral (experimental), minimind, gpt2 (experimental)");
}

}  // namespace
}  // namespace attend::llm
