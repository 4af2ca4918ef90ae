// config.json: what is read, and that each thing that cannot be used is refused by its name.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "io/file_error.hpp"
#include "llm/model/config.hpp"
#include "tokenizer_files.hpp"

namespace attend::llm::test {
namespace {

using Raw = std::map<std::string, std::string>;  // field to JSON text

const Raw kLlama = {{"model_type", "\"llama\""},  {"vocab_size", "96"},
                    {"hidden_size", "32"},        {"num_hidden_layers", "2"},
                    {"num_attention_heads", "4"}, {"num_key_value_heads", "2"},
                    {"intermediate_size", "48"},  {"max_position_embeddings", "128"}};
const Raw kGpt2 = {{"model_type", "\"gpt2\""}, {"vocab_size", "96"}, {"n_embd", "32"},
                   {"n_layer", "2"},           {"n_head", "4"},      {"n_positions", "64"}};
const Raw kBert = {{"model_type", "\"bert\""},       {"vocab_size", "96"},         {"hidden_size", "32"},
                   {"num_hidden_layers", "2"},       {"num_attention_heads", "4"}, {"intermediate_size", "48"},
                   {"max_position_embeddings", "64"}};
const Raw kExperts = {{"num_experts", "4"}, {"num_experts_per_tok", "2"}, {"moe_intermediate_size", "16"}};

// Fields added to others or put in their place; an empty text takes the field away.
Raw with(Raw raw, const Raw& changes) {
  for (const auto& [field, text] : changes) {
    raw[field] = text;
    if (text.empty()) raw.erase(field);
  }
  return raw;
}

ModelConfig read(const Raw& raw) {
  std::string text = "{";
  for (const auto& [field, value] : raw) text += (text.size() > 1 ? ", \"" : "\"") + field + "\": " + value;
  return config_from_json(io::parse_json(text + "}", "c"), "c");
}
std::string error_of(const Raw& raw) {
  try {
    read(raw);
  } catch (const io::FileError& error) {
    return error.what();
  }
  return "";
}

TEST(ModelConfig, BadFieldsAreRefusedByName) {
  const std::string huge = "9223372036854775807";
  struct Case {
    Raw base, changes;
    std::string error;
  };
  const auto scaling = [](const std::string& fields) { return Raw{{"rope_scaling", "{" + fields + "}"}}; };
  const std::vector<Case> cases = {
      {kLlama, {{"model_type", ""}}, "c: \"model_type\" is missing, expected one of llama, mistral"},
      {kLlama, {{"model_type", "\"mamba\""}}, "c: \"model_type\" is \"mamba\", expected one of llama, mistral"},
      {kLlama, {{"model_type", "7"}}, "c: \"model_type\" is a whole number, expected a string"},
      {kLlama, {{"vocab_size", ""}}, "c: \"vocab_size\" is missing"},
      {kLlama, {{"vocab_size", "0"}}, "c: \"vocab_size\" is 0, expected 1 to 16777216"},
      {kLlama, {{"vocab_size", "-5"}}, "c: \"vocab_size\" is -5, expected 1 to"},
      {kLlama, {{"vocab_size", "\"96\""}}, "c: \"vocab_size\" is a string, expected a whole number"},
      {kLlama, {{"vocab_size", "96.5"}}, "c: \"vocab_size\" is a number, expected a whole number"},
      {kLlama, {{"vocab_size", huge}}, "c: \"vocab_size\" is " + huge},
      {kLlama, {{"vocab_size", "[96]"}}, "c: \"vocab_size\" is an array, expected a whole number"},
      {kLlama, {{"hidden_size", "null"}}, "c: \"hidden_size\" is missing"},
      {kLlama, {{"hidden_size", huge}}, "c: \"hidden_size\" is " + huge + ", expected 1 to 1048576"},
      {kLlama, {{"hidden_size", "-1"}}, "c: \"hidden_size\" is -1"},
      {kLlama, {{"hidden_size", "33"}}, "c: \"hidden_size\" is not a multiple of the number of heads"},
      {kLlama, {{"num_hidden_layers", ""}}, "c: \"num_hidden_layers\" is missing"},
      {kLlama, {{"num_hidden_layers", "4097"}}, "c: \"num_hidden_layers\" is 4097, expected 1 to 4096"},
      {kLlama, {{"num_hidden_layers", "true"}}, "c: \"num_hidden_layers\" is a boolean"},
      {kLlama, {{"num_attention_heads", ""}}, "c: \"num_attention_heads\" is missing"},
      {kLlama, {{"num_attention_heads", "0"}}, "c: \"num_attention_heads\" is 0"},
      {kLlama, {{"num_key_value_heads", "3"}}, "c: 4 query heads cannot share 3 key-value heads evenly"},
      {kLlama, {{"num_key_value_heads", "8"}}, "c: 4 query heads cannot share 8 key-value heads evenly"},
      {kLlama, {{"num_key_value_heads", "0"}}, "c: \"num_key_value_heads\" is 0"},
      {kLlama, {{"head_dim", "0"}}, "c: \"head_dim\" is 0"},
      {kLlama, {{"head_dim", "7"}}, "c: the rotation covers 7 of 7 numbers of a head, expected an even part"},
      {kLlama, {{"head_dim", "100000"}}, "c: \"head_dim\" is 100000, expected 1 to 4096"},
      {kLlama, {{"intermediate_size", "0"}}, "c: \"intermediate_size\" is 0"},
      {kLlama, {{"intermediate_size", "{}"}}, "c: \"intermediate_size\" is an object"},
      {kLlama, {{"max_position_embeddings", "0"}}, "c: \"max_position_embeddings\" is 0"},
      {kLlama, {{"max_position_embeddings", huge}}, "c: \"max_position_embeddings\" is " + huge},
      {kLlama, {{"rms_norm_eps", "-1e-5"}}, "c: \"rms_norm_eps\" is -1e-05, expected 0 to 1"},
      {kLlama, {{"rms_norm_eps", "2"}}, "c: \"rms_norm_eps\" is 2, expected 0 to 1"},
      {kLlama, {{"rms_norm_eps", "\"1e-5\""}}, "c: \"rms_norm_eps\" is a string, expected a number"},
      {kLlama, {{"hidden_act", "\"mish\""}}, "c: \"hidden_act\" is \"mish\", expected silu, gelu"},
      {kLlama, {{"hidden_act", "1"}}, "c: \"hidden_act\" is a whole number, expected a string"},
      {kLlama, {{"tie_word_embeddings", "1"}}, "c: \"tie_word_embeddings\" is a whole number, expected true or false"},
      {kLlama, {{"rope_theta", "0"}}, "c: \"rope_theta\" is 0"},
      {kLlama, {{"rope_theta", "-10000"}}, "c: \"rope_theta\" is -10000"},
      {kLlama, {{"rope_theta", "1e300"}}, "c: \"rope_theta\" is 1"},
      {kLlama, {{"rope_theta", "true"}}, "c: \"rope_theta\" is a boolean, expected a number"},
      {kLlama, {{"rope_scaling", "4"}}, "c: \"rope_scaling\": is a whole number, expected an object"},
      {kLlama, scaling(R"("rope_type": "dynamic", "factor": 2)"), "c: \"rope_scaling\": \"rope_type\" is \"dynamic\""},
      {kLlama, scaling(R"("type": "longrope", "factor": 2)"), "c: \"rope_scaling\": \"rope_type\" is \"longrope\""},
      {kLlama, scaling(R"("rope_type": "linear")"), "c: \"rope_scaling\": \"factor\" is missing"},
      {kLlama, scaling(R"("rope_type": "linear", "factor": 0.5)"), "c: \"rope_scaling\": \"factor\" is 0.5"},
      {kLlama, scaling(R"("rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4)"),
       "c: \"rope_scaling\": \"high_freq_factor\" must be greater than low_freq_factor"},
      {kLlama, scaling(R"("rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 0)"),
       "c: \"rope_scaling\": \"original_max_position_embeddings\" is 0"},
      {kLlama, scaling(R"("rope_type": "yarn", "factor": 8, "beta_fast": 0)"),
       "c: \"rope_scaling\": \"beta_fast\" is 0"},
      {kLlama, scaling(R"("rope_type": "yarn", "factor": 8, "mscale": 1, "mscale_all_dim": 2)"),
       "c: \"rope_scaling\": \"mscale\" differs from mscale_all_dim"},
      {kLlama, {{"rope_parameters", R"({"rope_type": 3})"}}, "c: \"rope_parameters\": \"rope_type\" is a whole number"},
      {kLlama, {{"rope_parameters", R"({"rope_theta": -1})"}}, "c: \"rope_parameters\": \"rope_theta\" is -1"},
      {kLlama, {{"partial_rotary_factor", "1.5"}}, "c: \"partial_rotary_factor\" is 1.5"},
      {kLlama, {{"sliding_window", "0"}}, "c: \"sliding_window\" is 0"},
      {kLlama,
       {{"sliding_window", "8"}, {"layer_types", "[\"full_attention\"]"}},
       "c: \"layer_types\" does not name each of 2 layers"},
      {kLlama,
       {{"sliding_window", "8"}, {"layer_types", "[\"full_attention\", 3]"}},
       "c: \"layer_types\" holds something other than"},
      {kLlama, {{"position_embedding_type", "\"alibi\""}}, "c: \"position_embedding_type\" is \"alibi\""},
      {with(kLlama, kExperts), {{"num_experts_per_tok", ""}}, "c: \"num_experts_per_tok\" is missing"},
      {with(kLlama, kExperts), {{"num_experts_per_tok", "5"}}, "c: \"num_experts_per_tok\" is 5, expected 1 to 4"},
      {with(kLlama, kExperts), {{"num_experts_per_tok", "0"}}, "c: \"num_experts_per_tok\" is 0, expected 1 to 4"},
      {with(kLlama, kExperts), {{"num_experts", "-4"}}, "c: \"num_experts\" is -4"},
      {with(kLlama, kExperts), {{"moe_intermediate_size", "0"}}, "c: \"moe_intermediate_size\" is 0"},
      {with(kLlama, kExperts), {{"scoring_func", "\"sigmoid\""}}, "c: \"scoring_func\" is \"sigmoid\""},
      {with(kLlama, kExperts), {{"decoder_sparse_step", "0"}}, "c: \"decoder_sparse_step\" is 0"},
      {with(kLlama, kExperts), {{"mlp_only_layers", "3"}}, "c: \"mlp_only_layers\" is a whole number, expected a list"},
      {with(kLlama, kExperts), {{"mlp_only_layers", "[0.5]"}}, "c: \"mlp_only_layers\" holds something other than"},
      {kGpt2, {{"n_embd", "0"}}, "c: \"n_embd\" is 0"},
      {kGpt2, {{"n_head", "-4"}}, "c: \"n_head\" is -4"},
      {kGpt2, {{"activation_function", "\"swiglu\""}}, "c: \"activation_function\" is \"swiglu\""},
      {kGpt2, {{"add_cross_attention", "true"}}, "c: \"add_cross_attention\" is true, which is not supported"},
      {kGpt2, {{"scale_attn_by_inverse_layer_idx", "true"}}, "c: \"scale_attn_by_inverse_layer_idx\" is true"},
      {kGpt2, {{"scale_attn_weights", "false"}}, "c: \"scale_attn_weights\" is false"},
      {kBert, {{"position_embedding_type", "\"relative_key\""}}, "c: \"position_embedding_type\" is \"relative_key\""},
      {kBert, {{"is_decoder", "true"}}, "c: \"is_decoder\" is true"},
      {kBert, {{"type_vocab_size", "-1"}}, "c: \"type_vocab_size\" is -1"},
      {kBert, {{"layer_norm_eps", "\"tiny\""}}, "c: \"layer_norm_eps\" is a string"},
  };
  std::set<std::string> errors;
  for (const Case& c : cases) {
    const std::string error = error_of(with(c.base, c.changes));
    EXPECT_TRUE(error.starts_with(c.error)) << error << "\nexpected " << c.error;
    EXPECT_TRUE(errors.insert(error).second) << error;
  }
  EXPECT_GE(cases.size(), 40U);
}

TEST(ModelConfig, NumbersThatAreNoneAreNoJson) {
  for (const char* text : {"NaN", "Infinity", "-Infinity", "1e999", "99999999999999999999"})
    EXPECT_NE(error_of(with(kLlama, {{"rms_norm_eps", text}})), "") << text;
  for (const char* text :
       {"", "[]", "3", "\"llama\"", "null", "{\"model_type\": \"llama\"", "{\"vocab_size\": 1, \"vocab_size\": 2}"})
    EXPECT_THROW(config_from_json(io::parse_json(text, "c"), "c"), io::FileError) << text;
}

TEST(ModelConfig, EachFamilyHasItsOwnDefaults) {
  const ModelConfig llama = read(kLlama);
  EXPECT_EQ(llama.head_dim, 8);
  EXPECT_EQ(llama.norm_eps, 1e-6);
  EXPECT_EQ(llama.rope_theta, 10000);
  EXPECT_FALSE(llama.tied_embeddings || llama.qk_norm || llama.norm_after || llama.window > 0 || llama.has_experts(0));
  EXPECT_TRUE(llama.causal && llama.gated);
  EXPECT_EQ(read(with(kLlama, {{"num_key_value_heads", ""}})).kv_heads, 4);

  const ModelConfig qwen3 =
      read(with(kLlama, {{"model_type", "\"qwen3\""}, {"head_dim", "24"}, {"rope_theta", "1000000"}}));
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.query_width(), 96);
  EXPECT_EQ(qwen3.rope_theta, 1e6);

