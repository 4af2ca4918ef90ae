// The C ABI of the lens: statistics of rows, maps, top keys, zoom and cells.
#include "attend/lens.hpp"

#include <limits>
#include <span>

#include "abi/abi.hpp"
#include "base/elements.hpp"

struct attend_lens {
  attend::Lens lens;
};

static_assert(ATTEND_ROW_STATISTICS == attend::kRowStatistics);
static_assert(ATTEND_STATISTIC_ARGMAX == static_cast<int>(attend::RowStatistic::argmax));

using namespace attend::abi;

namespace {

attend_row_statistics default_statistics() {
  const attend::RowStatisticsOptions options;
  attend_row_statistics statistics{};
  statistics.sink_tokens = options.sink_tokens;
  statistics.align = ATTEND_LAST_KEY;
  statistics.local_width = options.local_width;
  statistics.recent_width = options.recent_width;
  return statistics;
}

}  // namespace

namespace attend::abi {

RowStatistics statistics_of(const char* op, const attend_row_statistics* from) {
  const attend_row_statistics given =
      read_struct(op, "attend_row_statistics", require(op, "statistics", from), default_statistics());
  RowStatistics statistics{mutable_view(op, "statistics.rows", given.rows), {}};
  RowStatisticsOptions& options = statistics.options;
  options.sink_tokens = given.sink_tokens;
  options.sinks_apart = given.sinks_apart != 0;
  options.local_width = given.local_width;
  options.recent_width = given.recent_width;
  options.diagonal = given.offset_count == 0
                         ? Diagonal(align_of(op, given.align))
                         : Diagonal::at(integers(op, "statistics.offsets", given.offsets, given.offset_count));
  if (given.token_count < 0 || (given.tokens == nullptr && given.token_count != 0))
    fail(op, "statistics.tokens are " + std::to_string(given.token_count) +
                 (given.tokens == nullptr ? " at null" : "") + ", expected an array and its length");
  options.tokens.assign(given.tokens, given.tokens + given.token_count);
  return statistics;
}

LensArea area_of(const attend_lens_area* area) {
  if (area == nullptr) return {};
  return {area->first_query, area->queries, area->first_key, area->keys};
}

}  // namespace attend::abi

namespace {

std::span<const std::int64_t> sequences_of(const char* op, const int64_t* sequences, int64_t count) {
  if (count < 0 || (sequences == nullptr && count > 0))
    attend::fail(op, "sequences are " + std::to_string(count) + (sequences == nullptr ? " at null" : "") +
                         ", expected an array and its length");
  return {sequences, static_cast<std::size_t>(count)};
}

const attend::Lens& lens_of(const char* op, const attend_lens* lens) {
  return require(op, "lens", lens).lens;
}

void put(const std::vector<double>& from, double* to) {
  if (to != nullptr) std::copy(from.begin(), from.end(), to);
}

}  // namespace

void attend_row_statistics_init_sized(attend_row_statistics* statistics, size_t size) {
  write_struct(statistics, size, default_statistics());
}
void attend_cell_init_sized(attend_cell* cell, size_t size) {
  write_struct(cell, size, {});
}

attend_status attend_attention_statistics(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                          const attend_tensor* out, const attend_attention_options* options,
                                          const attend_tensor* lse, const attend_row_statistics* statistics) {
  const char* op = "attend_attention_statistics";
  return guard([&] {
    const attend::View q_view = view(op, "q", q);
    attend::AttentionExtras extras;
    extras.lse = optional_mutable_view(op, "lse", lse);
    extras.statistics = statistics_of(op, statistics);
    attend::attention(q_view, view(op, "k", k), view(op, "v", v), mutable_view(op, "out", out),
                      options_of(op, options, q->dtype, false), extras);
  });
}

attend_status attend_paged_attention_statistics(const attend_tensor* q, const attend_paged_kv_cache* cache,
                                                const int64_t* sequences, int64_t sequence_count,
                                                const attend_tensor* out, const attend_attention_options* options,
                                                const attend_tensor* lse, const attend_row_statistics* statistics) {
  const char* op = "attend_paged_attention_statistics";
  return guard([&] {
    const attend::View q_view = view(op, "q", q);
    attend::AttentionExtras extras;
    extras.lse = optional_mutable_view(op, "lse", lse);
    extras.statistics = statistics_of(op, statistics);
    attend::attention(q_view, require(op, "cache", cache).cache, sequences_of(op, sequences, sequence_count),
                      mutable_view(op, "out", out), options_of(op, options, q->dtype, false), extras);
  });
}

attend_status attend_lens_create(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                 const attend_tensor* lse, const attend_attention_options* options,
                                 attend_lens** lens) {
  const char* op = "attend_lens_create";
  return attend::abi::make(op, lens, [&] {
    const attend::View q_view = view(op, "q", q);
    return attend_lens{attend::Lens(q_view, view(op, "k", k), options_of(op, options, q->dtype, false),
                                    {optional_view(op, "lse", lse), optional_view(op, "v", v)})};
  });
}

attend_status attend_lens_create_paged(const attend_tensor* q, const attend_paged_kv_cache* cache,
                                       const int64_t* sequences, int64_t sequence_count, const attend_tensor* lse,
                                       const attend_attention_options* options, attend_lens** lens) {
  const char* op = "attend_lens_create_paged";
  return attend::abi::make(op, lens, [&] {
    const attend::View q_view = view(op, "q", q);
    return attend_lens{attend::Lens(q_view, require(op, "cache", cache).cache,
                                    sequences_of(op, sequences, sequence_count),
                                    options_of(op, options, q->dtype, false), {optional_view(op, "lse", lse), {}})};
  });
}

void attend_lens_free(attend_lens* lens) {
  delete lens;
}

