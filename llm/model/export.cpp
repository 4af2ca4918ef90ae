// Renames, reorders and rounds a model's tensors for other programs.
#include "llm/model/export.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>

#include "io/atomic_file.hpp"
#include "io/atomic_folder.hpp"
#include "io/mapped_file.hpp"
#include "io/pth.hpp"
#include "io/safetensors.hpp"
#include "llm/model/embedded.hpp"
#include "llm/model/stored_numbers.hpp"
#include "llm/text/tokenizer_export.hpp"

namespace attend::llm {
namespace {

struct Target {
  bool gguf = false;
  std::string family{};  // general.architecture, or model_type
  RopeStyle style = RopeStyle::half_split;
};

// Rows of a stored matrix, as they are to be written.
struct Part {
  WeightFormat format;
  std::int64_t rows, cols, heads;  // heads > 0: a row of q or k, which stand in the order of the target's rotation
  std::span<const std::byte> data;
};

struct OutTensor {
  std::string name;
  WeightFormat format;
  std::vector<std::int64_t> shape;
  std::vector<Part> parts;       // one after the other; all experts of a layer are one tensor in GGUF
  std::vector<std::byte> own{};  // bytes that are in no file; a part views them
};

[[noreturn]] void refuse(const ModelFiles& files, const std::string& text) {
  throw io::FileError(files.path().string() + ": " + text);
}

Target choose_target(const ModelFiles& files, bool gguf) {
  const ModelConfig& c = files.config();
  std::string why;
  Target t{.gguf = gguf, .family = plain_family(c, why)};
  if (t.family.empty()) refuse(files, why);
  if (!gguf && c.rotary() != c.head_dim)
    refuse(files, "its rotation covers " + std::to_string(c.rotary()) + " of the " + std::to_string(c.head_dim) +
                      " numbers of a head, and Transformers' " + t.family +
                      " rotates all of them; GGUF has a place for it");
  if (gguf && !c.experts.normalised && c.experts.count > 0)
    refuse(files, "GGUF's families with experts let their weights sum to one, and this model does not");
  if (gguf && t.family == "qwen3_moe") t.family = "qwen3moe";
  if (gguf && t.family == "mistral") t.family = "llama";
  if (gguf && t.family == "llama") t.style = RopeStyle::interleaved;
  return t;
}

class Exporter {
 public:
  Exporter(const ModelFiles& files, bool gguf, const ExportOptions& options)
      : files_(files),
        c_(files.config()),
        from_(files.naming()),
        target_(choose_target(files, gguf)),
        options_(options) {}

  const Target& target() const { return target_; }
  std::size_t tensors_made() const { return out_.size(); }

  // What there is to write; the bytes come from put().
  const std::vector<OutTensor>& tensors() {
    const bool g = target_.gguf;
    add(from_.embedding, g ? "token_embd" : "model.embed_tokens", true);
    add(from_.final_norm, g ? "output_norm" : "model.norm", false);
    if (!c_.tied_embeddings) add(from_.head, g ? "output" : "lm_head", true);
    for (std::int64_t n = 0; n < c_.layers; ++n) layer(n);
    if (const StoredTensor* divisors = files_.find_used("rope_freqs.weight"); divisors != nullptr) {
      if (!g)
        refuse(files_, "its rotation is scaled by a table (rope_freqs.weight), which config.json has no place for");
      out_.push_back({"rope_freqs.weight", WeightFormat::f32, divisors->shape, {part_of(*divisors, 0)}});
    } else if (!c_.rope_slowdown.empty() && (!g || target_.family != "llama")) {
      refuse(files_, "its rotation is scaled as MiniMind did in 2025, which only GGUF's llama has a place for");
    } else if (g && (c_.rope_scaling.kind == RopeScaling::Kind::llama3 || !c_.rope_slowdown.empty())) {
      out_.push_back(rope_divisors());
    }
    return out_;
  }

  void put(std::size_t n, const io::PutBytes& put) {
    for (const Part& part : out_[n].parts) {
      put_part(part, out_[n], put);
      io::not_needed_now(part.data);
      done_ += std::ssize(part.data);
      if (options_.progress) options_.progress(std::min(done_, all_), all_);
    }
  }

