// `attend info`: what a model is made of, and the memory it needs, without loading it.
#include <fmt/format.h>

#include <map>
#include <memory>

#include "attend/error.hpp"
#include "attend/llm/store.hpp"
#include "command.hpp"
#include "io/closest.hpp"
#include "io/file_error.hpp"
#include "io/readable.hpp"
#include "language_model.hpp"
#include "llm/model/family_marks.hpp"
#include "llm/runtime/file_errors.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  std::string model, compute = "file";
  std::int64_t context = 0;
  bool tensors = false;
};

constexpr std::size_t kLongestPath = 4096;  // scripts read the line of the file

std::string bytes(std::int64_t n) {
  return io::readable_bytes(static_cast<double>(n));
}

void line(const char* label, const std::string& text) {
  fmt::print("{:<14}{}\n", label, io::printable(text, kLongestPath));
}

const char* text_of(llm::ActivationKind kind) {
  switch (kind) {
    case llm::ActivationKind::silu:
      return "SiLU";
    case llm::ActivationKind::gelu:
      return "GELU";
    case llm::ActivationKind::gelu_tanh:
      return "GELU (tanh)";
    case llm::ActivationKind::relu:
      return "ReLU";
  }
  return "";
}

std::string positions_of(const llm::ModelConfig& c) {
  switch (c.positions) {
    case llm::PositionKind::none:
      return "none";
    case llm::PositionKind::learned:
      return "learnt";
    case llm::PositionKind::sinusoidal:
      return "sinusoidal";
    case llm::PositionKind::alibi:
      return "ALiBi";
    case llm::PositionKind::rope:
      break;
  }
  std::string text = fmt::format("rotated (RoPE), {}, theta {:g}",
                                 c.rope_style == RopeStyle::half_split ? "halves" : "pairs side by side", c.rope_theta);
  if (c.rotary() != c.head_dim) text += fmt::format(", first {} numbers", c.rotary());
  const char* scaling[] = {"", "linear", "Llama 3", "YaRN"};
  if (c.rope_scaling.kind != RopeScaling::Kind::none)
    text += fmt::format(", {} scaling by {:g}", scaling[static_cast<std::size_t>(c.rope_scaling.kind)],
                        c.rope_scaling.factor);
  if (!c.rope_slowdown.empty()) text += ", scaling of MiniMind's own";
  return text;
}

void print_shape(const llm::ModelConfig& c) {
  const std::string_view mark = llm::family_mark(c.family);
  line("family",
       fmt::format("{}{}{}", c.family, c.causal ? "" : " (encoder)", mark.empty() ? "" : fmt::format("; {}", mark)));
  line("layers", fmt::format("{}, hidden size {}", c.layers, c.hidden));
  line("heads", c.heads == c.kv_heads ? fmt::format("{} of {}", c.heads, c.head_dim)
                                      : fmt::format("{} of {}, {} for keys and values: {} query heads share one",
                                                    c.heads, c.head_dim, c.kv_heads, c.heads / c.kv_heads));
  std::string ffn = fmt::format("{}, {}{}", c.experts.count > 0 ? c.experts.width : c.feed_forward,
                                text_of(c.activation), c.gated ? ", gated" : "");
  if (c.experts.count > 0)
    ffn += fmt::format("; {} experts, {} used by a token{}", c.experts.count, c.experts.used,
                       c.experts.shared > 0 ? fmt::format(", {} shared", c.experts.shared) : "");
  line("feed-forward", ffn);
  line("norm", fmt::format("{}, eps {:g}, {} each part{}", c.norm == llm::NormKind::rms ? "RMS" : "layer", c.norm_eps,
                           c.norm_after ? "after" : "before", c.qk_norm ? "; queries and keys too" : ""));
  line("positions", positions_of(c));
  if (c.window > 0) line("window", fmt::format("{} tokens", c.window));
  line("vocabulary",
       fmt::format("{}{}", c.vocabulary, c.tied_embeddings && c.causal ? ", output tied to the embedding" : ""));
  line("context", io::counted(c.context, "token"));
  const char* poolings[] = {"none", "the mean of its tokens", "its first token", "the most of its tokens"};
  if (!c.causal)
    line("embedding", fmt::format("of a text: {}{}", poolings[static_cast<std::size_t>(c.pooling)],
                                  c.longest_text > 0 ? fmt::format(", of the first {}", c.longest_text) : ""));
}

void print_parameters(const llm::ModelConfig& c) {
  const llm::ParameterCounts n = llm::count_parameters(c);
  fmt::print("\nparameters\n");
  const auto row = [&](const char* label, std::int64_t count) {
    if (count > 0)
      fmt::print("  {:<12}{:>20}{:>7.1f} %\n", label, io::readable_count(count),
                 100.0 * static_cast<double>(count) / static_cast<double>(n.total()));
  };
  row("embedding", n.embedding);
  row("positions", n.positions);
  row("queries", n.queries);
  row("keys", n.keys);
  row("values", n.values);
  row("output", n.output);
  row("feed-forward", n.feed_forward);
  row("router", n.router);
  row("norms", n.norms);
  row("biases", n.biases);
  row("head", n.head);
  row("all", n.total());
  if (n.active != n.total()) row("  for a token", n.active);
  fmt::print("  attention (queries, keys, values, output) {}\n", io::readable_count(n.attention()));
}