  const ModelConfig gpt2 = read(kGpt2), bert = read(kBert);
  EXPECT_EQ(gpt2.feed_forward, 128);
  EXPECT_EQ(gpt2.activation, ActivationKind::gelu_tanh);
  EXPECT_TRUE(gpt2.tied_embeddings && gpt2.positions == PositionKind::learned && !gpt2.gated);
  EXPECT_TRUE(!bert.causal && bert.norm_after && bert.token_types == 2 && bert.norm_eps == 1e-12);
  EXPECT_EQ(bert.activation, ActivationKind::gelu);

  const Raw named = {{"model_type", "\"minimind\""}, {"intermediate_size", ""}};
  const ModelConfig minimind = read(with(kLlama, named));
  EXPECT_TRUE(minimind.tied_embeddings && minimind.norm_eps == 1e-5 && minimind.rope_theta == 1e6);
  EXPECT_EQ(minimind.rope_style, RopeStyle::half_split);
  const Raw experts = with(named, with(kExperts, {{"use_moe", "true"}, {"n_shared_experts", "1"}}));
  EXPECT_TRUE(read(with(kLlama, experts)).experts.normalised);
  EXPECT_EQ(read(with(kLlama, experts)).experts.shared, 1);
  EXPECT_EQ(read(with(kLlama, with(experts, {{"use_moe", "false"}}))).experts.count, 0);