 private:
  void layer(std::int64_t n) {
    const bool g = target_.gguf;
    const std::string to = (g ? "blk." : "model.layers.") + std::to_string(n) + ".";
    const auto put = [&](std::string_view pattern, const char* gguf, const char* folder, bool matrix,
                         std::int64_t heads = 0) {
      add(tensor_name(pattern, n), to + (g ? gguf : folder), matrix, heads);
    };
    if (!from_.qkv.empty() && files_.find_used(tensor_name(from_.qkv, n) + ".weight") != nullptr)
      refuse(files_, "queries, keys and values in one matrix (" + tensor_name(from_.qkv, n) + ") cannot be written");
    put(from_.attention_norm, "attn_norm", "input_layernorm", false);
    put(from_.q, "attn_q", "self_attn.q_proj", true, c_.heads);
    put(from_.k, "attn_k", "self_attn.k_proj", true, c_.kv_heads);
    put(from_.v, "attn_v", "self_attn.v_proj", true);
    put(from_.o, "attn_output", "self_attn.o_proj", true);
    if (c_.qk_norm) {
      put(from_.q_norm, "attn_q_norm", "self_attn.q_norm", false, 1);
      put(from_.k_norm, "attn_k_norm", "self_attn.k_norm", false, 1);
    }
    put(from_.feed_forward_norm, "ffn_norm", "post_attention_layernorm", false);
    if (!c_.has_experts(n)) {
      put(from_.gate, "ffn_gate", "mlp.gate_proj", true);
      put(from_.up, "ffn_up", "mlp.up_proj", true);
      put(from_.down, "ffn_down", "mlp.down_proj", true);
      return;
    }
    put(from_.router, "ffn_gate_inp", "mlp.gate", true);
    experts(n, to, from_.expert_gate, from_.stacked_gate, "ffn_gate_exps", "gate_proj");
    experts(n, to, from_.expert_up, from_.stacked_up, "ffn_up_exps", "up_proj");
    experts(n, to, from_.expert_down, from_.stacked_down, "ffn_down_exps", "down_proj");
  }

  // One tensor for each expert in a folder, one for all of a layer in GGUF.
  void experts(std::int64_t n, const std::string& to, std::string_view each, std::string_view stacked, const char* gguf,
               const char* folder) {
    std::vector<OutTensor> all;
    for (std::int64_t e = 0; e < c_.experts.count; ++e) {
      StoredTensor one =
          get(stacked.empty() ? tensor_name(each, n, e) + ".weight" : tensor_name(stacked, n) + ".weight");
      if (stacked.empty() && files_.find_used(tensor_name(each, n, e) + ".bias") != nullptr)
        refuse(files_, "an expert that adds a bias (" + tensor_name(each, n, e) + ") cannot be written");
      if (!stacked.empty()) {
        const std::size_t size = one.data.size() / static_cast<std::size_t>(c_.experts.count);
        one.shape.erase(one.shape.begin());
        one.data = one.data.subspan(static_cast<std::size_t>(e) * size, size);
      }
      all.push_back(converted(one, to + "mlp.experts." + std::to_string(e) + "." + folder + ".weight", true, 0));
    }
    if (!target_.gguf) {
      std::move(all.begin(), all.end(), std::back_inserter(out_));
      return;
    }
    OutTensor one{to + gguf + ".weight", all[0].format, all[0].shape, {}};
    one.shape.insert(one.shape.begin(), c_.experts.count);
    for (const OutTensor& expert : all) one.parts.push_back(expert.parts[0]);
    out_.push_back(std::move(one));
  }

  const StoredTensor& get(const std::string& name) const {
    const StoredTensor* t = files_.find_used(name);
    if (t == nullptr) refuse(files_, "the tensor " + io::json_quoted(name) + " is missing");
    return *t;
  }

  void add(std::string_view from, const std::string& to, bool matrix, std::int64_t heads = 0) {
    out_.push_back(converted(get(std::string(from) + ".weight"), to + ".weight", matrix, heads));
    const StoredTensor* bias = files_.find_used(std::string(from) + ".bias");
    if (bias != nullptr) out_.push_back(converted(*bias, to + ".bias", false, heads));
  }

