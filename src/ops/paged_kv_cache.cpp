// The KV cache: pages of tiles in the kernels' layout, and the sequences that hold them.
#include "attend/paged_kv_cache.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/interrupt.hpp"
#include "base/long_lived_memory.hpp"
#include "cpu/dispatch.hpp"
#include "ops/attention_call.hpp"
#include "ops/cached_call.hpp"
#include "ops/scratch.hpp"

namespace attend {
namespace {

constexpr const char* kOp = "PagedKvCache";
static_assert(PagedKvCache::kPageTokens == kKeyTile, "a page is a tile of every head");
static_assert(PagedKvCache::kSplitTokens == kKeySplit, "sums are cut at the same keys");

bool has_segments(const Mask& mask) {
  return std::any_of(mask.rules.begin(), mask.rules.end(), [](const MaskRule& rule) {
    const auto* any = std::get_if<AnyRule>(&rule);
    return std::holds_alternative<SegmentsRule>(rule) ||
           (any != nullptr && std::any_of(any->masks->begin(), any->masks->end(), has_segments));
  });
}

}  // namespace

struct PagedKvCache::State {
  struct Sequence {
    std::int64_t length = 0;
    std::vector<std::int32_t> pages;
  };

  PagedKvCacheOptions options;
  CacheShape shape;
  std::int64_t tile_bytes, page_bytes;
  std::shared_ptr<char> memory;
  std::vector<std::int32_t> free;     // pages nobody holds, the next to take last
  std::vector<std::int32_t> holders;  // of each page
  std::vector<std::optional<Sequence>> sequences;

  Sequence& at(std::int64_t sequence, const char* op) {
    if (sequence < 0 || sequence >= std::ssize(sequences) || !sequences[static_cast<std::size_t>(sequence)])
      fail(op, "there is no sequence " + std::to_string(sequence));
    return *sequences[static_cast<std::size_t>(sequence)];
  }
  char* page(std::int32_t number) const { return memory.get() + number * page_bytes; }
  void need(std::int64_t count, const char* op) const {
    if (count > std::ssize(free))
      throw OutOfPages(std::string(op) + ": needs " + std::to_string(count) + " pages of " +
                       std::to_string(kPageTokens) + " tokens, " + std::to_string(free.size()) + " of " +
                       std::to_string(options.pages) + " are free; remove or truncate a sequence");
  }
  std::int32_t take() {
    const std::int32_t number = free.back();
    free.pop_back();
    holders[static_cast<std::size_t>(number)] = 1;
    return number;
  }
  void drop(std::int32_t number) {
    if (--holders[static_cast<std::size_t>(number)] == 0) free.push_back(number);
  }
  bool shared(std::int32_t number) const { return holders[static_cast<std::size_t>(number)] > 1; }

  // The page that the next token goes to holds others already, and another sequence sees it too.
  bool copies_page(const Sequence& q) const {
    return q.length % kPageTokens != 0 && shared(q.pages[static_cast<std::size_t>(q.length / kPageTokens)]);
  }

  // Makes a page that others see a copy of its own.
  void own(std::int32_t& number) {
    const std::int32_t copy = take();
    std::copy_n(page(number), page_bytes, page(copy));
    drop(number);
    number = copy;
  }

  void check_rows(const char* op, const View& k, const View& v) const;
  std::int64_t row_bytes() const { return std::int64_t{sizeof(float)} * (std::max(shape.D, shape.E) + 16); }
  void write(const Sequence& q, std::int64_t start, const View& k, const View& v, const Scratch& row) const;