  const ModelConfig first = read({{"vocab_size", "96"}, {"dim", "32"}, {"n_layers", "2"}, {"n_heads", "4"}});
  EXPECT_EQ(first.rope_style, RopeStyle::interleaved);
  EXPECT_TRUE(first.tied_embeddings && first.rope_theta == 1e4 && first.norm_eps == 1e-5);
}

TEST(ModelConfig, WindowsAndExpertsPerLayer) {
  const ModelConfig c = read(with(with(kLlama, kExperts), {{"num_hidden_layers", "4"},
                                                           {"sliding_window", "8"},
                                                           {"layer_types", R"(["full_attention", "sliding_attention",
                                                             "full_attention", "sliding_attention"])"},
                                                           {"decoder_sparse_step", "2"},
                                                           {"mlp_only_layers", "[3]"}}));
  for (std::int64_t n = 0; n < 4; ++n) {
    EXPECT_EQ(c.window_of(n), n % 2 == 1 ? 8 : 0) << n;
    EXPECT_EQ(c.has_experts(n), n == 1) << n;
  }
  EXPECT_EQ(read(with(kLlama, {{"sliding_window", "8"}, {"use_sliding_window", "false"}})).window, 0);
  EXPECT_EQ(read(with(kLlama, {{"sliding_window", "null"}})).window, 0);
}

