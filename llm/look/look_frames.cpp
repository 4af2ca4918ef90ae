// Takes maps and cells from the lens and writes them as frames and JSON.
#include "llm/look/look_frames.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "attend/lens.hpp"
#include "attend/runtime.hpp"
#include "io/json.hpp"

namespace attend::llm {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::string as_text(std::int64_t value) {
  return std::to_string(value);
}
std::string as_text(double value) {
  return io::json_number(value);
}
template <class T>
std::string numbers(const std::vector<T>& values) {
  std::string out;
  for (const T value : values) {
    out += out.empty() ? '[' : ',';
    out += as_text(value);
  }
  return out.empty() ? "[]" : out + "]";
}

// How much of each cell is visible at all: the same mask over queries and keys of zeros, where every visible key weighs
// the same and more than nothing.
Tensor visible_cells(const Look& look, std::int64_t layer, std::int64_t head, const MapOptions& options) {
  const std::int64_t N = look.length();
  const Tensor zeros(DType::f32, {1, 1, N, 1});
  return Lens(zeros, zeros, {.mask = look.attention(layer, head).mask}).map({0, 0}, options).peak;
}

const float* row_of(View from, std::int64_t head, std::int64_t n) {
  return static_cast<const float*>(from.data) + head * from.strides[1] + n * from.strides[2];
}

// Weights of one row in double by the reference, from the same q and k; empty where scores have more than a scale.
std::vector<double> reference_row(const Look& look, std::int64_t layer, std::int64_t head, std::int64_t query,
                                  double lse) {
  const AttentionOptions options = look.attention(layer, head);
  if (options.softcap != 0 || options.bias || options.distance_bias || options.alibi_slopes || options.sinks ||
      options.rule)
    return {};
  const View q = look.q(layer), k = look.k(layer);
  const std::int64_t N = look.length(), D = q.dim(), kv_head = head / (q.heads() / k.heads());
  Tensor q64(DType::f64, {1, 1, N, D}), k64(DType::f64, {1, 1, N, D}), lse64(DType::f64, {1, 1, N, 1});
  const auto copy = [D](View from, std::int64_t h, std::int64_t n, double* to) {
    const float* row = row_of(from, h, n);
    for (std::int64_t d = 0; d < D; ++d) to[d] = static_cast<double>(row[d * from.strides[3]]);
  };
  copy(q, head, query, q64.data<double>() + query * D);
  for (std::int64_t n = 0; n < N; ++n) copy(k, kv_head, n, k64.data<double>() + n * D);
  lse64.data<double>()[query] = lse;
  const Lens lens(q64, k64, {.mask = options.mask, .scale = options.scale}, {.lse = lse64.view()});
  const Tensor row = lens.row({0, 0}, query);
  return {row.data<double>(), row.data<double>() + N};
}

std::vector<float> contiguous(View from) {
  std::vector<float> out;
  out.reserve(static_cast<std::size_t>(from.heads() * from.length() * from.dim()));
  for (std::int64_t h = 0; h < from.heads(); ++h)
    for (std::int64_t n = 0; n < from.length(); ++n)
      for (std::int64_t d = 0; d < from.dim(); ++d) out.push_back(row_of(from, h, n)[d * from.strides[3]]);
  return out;
}

}  // namespace

std::string frame(const std::string& head, const void* numbers, std::size_t bytes) {
  constexpr std::size_t kBefore = 8;
  const std::size_t size = (head.size() + 3) / 4 * 4, all = kBefore + size + (bytes + 3) / 4 * 4;
  std::string out(all, '\0');
  std::copy_n("AEX1", 4, out.begin());
  for (std::size_t n = 0; n < 4; ++n) out[4 + n] = static_cast<char>(size >> (8 * n) & 0xFF);
  std::fill_n(std::copy(head.begin(), head.end(), out.begin() + kBefore), size - head.size(), ' ');
  std::copy_n(static_cast<const char*>(numbers), bytes, out.begin() + static_cast<std::ptrdiff_t>(kBefore + size));
  return out;
}

