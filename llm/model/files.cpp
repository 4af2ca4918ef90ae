// Opens a model's files and finds out how its tensors are called.
#include "llm/model/files.hpp"

#include <algorithm>

#include "io/mapped_file.hpp"
#include "io/pth.hpp"
#include "io/safetensors.hpp"
#include "llm/model/config_check.hpp"
#include "llm/model/embedded.hpp"
#include "llm/model/stored_numbers.hpp"
#include "llm/model/weights.hpp"

namespace attend::llm {

constexpr Naming kLlama{
    .embedding = "model.embed_tokens",
    .positions = "model.embed_positions",
    .token_types = "model.embed_types",
    .embedding_norm = "model.embed_norm",
    .final_norm = "model.norm",
    .head = "lm_head",
    .head_dense = "lm_head.dense",
    .head_norm = "lm_head.norm",
    .head_bias = "lm_head",
    .attention_norm = "model.layers.%.input_layernorm",
    .q = "model.layers.%.self_attn.q_proj",
    .k = "model.layers.%.self_attn.k_proj",
    .v = "model.layers.%.self_attn.v_proj",
    .o = "model.layers.%.self_attn.o_proj",
    .q_norm = "model.layers.%.self_attn.q_norm",
    .k_norm = "model.layers.%.self_attn.k_norm",
    .sinks = "model.layers.%.self_attn.sinks",
    .feed_forward_norm = "model.layers.%.post_attention_layernorm",
    .gate = "model.layers.%.mlp.gate_proj",
    .up = "model.layers.%.mlp.up_proj",
    .down = "model.layers.%.mlp.down_proj",
    .router = "model.layers.%.mlp.gate",
    .expert_gate = "model.layers.%.mlp.experts.#.gate_proj",
    .expert_up = "model.layers.%.mlp.experts.#.up_proj",
    .expert_down = "model.layers.%.mlp.experts.#.down_proj",
    .shared_gate = "model.layers.%.mlp.shared_experts.#.gate_proj",
    .shared_up = "model.layers.%.mlp.shared_experts.#.up_proj",
    .shared_down = "model.layers.%.mlp.shared_experts.#.down_proj",
};

constexpr Naming kMiniMindV1{
    .embedding = "tok_embeddings",
    .final_norm = "norm",
    .head = "output",
    .attention_norm = "layers.%.attention_norm",
    .q = "layers.%.attention.wq",
    .k = "layers.%.attention.wk",
    .v = "layers.%.attention.wv",
    .o = "layers.%.attention.wo",
    .feed_forward_norm = "layers.%.ffn_norm",
    .gate = "layers.%.feed_forward.w1",
    .up = "layers.%.feed_forward.w3",
    .down = "layers.%.feed_forward.w2",
    .router = "layers.%.feed_forward.gate",
    .expert_gate = "layers.%.feed_forward.experts.#.w1",
    .expert_up = "layers.%.feed_forward.experts.#.w3",
    .expert_down = "layers.%.feed_forward.experts.#.w2",
    .shared_gate = "layers.%.feed_forward.shared_experts.w1",
    .shared_up = "layers.%.feed_forward.shared_experts.w3",
    .shared_down = "layers.%.feed_forward.shared_experts.w2",
};

constexpr Naming kGpt2{
    .embedding = "wte",
    .positions = "wpe",
    .final_norm = "ln_f",
    .head = "lm_head",
    .attention_norm = "h.%.ln_1",
    .qkv = "h.%.attn.c_attn",
    .o = "h.%.attn.c_proj",
    .feed_forward_norm = "h.%.ln_2",
    .up = "h.%.mlp.c_fc",
    .down = "h.%.mlp.c_proj",
    .columns_first = true,
};

constexpr Naming kBert{
    .embedding = "embeddings.word_embeddings",
    .positions = "embeddings.position_embeddings",
    .token_types = "embeddings.token_type_embeddings",
    .embedding_norm = "embeddings.LayerNorm",
    .head = "cls.predictions.decoder",
    .head_dense = "cls.predictions.transform.dense",
    .head_norm = "cls.predictions.transform.LayerNorm",
    .head_bias = "cls.predictions",
    .attention_norm = "encoder.layer.%.attention.output.LayerNorm",
    .q = "encoder.layer.%.attention.self.query",
    .k = "encoder.layer.%.attention.self.key",
    .v = "encoder.layer.%.attention.self.value",
    .o = "encoder.layer.%.attention.output.dense",
    .feed_forward_norm = "encoder.layer.%.output.LayerNorm",
    .up = "encoder.layer.%.intermediate.dense",
    .down = "encoder.layer.%.output.dense",
};

namespace {

constexpr Naming kGguf{
    .embedding = "token_embd",
    .positions = "position_embd",
    .token_types = "token_types",
    .embedding_norm = "token_embd_norm",
    .final_norm = "output_norm",
    .head = "output",
    .attention_norm = "blk.%.attn_norm",
    .q = "blk.%.attn_q",
    .k = "blk.%.attn_k",
    .v = "blk.%.attn_v",
    .qkv = "blk.%.attn_qkv",
    .o = "blk.%.attn_output",
    .q_norm = "blk.%.attn_q_norm",
    .k_norm = "blk.%.attn_k_norm",
    .feed_forward_norm = "blk.%.ffn_norm",
    .gate = "blk.%.ffn_gate",
    .up = "blk.%.ffn_up",
    .down = "blk.%.ffn_down",
    .router = "blk.%.ffn_gate_inp",
    .stacked_gate = "blk.%.ffn_gate_exps",
    .stacked_up = "blk.%.ffn_up_exps",
    .stacked_down = "blk.%.ffn_down_exps",
};

// A norm stands behind each part in BERT, and GGUF calls it so.
constexpr Naming kGgufBert = [] {
  Naming n = kGguf;
  n.final_norm = n.head = {};
  n.attention_norm = "blk.%.attn_output_norm";
  n.feed_forward_norm = "blk.%.layer_output_norm";
  return n;
}();

std::optional<WeightFormat> format_of(std::string_view dtype) {
  constexpr std::pair<std::string_view, WeightFormat> kFormats[] = {
      {"F32", WeightFormat::f32},   {"F16", WeightFormat::f16},   {"BF16", WeightFormat::bf16},
      {"Q4_0", WeightFormat::q4_0}, {"Q4_1", WeightFormat::q4_1}, {"Q5_0", WeightFormat::q5_0},
      {"Q5_1", WeightFormat::q5_1}, {"Q8_0", WeightFormat::q8_0}, {"Q4_K", WeightFormat::q4_k},
      {"Q5_K", WeightFormat::q5_k}, {"Q6_K", WeightFormat::q6_k}};
  for (const auto& [name, format] : kFormats)
    if (name == dtype) return format;
  return std::nullopt;
}

// The files that an index names.
std::vector<std::filesystem::path> indexed_files(const std::filesystem::path& index) {
  std::vector<std::filesystem::path> files;
  const io::Json json = io::read_json(index, {.values = kMostTensors});
  const io::Json* map = json.find("weight_map");
  if (map == nullptr || map->object() == nullptr)
    throw io::FileError(index.string() + ": \"weight_map\" is missing or no object");
  for (const auto& [tensor, file] : *map->object()) {
    const std::string* name = file.string();
    // A name that leads out of the folder could open anything.
    if (name == nullptr || name->empty() || name->find('/') != std::string::npos || *name == "." || *name == "..")
      throw io::FileError(index.string() + ": the file of " + io::json_quoted(tensor) +
                          " is not the name of a file in this folder");
    files.push_back(index.parent_path() / *name);
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

// The files that hold the weights: those an index names, else the one with the usual name, else the only one there.
std::vector<std::filesystem::path> weight_files(const std::filesystem::path& folder) {
  for (const char* name : {"model.safetensors", "pytorch_model.bin"}) {
    if (const auto index = folder / (std::string(name) + ".index.json"); std::filesystem::exists(index))
      return indexed_files(index);
    if (std::filesystem::exists(folder / name)) return {folder / name};
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  if (files.size() != 1)
    throw io::FileError(folder.string() + ": holds " + std::to_string(files.size()) +
                        " .safetensors files and none is called model.safetensors, nor is there a pytorch_model.bin; "
                        "expected one, or an index");
  return files;
}

}  // namespace

struct ModelFiles::Open {
  std::optional<io::Gguf> gguf;
  std::vector<io::Safetensors> safetensors;
  std::vector<io::Pth> pths;
};

ModelFiles::~ModelFiles() = default;
ModelFiles::ModelFiles(ModelFiles&&) noexcept = default;

const io::Gguf* ModelFiles::gguf() const {
  return open_->gguf ? &*open_->gguf : nullptr;
}

void ModelFiles::add(StoredTensor tensor) {
  if (!places_.emplace(tensor.name, tensors_.size()).second)
    throw io::FileError(path_.string() + ": the tensor " + io::json_quoted(tensor.name) + " is there twice");
  tensors_.push_back(std::move(tensor));
}

const StoredTensor* ModelFiles::find(std::string_view name) const {
  const auto place = places_.find(std::string(name));
  return place == places_.end() ? nullptr : &tensors_[place->second];
}

const StoredTensor* ModelFiles::find_used(const std::string& name) const {
  return used_.contains(name) ? find(name) : nullptr;
}

std::int64_t ModelFiles::bytes() const {
  std::int64_t sum = 0;
  for (const StoredTensor& tensor : tensors_) sum += std::ssize(tensor.data);
  return sum;
}

bool ModelFiles::quantised() const {
  return std::ranges::any_of(tensors_, [](const StoredTensor& t) { return t.format && !is_plain(*t.format); });
}

WeightFormat ModelFiles::loaded_format(const StoredTensor& tensor) const {
  return compute_ == Compute::f32 && !is_plain(*tensor.format) ? WeightFormat::f32 : *tensor.format;
}

ModelFiles::ModelFiles(const std::filesystem::path& path, Compute compute)
    : path_(path), compute_(compute), open_(std::make_unique<Open>()) {
  std::error_code error;
  if (!is_embedded(path) && !std::filesystem::exists(path, error))
    throw io::FileError(path.string() + ": there is no such file or folder");
  if (std::filesystem::is_directory(path, error) && !is_embedded(path))
    open_folder();
  else if (has_extension(path, ".gguf"))
    open_gguf();
  else if (has_extension(path, ".pth") || has_extension(path, ".pt") || has_extension(path, ".bin"))
    open_pth();
  else
    throw io::FileError(
        path.string() +
        ": expected a .gguf or .pth file, or a folder with config.json and .safetensors or pytorch_model.bin");
  choose_naming();
  complete_config();
  used_ = check_weights(*this);
  unused_ = unused_tensors(*this);
}

void ModelFiles::open_folder() {
  const auto config = path_ / "config.json";
  if (!std::filesystem::exists(config))
    throw io::FileError(path_.string() + ": there is no config.json in this folder");
  config_ = config_from_json(io::read_json(config, kConfigLimits), config.string());
  read_beside_config(path_, config_);
  for (const std::filesystem::path& file : weight_files(path_)) add_all(file);
}

void ModelFiles::add_all(const std::filesystem::path& file) {
  const bool safe = file.extension() == ".safetensors";
  const std::vector<io::StoredTensor>& tensors =
      safe ? open_->safetensors.emplace_back(file).tensors() : open_->pths.emplace_back(file).tensors();
  // What torch.compile and data-parallel training put before every name.
  std::string_view prefix;
  for (const std::string_view wrapper : {"_orig_mod.", "module."})
    if (!tensors.empty() && std::all_of(tensors.begin(), tensors.end(),
                                        [&](const io::StoredTensor& t) { return t.name.starts_with(wrapper); }))
      prefix = wrapper;
  for (const io::StoredTensor& t : tensors)
    add({t.name.substr(prefix.size()), t.dtype, format_of(t.dtype), t.shape, t.data});
}

void ModelFiles::open_gguf() {
  const io::Gguf& gguf = open_->gguf.emplace(llm::open_gguf(path_));
  config_ = config_from_gguf(gguf, path_.string());
  for (const io::GgufTensor& t : gguf.tensors()) {
    const std::string dtype = io::ggml_block(t.type).name;
    add({std::string(t.name), dtype, format_of(dtype), t.shape, t.data});
  }
}

void ModelFiles::open_pth() {
  add_all(path_);
  const auto config = path_.parent_path() / "config.json";
  if (!std::filesystem::exists(config)) {
    config_ = minimind_config(*this);
    return;
  }
  config_ = config_from_json(io::read_json(config, kConfigLimits), config.string());
  read_beside_config(path_.parent_path(), config_);
}

void ModelFiles::choose_naming() {
  if (open_->gguf)
    naming_ = config_.family == "bert" ? &kGgufBert : &kGguf;
  else if (config_.family == "gpt2")
    naming_ = &kGpt2;
  else if (config_.family == "bert")
    naming_ = &kBert;
  else if (config_.family == "minimind-v1")
    naming_ = &kMiniMindV1;
  else
    naming_ = &kLlama;
  // The same model is saved with and without the name of its inner part before every tensor.
  for (const std::string_view prefix : {"transformer.", "bert."}) {
    std::vector<StoredTensor> bare = std::move(tensors_);
    tensors_.clear();
    places_.clear();
    for (StoredTensor& tensor : bare) {
      if ((config_.family == "gpt2" || config_.family == "bert") && tensor.name.starts_with(prefix))
        tensor.name.erase(0, prefix.size());
      add(std::move(tensor));
    }
  }
}

// What only the weights tell.
void ModelFiles::complete_config() {
  // MiniMind's third generation is told from the second by its weights alone.
  if (config_.family == "minimind" && find(tensor_name(naming_->q_norm) + ".weight") != nullptr) config_.qk_norm = true;
  // As Transformers does it: a head in the file that differs from the embedding is used, whatever the config says.
  const StoredTensor* head = find(std::string(naming_->head) + ".weight");
  const StoredTensor* embedding = find(std::string(naming_->embedding) + ".weight");
  if (head != nullptr && embedding != nullptr && !same_numbers(*head, *embedding)) config_.tied_embeddings = false;
  const auto has_bias = [&](std::string_view pattern) {
    return !pattern.empty() && find(tensor_name(pattern) + ".bias") != nullptr;
  };
  config_.bias_qkv = has_bias(naming_->q) || has_bias(naming_->qkv);
  config_.bias_o = has_bias(naming_->o);
  config_.bias_feed_forward = has_bias(naming_->down);
  // MiniMind computes its widths from the hidden size and leaves them out of the file.
  const auto width_of = [&](std::string_view pattern) {
    const std::string name = tensor_name(pattern) + ".weight";
    const StoredTensor* up = pattern.empty() ? nullptr : find(name);
    if (up == nullptr || up->shape.size() != 2)
      throw io::FileError(path_.string() + ": the width of the feed-forward is not given, and the tensor " +
                          io::json_quoted(name) + " that would tell is not there");
    return up->shape[0];
  };
  if (config_.feed_forward == 0 && !config_.has_experts(0)) config_.feed_forward = width_of(naming_->up);
  if (config_.experts.count > 0 && config_.experts.width == 0) config_.experts.width = width_of(naming_->expert_up);
  if (config_.family == "bert" && !naming_->head_dense.empty())
    config_.masked_head = find(std::string(naming_->head_dense) + ".weight") != nullptr && has_bias(naming_->head_bias);
  if (!naming_->sinks.empty() && find(tensor_name(naming_->sinks)) != nullptr) config_.sinks = true;
}

bool has_extension(const std::filesystem::path& path, std::string_view extension) {
  std::string own = path.extension().string();
  for (char& c : own)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return own == extension;
}

std::string tensor_name(std::string_view pattern, std::int64_t layer, std::int64_t expert) {
  std::string name;
  for (const char c : pattern) {
    if (c == '%')
      name += std::to_string(layer);
    else if (c == '#')
      name += std::to_string(expert);
    else
      name += c;
  }
  return name;
}

}  // namespace attend::llm