TEST(ModelConfig, EveryIdOfAListEndsAnAnswer) {
  using Ids = std::vector<std::int64_t>;
  const ModelConfig c = read(with(kLlama, {{"bos_token_id", "1"}, {"eos_token_id", "[95, 2, 96, -1, 7]"}}));
  EXPECT_EQ(c.bos, 1);
  EXPECT_EQ(c.eos, (Ids{95, 2, 7}));  // those outside the vocabulary are none
  EXPECT_EQ(read(with(kLlama, {{"eos_token_id", "5"}})).eos, Ids{5});
  const ModelConfig none = read(with(kLlama, {{"bos_token_id", "96"}, {"eos_token_id", "[]"}}));
  EXPECT_FALSE(none.bos || !none.eos.empty());
  const ModelConfig again = config_from_json(io::parse_json(config_to_json(c, "llama"), "c"), "c");
  EXPECT_EQ(again.eos, c.eos);
}

TEST(ModelConfig, APartOfAHeadIsRotated) {
  const auto config = [](const Raw& fields) { return read(with(kLlama, fields)); };
  EXPECT_EQ(config({{"partial_rotary_factor", "0.5"}}).rotary(), 4);
  EXPECT_EQ(config({{"rope_parameters", R"({"rope_type": "default", "partial_rotary_factor": 0.5})"}}).rotary(), 4);
  EXPECT_EQ(config({{"partial_rotary_factor", "1"}}).rotary(), 8);
  for (const char* nothing : {"0", "0.0", "0.1"}) {
    const ModelConfig none = config({{"partial_rotary_factor", nothing}});
    EXPECT_EQ(none.positions, PositionKind::none) << nothing;
    EXPECT_TRUE(rope_frequencies(none).per_position.empty()) << nothing;
  }
  EXPECT_NE(error_of(with(kLlama, {{"partial_rotary_factor", "0.4"}})).find("the rotation covers 3 of 8"),
            std::string::npos);
}

