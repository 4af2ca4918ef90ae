// Files to start from: the functions that the exercises ask for, still to be written.
#include "labs/exercises/drivers.hpp"
#include "labs/exercises/exercise.hpp"

namespace attend::labs {
namespace {

const char* python_body(const std::string& name) {
  if (name == "softmax") return "def softmax(x):\n";
  if (name == "scaled_dot_product_attention") return "def scaled_dot_product_attention(q, k, v, mask=None):\n";
  if (name == "multi_head_attention") return "def multi_head_attention(x, wq, wk, wv, wo, heads):\n";
  if (name == "repeat_kv") return "def repeat_kv(k, groups):\n";
  if (name == "rope") return "def rope(x, positions, theta=10000.0):\n";
  if (name == "causal_mask") return "def causal_mask(m, n):\n";
  return "class KVCache:\n    def __init__(self):\n        pass\n\n    def step(self, q, k, v, position, rope):\n";
}

const char* cpp_signature(const std::string& name) {
  if (name == "softmax") return "// x, y [rows, cols]\nvoid softmax(const float* x, float* y, int rows, int cols) {\n";
  if (name == "scaled_dot_product_attention")
    return "// mask [M, N], or null; all row-major\n"
           "void scaled_dot_product_attention(const float* q, const float* k, const float* v, const bool* mask, float* "
           "out, int B,\n"
           "                                  int H, int M, int N, int D, int E) {\n";
  if (name == "multi_head_attention")
    return "void multi_head_attention(const float* x, const float* wq, const float* wk, const float* wv, const float* "
           "wo, float* y,\n"
           "                          int B, int L, int W, int heads) {\n";
  if (name == "repeat_kv")
    return "void repeat_kv(const float* k, float* out, int B, int Hk, int L, int D, int groups) {\n";
  if (name == "rope")
    return "void rope(const float* x, const int* positions, float* y, int B, int H, int L, int D, double theta) {\n";
  if (name == "causal_mask") return "void causal_mask(bool* mask, int M, int N) {\n";
  return "// given: rope(x, positions, y, B, H, L, D)\n"
         "struct KVCache {\n"
         "  template <class Rope>\n"
         "  void step(const float* q, const float* k, const float* v, int position, const Rope& rope, float* out, int "
         "B, int H, int T,\n"
         "            int D) {\n";
}

template <class Write>
std::string for_exercises(const std::string& asked, const Write& write) {
  std::string text;
  const Exercise* only = find_exercise(asked);
  for (const Exercise& e : all_exercises())
    if (only == nullptr || only == &e) text += write(e);
  return text;
}

}  // namespace

std::string python_template(const std::string& exercise, bool chinese) {
  const Language language = chinese ? Language::zh : Language::en;
  std::string text =
      say("# Write these, then: attend lab check THIS_FILE\n# This uses NumPy; write \"import torch\" instead, and the "
          "arguments are tensors.\n",
          "# 写完以后运行：attend lab check 本文件 --zh\n# 下面用 NumPy；改成 import torch，传进来的就是张量。\n")
          .in(language) +
      "import numpy as np\n";
  return text + for_exercises(exercise, [&](const Exercise& e) {
           const std::string indent = e.name == "KVCache" ? "        " : "    ";
           return fmt::format("\n\n{}{}\"\"\"{}\"\"\"\n{}raise NotImplementedError\n", python_body(e.name), indent,
                              e.asks.in(language), indent);
         });
}

std::string cpp_template(const std::string& exercise, bool chinese) {
  const Language language = chinese ? Language::zh : Language::en;
  std::string text =
      say("// Write these, then: attend lab check THIS_FILE\n", "// 写完以后运行：attend lab check 本文件 --zh\n")
          .in(language) +
      "#include <cmath>\n#include <stdexcept>\n#include <vector>\n";
  return text + for_exercises(exercise, [&](const Exercise& e) {
           const bool inside = e.name == "KVCache";
           return fmt::format("\n// {}\n{}{}  throw std::runtime_error(\"not written yet\");\n{}", e.asks.in(language),
                              cpp_signature(e.name), inside ? "  " : "", inside ? "  }\n};\n" : "}\n");
         });
}

}  // namespace attend::labs
