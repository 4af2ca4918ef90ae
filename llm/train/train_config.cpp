// Settings of a run as JSON, and the shapes that have names.
#include "llm/train/train_config.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdio>
#include <limits>
#include <numbers>
#include <string_view>
#include <type_traits>

#include "attend/error.hpp"
#include "io/closest.hpp"
#include "llm/model/config_check.hpp"
#include "llm/model/fields.hpp"

namespace attend::llm {
namespace {

struct NamedShape {
  const char* name;
  const char* about;
  std::int64_t hidden, layers, heads, kv_heads, head_dim, feed_forward, context;
  double rope_theta, norm_eps;
  bool qk_norm;
  std::int64_t experts;
};
constexpr NamedShape kShapes[] = {
    {"storyteller", "that of the model inside the program: MiniMind-3's made small, 192 x 6", 192, 6, 6, 3, 0, 0, 2048,
     1e6, 1e-6, true, 0},
    {"stories", "MiniMind-3's shape made small: 256 x 6", 256, 6, 8, 4, 0, 0, 2048, 1e6, 1e-6, true, 0},
    {"stories-large", "the same, 512 x 8", 512, 8, 8, 4, 0, 0, 2048, 1e6, 1e-6, true, 0},
    {"minimind2-small", "MiniMind2-small: 512 x 8, a Llama", 512, 8, 8, 2, 64, 1408, 32768, 1e6, 1e-5, false, 0},
    {"minimind2", "MiniMind2: 768 x 16, a Llama", 768, 16, 8, 2, 96, 2048, 32768, 1e6, 1e-5, false, 0},
    {"minimind3", "MiniMind-3: 768 x 8, a Qwen3", 768, 8, 8, 4, 96, 2432, 32768, 1e6, 1e-6, true, 0},
    {"minimind3-moe", "MiniMind-3 with 4 experts: a Qwen3 MoE", 768, 8, 8, 4, 96, 2432, 32768, 1e6, 1e-6, true, 4},
};

// Takes a field's value from an object, if it is there.
struct Reader {
  const Fields& fields;

  template <class T, class Least, class Most>
  void operator()(const char* name, T& value, Least least, Most most, const char*) const {
    if constexpr (std::is_floating_point_v<T>)
      value = fields.maybe_number({name}, least, most).value_or(value);
    else
      value = fields.maybe_integer({name}, least, most).value_or(value);
  }
  void operator()(const char* name, bool& value, const char*) const {
    value = fields.maybe_boolean({name}).value_or(value);
  }
  void operator()(const char* name, std::string& value, const char*) const {
    value = fields.maybe_string({name}).value_or(value);
  }
  void operator()(const char* name, std::uint64_t& value, const char*) const {
    const auto got = fields.maybe_integer({name}, 0, std::numeric_limits<std::int64_t>::max());
    if (got) value = static_cast<std::uint64_t>(*got);
  }
};

std::string json_text(const std::string& value) {
  return io::json_quoted(value);
}
std::string json_text(bool value) {
  return value ? "true" : "false";
}
std::string json_text(double value) {
  return io::json_number(value);
}
template <std::integral T>
std::string json_text(T value) {
  return std::to_string(value);
}

// Each field of a shape with its value.
std::vector<std::pair<std::string, std::string>> shape_values(const TrainConfig& config) {
  std::vector<std::pair<std::string, std::string>> values;
  visit_shape(config,
              [&](const char* field, const auto& value, auto&&...) { values.emplace_back(field, json_text(value)); });
  return values;
}

// In the order of PositionKind.
constexpr const char* kPositions[] = {"none", "rope", "learned", "sinusoidal", "alibi"};

}  // namespace

const char* name(Stage stage) {
  constexpr const char* kNames[] = {"pretrain", "sft", "lora", "dpo", "distil"};
  return kNames[static_cast<std::size_t>(stage)];
}

DType TrainConfig::compute_type() const {
  return compute == "bf16" ? DType::bf16 : DType::f32;
}

TrainConfig default_config(Stage stage) {
  TrainConfig config;
  if (stage == Stage::sft || stage == Stage::distil) config.rate = 1e-4;
  if (stage == Stage::lora) config.rate = 5e-4, config.decay = 0;
  if (stage == Stage::dpo) config.rate = 5e-6, config.decay = 0, config.batch = 4;
  return config;
}

TrainConfig stories_config(Stage stage) {
  TrainConfig config = default_config(stage);
  config.batch = 4;  // small steps: a model this small learns more from many of them than from large ones
  config.length = 512;
  if (stage == Stage::pretrain || stage == Stage::distil) {
    set_shape("storyteller", config);
    config.rate = 2e-3, config.last_rate = 0.05;
  } else if (stage == Stage::sft) {
    config.rate = 1e-3, config.last_rate = 0.02;
  }
  return config;
}

std::vector<std::pair<std::string, std::string>> shape_names() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const NamedShape& shape : kShapes) names.emplace_back(shape.name, shape.about);
  return names;
}