TEST(ModelConfig, OtherFamiliesAreNotMiniMind) {
  const Raw distilbert = {{"model_type", "\"distilbert\""},
                          {"vocab_size", "96"},
                          {"dim", "32"},
                          {"n_layers", "2"},
                          {"n_heads", "4"},
                          {"hidden_dim", "128"},
                          {"activation", "\"gelu\""},
                          {"pad_token_id", "0"},
                          {"sinusoidal_pos_embds", "false"},
                          {"tie_weights_", "true"},
                          {"initializer_range", "1"}};
  EXPECT_TRUE(error_of(distilbert).starts_with("c: \"model_type\" is \"distilbert\", expected one of llama"));
  EXPECT_EQ(read(with(distilbert, {{"model_type", "\"minimind\""}})).family, "minimind-v1");
  EXPECT_EQ(read(with(distilbert, {{"model_type", ""}})).family, "minimind-v1");
}

TEST(ModelConfig, FrequenciesFollowTheirFormulas) {
  const RopeFrequencies plain = rope_frequencies(read(with(kLlama, {{"rope_theta", "100"}})));
  ASSERT_EQ(plain.per_position.size(), 4U);
  EXPECT_EQ(plain.magnitude, 1);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(plain.per_position[i], std::pow(100.0, -static_cast<double>(i) / 4), 1e-15);
  const auto scaled = [](const std::string& fields) {
    return rope_frequencies(read(with(kLlama, {{"rope_theta", "100"}, {"rope_scaling", "{" + fields + "}"}})));
  };
  const RopeFrequencies linear = scaled(R"("rope_type": "linear", "factor": 4)");
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(linear.per_position[i], plain.per_position[i] / 4);
  // MiniMind's YaRN: the ramp runs over pairs 8 to 21 of 48, and nothing is multiplied.
  const Raw minimind3 = {{"model_type", "\"minimind\""}, {"hidden_size", "768"}, {"num_attention_heads", "8"},
                         {"num_key_value_heads", "4"},   {"head_dim", "96"},     {"max_position_embeddings", "32768"}};
  const RopeFrequencies before = rope_frequencies(read(with(kLlama, minimind3)));
  const RopeFrequencies after =
      rope_frequencies(read(with(with(kLlama, minimind3), {{"inference_rope_scaling", "true"}})));
  EXPECT_EQ(after.magnitude, 1);
  for (std::size_t i = 0; i < 48; ++i) {
    const double ramp = std::min(std::max((static_cast<double>(i) - 8) / 13, 0.0), 1.0);
    EXPECT_NEAR(after.per_position[i] / before.per_position[i], 1 - ramp + ramp / 16, 1e-12) << i;
  }
  EXPECT_NEAR(scaled(R"("rope_type": "yarn", "factor": 16)").magnitude, 0.1 * std::log(16.0) + 1, 1e-12);
}

