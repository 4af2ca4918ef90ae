// Every setting of a training run: its name, what it is for, its default. A run's folder keeps all of them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "attend/tensor.hpp"
#include "io/json.hpp"
#include "llm/model/config.hpp"
#include "llm/train/adamw.hpp"

namespace attend::llm {

enum class Stage { pretrain, sft, lora, dpo, distil };
const char* name(Stage stage);

struct TrainConfig {
  // Of a model from nothing; one that is trained further keeps its own.
  std::int64_t hidden = 256, layers = 6, heads = 8, kv_heads = 4, head_dim = 0, feed_forward = 0, context = 2048;
  std::string positions = "rope";
  double rope_theta = 1e6, norm_eps = 1e-6;
  bool qk_norm = true, tied_embeddings = true, scale = true, sinks = false;
  std::int64_t window = 0;
  double softcap = 0;
  std::int64_t experts = 0, experts_used = 1, experts_shared = 0;
  double balance = 5e-4;

  // Of the run.
  std::uint64_t seed = 1;
  std::int64_t length = 512, batch = 16, rows_at_once = 0, steps = 0;
  double epochs = 1;
  double rate = 5e-4, last_rate = 0.1, warm_up = 0.02, clip = 1, decay = 0.1, beta1 = 0.9, beta2 = 0.95;
  double dropout = 0;
  std::string compute = "bf16";
  bool recompute = false, ring = false;
  double held_out = 0.01;
  std::int64_t validate_every = 0, validate_tokens = 65536, patience = 0, save_every = 0, sample_tokens = 60;
  std::string prompt;

  // Of single stages.
  double masked_share = 0.15;
  std::int64_t lora_rank = 16;
  double lora_alpha = 32;
  bool lora_feed_forward = false;
  double dpo_beta = 0.15;
  double distil_alpha = 0.5, distil_temperature = 1.5;
  std::string teacher;

