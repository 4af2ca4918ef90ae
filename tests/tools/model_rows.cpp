// Runs a model for the tests in Python: sequences of token ids on standard input, rows of floats on standard output.
//   model_rows MODEL logits CHUNK DTYPE   every row's logits; the sequences run side by side, CHUNK tokens at a time
//   model_rows MODEL hidden               an encoder's last rows
//   model_rows MODEL embed                an encoder's pooled rows
//   model_rows MODEL greedy COUNT         COUNT tokens after each sequence, as int32
// One sequence a line, ids apart by spaces.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "llm/generate/running_batch.hpp"

namespace {

using namespace attend;
using namespace attend::llm;

template <class T>
void put(const T* data, std::int64_t count) {
  if (std::fwrite(data, sizeof(T), static_cast<std::size_t>(count), stdout) != static_cast<std::size_t>(count))
    throw std::runtime_error("cannot write");
}

void logits(Transformer& model, const std::vector<std::vector<Token>>& sequences, std::int64_t chunk, DType dtype) {
  const std::int64_t V = model.config().vocabulary, H = model.config().hidden;
  std::int64_t room = 0;
  for (const auto& s : sequences) room += (std::ssize(s) + 63) / 64 * 64;
  ModelCache cache(model.config(), {room, dtype, false});
  std::vector<std::vector<float>> rows(sequences.size());
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < sequences.size(); ++i) numbers.push_back(cache.add());
  for (bool more = true; more;) {
    more = false;
    std::vector<Token> tokens;
    std::vector<Continuation> parts;
    std::vector<std::size_t> owners;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const std::int64_t done = cache.length(numbers[i]), count = std::min(chunk, std::ssize(sequences[i]) - done);
      if (count == 0) continue;
      more = true;
      tokens.insert(tokens.end(), sequences[i].begin() + done, sequences[i].begin() + done + count);
      parts.push_back({numbers[i], count});
      owners.insert(owners.end(), static_cast<std::size_t>(count), i);
    }
    if (!more) break;
    const View hidden = model.forward(tokens, parts, cache);
    std::vector<float> out(tokens.size() * static_cast<std::size_t>(V));
    model.logits(view_of(static_cast<const float*>(hidden.data), {1, 1, std::ssize(tokens), H}),
                 view_of(out.data(), {1, 1, std::ssize(tokens), V}));
    for (std::size_t t = 0; t < owners.size(); ++t) {
      const auto begin = out.begin() + static_cast<std::int64_t>(t) * V;
      rows[owners[t]].insert(rows[owners[t]].end(), begin, begin + V);
    }
  }
  for (const auto& r : rows) put(r.data(), std::ssize(r));
}

int run(int argc, char** argv) {
  if (argc < 3) throw std::runtime_error("usage: model_rows MODEL logits|hidden|embed|greedy ...");
  Transformer model{ModelFiles(argv[1])};
  const std::string mode = argv[2];
  std::vector<std::vector<Token>> sequences;
  std::vector<Token> all;
  std::vector<std::int64_t> lengths;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    auto& s = sequences.emplace_back();
    for (Token token = 0; words >> token;) s.push_back(token);
    all.insert(all.end(), s.begin(), s.end());
    lengths.push_back(std::ssize(s));
  }
  if (mode == "logits") {
    const std::string dtype = argc > 4 ? argv[4] : "f32";
    logits(model, sequences, argc > 3 ? std::stoll(argv[3]) : 512,
           dtype == "f16"    ? DType::f16
           : dtype == "bf16" ? DType::bf16
                             : DType::f32);
  } else if (mode == "hidden") {
    put(static_cast<const float*>(model.encode(all, lengths).data), std::ssize(all) * model.config().hidden);
  } else if (mode == "embed") {
    const std::vector<float> rows = model.embed(all, lengths);
    put(rows.data(), std::ssize(rows));
  } else if (mode == "greedy") {
    // Straight on the model: no tokenizer is needed.
    const std::int64_t count = std::stoll(argc > 3 ? argv[3] : "64");
    for (const auto& s : sequences) {
      ModelCache cache(model.config(), {std::ssize(s) + count, DType::f32, false});
      const std::int64_t number = cache.add();
      std::vector<Token> next = s, made;
      std::vector<float> out(static_cast<std::size_t>(model.config().vocabulary));
      for (std::int64_t i = 0; i < count; ++i) {
        const Continuation part[] = {{number, std::ssize(next)}};
        const View hidden = model.forward(next, part, cache);
        const auto* last = static_cast<const float*>(hidden.data) + (std::ssize(next) - 1) * model.config().hidden;
        model.logits(view_of(last, {1, 1, 1, model.config().hidden}), view_of(out.data(), {1, 1, 1, std::ssize(out)}));
        next = {sample(out, {}, {}, {}, 0).token};
        made.push_back(next.front());
      }
      put(made.data(), std::ssize(made));
    }
  } else {
    throw std::runtime_error("unknown mode " + mode);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "model_rows: " << error.what() << "\n";
    return 1;
  }
}