attend_status attend_lens_statistics(const attend_lens* lens, const attend_row_statistics* statistics) {
  const char* op = "attend_lens_statistics";
  return guard([&] {
    const attend::RowStatistics wanted = statistics_of(op, statistics);
    const attend::Tensor result = lens_of(op, lens).statistics(wanted.options);
    copy(result, result_view(op, "statistics.rows", statistics->rows, result.dtype(), result.shape()));
  });
}

attend_status attend_lens_lse(const attend_lens* lens, const attend_tensor* lse) {
  const char* op = "attend_lens_lse";
  return guard([&] {
    const attend::View from = lens_of(op, lens).lse();
    const attend::MutableView to = result_view(op, "lse", lse, from.dtype, from.shape);
    for (int64_t b = 0; b < to.batch(); ++b)
      for (int64_t h = 0; h < to.heads(); ++h)
        for (int64_t i = 0; i < to.length(); ++i) attend::store(to, b, h, i, 0, attend::load(from, b, h, i, 0));
  });
}

attend_status attend_lens_map(const attend_lens* lens, int64_t batch, int64_t head, const attend_lens_area* area,
                              const attend_tensor* mass, const attend_tensor* peak, attend_map_progress progress,
                              void* context, int32_t* finished) {
  const char* op = "attend_lens_map";
  return guard([&] {
    const attend::Shape cells = mutable_view(op, "mass", mass).shape;
    const attend::MutableView mass_view = result_view(op, "mass", mass, attend::DType::f32, cells);
    const attend::MutableView peak_view = result_view(op, "peak", peak, attend::DType::f32, cells);
    attend::MapOptions options{area_of(area), cells[2], cells[3], {}};
    if (progress != nullptr)
      options.progress = [=](const attend::MapBand& band) {
        return progress(context, band.first_row, band.rows, band.cols, band.mass, band.peak) != 0;
      };
    const attend::Lens& of = lens_of(op, lens);
    const int64_t queries = options.area.queries < 0 ? of.queries() - options.area.first_query : options.area.queries;
    const int64_t keys = options.area.keys < 0 ? of.keys() - options.area.first_key : options.area.keys;
    attend::check_shape(op, "mass", cells, {1, 1, std::min(cells[2], queries), std::min(cells[3], keys)});
    const attend::PooledMap map = of.map({batch, head}, options);
    copy(map.mass, mass_view);
    copy(map.peak, peak_view);
    if (finished != nullptr) *finished = map.finished ? 1 : 0;
  });
}

attend_status attend_lens_received(const attend_lens* lens, int64_t batch, int64_t head, const attend_lens_area* area,
                                   const attend_tensor* received) {
  const char* op = "attend_lens_received";
  return guard([&] {
    const attend::Tensor result = lens_of(op, lens).received({batch, head}, area_of(area));
    copy(result, result_view(op, "received", received, result.dtype(), result.shape()));
  });
}

attend_status attend_lens_zoom(const attend_lens* lens, int64_t batch, int64_t head, const attend_lens_area* area,
                               const attend_tensor* weights) {
  const char* op = "attend_lens_zoom";
  return guard([&] {
    const attend::Tensor result = lens_of(op, lens).zoom({batch, head}, area_of(area));
    copy(result, result_view(op, "weights", weights, result.dtype(), result.shape()));
  });
}

attend_status attend_lens_top_keys(const attend_lens* lens, int64_t batch, int64_t head, int64_t count,
                                   const attend_lens_area* area, int64_t* keys, const attend_tensor* weights) {
  const char* op = "attend_lens_top_keys";
  return guard([&] {
    require(op, "keys", keys);
    const attend::TopKeys top = lens_of(op, lens).top_keys({batch, head}, count, area_of(area));
    copy(top.weights, result_view(op, "weights", weights, attend::DType::f32, top.weights.shape()));
    std::copy(top.keys.begin(), top.keys.end(), keys);
  });
}

attend_status attend_lens_histogram(const attend_lens* lens, int64_t batch, int64_t head, int64_t bins,
                                    const attend_lens_area* area, int64_t* counts) {
  const char* op = "attend_lens_histogram";
  return guard([&] {
    require(op, "counts", counts);
    const attend::WeightHistogram histogram = lens_of(op, lens).histogram({batch, head}, bins, area_of(area));
    std::copy(histogram.counts.begin(), histogram.counts.end(), counts);
    counts[bins] = histogram.below;
  });
}

attend_status attend_lens_cell(const attend_lens* lens, int64_t batch, int64_t head, int64_t query, int64_t key,
                               attend_cell* cell) {
  const char* op = "attend_lens_cell";
  return guard([&] {
    attend_cell to = read_struct(op, "attend_cell", require(op, "cell", cell), {});
    const attend::CellArithmetic from = lens_of(op, lens).cell({batch, head}, query, key);
    if ((to.v != nullptr || to.weighted != nullptr) && from.v.empty())
      attend::fail(op, "cell.v or cell.weighted is asked for, but the lens was given no values");
    put(from.q, to.q);
    put(from.k, to.k);
    put(from.products, to.products);
    put(from.v, to.v);
    put(from.weighted, to.weighted);
    to.dot = from.dot, to.scale = from.scale, to.scaled = from.scaled;
    to.softcap = from.softcap, to.capped = from.capped, to.ruled = from.ruled, to.bias = from.bias;
    to.alibi_slope = from.alibi_slope, to.alibi_distance = from.alibi_distance, to.alibi = from.alibi;
    to.score = from.score;
    to.visible = from.visible ? 1 : 0;
    to.lse = from.lse, to.sink_weight = from.sink_weight, to.weight = from.weight;
    to.sink = from.sink.value_or(-std::numeric_limits<double>::infinity());
    std::memcpy(cell, &to, to.struct_size);
  });
}
