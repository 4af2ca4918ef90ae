// MiniMind's LoRA .pth merged into its model: W + B A, by the names of every generation; what does not fit is refused.
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

#include "base/half.hpp"
#include "io/pth.hpp"
#include "llm/train/trainable.hpp"
#include "train_tiny.hpp"
#include "training_files.hpp"

namespace attend::llm::test {
namespace {

constexpr std::int64_t kRank = 3;

// Adapters of the matrices named so, as MiniMind's save_lora() writes them.
class LoraPth {
 public:
  explicit LoraPth(std::string dtype = "F32") : dtype_(std::move(dtype)) {}

  void add(const std::string& module, std::int64_t out, std::int64_t in, std::int64_t rank = kRank) {
    put(module + ".lora.A.weight", rank, in);
    put(module + ".lora.B.weight", out, rank);
  }
  void put(const std::string& name, std::int64_t rows, std::int64_t cols) {
    std::vector<float>& values = numbers.emplace_back();
    std::vector<std::byte>& bytes = bytes_.emplace_back();
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const auto half = float_to_f16(0.03F * static_cast<float>((7 * i + 3 * std::ssize(numbers)) % 11 - 5));
      const float value = f16_to_float(half);  // the same in both types
      values.push_back(value);
      const auto* data =
          dtype_ == "F16" ? reinterpret_cast<const std::byte*>(&half) : reinterpret_cast<const std::byte*>(&value);
      bytes.insert(bytes.end(), data, data + (dtype_ == "F16" ? sizeof half : sizeof value));
    }
    tensors.push_back({name, dtype_, {rows, cols}, bytes});
  }
  fs::path write(const TempFolder& folder) const {
    const fs::path path = folder.path() / "lora_medical_512.pth";
    io::write_pth(path, tensors, [&](std::size_t n, const io::PutBytes& put_bytes) { put_bytes(tensors[n].data); });
    return path;
  }

  std::vector<io::StoredTensor> tensors;
  std::deque<std::vector<float>> numbers;  // of each tensor

 private:
  std::string dtype_;
  std::deque<std::vector<std::byte>> bytes_;
};

// A model's parameters, and those that adapters make of them.
struct Merged {
  explicit Merged(const ModelConfig& config) : layout(config), before(DType::f32, {1, 1, 1, layout.count()}) {
    initialise(layout, 1, before.view());
    after = before.clone();
  }
  void merge(const fs::path& path, bool old_names = false) { merge_adapters(path, layout, after.view(), old_names); }

  // W + B A where there are adapters, W everywhere else.
  void expect(const std::string& matrix, const std::vector<float>& a, const std::vector<float>& b) const {
    for (const Parameter& p : layout.all())
      for (std::int64_t i = 0; i < p.count(); ++i) {
        double sum = before.data<float>()[p.offset + i];
        if (p.name == matrix)
          for (std::int64_t r = 0; r < kRank; ++r)
            sum += static_cast<double>(b[static_cast<std::size_t>(i / p.cols * kRank + r)]) *
                   static_cast<double>(a[static_cast<std::size_t>(r * p.cols + i % p.cols)]);
        ASSERT_NEAR(after.data<float>()[p.offset + i], sum, 1e-6) << p.name << " " << i;
      }
  }

  ParameterLayout layout;
  Tensor before, after;
};

TEST(MergeAdapters, TakesMiniMindsPth) {
  for (const char* dtype : {"F32", "F16"})
    for (const char* wrapper : {"", "module.", "_orig_mod."}) {
      const TempFolder folder;
      LoraPth lora(dtype);
      lora.add(std::string(wrapper) + "model.layers.1.self_attn.q_proj", 24, 12);
      Merged merged(tiny("llama"));
      merged.merge(lora.write(folder));
      merged.expect("model.layers.1.self_attn.q_proj.weight", lora.numbers[0], lora.numbers[1]);
    }
}

TEST(MergeAdapters, TakesTheFeedForwardToo) {
  const TempFolder folder;
  LoraPth lora;
  lora.add("model.layers.0.mlp.down_proj", 12, 20);
  Merged merged(tiny("llama"));
  merged.merge(lora.write(folder));
  merged.expect("model.layers.0.mlp.down_proj.weight", lora.numbers[0], lora.numbers[1]);
}

TEST(MergeAdapters, OfTheFirstGenerationsHaveTheirNames) {
  const TempFolder folder;
  LoraPth lora;
  lora.add("layers.1.attention.wo", 12, 24);
  Merged merged(tiny("minimind1"));
  merged.merge(lora.write(folder), true);
  merged.expect("model.layers.1.self_attn.o_proj.weight", lora.numbers[0], lora.numbers[1]);
  // The rows of q and k are in another order: names of one generation do not go with a model of the other.
  const auto refusal = [&](bool old_names) { return refusal_of([&] { merged.merge(lora.write(folder), old_names); }); };
  expect_in(refusal(false), "\"layers.1.attention.wo.lora.A.weight\" belong to no matrix of the model");
  lora = LoraPth();
  lora.add("model.layers.1.self_attn.q_proj", 24, 12);
  expect_in(refusal(true), "belong to no matrix of the model");
}

TEST(MergeAdapters, OthersAreRefusedWithWhatIsExpected) {
  const TempFolder folder;
  const auto refusal = [&](const LoraPth& lora) {
    Merged merged(tiny("llama"));
    return refusal_of([&] { merged.merge(lora.write(folder)); });
  };
  const auto with = [](const std::string& module, std::int64_t out, std::int64_t in) {
    LoraPth lora;
    lora.add(module, out, in);
    return lora;
  };
  expect_in(refusal(with("model.layers.9.self_attn.q_proj", 24, 12)), "belong to no matrix of the model");
  expect_in(refusal(with("model.layers.0.self_attn.q_proj", 24, 16)), "is not F32, F16 or BF16 of [3, 12]");
  LoraPth two_ranks = with("model.layers.0.self_attn.q_proj", 24, 12);
  two_ranks.add("model.layers.1.self_attn.q_proj", 24, 12, 5);
  expect_in(refusal(two_ranks), "is not F32, F16 or BF16 of [3, 12]");
  LoraPth no_b = with("model.layers.0.self_attn.q_proj", 24, 12);
  no_b.tensors.pop_back();
  expect_in(refusal(no_b), "has no counterpart, expected A and B");
  LoraPth whole_model = with("model.layers.0.self_attn.q_proj", 24, 12);
  whole_model.put("model.norm.weight", 1, 12);
  expect_in(refusal(whole_model), "\"model.norm.weight\" is not of LoRA, expected MiniMind's adapters alone");
  LoraPth b_only;
  b_only.put("model.layers.0.self_attn.q_proj.lora.B.weight", 24, kRank);
  expect_in(refusal(b_only), "the rank of its adapters is 0");

  Merged merged(tiny("llama"));
  const auto refusal_of_path = [&](const fs::path& path) { return refusal_of([&] { merged.merge(path); }); };
  expect_in(refusal_of_path(folder.path() / "none.pth"), "none.pth: there is no such file or folder");
  write_text(folder.path() / "x.txt", "");
  for (const fs::path& path : {folder.path(), folder.path() / "x.txt"})
    expect_in(refusal_of_path(path), "a folder with adapter_config.json (PEFT), or MiniMind's LoRA .pth");
}

}  // namespace
}  // namespace attend::llm::test