MapInBands::MapInBands(const Look& look, const MapPlace& place, std::int64_t band_weights)
    : look_(look), place_(place) {
  const std::int64_t queries = place.end_query - place.first_query, keys = place.end_key - place.first_key;
  step_ = (queries + std::min(place.rows, queries) - 1) / std::min(place.rows, queries);
  rows_ = (queries + step_ - 1) / step_;
  columns_ = std::min(place.columns, keys);
  exact_ = step_ == 1 && columns_ == keys;
  band_rows_ = std::clamp<std::int64_t>(band_weights / (step_ * keys), 1, rows_);
  // Whole cells divide a band, so that its cells are those of the map; what is left over is a band of its own.
  if (queries % step_ != 0 && band_rows_ >= rows_) band_rows_ = std::max<std::int64_t>(1, rows_ - 1);
}

std::string MapInBands::next() {
  const auto start = Clock::now();
  const std::int64_t queries = place_.end_query - place_.first_query, whole_rows = queries / step_;
  const std::int64_t rows = row_ < whole_rows ? std::min(band_rows_, whole_rows - row_) : 1;
  const std::int64_t first = row_ * step_, count = std::min(rows * step_, queries - first);
  MapOptions options{.area = {place_.first_query + first, count, place_.first_key, place_.end_key - place_.first_key}};
  options.rows = rows, options.cols = columns_;
  const PooledMap map = look_.map(place_.layer, place_.head, options);
  const Tensor visible = visible_cells(look_, place_.layer, place_.head, options);
  const std::int64_t cells = rows * columns_;
  std::vector<float> values(static_cast<std::size_t>(cells * (exact_ ? 1 : 2)));
  for (std::int64_t n = 0; n < cells; ++n) {
    const bool seen = visible.data<float>()[n] > 0;
    // The share of a query's attention: the sum over the cell divided by its queries.
    const float mass = map.mass.data<float>()[n] / static_cast<float>(std::min(step_, count));
    values[static_cast<std::size_t>(n)] = seen ? mass : std::numeric_limits<float>::quiet_NaN();
    if (!exact_)
      values[static_cast<std::size_t>(cells + n)] =
          seen ? map.peak.data<float>()[n] : std::numeric_limits<float>::quiet_NaN();
  }
  io::JsonObject head;
  head.string("kind", "map");
  head.string("dtype", "f32");
  head.put("planes", exact_ ? "[\"weight\"]" : "[\"mass\",\"peak\"]");
  head.put("shape", numbers(std::vector<std::int64_t>{exact_ ? 1 : 2, rows, columns_}));
  head.put("rows", numbers(std::vector<std::int64_t>{row_, row_ + rows}));
  head.number("all_rows", rows_);
  head.number("row_step", step_);
  head.put("queries", numbers(std::vector<std::int64_t>{place_.first_query, place_.end_query}));
  head.put("keys", numbers(std::vector<std::int64_t>{place_.first_key, place_.end_key}));
  head.number("ms", milliseconds_ += milliseconds_since(start));
  head.string("kernel", kernel_name());
  row_ += rows;
  return frame(head.text(), values.data(), values.size() * sizeof(float));
}

std::string thumbs_frame(const Look& look, std::int64_t first, std::int64_t end, std::int64_t cells) {
  const std::int64_t N = look.length(), H = look.heads(), C = std::min(cells, N);
  MapOptions options;
  options.rows = C, options.cols = C;
  std::vector<std::uint8_t> values(static_cast<std::size_t>((end - first) * H * C * C), 255);
  for (std::int64_t layer = first; layer < end; ++layer) {
    if (!look.kept(layer)) continue;
    for (std::int64_t head = 0; head < H; ++head) {
      const PooledMap map = look.map(layer, head, options);
      const Tensor visible = visible_cells(look, layer, head, options);
      std::uint8_t* to = values.data() + ((layer - first) * H + head) * C * C;
      for (std::int64_t n = 0; n < C * C; ++n)
        if (visible.data<float>()[n] > 0)
          to[n] = static_cast<std::uint8_t>(
              std::lround(254 * std::sqrt(std::clamp(map.peak.data<float>()[n], 0.0F, 1.0F))));
    }
  }
  io::JsonObject head;
  head.string("kind", "thumbs");
  head.string("dtype", "u8");
  head.put("shape", numbers(std::vector<std::int64_t>{end - first, H, C, C}));
  head.number("first_layer", first);
  head.number("scale", std::int64_t{254});
  head.number("masked", std::int64_t{255});
  head.string("maps", "sqrt");
  return frame(head.text(), values.data(), values.size());
}

