// Objects that were moved from: every use throws and says so, and they may be assigned to again.
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "attend/attend.hpp"
#include "attend/llm/llm.hpp"
#include "unit/error_of.hpp"
#include "unit/golden_models.hpp"
#include "unit/op_testing.hpp"

namespace attend {
namespace {

using test::error_of;
using test::ops::random_tensor;

template <class F>
void expect_moved_from(const char* type, const F& call) {
  EXPECT_EQ(error_of(call),
            std::string(type) +
                ": this object was moved from and holds nothing; use the one it was moved to, or assign "
                "a new one");
}

TEST(MovedFrom, PagedKvCache) {
  PagedKvCache cache({.kv_heads = 1, .key_dim = 8, .value_dim = 8, .pages = 4});
  const std::int64_t sequence = cache.add();
  PagedKvCache owner = std::move(cache);
  const Tensor x = random_tensor(DType::f32, {1, 1, 3, 8}, 1);
  Tensor out(DType::f32, {1, 1, 3, 8});
  const std::int64_t sequences[] = {sequence};
  expect_moved_from("PagedKvCache", [&] { (void)cache.add(); });
  expect_moved_from("PagedKvCache", [&] { cache.append(sequence, x, x); });
  expect_moved_from("PagedKvCache", [&] { cache.truncate(sequence, 0); });
  expect_moved_from("PagedKvCache", [&] { (void)cache.bytes(); });
  expect_moved_from("PagedKvCache", [&] { (void)cache.options(); });
  expect_moved_from("PagedKvCache", [&] { attention(x, cache, sequences, out); });
  expect_moved_from("PagedKvCache", [&] { const Lens lens(x, cache, sequences); });
  owner.append(sequence, x, x);
  cache = std::move(owner);
  EXPECT_EQ(cache.length(sequence), 3);
}

TEST(MovedFrom, Lens) {
  const Tensor x = random_tensor(DType::f32, {1, 1, 3, 8}, 1);
  Lens lens(x, x);
  const Lens owner = std::move(lens);
  expect_moved_from("Lens", [&] { (void)lens.keys(); });
  expect_moved_from("Lens", [&] { (void)lens.lse(); });
  expect_moved_from("Lens", [&] { (void)lens.map({}); });
  expect_moved_from("Lens", [&] { (void)lens.row({}, 0); });
  expect_moved_from("Lens", [&] { (void)lens.cell({}, 0, 0); });
  EXPECT_EQ(owner.keys(), 3);
}

TEST(MovedFrom, Layers) {
  MultiHeadAttention layer({.width = 8, .heads = 2});
  const MultiHeadAttention owner = std::move(layer);
  const Tensor x = random_tensor(DType::f32, {1, 1, 3, 8}, 1);
  EXPECT_NE(error_of([&] { (void)layer.forward(x); }), "");
  Weight weight(WeightFormat::f32, 1, 1, std::as_bytes(std::span<const float>(x.data<float>(), 1)));
  const Weight kept = std::move(weight);
  float y = 0;
  EXPECT_NE(error_of([&] { weight.row(0, &y); }), "");
}

TEST(MovedFrom, LanguageModels) {
  const llm::test::GoldenModel golden("llama");
  llm::test::write_tokenizer(golden.path(), 64);
  llm::Model model = llm::Model::open(golden.path().string());
  llm::Engine engine(model);
  llm::LookSession session(model);
  llm::Look look = session.run("once upon");
  llm::Tokenizer tokenizer = llm::Tokenizer::open(golden.path());

  llm::Engine other_engine = std::move(engine);
  expect_moved_from("Engine", [&] { (void)engine.submit({.prompt = {1, 2}}); });
  expect_moved_from("Engine", [&] { (void)engine.step(); });
  expect_moved_from("Engine", [&] { (void)engine.idle(); });
  const llm::Look other_look = std::move(look);
  expect_moved_from("Look", [&] { (void)look.row(0, 0, 0); });
  const llm::LookSession other_session = std::move(session);
  expect_moved_from("LookSession", [&] { (void)session.run("once upon"); });
  const llm::Tokenizer other_tokenizer = std::move(tokenizer);
  expect_moved_from("Tokenizer", [&] { (void)tokenizer.encode("a"); });

  llm::Model other = std::move(model);
  expect_moved_from("Model", [&] { (void)model.info(); });
  expect_moved_from("Model", [&] { (void)model.generate("once upon"); });
  expect_moved_from("Model", [&] { (void)model.stop_tokens(); });
  expect_moved_from("Model", [&] { const llm::Engine none(model); });
  expect_moved_from("Model", [&] { llm::LookSession none(model); });
  model = std::move(other);
  EXPECT_EQ(model.info().family, "llama");
  (void)other_engine.submit({.prompt = {1, 2}, .max_tokens = 2});
  while (!other_engine.idle()) (void)other_engine.step();
}

}  // namespace
}  // namespace attend
