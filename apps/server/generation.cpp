// Reads the fields of sampling.
#include "apps/server/generation.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <random>

#include "io/json_text.hpp"

namespace attend::server {
namespace {

constexpr std::int64_t kMostStops = 16;
constexpr std::size_t kStopBytes = 1024;

std::vector<std::string> read_stop(Fields& fields) {
  std::vector<std::string> stop;
  const io::Json* value = fields.find("stop");
  if (value == nullptr) return stop;
  const auto add = [&](const io::Json& one) {
    if (one.string() == nullptr || one.string()->empty() || one.string()->size() > kStopBytes)
      refuse_field("stop", std::string(": got ") + one.kind() + ", expected a string of 1 to " +
                               std::to_string(kStopBytes) + " bytes");
    stop.push_back(*one.string());
  };
  if (value->array() == nullptr) {
    add(*value);
  } else {
    if (std::ssize(*value->array()) > kMostStops)
      refuse_field("stop", " has " + std::to_string(value->array()->size()) + " entries, expected at most " +
                               std::to_string(kMostStops));
    for (const io::Json& one : *value->array()) add(one);
  }
  return stop;
}

std::vector<std::pair<llm::Token, double>> read_bias(Fields& fields, std::int64_t vocabulary) {
  std::vector<std::pair<llm::Token, double>> bias;
  const io::Json* value = fields.find("logit_bias");
  if (value == nullptr) return bias;
  if (value->object() == nullptr)
    refuse_field("logit_bias", std::string(" is ") + value->kind() + ", expected an object from token ids to numbers");
  for (const auto& [key, number] : *value->object()) {
    double x = 0;
    const bool digits = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoll(key) >= vocabulary)
      refuse_field("logit_bias", ": got the token " + io::json_quoted(key.substr(0, 40)) + ", expected 0 to " +
                                     std::to_string(vocabulary - 1));
    if (!number.number(x) || !(x >= -100 && x <= 100))
      refuse_field("logit_bias",
                   "." + key + " is " + io::json_text(number).substr(0, 100) + ", expected a number from -100 to 100");
    bias.emplace_back(static_cast<llm::Token>(std::stoll(key)), x);
  }
  return bias;
}

// top_k -1 is off, as in vLLM; repeat_penalty is repetition_penalty in llama.cpp.
llm::SamplingSettings read_settings(Fields& f) {
  llm::SamplingSettings given;
  const auto real = [&](const char* name, double least, double most) {
    return f.find(name) == nullptr ? std::nullopt : std::optional(f.real(name, 0, least, most));
  };
  given.temperature = real("temperature", 0, 2);
  given.top_p = real("top_p", 0, 1);
  given.min_p = real("min_p", 0, 1);
  given.repetition_penalty = real("repetition_penalty", 0.01, 100);
  const std::optional<double> other = real("repeat_penalty", 0.01, 100);
  if (other && given.repetition_penalty.value_or(*other) != *other)
    refuse_field("repeat_penalty", " and repetition_penalty differ, expected one of them");
  if (other) given.repetition_penalty = other;
  if (f.find("top_k") != nullptr)
    given.top_k = std::max<std::int64_t>(f.whole("top_k", 0, -1, std::numeric_limits<std::int32_t>::max()), 0);
  return given;
}

// Fields that other servers know and that change the answer: all but the value without effect is refused.
void refuse_unsupported(Fields& f) {
  static constexpr const char* kGrammar = "response_format with a json_schema constrains an answer";
  static constexpr const char* kSampler = "temperature, top_k, top_p and min_p choose tokens";
  static constexpr const char* kFields[][3] = {
      {"grammar", "null", kGrammar},
      {"json_schema", "null", kGrammar},
      {"guided_json", "null", kGrammar},
      {"guided_regex", "null", kGrammar},
      {"guided_choice", "null", kGrammar},
      {"guided_grammar", "null", kGrammar},
      {"structured_outputs", "null", kGrammar},
      {"mirostat", "0", kSampler},
      {"typical_p", "1", kSampler},
      {"tfs_z", "1", kSampler},
      {"top_a", "0", kSampler},
      {"dry_multiplier", "0", kSampler},
      {"xtc_probability", "0", kSampler},
      {"dynatemp_range", "0", kSampler},
      {"use_beam_search", "false", kSampler},
      {"length_penalty", "1", "only beams have one"},
      {"n_predict", "-1", "max_tokens limits an answer"},
      {"truncate_prompt_tokens", "null", "a prompt is read whole; shorten it"},
      {"stop_token_ids", "[]", "stop names texts that end an answer"},
      {"allowed_token_ids", "null", "logit_bias makes tokens likelier"},
      {"bad_words", "[]", "logit_bias makes tokens less likely"},
      {"min_tokens", "0", "a model ends its answer where it wants"},
      {"ignore_eos", "false", "a model ends its answer where it wants"},
  };
  for (const auto& [name, value, why] : kFields) f.only(name, value, why);
}

}  // namespace

std::uint64_t fresh_number() {
  thread_local std::mt19937_64 numbers = [] {
    std::random_device device;
    std::seed_seq seeds{device(), device(), device(), device()};
    return std::mt19937_64(seeds);
  }();
  return numbers();
}

GenerationFields read_generation(Fields& f, const ServedModel& model) {
  GenerationFields g;
  g.sampling = llm::complete_sampling(read_settings(f), model.config().sampling);
  g.sampling.presence_penalty = f.real("presence_penalty", 0, -2, 2);
  g.sampling.frequency_penalty = f.real("frequency_penalty", 0, -2, 2);
  g.sampling.logit_bias = read_bias(f, model.config().vocabulary);
  const bool seeded = f.find("seed") != nullptr;
  const std::int64_t seed =
      f.whole("seed", 0, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max());
  g.sampling.seed = seeded ? static_cast<std::uint64_t>(seed) : fresh_number();
  g.stop = read_stop(f);
  g.n = f.whole("n", 1, 1, model.limits().parallel);
  g.stream = f.truth("stream", false);
  if (const io::Json* options = f.find("stream_options")) {
    if (!g.stream) refuse_field("stream_options", " is given, and stream is not true");
    Fields inner = f.inside(*options, "stream_options");
    g.include_usage = inner.truth("include_usage", false);
    if (inner.truth("include_obfuscation", false)) inner.ignore("include_obfuscation");  // it hides lengths
    inner.done();
  }
  refuse_unsupported(f);
  return g;
}

std::int64_t read_limit(Fields& fields, std::string_view name, std::int64_t least) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  const io::Json* value = fields.find(name);
  if (value != nullptr && value->integer() != nullptr && *value->integer() == -1) return -1;
  return fields.whole(name, 0, least, kMost);
}

// "maximum context length is" are the words that clients know this error by (LiteLLM among them).
std::int64_t room_for_answer(const ServedModel& model, std::int64_t prompt, std::int64_t asked, const char* field) {
  const std::int64_t most = model.context() - prompt;
  if (most < 1)
    refuse_field(field,
                 " has " + std::to_string(prompt) + " tokens, and this model's maximum context length is " +
                     std::to_string(model.context()) + ": at most " + std::to_string(model.context() - 1) +
                     " fit, with one left for the answer; shorten it by " + std::to_string(1 - most),
                 "context_length_exceeded");
  return asked > 0 ? std::min(asked, most) : most;
}

std::uint64_t choice_seed(std::uint64_t seed, std::int64_t n) {
  return seed + static_cast<std::uint64_t>(n) * 0x9E3779B97F4A7C15ULL;
}

}  // namespace attend::server