  // A bias of q or k is a column: each number a row of its own.
  static Part part_of(const StoredTensor& t, std::int64_t heads) {
    const WeightBlock block = block_of(*t.format);
    const std::int64_t rows = t.shape.size() > 1 || heads > 0 ? t.shape[0] : 1;
    return {*t.format, rows, std::ssize(t.data) / block.bytes * block.numbers / rows, heads, t.data};
  }

  OutTensor converted(const StoredTensor& t, std::string name, bool matrix, std::int64_t heads) const {
    WeightFormat format = matrix ? options_.format.value_or(*t.format) : WeightFormat::f32;
    if (!is_plain(format) && (!target_.gguf || t.shape.back() % block_of(format).numbers != 0))
      format = WeightFormat::f16;
    if (!matrix && !target_.gguf && !options_.format && *t.format != WeightFormat::f32) format = *t.format;
    return {std::move(name), format, t.shape, {part_of(t, heads)}};
  }

  std::int64_t source_row(std::int64_t r, std::int64_t heads) const {
    return heads == 0 ? r : row_in_style(c_, target_.style, r);
  }

  // A few rows at a time, so that a model of any size needs little memory.
  void put_part(const Part& p, const OutTensor& to, const io::PutBytes& put) const {
    constexpr std::int64_t kNumbers = std::int64_t{1} << 18;
    const std::int64_t step = std::max<std::int64_t>(1, kNumbers / p.cols);
    const std::size_t row_bytes = p.data.size() / static_cast<std::size_t>(p.rows);
    std::vector<std::byte> bytes;
    for (std::int64_t first = 0; first < p.rows; first += step) {
      const std::int64_t count = std::min(step, p.rows - first);
      bytes.resize(static_cast<std::size_t>(count) * row_bytes);
      for (std::int64_t r = 0; r < count; ++r)
        std::memcpy(&bytes[static_cast<std::size_t>(r) * row_bytes],
                    &p.data[static_cast<std::size_t>(source_row(first + r, p.heads)) * row_bytes], row_bytes);
      put_numbers({p.format, bytes}, to.format, {files_.path().string(), to.name}, put);
    }
  }

  OutTensor rope_divisors() const {
    const RopeFrequencies scaled = rope_frequencies(c_);
    ModelConfig plain = c_;
    plain.rope_scaling = {};
    plain.rope_slowdown.clear();
    const RopeFrequencies base = rope_frequencies(plain);
    const std::int64_t count = std::ssize(base.per_position);
    OutTensor t{"rope_freqs.weight", WeightFormat::f32, {count}, {}};
    for (std::size_t i = 0; i < base.per_position.size(); ++i) {
      const auto divisor = static_cast<float>(base.per_position[i] / scaled.per_position[i]);
      const auto* bytes = reinterpret_cast<const std::byte*>(&divisor);
      t.own.insert(t.own.end(), bytes, bytes + sizeof(divisor));
    }
    t.parts = {{WeightFormat::f32, 1, count, 0, t.own}};  // moving the vector leaves its bytes where they are
    return t;
  }

  const ModelFiles& files_;
  const ModelConfig& c_;
  const Naming& from_;
  Target target_;
  const ExportOptions& options_;
  std::vector<OutTensor> out_;
  std::int64_t done_ = 0, all_ = files_.bytes();
};

std::vector<io::GgufEntry> gguf_entries(const ModelConfig& c, const std::string& family) {
  using io::GgufType;
  std::vector<io::GgufEntry> e{{"general.architecture", GgufType::string, family},
                               {"general.name", GgufType::string, c.family}};
  const auto whole = [&](const char* key, std::int64_t value) {
    e.push_back({family + "." + key, GgufType::u32, value});
  };
  const auto real = [&](const char* key, double value) { e.push_back({family + "." + key, GgufType::f32, value}); };
  whole("block_count", c.layers);
  whole("context_length", c.context);
  whole("embedding_length", c.hidden);
  whole("feed_forward_length", c.feed_forward > 0 ? c.feed_forward : c.experts.width);
  whole("attention.head_count", c.heads);
  whole("attention.head_count_kv", c.kv_heads);
  whole("attention.key_length", c.head_dim);
  whole("attention.value_length", c.head_dim);
  whole("rope.dimension_count", c.rotary());
  whole("vocab_size", c.vocabulary);
  real("attention.layer_norm_rms_epsilon", c.norm_eps);
  real("rope.freq_base", c.rope_theta);
  if (c.window > 0) whole("attention.sliding_window", c.window);
  if (c.experts.count > 0) {
    whole("expert_count", c.experts.count);
    whole("expert_used_count", c.experts.used);
    whole("expert_feed_forward_length", c.experts.width);
  }
  const RopeScaling& s = c.rope_scaling;
  if (s.kind == RopeScaling::Kind::linear || s.kind == RopeScaling::Kind::yarn) {
    const bool yarn = s.kind == RopeScaling::Kind::yarn;
    e.push_back({family + ".rope.scaling.type", GgufType::string, std::string(yarn ? "yarn" : "linear")});
    real("rope.scaling.factor", s.factor);
    if (yarn) whole("rope.scaling.original_context_length", s.original_length);
    if (yarn && s.attention_factor)
      real("rope.scaling.attn_factor", *s.attention_factor / (s.factor > 1 ? 0.1 * std::log(s.factor) + 1 : 1.0));
  }
  return e;
}

std::filesystem::path tokenizer_folder(const ModelFiles& files) {
  return std::filesystem::is_directory(files.path()) ? files.path() : files.path().parent_path();
}

void check_free(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, error)))
    throw io::FileError(path.string() + ": is there already, expected a new name; --force replaces it");
}