  DType compute_type() const;
};

// The defaults of a stage: those of upstream MiniMind where it has them.
TrainConfig default_config(Stage stage);
// What suits the generated stories and a model as small as they need: minutes on two cores.
TrainConfig stories_config(Stage stage);
// Shapes by name: "stories", "minimind2-small", "minimind3", ... InvalidArgument names them all.
std::vector<std::pair<std::string, std::string>> shape_names();  // with what each is
void set_shape(const std::string& name, TrainConfig& config);

// Calls visit(name, value, least, most, about) for numbers, visit(name, value, about) for booleans and texts, over the
// fields of a model's shape in order.
template <class Config, class Visit>
void visit_shape(Config& c, const Visit& visit) {
  visit("hidden", c.hidden, 1, 1 << 20, "Width of the residual");
  visit("layers", c.layers, 1, 4096, "Layers");
  visit("heads", c.heads, 1, 4096, "Query heads");
  visit("kv_heads", c.kv_heads, 1, 4096, "Heads of keys and values; divides heads");
  visit("head_dim", c.head_dim, 0, 4096, "Width of a head; 0: hidden / heads");
  visit("feed_forward", c.feed_forward, 0, 1 << 20, "Width of the feed-forward; 0: pi x hidden, rounded up to 64");
  visit("context", c.context, 2, 1 << 30, "Longest sequence the model is made for");
  visit("positions", c.positions, "rope, alibi, learned or none");
  visit("rope_theta", c.rope_theta, 1.0, 1e12, "Base of RoPE's frequencies");
  visit("norm_eps", c.norm_eps, 0.0, 1.0, "Epsilon of the norms");
  visit("qk_norm", c.qk_norm, "RMS norm of queries and keys");
  visit("tied_embeddings", c.tied_embeddings, "The output projection is the embedding");
  visit("scale", c.scale, "Scores are divided by the root of head_dim");
  visit("sinks", c.sinks, "A learnt logit per head that takes weight and gives nothing");
  visit("window", c.window, 0, 1 << 30, "Keys a token sees, itself included; 0: all before it");
  visit("softcap", c.softcap, 0.0, 1e6, "Scores are kept within this by tanh; 0: not");
  visit("experts", c.experts, 0, 4096, "Routed experts of a layer; 0: a plain feed-forward");
  visit("experts_used", c.experts_used, 1, 4096, "Experts a token goes through");
  visit("experts_shared", c.experts_shared, 0, 4096, "Experts that every token goes through");
}

// The same over every field.
template <class Config, class Visit>
void visit_fields(Config& c, const Visit& visit) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  visit_shape(c, visit);
  visit("balance", c.balance, 0.0, 10.0, "Coefficient of the loss that keeps experts equally busy");
  visit("seed", c.seed, "Of first weights, order of documents, dropout and samples");
  visit("length", c.length, 2, 1 << 30, "Tokens of a row");
  visit("batch", c.batch, 1, 1 << 20, "Rows of a step");
  visit("rows_at_once", c.rows_at_once, 0, 1 << 20, "Rows computed at once, for less memory; 0: all; divides batch");
  visit("steps", c.steps, 0, kMany, "Steps of the run; 0: as many as epochs need");
  visit("epochs", c.epochs, 0.0, 1e6, "Passes over the documents, where steps is 0");
  visit("rate", c.rate, 0.0, 1.0, "Learning rate after the warm-up");
  visit("last_rate", c.last_rate, 0.0, 1.0, "What the rate falls to, as a part of it");
  visit("warm_up", c.warm_up, 0.0, 1.0, "Part of the steps in which the rate rises");
  visit("clip", c.clip, 0.0, 1e6, "Longest gradient; longer ones are shortened to it; 0: any");
  visit("decay", c.decay, 0.0, 1.0, "Weight decay of matrices");
  visit("beta1", c.beta1, 0.0, 0.9999, "AdamW: memory of the gradient");
  visit("beta2", c.beta2, 0.0, 0.99999, "AdamW: memory of its square");
  visit("dropout", c.dropout, 0.0, 0.9, "Part of what attention and feed-forward add that is dropped");
  visit("compute", c.compute, "Products and attention in f32 or bf16; weights and sums are f32 always");
  visit("recompute", c.recompute, "Keep each layer's input alone and compute the rest again: less memory, more time");
  visit("ring", c.ring, "Spread each row, then one document, over the processes of mpirun: texts that one cannot hold");
  visit("held_out", c.held_out, 0.0, 0.5,
        "Fraction of the tokens held out for validation: whole documents, and the end of one text");
  visit("validate_every", c.validate_every, 0, kMany, "Steps between validations; 0: a tenth of the run");
  visit("validate_tokens", c.validate_tokens, 1, kMany, "Most tokens of a validation");
  visit("patience", c.patience, 0, 1 << 20, "Validations without a better loss after which the run ends; 0: never");
  visit("save_every", c.save_every, 0, kMany, "Steps between checkpoints; 0: with each validation");
  visit("sample_tokens", c.sample_tokens, 0, 4096, "Tokens of the sample after a validation; 0: none");
  visit("prompt", c.prompt, "What the sample goes on from; empty: the beginning of a held-out document");
  visit("masked_share", c.masked_share, 0.0, 1.0, "An encoder: part of the tokens that are hidden and to be told");
  visit("lora_rank", c.lora_rank, 1, 4096, "LoRA: rank");
  visit("lora_alpha", c.lora_alpha, 0.0, 1e6, "LoRA: alpha; the product counts alpha / rank times");
  visit("lora_feed_forward", c.lora_feed_forward, "LoRA: the feed-forward's matrices too");
  visit("dpo_beta", c.dpo_beta, 0.0, 1e3, "DPO: beta");
  visit("distil_alpha", c.distil_alpha, 0.0, 1.0, "Distillation: share of the plain loss");
  visit("distil_temperature", c.distil_temperature, 0.01, 1e3, "Distillation: temperature");
  visit("teacher", c.teacher, "Distillation: the model to learn from");
}

// FileError names the field that is unknown (with the one that may be meant), of another kind or out of range.
void read_config(const io::Json& json, const std::string& what, TrainConfig& config);
std::string config_to_json(const TrainConfig& config);
// Values that do not fit together: InvalidArgument. A model that is trained further has a context of its own.
void check_config(const TrainConfig& config, bool from_nothing = true);

// The fields of a model's shape that a JSON object of settings has.
std::vector<std::string> shape_fields_of(const io::Json& settings);
// Sets the shape to that of a model that is trained further. Gives those of `given` that were another.
std::vector<std::string> take_shape(const ModelConfig& model, const std::vector<std::string>& given,
                                    TrainConfig& config);

// The model that the settings describe, for a tokenizer's vocabulary.
ModelConfig model_config(const TrainConfig& config, std::int64_t vocabulary);
AdamW adamw_of(const TrainConfig& config);

}  // namespace attend::llm