void set_shape(const std::string& name, TrainConfig& config) {
  for (const NamedShape& s : kShapes) {
    if (name != s.name) continue;
    config.hidden = s.hidden, config.layers = s.layers, config.heads = s.heads, config.kv_heads = s.kv_heads;
    config.head_dim = s.head_dim, config.feed_forward = s.feed_forward, config.context = s.context;
    config.rope_theta = s.rope_theta, config.norm_eps = s.norm_eps, config.qk_norm = s.qk_norm;
    config.experts = s.experts;
    return;
  }
  std::string known;
  for (const NamedShape& s : kShapes) known += (known.empty() ? "" : ", ") + std::string(s.name);
  throw InvalidArgument("training: no shape is called \"" + name + "\", expected one of " + known);
}

void read_config(const io::Json& json, const std::string& what, TrainConfig& config) {
  const Fields fields(json, what);
  std::vector<std::string> names;
  visit_fields(config, [&](const char* field, auto&&...) { names.emplace_back(field); });
  for (const auto& [key, value] : *json.object()) {
    if (std::find(names.begin(), names.end(), key) != names.end()) continue;
    fields.refuse(key, "is no setting of a run" + io::did_you_mean(key, names));
  }
  visit_fields(config, Reader{fields});
}

std::string config_to_json(const TrainConfig& config) {
  io::JsonObject json(true);
  visit_fields(config, [&](const char* field, const auto& value, auto&&...) { json.put(field, json_text(value)); });
  return json.text();
}

void check_config(const TrainConfig& c, bool from_nothing) {
  const auto refuse = [](const std::string& text) { throw InvalidArgument("training: " + text); };
  const auto text = [](std::int64_t value) { return std::to_string(value); };
  if (c.heads % c.kv_heads != 0)
    refuse("kv_heads is " + text(c.kv_heads) + ", expected a divisor of the " + text(c.heads) + " heads");
  if (c.head_dim == 0 && c.hidden % c.heads != 0)
    refuse("hidden is " + text(c.hidden) + ", expected a multiple of the " + text(c.heads) + " heads, or a head_dim");
  if (from_nothing && c.positions != "rope" && c.positions != "alibi" && c.positions != "learned" &&
      c.positions != "none")
    refuse("positions is \"" + c.positions + "\", expected rope, alibi, learned or none");
  if (const std::int64_t dim = c.head_dim == 0 ? c.hidden / c.heads : c.head_dim; c.positions == "rope" && dim % 2 != 0)
    refuse("the width of a head is " + text(dim) + ", expected an even number: RoPE rotates pairs");
  if (c.compute != "f32" && c.compute != "bf16") refuse("compute is \"" + c.compute + "\", expected f32 or bf16");
  if (c.rows_at_once > 0 && c.batch % c.rows_at_once != 0)
    refuse("rows_at_once is " + text(c.rows_at_once) + ", expected a divisor of batch, " + text(c.batch));
  if (c.ring && c.rows_at_once > 1)
    refuse("rows_at_once is " + text(c.rows_at_once) + ", and with ring one row is computed at a time");
  if (c.ring && c.sinks) refuse("sinks and ring do not go together");
  if (c.experts > 0 && c.experts_used > c.experts)
    refuse("experts_used is " + text(c.experts_used) + ", expected at most the " + text(c.experts) + " experts");
  if (from_nothing && c.length > c.context)
    refuse("length is " + text(c.length) + ", expected at most context, " + text(c.context));
  if (c.steps == 0 && c.epochs == 0) refuse("steps and epochs are both 0: there is nothing to do");
}