// Replacing means removing what is there: only a model's folder may go, and never folders inside of it.
void check_replaceable(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return;
  const auto refuse = [&](const std::string& what) {
    throw io::FileError(path.string() + ": " + what + ", expected a model's folder: nothing else is replaced");
  };
  if (fs::is_symlink(path, error) || !fs::is_directory(path, error)) refuse("is no folder");
  if (!fs::exists(path / "config.json", error)) refuse("holds no config.json");
  for (const fs::directory_entry& entry : fs::directory_iterator(path))
    if (!entry.is_regular_file(error) || entry.is_symlink(error))
      refuse("holds " + io::json_quoted(entry.path().filename().string()) + ", which is no plain file");
}

struct SideFile {
  std::string name, text;
};

// config.json and the tokenizer's files: what a model is read with.
std::vector<SideFile> side_files(const ModelFiles& files, const std::string& family) {
  std::vector<SideFile> all = {{"config.json", config_to_json(files.config(), family)}};
  if (files.gguf() != nullptr) {
    TokenizerTexts texts = tokenizer_texts(*files.gguf(), files.path().string());
    all.push_back({"tokenizer.json", std::move(texts.tokenizer_json)});
    all.push_back({"tokenizer_config.json", std::move(texts.config_json)});
    return all;
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"})
    if (const auto from = tokenizer_folder(files) / name; std::filesystem::exists(from))
      all.push_back({name, std::string(io::as_text(io::MappedFile(from).bytes()))});
  return all;
}

// Whether the folder is the one that the model is read from, with a config.json for the names and rows that are
// written.
bool describes_source(const ModelFiles& files, const std::filesystem::path& folder) {
  std::error_code error;
  return &files.naming() == &kLlama && files.config().rope_style == RopeStyle::half_split &&
         std::filesystem::exists(folder / "config.json", error) &&
         std::filesystem::equivalent(folder, tokenizer_folder(files), error);
}

// Whether these files can be in the folder without changing how another model there is read.
bool is_free_for(const std::vector<SideFile>& beside, const std::filesystem::path& folder,
                 const std::filesystem::path& written) {
  bool all_there = true;
  for (const SideFile& file : beside) {
    const auto path = folder / file.name;
    if (!std::filesystem::exists(path))
      all_there = false;
    else if (io::as_text(io::MappedFile(path).bytes()) != file.text)
      return false;
  }
  if (all_there) return true;
  const auto entries = std::filesystem::directory_iterator(folder);
  return std::none_of(begin(entries), end(entries), [&](const std::filesystem::directory_entry& entry) {
    const auto is = [&](const char* extension) { return has_extension(entry.path(), extension); };
    return entry.path().filename() != written.filename() &&
           (is(".pth") || is(".pt") || is(".bin") || is(".safetensors"));
  });
}

// Names, types and shapes; the bytes come later.
std::vector<io::StoredTensor> stored(const std::vector<OutTensor>& tensors) {
  std::vector<io::StoredTensor> views;
  for (const OutTensor& t : tensors) {
    const char* dtype = t.format == WeightFormat::f32 ? "F32" : t.format == WeightFormat::f16 ? "F16" : "BF16";
    views.push_back({t.name, dtype, t.shape, {}});
  }
  return views;
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  io::write_file_atomically(path, std::as_bytes(std::span(text)));
}

}  // namespace