const Raw kMiniMind2 = {{"model_type", "\"minimind\""}, {"vocab_size", "96"},
                        {"hidden_size", "512"},         {"num_hidden_layers", "2"},
                        {"num_attention_heads", "8"},   {"num_key_value_heads", "2"},
                        {"intermediate_size", "1408"},  {"max_position_embeddings", "32768"}};
const char* const kAutumn =
    R"({"beta_fast": 4, "beta_slow": 1, "factor": 4, "original_max_position_embeddings": 2048, "type": "yarn"})";
const char* const kLater = R"({"beta_fast": 32, "beta_slow": 1, "factor": 16, "attention_factor": 1.0,
                               "original_max_position_embeddings": 2048, "type": "yarn"})";

std::vector<double> slowdown(const Raw& fields) {
  const RopeFrequencies plain = rope_frequencies(read(kMiniMind2)),
                        turns = rope_frequencies(read(with(kMiniMind2, fields)));
  std::vector<double> times;
  for (std::size_t i = 0; i < plain.per_position.size(); ++i)
    times.push_back(plain.per_position[i] / turns.per_position.at(i));
  return times;
}

TEST(MiniMindYarn, IsThatOfItsGeneration) {
  const std::vector<double> autumn = slowdown({{"inference_rope_scaling", "true"}, {"rope_scaling", kAutumn}});
  const std::vector<double> later = slowdown({{"inference_rope_scaling", "true"}, {"rope_scaling", kLater}});
  ASSERT_EQ(autumn.size(), 32U);
  // Pair 13 is the last to rotate once within 2048 tokens: 2 pi 10^(6 * 13 / 32) < 2048.
  for (std::size_t i = 0; i < 32; ++i) {
    const double beta = 1 + 3 * static_cast<double>(i) / 31;
    EXPECT_NEAR(autumn[i], i < 14 ? beta * 4 / (beta * 4 - beta + 1) : 4, 1e-9) << i;
    const double ramp = std::min(std::max((static_cast<double>(i) - 5) / 9, 0.0), 1.0);
    EXPECT_NEAR(later[i], 1 / (1 - ramp + ramp / 16), 1e-9) << i;
  }
}

TEST(MiniMindYarn, StretchesOnlyWhereItsCodeDoes) {
  const std::vector<double> none(32, 1.0);
  EXPECT_EQ(slowdown({{"rope_scaling", kLater}}), none);  // the switch stands beside it
  EXPECT_EQ(slowdown({{"inference_rope_scaling", "false"}, {"rope_scaling", kAutumn}}), none);
  for (const char* scaling : {kAutumn, kLater})
    for (const char* context : {"2048", "512"})
      EXPECT_EQ(
          slowdown(
              {{"inference_rope_scaling", "true"}, {"rope_scaling", scaling}, {"max_position_embeddings", context}}),
          none)
          << scaling;
  const ModelConfig louder = read(with(kMiniMind2, {{"inference_rope_scaling", "true"},
                                                    {"rope_scaling", R"({"attention_factor": 1.5, "type": "yarn"})"},
                                                    {"max_position_embeddings", "2048"}}));
  EXPECT_EQ(rope_frequencies(louder).magnitude, 1.5);  // its code multiplies all the same
}

TEST(MiniMindYarn, SaysWhatDoesNotTellTheFormula) {
  const std::string doubt = error_of(with(kMiniMind2, {{"inference_rope_scaling", "true"}}));
  EXPECT_TRUE(doubt.starts_with("c: \"inference_rope_scaling\" is true, and there is no rope_scaling")) << doubt;
  EXPECT_EQ(error_of(with(kMiniMind2, {{"inference_rope_scaling", "true"}, {"head_dim", "64"}})), "");
  EXPECT_TRUE(
      error_of(with(kMiniMind2, {{"inference_rope_scaling", "true"}, {"rope_scaling", R"({"type": "linear"})"}}))
          .starts_with("c: \"rope_scaling\": \"type\" is \"linear\", expected yarn"));
}

}  // namespace
}  // namespace attend::llm::test
