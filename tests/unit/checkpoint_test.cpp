// Checkpoints: every bit comes back, and what does not belong to a run is refused.
#include "llm/train/checkpoint.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "train_tiny.hpp"
#include "training_files.hpp"

namespace attend::llm::test {
namespace {

// Moments may overflow; parameters may not.
Tensor numbers(const ParameterLayout& layout, std::uint32_t seed, bool finite = false) {
  Tensor tensor(DType::f32, {1, 1, 1, layout.count()});
  auto* values = tensor.data<float>();
  for (std::int64_t i = 0; i < layout.count(); ++i)
    values[i] = static_cast<float>(normal(seed, static_cast<std::uint64_t>(i)));
  const float odd[] = {-0.0F, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max(),
                       std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()};
  std::memcpy(values, odd, finite ? 3 * sizeof(float) : sizeof odd);
  return tensor;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.view().data, b.view().data, static_cast<std::size_t>(a.bytes())) == 0;
}

class Checkpoint : public testing::Test {
 protected:
  Checkpoint() : layout(tiny("qwen3")), moments(layout), values(numbers(layout, 1, true)) {
    moments.first = numbers(layout, 2), moments.second = numbers(layout, 3);
    state = {.step = 7,
             .data = {.epoch = 2, .document = 31, .offset = 5},
             .best = 1.0 / 3,
             .best_step = 4,
             .worse = 2,
             .tokens = 12345678901,
             .seconds = 0.1};
    write_checkpoint(path(), state, "settings \"and\"\nmore", layout, values.view(), moments);
  }
  fs::path path() const { return place.path() / "checkpoint.safetensors"; }
  TrainState read(const std::string& settings, const ParameterLayout& of) {
    Tensor to(DType::f32, {1, 1, 1, of.count()});
    Moments read_moments(of);
    const TrainState got = read_checkpoint(path(), settings, of, to.view(), read_moments);
    EXPECT_TRUE(same_bits(to, values));
    EXPECT_TRUE(same_bits(read_moments.first, moments.first));
    EXPECT_TRUE(same_bits(read_moments.second, moments.second));
    return got;
  }
  std::string refusal(const std::string& settings, const ParameterLayout& of) {
    return refusal_of([&] { (void)read(settings, of); });
  }
  std::string refusal() { return refusal(kSettings, layout); }

  static constexpr const char* kSettings = "settings \"and\"\nmore";
  TempFolder place;
  ParameterLayout layout;
  Moments moments;
  Tensor values;
  TrainState state;
};

TEST_F(Checkpoint, GivesBackEveryBit) {
  EXPECT_EQ(read(kSettings, layout), state);
}

TEST_F(Checkpoint, OfAnotherRunIsRefused) {
  for (const char* other : {"", "settings", "settings \"and\"\nmore "})
    expect_in(refusal(other, layout), "belongs to a run with other settings");
  for (const char* family : {"llama", "qwen2", "moe", "gpt2"})
    expect_in(refusal(kSettings, ParameterLayout(tiny(family))), "holds the parameters of another model");
}

TEST_F(Checkpoint, ThatIsCutIsRefused) {
  const std::string whole = read_text(path());
  for (const std::size_t length : {std::size_t{0}, std::size_t{7}, std::size_t{8}, std::size_t{300}, whole.size() / 2,
                                   whole.size() - 4, whole.size() - 1}) {
    write_text(path(), whole.substr(0, length));
    expect_in(refusal(), "checkpoint.safetensors");
  }
  write_text(path(), whole + "more");
  EXPECT_NE(refusal(), "");
  fs::remove(path());
  expect_in(refusal(), "checkpoint.safetensors");
}

TEST_F(Checkpoint, ThatIsDamagedIsRefused) {
  const std::string whole = read_text(path());
  for (const auto& [old, now] : {std::pair{"\\\"step\\\": 7", "\\\"step\\\":-7"},
                                 {"\\\"epoch\\\": 2", "\\\"epoch\\\": x"},
                                 {"\\\"offset\\\"", "\\\"ofsett\\\""},
                                 {"\"state\"", "\"stage\""},
                                 {"\"settings\"", "\"settingz\""},
                                 {"\"first\"", "\"third\""},
                                 {"\"F32\"", "\"I32\""}}) {
    std::string text = whole;
    const std::size_t at = text.find(old);
    ASSERT_NE(at, std::string::npos) << old;
    write_text(path(), text.replace(at, std::strlen(old), now));
    EXPECT_NE(refusal(), "") << old;
  }
  write_text(path(), whole);
  EXPECT_EQ(refusal(), "");
}

TEST_F(Checkpoint, WithAParameterThatIsNoNumberIsRefused) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const Parameter& p : {layout.all().front(), layout.all()[3], layout.all().back()}) {
      float& last = values.data<float>()[p.offset + p.count() - 1];
      const float before = std::exchange(last, bad);
      write_checkpoint(path(), state, kSettings, layout, values.view(), moments);
      const std::string said = refusal();
      expect_in(said, "checkpoint.safetensors: the tensor \"" + p.name + "\" holds ");
      expect_in(said, bad > 0 ? "infinity, expected finite values" : "NaN, expected finite values");
      last = before;
    }
}

TEST_F(Checkpoint, IsReplacedAtOnce) {
  state.step = 8;
  write_checkpoint(path(), state, kSettings, layout, values.view(), moments);
  EXPECT_EQ(read(kSettings, layout).step, 8);
  EXPECT_EQ(std::distance(fs::directory_iterator(place.path()), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace attend::llm::test