void print_memory(const llm::ModelConfig& c, std::int64_t context, const llm::ModelFiles* files) {
  fmt::print("\nmemory\n");
  if (c.causal)
    fmt::print("  keys and values  {} a token in f16, {} in f32 ({} layers x 2 x {} heads x {})\n",
               bytes(llm::kv_bytes_per_token(c, 2)), bytes(llm::kv_bytes_per_token(c, 4)), c.layers, c.kv_heads,
               c.head_dim);
  if (files != nullptr) {
    const llm::CacheOptions cache = cache_options({}, *files, c.causal ? context : 0);
    fmt::print("  at {:<14}{}\n", io::counted(context, "token"),
               describe(llm::plan_memory(*files, cache, std::min<std::int64_t>(context, 512), 1)));
    return;
  }
  const std::int64_t parameters = llm::count_parameters(c).total();
  const std::int64_t kv = c.causal ? llm::kv_bytes_per_token(c, 2) * context : 0;
  for (const auto& [label, bits] : {std::pair{"f32", 32}, {"f16, bf16", 16}, {"q8_0", 0}, {"q4_0", 0}}) {
    const double each = bits > 0 ? bits / 8.0 : std::string_view(label) == "q8_0" ? 34.0 / 32 : 18.0 / 32;
    fmt::print("  weights {:<10}{:>9}   with {} of keys and values in f16: {}\n", label,
               io::readable_bytes(each * static_cast<double>(parameters)), io::counted(context, "token"),
               io::readable_bytes(each * static_cast<double>(parameters) + static_cast<double>(kv)));
  }
}

void print_tensors(const llm::ModelFiles& files) {
  fmt::print("\ntensors\n");
  for (const llm::StoredTensor& t : files.tensors())
    fmt::print("  {:<6} {:<24} {}\n", t.dtype, fmt::format("[{}]", fmt::join(t.shape, ", ")), io::printable(t.name));
}

// find_model, which knows nothing of shapes, and the shape that may have been meant.
std::filesystem::path find_file(const std::string& name) try {
  return llm::find_model(name);
} catch (const InvalidArgument& error) {
  std::vector<std::string> shapes;
  for (const llm::NamedShape& shape : llm::named_shapes()) shapes.emplace_back(shape.name);
  const std::string text = error.what();
  throw UsageError(text.find("did you mean") != text.npos ? text : text + io::did_you_mean(name, shapes));
}

int run_info(const Arguments& a) {
  std::error_code error;
  if (const llm::ModelConfig* shape = llm::find_shape(a.model);
      shape != nullptr && !a.model.empty() && !std::filesystem::exists(a.model, error) && !llm::stored_model(a.model)) {
    if (llm::compute_named(a.compute) != llm::Compute::file)
      throw UsageError(
          fmt::format("--compute is '{}', and {} is a known shape without a file: its weights in f32 are listed "
                      "under memory; expected a model or a file",
                      a.compute, a.model));
    line("shape", a.model + " (known by name; no file is read)");
    print_shape(*shape);
    print_parameters(*shape);
    print_memory(*shape, a.context > 0 ? a.context : shape->context, nullptr);
    return kSuccess;
  }
  if (a.model.empty()) say_default_model();
  const llm::ModelFiles files(find_file(a.model), llm::compute_named(a.compute));
  warn_of_unused(files);
  const llm::ModelConfig& c = files.config();
  line("file", files.path().string());
  print_shape(c);
  std::map<std::string, std::int64_t> dtypes;
  for (const llm::StoredTensor& t : files.tensors()) dtypes[t.dtype] += std::ssize(t.data);
  std::string stored;
  for (const auto& [dtype, size] : dtypes)
    stored += (stored.empty() ? "" : ", ") + fmt::format("{} {}", dtype, bytes(size));
  line("stored",
       fmt::format("{} in {}: {}", bytes(files.bytes()), io::counted(std::ssize(files.tensors()), "tensor"), stored));
  llm::with_file_errors(files.path(), [&] {
    print_parameters(c);
    print_memory(c, a.context > 0 ? a.context : c.context, &files);
  });
  if (a.tensors) print_tensors(files);
  return kSuccess;
}

}  // namespace

Command add_info(Program& program) {
  auto a = std::make_shared<Arguments>();
  std::string names;
  for (const llm::NamedShape& shape : llm::named_shapes())
    names += std::string(names.empty() ? "" : names.size() % 100 > 88 ? ",\n  " : ", ") + std::string(shape.name);
  const Subcommand app =
      program.add_subcommand("info", "Say what a model is made of and what memory it needs, without loading it");
  app.add_option(
         "model", a->model,
         "A model's name (attend models), a file, a folder, or a known shape's name; without it as for attend chat")
      .type_name("MODEL");
  app.add_option("--context", a->context, "Memory at this many tokens; 0: the model's own context")
      .check(whole_number(0, std::int64_t{1} << 30))
      .type_name("N");
  add_compute_argument(app, a->compute);
  app.add_flag("--tensors", a->tensors, "List every tensor");
  app.footer("Known shapes:\n  " + names +
             "\n\nExamples:\n"
             "  attend info storyteller\n"
             "  attend info smollm2\n"
             "  attend info gpt-3\n"
             "  attend info llama-3-8b --context 131072\n"
             "  attend info smollm2 --compute f32           memory with dequantised weights\n"
             "  attend info model.gguf --tensors");
  return {app, [a] { return run_info(*a); }};
}

}  // namespace attend::cli
