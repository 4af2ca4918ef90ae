// The settings of a run: every one comes back from JSON, and a wrong one is named.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "llm/model/config_check.hpp"
#include "llm/train/parameters.hpp"
#include "llm/train/train_config.hpp"
#include "training_files.hpp"

namespace attend::llm::test {
namespace {

// Gives each field a value that no default has, within its range.
struct Another {
  void operator()(const char*, std::int64_t& value, std::int64_t least, std::int64_t most, const char*) const {
    value = value + 3 <= most ? value + 3 : least;
  }
  void operator()(const char*, double& value, double least, double most, const char*) const {
    value = least + (most - least) / 3 + 1e-13;
  }
  void operator()(const char*, bool& value, const char*) const { value = !value; }
  void operator()(const char* name, std::string& value, const char*) const {
    value = std::string(name) + " \"quoted\"\n\xE4\xBD\xA0";
  }
  void operator()(const char*, std::uint64_t& value, const char*) const {
    value = std::numeric_limits<std::int64_t>::max();
  }
};

TrainConfig read(const std::string& json, TrainConfig config = {}) {
  read_config(io::parse_json(json, "run.json"), "run.json", config);
  return config;
}
std::string refusal(const std::string& json) {
  return refusal_of([&] { (void)read(json); });
}

TEST(TrainConfig, EveryFieldComesBack) {
  TrainConfig config;
  visit_fields(config, Another{});
  const std::string text = config_to_json(config);
  EXPECT_EQ(config_to_json(read(text)), text);
  // One at a time: no field is read as another.
  const std::string defaults = config_to_json({});
  visit_fields(config, [&](const char* field, const auto&, auto&&...) {
    TrainConfig one;
    const auto set = [&](const char* name, auto& value, const auto&... rest) {
      if (std::string(name) == field) Another{}(name, value, rest...);
    };
    visit_fields(one, set);
    const std::string echo = config_to_json(one);
    EXPECT_NE(echo, defaults) << field;
    EXPECT_EQ(config_to_json(read(echo)), echo) << field;
    // Its line alone, over the defaults.
    const std::size_t at = echo.find("\"" + std::string(field) + "\":");
    ASSERT_NE(at, std::string::npos) << field;
    std::string line = echo.substr(at, echo.find('\n', at) - at);
    if (line.back() == ',') line.pop_back();
    EXPECT_EQ(config_to_json(read("{" + line + "}")), echo) << field;
  });
}

TEST(TrainConfig, DoublesKeepTheirBits) {
  TrainConfig config;
  config.rate = 0.1 + 1e-17, config.norm_eps = 1e-6, config.beta2 = 0.95000000000000007;
  config.rope_theta = 999999.99999999988, config.decay = 5e-324;
  const TrainConfig back = read(config_to_json(config));
  EXPECT_EQ(back.rate, config.rate);
  EXPECT_EQ(back.norm_eps, config.norm_eps);
  EXPECT_EQ(back.beta2, config.beta2);
  EXPECT_EQ(back.rope_theta, config.rope_theta);
  EXPECT_EQ(back.decay, config.decay);
}

TEST(TrainConfig, AnEmptyFileKeepsWhatWasThere) {
  const TrainConfig dpo = default_config(Stage::dpo);
  EXPECT_EQ(config_to_json(read("{}", dpo)), config_to_json(dpo));
  EXPECT_EQ(config_to_json(read(R"({"rate": null})", dpo)), config_to_json(dpo));
}

struct OutOfRange {
  template <class T, class Least, class Most>
  void operator()(const char* name, const T&, Least least, Most most, const char*) const {
    const std::string field = "\"" + std::string(name) + "\"";
    if constexpr (std::is_floating_point_v<T>) {
      expect_in(refusal("{" + field + ": " + io::json_number(least - 1) + "}"), "run.json: " + field + " is ");
      expect_in(refusal("{" + field + ": " + io::json_number(most * 1.001 + 1) + "}"), ", expected ");
    } else {
      expect_in(refusal("{" + field + ": " + std::to_string(least - 1) + "}"), "run.json: " + field + " is ");
      expect_in(refusal("{" + field + ": " + std::to_string(static_cast<std::int64_t>(most) + 1) + "}"),
                ", expected " + std::to_string(least) + " to " + std::to_string(most));
      expect_in(refusal("{" + field + ": 1.5}"), field + " is a number, expected a whole number");
    }
    expect_in(refusal("{" + field + ": \"1\"}"), field + " is a string, expected");
    expect_in(refusal("{" + field + ": true}"), field + " is a boolean, expected");
  }
  void operator()(const char* name, const bool&, const char*) const {
    expect_in(refusal("{\"" + std::string(name) + "\": 1}"), "expected true or false");
  }
  void operator()(const char* name, const std::string&, const char*) const {
    expect_in(refusal("{\"" + std::string(name) + "\": [1]}"), "expected a string");
  }
  void operator()(const char* name, const std::uint64_t&, const char*) const {
    expect_in(refusal("{\"" + std::string(name) + "\": -1}"), "\"seed\" is -1");
  }
};

TEST(TrainConfig, NamesWhatIsWrong) {
  const TrainConfig config;
  visit_fields(config, OutOfRange{});
  expect_in(refusal(R"({"lenght": 5})"), "run.json: \"lenght\" is no setting of a run; did you mean 'length'?");
  expect_in(refusal(R"({"rate": 0.1, "xyzzy": 5})"), "\"xyzzy\" is no setting of a run");
  expect_in(refusal("[]"), "expected an object");
  expect_in(refusal("3"), "expected an object");
}

TEST(TrainConfig, NamesWhatDoesNotFitTogether) {
  const auto said = [](const auto& change) {
    TrainConfig config;
    change(config);
    return refusal_of([&] { check_config(config); });
  };
  EXPECT_EQ(said([](TrainConfig&) {}), "");
  expect_in(said([](TrainConfig& c) { c.kv_heads = 3; }), "kv_heads is 3, expected a divisor of the 8 heads");
  expect_in(said([](TrainConfig& c) { c.hidden = 250; }), "hidden is 250, expected a multiple of the 8 heads");
  EXPECT_EQ(said([](TrainConfig& c) { c.hidden = 250, c.head_dim = 32; }), "");
  expect_in(said([](TrainConfig& c) { c.positions = "ropes"; }), "positions is \"ropes\", expected rope, alibi");
  expect_in(said([](TrainConfig& c) { c.head_dim = 7; }), "the width of a head is 7, expected an even number");
  expect_in(said([](TrainConfig& c) { c.compute = "f16"; }), "compute is \"f16\", expected f32 or bf16");
  expect_in(said([](TrainConfig& c) { c.rows_at_once = 3; }), "rows_at_once is 3, expected a divisor of batch, 16");
  expect_in(said([](TrainConfig& c) { c.experts = 2, c.experts_used = 3; }), "experts_used is 3");
  expect_in(said([](TrainConfig& c) { c.length = 4096; }), "length is 4096, expected at most context, 2048");
  expect_in(said([](TrainConfig& c) { c.epochs = 0; }), "there is nothing to do");
}

TEST(TrainConfig, ShapesAreUpstreams) {
  const auto parameters = [](const char* shape, std::int64_t vocabulary) {
    TrainConfig config;
    set_shape(shape, config);
    check_config(config);
    return ParameterLayout(model_config(config, vocabulary)).parameters();
  };
  EXPECT_EQ(parameters("minimind3", 6400), 63912192);
  EXPECT_EQ(parameters("minimind3-moe", 6400), 198416640);
  EXPECT_EQ(parameters("minimind2-small", 6400), 25829888);
  EXPECT_EQ(parameters("minimind2", 6400), 104030976);
  for (const auto& [name, about] : shape_names()) {
    EXPECT_GT(parameters(name.c_str(), 2048), 1000000) << name;
    EXPECT_NE(about, "");
  }
  TrainConfig config;
  const std::string said = refusal_of([&] { set_shape("minimind4", config); });
  for (const auto& [name, about] : shape_names()) expect_in(said, name);
}

TEST(TrainConfig, MakesAModelThatIsAllowed) {
  for (const char* positions : {"rope", "alibi", "learned", "none"})
    for (const bool odd : {false, true}) {
      TrainConfig config;
      config.positions = positions;
      config.qk_norm = config.scale = config.tied_embeddings = !odd;
      config.sinks = odd, config.window = odd ? 33 : 0, config.softcap = odd ? 20 : 0;
      const ModelConfig model = model_config(config, 300);
      EXPECT_NO_THROW(check_config(model, "test")) << positions;
      EXPECT_EQ(model.window, config.window);
      EXPECT_EQ(model.sinks, odd);
      EXPECT_EQ(model.score_softcap, config.softcap);
      EXPECT_EQ(model.attention_scale, odd ? std::optional<double>(1) : model_config({}, 300).attention_scale);
    }
}

}  // namespace
}  // namespace attend::llm::test