  std::int64_t place(Sequence sequence) {
    const auto empty = std::find(sequences.begin(), sequences.end(), std::nullopt);
    const std::int64_t number = empty - sequences.begin();
    if (empty == sequences.end()) sequences.emplace_back();
    sequences[static_cast<std::size_t>(number)] = std::move(sequence);
    return number;
  }
};

struct CacheAccess {
  using State = PagedKvCache::State;
  static State& state(const PagedKvCache& cache) { return *cache.state_; }
};

namespace {

constexpr const char* kCachedOp = "attention over a cache";

std::vector<std::int64_t> lengths_of(const PagedKvCache& cache, std::span<const std::int64_t> sequences,
                                     std::int64_t batch) {
  if (std::ssize(sequences) != batch)
    fail(kCachedOp, "sequences has " + std::to_string(sequences.size()) +
                        (sequences.size() == 1 ? " number" : " numbers") + ", expected " + std::to_string(batch) +
                        ", one for each batch of q");
  std::vector<std::int64_t> lengths;
  for (const std::int64_t sequence : sequences)
    lengths.push_back(CacheAccess::state(cache).at(sequence, kCachedOp).length);
  return lengths;
}
// A view that says what the keys or values are, for the checks; nobody reads through it.
View described(const PagedKvCache& cache, const std::vector<std::int64_t>& lengths, std::int64_t dim) {
  const CacheAccess::State& s = CacheAccess::state(cache);
  const std::int64_t N = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  return {s.options.dtype, s.memory.get(), {std::ssize(lengths), s.options.kv_heads, N, dim}, {0, 0, 0, 0}};
}

}  // namespace

PagedKvCache::PagedKvCache(const PagedKvCacheOptions& options) : state_(kOp, std::make_unique<State>()) {
  if (options.dtype != DType::f32 && options.dtype != DType::bf16 && options.dtype != DType::f16)
    fail(kOp, "dtype is " +
                  (options.dtype == DType::f64 ? "f64" : std::to_string(static_cast<std::int32_t>(options.dtype))) +
                  ", expected f32, bf16 or f16");
  for (const auto& [what, value] : {std::pair{"kv_heads", options.kv_heads},
                                    {"key_dim", options.key_dim},
                                    {"value_dim", options.value_dim},
                                    {"pages", options.pages}})
    if (value < 1) fail(kOp, std::string(what) + " is " + std::to_string(value) + ", expected at least 1");
  constexpr std::int64_t kMostPages = std::int64_t{1} << 31;
  if (options.pages >= kMostPages) fail(kOp, "pages is " + std::to_string(options.pages) + ", expected less than 2^31");
  for (const std::int64_t dim : {options.key_dim, options.value_dim})  // room for both sides of a page, padded
    checked_product("PagedKvCache: a page", {options.kv_heads, dim, kKeyTile, 64});
  const KernelTable& table = kernels();
  State& s = *state_;
  s.options = options;
  s.shape = {options.dtype, options.int8, options.key_dim, options.value_dim};
  s.tile_bytes = table.cache_tile_bytes(s.shape);
  s.page_bytes = checked_product("PagedKvCache: a page", {s.tile_bytes, options.kv_heads});
  const std::int64_t bytes = checked_product("PagedKvCache: pages", {s.page_bytes, options.pages});
  s.memory = long_lived_memory(bytes);
  s.holders.resize(static_cast<std::size_t>(options.pages));
  s.free.reserve(static_cast<std::size_t>(options.pages));
  for (std::int64_t page = options.pages; page-- > 0;) s.free.push_back(static_cast<std::int32_t>(page));
}
PagedKvCache::~PagedKvCache() = default;
PagedKvCache::PagedKvCache(PagedKvCache&&) noexcept = default;
PagedKvCache& PagedKvCache::operator=(PagedKvCache&&) noexcept = default;

const PagedKvCacheOptions& PagedKvCache::options() const {
  return state_->options;
}
std::int64_t PagedKvCache::bytes() const {
  return state_->page_bytes * state_->options.pages;
}
std::int64_t PagedKvCache::bytes_per_token() const {
  return state_->page_bytes / kPageTokens;
}
std::int64_t PagedKvCache::free_pages() const {
  return std::ssize(state_->free);
}
std::int64_t PagedKvCache::length(std::int64_t sequence) const {
  return state_->at(sequence, "PagedKvCache::length").length;
}

std::int64_t PagedKvCache::add() {
  return state_->place({});
}

std::int64_t PagedKvCache::fork(std::int64_t sequence, std::int64_t length) {
  constexpr const char* kForkOp = "PagedKvCache::fork";
  State& s = *state_;
  const State::Sequence& from = s.at(sequence, kForkOp);
  if (length < 0 || length > from.length)
    fail(kForkOp, "length is " + std::to_string(length) + ", expected 0 to " + std::to_string(from.length));
  const std::int64_t whole = length / kPageTokens;
  const bool partial = length % kPageTokens != 0;
  s.need(partial ? 1 : 0, kForkOp);
  State::Sequence made{length, {from.pages.begin(), from.pages.begin() + pages_for(length)}};
  const std::int64_t number = s.place({});  // the last that memory may be short for, and it may move `from`
  for (std::int64_t n = 0; n < whole; ++n)
    ++s.holders[static_cast<std::size_t>(made.pages[static_cast<std::size_t>(n)])];
  if (partial) {
    const std::int32_t page = s.take();
    std::copy_n(s.page(made.pages.back()), s.page_bytes, s.page(page));
    made.pages.back() = page;
  }
  s.sequences[static_cast<std::size_t>(number)] = std::move(made);
  return number;
}

void PagedKvCache::remove(std::int64_t sequence) {
  truncate(sequence, 0);
  state_->sequences[static_cast<std::size_t>(sequence)].reset();
}

void PagedKvCache::truncate(std::int64_t sequence, std::int64_t length) {
  constexpr const char* kTruncateOp = "PagedKvCache::truncate";
  State& s = *state_;
  State::Sequence& q = s.at(sequence, kTruncateOp);
  if (length < 0 || length > q.length)
    fail(kTruncateOp, "length is " + std::to_string(length) + ", expected 0 to " + std::to_string(q.length));
  for (; std::ssize(q.pages) > pages_for(length); q.pages.pop_back()) s.drop(q.pages.back());
  q.length = length;
}

void PagedKvCache::forget(std::int64_t sequence, std::int64_t first, std::int64_t count) {
  constexpr const char* kForgetOp = "PagedKvCache::forget";
  State& s = *state_;
  State::Sequence& q = s.at(sequence, kForgetOp);
  if (first < 0 || count < 0 || first % kPageTokens != 0 || count % kPageTokens != 0 || first > q.length ||
      count > q.length - first)
    fail(kForgetOp, "tokens from " + std::to_string(first) + ", " + std::to_string(count) +
                        " of them; expected whole pages of " + std::to_string(kPageTokens) + " within " +
                        std::to_string(q.length));
  const auto begin = q.pages.begin() + first / kPageTokens, end = begin + count / kPageTokens;
  for (auto page = begin; page != end; ++page) s.drop(*page);
  q.pages.erase(begin, end);
  q.length -= count;
}

std::int64_t PagedKvCache::pages_to_append(std::int64_t sequence, std::int64_t count) const {
  constexpr const char* kPagesOp = "PagedKvCache::pages_to_append";
  const State::Sequence& q = state_->at(sequence, kPagesOp);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 2;  // far beyond the pages there can be
  if (count < 0 || count > kMost)
    fail(kPagesOp, "count is " + std::to_string(count) + ", expected 0 to " + std::to_string(kMost));
  if (count == 0) return 0;
  return pages_for(q.length + count) - std::ssize(q.pages) + (state_->copies_page(q) ? 1 : 0);
}

// k and v into tokens [at, at + count) of pages that this sequence holds alone.
void PagedKvCache::State::write(const Sequence& q, std::int64_t start, const View& k, const View& v,
                                const Scratch& row) const {
  const Uninterrupted whole;  // a page that is half written is of no use to anybody
  const Operand k_rows = operand_of(k), v_rows = operand_of(v);
  const std::int64_t count = k.length();
  parallel_for(options.kv_heads, row.workers(), [&](std::int64_t hk, int worker) {
    for (std::int64_t i = 0; i < count;) {
      const std::int64_t at = (start + i) % kPageTokens, rows = std::min(kPageTokens - at, count - i);
      char* tile = page(q.pages[static_cast<std::size_t>((start + i) / kPageTokens)]) + hk * tile_bytes;
      kernels().cache_write(shape, k_rows, v_rows, hk, i, rows, at, tile, static_cast<float*>(row.of(worker)));
      i += rows;
    }
  });
}

void PagedKvCache::State::check_rows(const char* op, const View& k, const View& v) const {
  for (const auto& [what, x, dim] : {std::tuple{"k", k, shape.D}, {"v", v, shape.E}}) {
    check_readable(op, what, x);
    check_dtype(op, what, x.dtype, options.dtype);
    check_shape(op, what, x.shape, {1, options.kv_heads, k.length(), dim});
  }
}

void PagedKvCache::append(std::int64_t sequence, View k, View v) {
  constexpr const char* kAppendOp = "PagedKvCache::append";
  State& s = *state_;
  State::Sequence& q = s.at(sequence, kAppendOp);
  s.check_rows(kAppendOp, k, v);
  const std::int64_t count = k.length();
  if (count == 0) return;
  const std::int64_t end = q.length + count;
  s.need(pages_to_append(sequence, count), kAppendOp);
  const Scratch row(s.row_bytes());  // before a page is taken: memory may be short
  q.pages.reserve(static_cast<std::size_t>(pages_for(end)));
  if (s.copies_page(q)) s.own(q.pages[static_cast<std::size_t>(q.length / kPageTokens)]);
  while (std::ssize(q.pages) < pages_for(end)) {
    q.pages.push_back(s.take());
    for (std::int64_t hk = 0; hk < s.options.kv_heads; ++hk)
      kernels().cache_clear(s.shape, s.page(q.pages.back()) + hk * s.tile_bytes);
  }
  s.write(q, q.length, k, v, row);
  q.length = end;
}

void PagedKvCache::replace(std::int64_t sequence, std::int64_t at, View k, View v) {
  constexpr const char* kReplaceOp = "PagedKvCache::replace";
  State& s = *state_;
  State::Sequence& q = s.at(sequence, kReplaceOp);
  s.check_rows(kReplaceOp, k, v);
  const std::int64_t count = k.length();
  if (at < 0 || at > q.length || count > q.length - at)
    fail(kReplaceOp, "tokens from " + std::to_string(at) + ", " + std::to_string(count) +
                         " of them; the sequence has " + std::to_string(q.length));
  if (count == 0) return;
  const Scratch row(s.row_bytes());
  const auto first = q.pages.begin() + at / kPageTokens, last = q.pages.begin() + pages_for(at + count);
  s.need(std::count_if(first, last, [&](std::int32_t page) { return s.shared(page); }), kReplaceOp);
  for (auto page = first; page != last; ++page)
    if (s.shared(*page)) s.own(*page);
  s.write(q, at, k, v, row);
}

CachedCall::CachedCall(const View& q, const PagedKvCache& cache, std::span<const std::int64_t> sequences,
                       const AttentionOptions& options)
    : lengths(lengths_of(cache, sequences, q.batch())),
      call(q, described(cache, lengths, CacheAccess::state(cache).shape.D),
           described(cache, lengths, CacheAccess::state(cache).shape.E), options) {
  const CacheAccess::State& s = CacheAccess::state(cache);
  const std::int64_t tiles = PagedKvCache::pages_for(call.k.length());
  pages.resize(sequences.size() * static_cast<std::size_t>(tiles));
  for (std::size_t b = 0; b < sequences.size(); ++b)
    std::ranges::copy(s.sequences[static_cast<std::size_t>(sequences[b])]->pages,
                      pages.begin() + static_cast<std::int64_t>(b) * tiles);
  packed = {s.memory.get(), s.tile_bytes, tiles, 0, kernels().cache_stored_as(s.shape), pages.data()};
  if (has_segments(options.mask)) fail(kCachedOp, "segments make no sense beside sequences");
  call.mask.set_key_lengths(lengths.data());
  call.set_packed(&packed);
}

void CachedCall::read(const PagedKvCache& cache, std::int64_t b, std::int64_t hk, std::int64_t j, float* k,
                      float* v) const {
  const CacheAccess::State& s = CacheAccess::state(cache);
  char* tile = packed.tile(b, hk, s.options.kv_heads, j / kKeyTile);
  kernels().cache_read(s.shape, tile, j % kKeyTile, k, v);
}

void attention(View q, const PagedKvCache& cache, std::span<const std::int64_t> sequences, MutableView out,
               const AttentionOptions& options, const AttentionExtras& extras) {
  const CachedCall cached(q, cache, sequences, options);
  check_outputs(cached.call, out, extras);
  if (extras.weights) fail(kCachedOp, "weights are not to be had from a cache; use a Lens, or attention() over k");
  if (!cached.call.empty()) run_attention(cached.call, out, extras);
}

}  // namespace attend