std::vector<std::string> shape_fields_of(const io::Json& settings) {
  std::vector<std::string> names;
  TrainConfig any;
  visit_shape(any, [&](const char* field, auto&&...) {
    if (settings.find(field) != nullptr) names.emplace_back(field);
  });
  return names;
}

std::vector<std::string> take_shape(const ModelConfig& m, const std::vector<std::string>& given, TrainConfig& c) {
  const TrainConfig before = c;
  c.hidden = m.hidden, c.layers = m.layers, c.heads = m.heads, c.kv_heads = m.kv_heads, c.head_dim = m.head_dim;
  c.feed_forward = m.feed_forward > 0 ? m.feed_forward : m.experts.width;
  c.context = m.context;
  c.positions = kPositions[static_cast<std::size_t>(m.positions)];
  c.rope_theta = m.rope_theta, c.norm_eps = m.norm_eps;
  c.qk_norm = m.qk_norm, c.tied_embeddings = m.tied_embeddings, c.sinks = m.sinks;
  c.scale = m.attention_scale != 1.0;
  c.window = m.window, c.softcap = m.score_softcap;
  c.experts = m.experts.count, c.experts_shared = m.experts.shared;
  c.experts_used = std::max<std::int64_t>(1, m.experts.used);
  const auto old = shape_values(before), now = shape_values(c);
  std::vector<std::string> changed;
  for (std::size_t n = 0; n < now.size(); ++n) {
    const auto& [field, value] = old[n];
    const bool is_open = value == "0" && (field == "head_dim" || field == "feed_forward");
    if (old[n] != now[n] && !is_open && std::find(given.begin(), given.end(), field) != given.end())
      changed.push_back(field);
  }
  return changed;
}

ModelConfig model_config(const TrainConfig& c, std::int64_t vocabulary) {
  ModelConfig m;
  m.vocabulary = vocabulary;
  m.hidden = c.hidden, m.layers = c.layers, m.heads = c.heads, m.kv_heads = c.kv_heads;
  m.head_dim = c.head_dim == 0 ? c.hidden / c.heads : c.head_dim;
  const auto wide = static_cast<std::int64_t>(std::ceil(static_cast<double>(c.hidden) * std::numbers::pi / 64));
  m.feed_forward = c.feed_forward == 0 ? 64 * wide : c.feed_forward;
  m.context = c.context;
  m.norm_eps = c.norm_eps, m.qk_norm = c.qk_norm;
  m.positions = c.positions == "rope"      ? PositionKind::rope
                : c.positions == "learned" ? PositionKind::learned
                : c.positions == "alibi"   ? PositionKind::alibi
                                           : PositionKind::none;
  m.rope_theta = c.rope_theta;
  m.tied_embeddings = c.tied_embeddings;
  m.window = c.window, m.sinks = c.sinks, m.score_softcap = c.softcap;
  if (!c.scale) m.attention_scale = 1;
  if (c.experts > 0)
    m.experts = {.count = c.experts, .used = c.experts_used, .shared = c.experts_shared, .width = m.feed_forward};
  m.family = c.experts > 0 ? "qwen3_moe" : c.qk_norm ? "qwen3" : c.window > 0 ? "mistral" : "llama";
  return m;
}

AdamW adamw_of(const TrainConfig& config) {
  return {.beta1 = config.beta1, .beta2 = config.beta2, .decay = config.decay};
}

}  // namespace attend::llm
