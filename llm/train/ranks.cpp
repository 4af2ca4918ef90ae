// One process alone, and sums over the parts of a batch.
#include "llm/train/ranks.hpp"

#include <algorithm>

#include "attend/threads.hpp"

namespace attend::llm {
namespace {

class OneProcess : public Ranks {
 public:
  int rank() const override { return 0; }
  int count() const override { return 1; }
  int here() const override { return 1; }

  void add(const PieceSum& piece) override {
    if (piece.first && piece.last) return;
    constexpr std::int64_t kChunk = 65536;
    parallel_for((piece.count + kChunk - 1) / kChunk, [&](std::int64_t chunk, int) {
      const std::int64_t at = chunk * kChunk;
      const float* part = piece.values + at;
      add_parts(piece.first ? nullptr : piece.sums + at, {&part, 1}, std::min(kChunk, piece.count - at),
                (piece.last ? piece.values : piece.sums) + at);
    });
  }
  void wait() override {}
  void sum(std::span<double>) override {}
  std::vector<std::string> texts(const std::string& own) override { return {own}; }
  SpreadAttention* spread_attention() override { return nullptr; }
  void set_last_words(const std::string&) override {}
  void abort(const std::string& text) override { throw std::runtime_error(text); }
};

}  // namespace

void add_parts(const float* sums, std::span<const float* const> parts, std::int64_t count, float* to) {
  // Some at a time, so that what all the parts are added to stays near.
  constexpr std::int64_t kNear = 2048;
  for (std::int64_t at = 0; at < count; at += kNear) {
    const std::int64_t n = std::min(kNear, count - at);
    float total[kNear];
    const float* from = sums == nullptr ? parts.front() : sums;
    std::copy_n(from + at, n, total);
    for (const float* part : parts.subspan(sums == nullptr ? 1 : 0))
      for (std::int64_t i = 0; i < n; ++i) total[i] += part[at + i];
    std::copy_n(total, n, to + at);
  }
}

bool Ranks::any(bool own) {
  double votes = own ? 1 : 0;
  sum({&votes, 1});
  return votes > 0;
}

void Ranks::agree(const std::function<void()>& work) {
  if (count() == 1) return work();
  std::exception_ptr error;
  std::string text;
  try {
    work();
  } catch (const std::exception& caught) {
    error = std::current_exception(), text = caught.what();
    if (text.empty()) text = "failed";
  }
  const std::vector<std::string> all = texts(text);
  const auto at = std::find_if(all.begin(), all.end(), [](const std::string& one) { return !one.empty(); });
  if (at == all.end()) return;
  failed_ = true;
  if (at - all.begin() == rank()) std::rethrow_exception(error);
  throw RankFailed("rank " + std::to_string(at - all.begin()) + ": " + *at);
}

std::unique_ptr<Ranks> one_process() {
  return std::make_unique<OneProcess>();
}

// ---- sums over the parts of a batch ----

std::int64_t GradientSum::kept(std::int64_t parameters, std::int64_t parts, int ranks) {
  return parts > ranks ? parameters : 0;
}

GradientSum::GradientSum(Network& network, Ranks& ranks, std::int64_t parts)
    : network_(network),
      ranks_(ranks),
      parts_(parts),
      sums_(DType::f32, {1, 1, 1, kept(network.layout().count(), parts, ranks.count())}) {
  if (parts == 1 && ranks.count() == 1) return;
  network.watch_gradients({.begin = [this] { ranks_.wait(); }, .complete = [this](const GradientPiece& p) { add(p); }});
}

GradientSum::~GradientSum() {
  network_.watch_gradients({});
}

void GradientSum::add(const GradientPiece& piece) {
  const bool first = round_ == 0, last = round_ + 1 == rounds();
  float* values = static_cast<float*>(network_.gradients().data) + piece.first;
  ranks_.add({.values = values,
              .sums = sums_.empty() ? nullptr : sums_.data<float>() + piece.first,
              .count = piece.count,
              .parts = static_cast<int>(std::min<std::int64_t>(ranks_.count(), parts_ - round_ * ranks_.count())),
              .first = first,
              .last = last});
}

void GradientSum::run(const std::function<void(std::int64_t part)>& compute) {
  for (round_ = 0; round_ < rounds(); ++round_) {
    const std::int64_t part = round_ * ranks_.count() + ranks_.rank();
    if (part < parts_) {
      compute(part);
      continue;
    }
    // Nothing to give in the last round; the sums come here all the same.
    for (const GradientPiece& piece : network_.gradient_pieces()) add(piece);
  }
  ranks_.wait();
}

}  // namespace attend::llm
