// Merges low-rank adapters into a model's matrices, and takes gradients back through that.
#include "llm/train/lora.hpp"

#include <algorithm>
#include <string>

#include "attend/add.hpp"
#include "attend/error.hpp"
#include "attend/linear.hpp"
#include "base/elements.hpp"
#include "llm/train/network_buffers.hpp"

namespace attend::llm {
namespace {

constexpr double kSpread = 0.02;  // of A's first values, as MiniMind has it

bool is_chosen(const Parameter& p, const LoraOptions& options) {
  const auto ends = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), [&](const char* name) { return p.name.ends_with(name); });
  };
  return ends({".q_proj.weight", ".k_proj.weight", ".v_proj.weight", ".o_proj.weight"}) ||
         (options.feed_forward && ends({".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"}));
}

template <class Void>
BasicView<Void> matrix_of(const BasicView<Void>& flat, const Parameter& p) {
  return part_of(flat, p.offset, p.rows, p.cols);
}

// A copy, multiplied.
Tensor scaled(const View& x, double factor) {
  Tensor result(x.dtype, x.shape);
  for (std::int64_t i = 0; i < x.length() * x.dim(); ++i)
    store_element(x.dtype, result.view().data, i, factor * load_element(x.dtype, x.data, i));
  return result;
}

View transposed(View x) {
  std::swap(x.shape[2], x.shape[3]);
  std::swap(x.strides[2], x.strides[3]);
  return x;
}

}  // namespace

std::vector<LoraAdapters::Adapter> LoraAdapters::choose(const ParameterLayout& model, const LoraOptions& options) {
  if (options.rank < 1) throw InvalidArgument("lora: rank " + std::to_string(options.rank) + ", expected 1 or more");
  std::vector<Adapter> adapters;
  for (const Parameter& p : model.all())
    if (is_chosen(p, options)) adapters.push_back({p, 2 * adapters.size(), 2 * adapters.size() + 1});
  return adapters;
}

std::vector<Parameter> LoraAdapters::list(const std::vector<Adapter>& adapters, std::int64_t rank) {
  std::vector<Parameter> all;
  for (const Adapter& one : adapters) {
    const Parameter& p = one.matrix;
    const std::string name = p.name.substr(0, p.name.size() - std::string(".weight").size());
    all.push_back({.name = name + ".lora_A.weight", .rows = rank, .cols = p.cols, .matrix = true, .spread = kSpread});
    all.push_back({.name = name + ".lora_B.weight", .rows = p.rows, .cols = rank, .matrix = true});
  }
  return all;
}

LoraAdapters::LoraAdapters(const ParameterLayout& model, const LoraOptions& options)
    : options_(options), adapters_(choose(model, options)), layout_(list(adapters_, options.rank)) {}

void LoraAdapters::merge_into(View base, View adapters, MutableView parameters) const {
  convert(base, parameters);
  const double scale = options_.alpha / static_cast<double>(options_.rank);
  for (const Adapter& one : adapters_) {
    // The product that a weight's gradient is, added to what is there: (B^T)^T . A.
    const Tensor b = scaled(matrix_of(adapters, layout_.at(one.b)), scale);
    linear_backward(transposed(b), matrix_of(adapters, layout_.at(one.a)), matrix_of(base, one.matrix),
                    {.dx = {}, .dweight = matrix_of(parameters, one.matrix), .dbias = {}, .add = true});
  }
}

void LoraAdapters::gradients(View adapters, View network, MutableView result) const {
  const double scale = options_.alpha / static_cast<double>(options_.rank);
  for (const Adapter& one : adapters_) {
    const Parameter &place_a = layout_.at(one.a), &place_b = layout_.at(one.b);
    const View a = matrix_of(adapters, place_a), dw = matrix_of(network, one.matrix);
    const Tensor b = scaled(matrix_of(adapters, place_b), scale), scaled_a = scaled(a, scale);
    linear_backward(b, dw, a, {.dx = {}, .dweight = matrix_of(result, place_a), .dbias = {}, .add = false});  // B^T dW
    linear(dw, scaled_a, std::nullopt, matrix_of(result, place_b));                                           // dW A^T
  }
}

}  // namespace attend::llm