std::string values_frame(const Look& look, std::int64_t layer, std::int64_t head) {
  const std::vector<float> lengths = look.value_lengths(layer, head / (look.heads() / look.kv_heads()));
  io::JsonObject top;
  top.string("kind", "values");
  top.string("dtype", "f32");
  top.put("shape", numbers(std::vector<std::int64_t>{std::ssize(lengths)}));
  return frame(top.text(), lengths.data(), lengths.size() * sizeof(float));
}

std::string tensor_frame(const char* name, const View& view) {
  const std::vector<float> values = contiguous(view);
  io::JsonObject head;
  head.string("name", name);
  head.string("dtype", "f32");
  head.put("shape", numbers(std::vector<std::int64_t>{view.heads(), view.length(), view.dim()}));
  return frame(head.text(), values.data(), values.size() * sizeof(float));
}

std::string tensor_frames(const Look& look, std::int64_t layer) {
  return tensor_frame("q", look.q(layer)) + tensor_frame("k", look.k(layer)) + tensor_frame("v", look.v(layer));
}

std::string cell_json(const Look& look, std::int64_t layer, std::int64_t head, std::int64_t query, std::int64_t key) {
  const auto start = Clock::now();
  const LookCell cell = look.cell(layer, head, query, key);
  const CellArithmetic& a = cell.arithmetic;
  const std::vector<float> row = look.row(layer, head, query);
  const std::vector<double> exact = reference_row(look, layer, head, query, a.lse);
  const View v = look.v(layer);
  std::vector<double> output(static_cast<std::size_t>(v.dim()));
  double sum = 0, entropy = 0, error = 0;
  for (std::size_t j = 0; j < row.size(); ++j) {
    const auto w = static_cast<double>(row[j]);
    sum += w;
    if (w > 0) entropy -= w * std::log(w);
    if (!exact.empty()) error = std::max(error, std::abs(exact[j] - w));
    if (w == 0) continue;
    const float* value = row_of(v, cell.kv_head, static_cast<std::int64_t>(j));
    for (std::int64_t d = 0; d < v.dim(); ++d)
      output[static_cast<std::size_t>(d)] += w * static_cast<double>(value[d * v.strides[3]]);
  }
  MapOptions one_row{.area = {query, 1, 0, look.length()}};
  one_row.rows = 1, one_row.cols = look.length();
  const Tensor seen = visible_cells(look, layer, head, one_row);
  io::JsonObject out;
  out.number("layer", layer);
  out.number("head", head);
  out.number("kv_head", cell.kv_head);
  out.number("query", query);
  out.number("key", key);
  out.put("q", numbers(a.q));
  out.put("k", numbers(a.k));
  if (!std::equal(a.q.begin(), a.q.end(), cell.q_before.begin(), cell.q_before.end()) && !cell.q_before.empty()) {
    out.put("q_before", numbers(cell.q_before));
    out.put("k_before", numbers(cell.k_before));
  }
  out.put("v", numbers(a.v));
  out.number("dot", a.dot);
  out.number("scale", a.scale);
  out.number("score", a.score);
  out.truth("masked", !a.visible);
  out.number("lse", a.lse);
  out.number("weight", static_cast<double>(row[static_cast<std::size_t>(key)]));
  out.put("output", numbers(output));
  out.number("value_norm", cell.value_length);
  io::JsonObject about;
  about.number("sum", sum);
  about.number("entropy", entropy);
  about.number("visible",
               std::count_if(seen.data<float>(), seen.data<float>() + look.length(), [](float x) { return x > 0; }));
  about.put("max_error", exact.empty() ? "null" : io::json_number(error));
  out.put("row", about.text());
  out.string("kernel", kernel_name());
  out.string("dtype", "f32");
  out.number("ms", milliseconds_since(start));
  return out.text();
}

}  // namespace attend::llm