void export_gguf(const ModelFiles& files, const std::filesystem::path& path, const ExportOptions& options) {
  io::check_can_write(path);
  if (!options.replace) check_free(path);
  if (is_embedded(files.path()) && !options.format) return io::write_file_atomically(path, embedded_bytes());
  if (files.gguf() != nullptr) return convert_gguf(files, path, options);
  Exporter exporter(files, true, options);
  std::vector<io::GgufEntry> entries = gguf_entries(files.config(), exporter.target().family);
  const auto folder = tokenizer_folder(files);
  const auto config_path = folder / "tokenizer_config.json";
  const io::MappedFile tokenizer(folder / "tokenizer.json");
  io::MappedFile config_file;
  io::JsonView config;
  if (std::filesystem::exists(config_path)) {
    config_file = io::MappedFile(config_path);
    config = io::view_json(io::as_text(config_file.bytes()), config_path.string());
  }
  std::vector<io::GgufEntry> words = gguf_tokenizer(io::as_text(tokenizer.bytes()), config, files.config().vocabulary,
                                                    (folder / "tokenizer.json").string());
  std::move(words.begin(), words.end(), std::back_inserter(entries));
  std::vector<io::GgufTensor> views;
  for (const OutTensor& t : exporter.tensors()) views.push_back({t.name, ggml_number(t.format), t.shape, {}});
  io::write_gguf(path, entries, views, [&](std::size_t n, const io::PutBytes& put) { exporter.put(n, put); });
}

PthExport export_pth(const ModelFiles& files, const std::filesystem::path& path, const ExportOptions& options) {
  io::check_can_write(path);
  if (!options.replace) check_free(path);
  if (options.format == WeightFormat::q8_0) refuse(files, "a .pth has no q8_0; ask for f32, f16 or bf16");
  Exporter exporter(files, false, options);
  std::vector<io::StoredTensor> views = stored(exporter.tensors());
  std::size_t embedding = 0;
  for (std::size_t n = 0; n < views.size(); ++n)
    if (views[n].name == "model.embed_tokens.weight") embedding = n;
  if (files.config().tied_embeddings) {
    views.push_back(views[embedding]);
    views.back().name = "lm_head.weight";
  }
  const std::vector<SideFile> beside = side_files(files, exporter.target().family);
  io::write_pth(path, views, [&](std::size_t n, const io::PutBytes& put) {
    exporter.put(n < exporter.tensors_made() ? n : embedding, put);
  });
  PthExport result;
  const auto folder = std::filesystem::absolute(path).parent_path();
  if (describes_source(files, folder)) return result;
  if (!is_free_for(beside, folder, path)) {
    result.note = "config.json and the tokenizer are not written: " + folder.string() +
                  " has those of another model; attend reads a .pth with the ones next to it";
    return result;
  }
  for (const SideFile& file : beside) {
    if (!std::filesystem::exists(folder / file.name)) write_text(folder / file.name, file.text);
    result.beside.push_back(file.name);
  }
  return result;
}

void export_folder(const ModelFiles& files, const std::filesystem::path& path, const ExportOptions& options) {
  if (options.format == WeightFormat::q8_0) refuse(files, "safetensors has no q8_0; ask for f32, f16 or bf16");
  if (options.replace)
    check_replaceable(path);
  else
    check_free(path);
  Exporter exporter(files, false, options);
  const std::vector<io::StoredTensor> views = stored(exporter.tensors());
  const std::vector<SideFile> beside = side_files(files, exporter.target().family);
  io::NewFolder folder(path, options.replace);
  io::write_safetensors(folder.path() / "model.safetensors", views, {{"format", "pt"}},
                        [&](std::size_t n, const io::PutBytes& put) { exporter.put(n, put); });
  for (const SideFile& file : beside) write_text(folder.path() / file.name, file.text);
  folder.commit();
}

}  // namespace attend::llm
