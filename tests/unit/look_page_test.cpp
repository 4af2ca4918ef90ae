// What a page without a server is given of a run.
#include <gtest/gtest.h>

#include <string>

#include "attend/error.hpp"
#include "attend/llm/look.hpp"
#include "attend/llm/store.hpp"
#include "error_of.hpp"
#include "io/json.hpp"

namespace attend::llm::test {
namespace {

using attend::test::error_of;

class PageData : public testing::Test {
 protected:
  static std::size_t frames(const io::Json& page) { return page.find("frames")->object()->size(); }

  Model model_ = Model::open(embedded_model());
  LookSession session_{model_};
  Look look_ = session_.run("The cat sat on the mat. The cat sat on");
};

TEST_F(PageData, HoldsEveryLayerAndHead) {
  const io::Json page = io::parse_json(page_data(session_, look_, {.name = "a \"name\""}), "page");
  const auto layers = static_cast<std::size_t>(look_.layers()), heads = static_cast<std::size_t>(look_.heads());
  EXPECT_EQ(frames(page), 1 + layers * (3 + heads));
  EXPECT_EQ(*page.find("about")->find("model")->find("name")->string(), "a \"name\"");
  EXPECT_EQ(page.find("run")->find("tokens")->array()->size(), static_cast<std::size_t>(look_.length()));
  EXPECT_EQ(page.find("run")->find("heads")->array()->size(), layers * heads);
  EXPECT_EQ(page.find("scores")->array()->size(), layers);
  EXPECT_TRUE(page.find("frames")->find("map.0.0")->string()->starts_with("QUVYM")) << "AEX1 in base64";
}

TEST_F(PageData, HoldsOneLayerWhereAllAreTooMuch) {
  const std::int64_t N = look_.length(), D = model_.info().head_dim;
  const std::int64_t one = 4 * (look_.heads() * N * N + (look_.heads() + 2 * look_.kv_heads()) * N * D);
  const io::Json page = io::parse_json(page_data(session_, look_, {.bytes = one}), "page");
  EXPECT_EQ(frames(page), 1 + 3 + static_cast<std::size_t>(look_.heads()));
  const std::int64_t layer = *page.find("state")->find("layer")->integer();
  EXPECT_NE(page.find("frames")->find("q." + std::to_string(layer)), nullptr);
  EXPECT_NE(error_of([&] { (void)page_data(session_, look_, {.bytes = one - 1}); }).find("look at a shorter text"),
            std::string::npos);
}

// JSON has no text for a part of a character: the page gets its bytes, from which it joins the character again.
TEST_F(PageData, TokensOfSharedCharactersHaveTheirBytes) {
  const std::string text = "从前有一只小猫";
  const Look look = session_.run(text);
  const io::Json page = io::parse_json(page_data(session_, look, {}), "page");
  const io::Json& run = *page.find("run");
  std::size_t with_bytes = 0;
  for (const char* list : {"tokens", "next"})
    for (const io::Json& token : *run.find(list)->array()) {
      const io::Json* bytes = token.find("bytes");
      with_bytes += bytes != nullptr;
      EXPECT_EQ(bytes != nullptr, token.find("text")->string()->find("\xEF\xBF\xBD") != std::string::npos);
    }
  EXPECT_GT(with_bytes, 0U) << "the bundled model's tokenizer splits characters";
  std::string joined;
  for (const io::Json& token : *run.find("tokens")->array()) {
    const io::Json* bytes = token.find("bytes");
    if (bytes == nullptr) joined += *token.find("text")->string();
    for (std::size_t n = 0; bytes != nullptr && n < bytes->string()->size(); n += 2)
      joined += static_cast<char>(std::stoi(bytes->string()->substr(n, 2), nullptr, 16));
  }
  EXPECT_NE(joined.find(text), std::string::npos) << joined;
}

TEST_F(PageData, NeedsWhatWasKept) {
  const Look bare = session_.run("The cat", {.keep = false});
  EXPECT_NE(error_of([&] { (void)page_data(session_, bare); }).find("kept no layer"), std::string::npos);
}

}  // namespace
}  // namespace attend::llm::test
