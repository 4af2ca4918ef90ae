// Takes maps and cells from the lens and writes them as frames and JSON.
#include "llm/look/look_frames.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "attend/error.hpp"
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

// How much of each cell is visible at all: the same mask over queries and keys of zeros, where every visible key has
// the weight exp(0 - 0). The LSE is given, so that no band pays for a pass over all rows.
Tensor visible_cells(const Look& look, std::int64_t layer, std::int64_t head, const MapOptions& options) {
  const Tensor zeros(DType::f32, {1, 1, look.length(), 1});
  return Lens(zeros, zeros, {.mask = look.attention(layer, head).mask}, {.lse = zeros.view()})
      .map({0, 0}, options)
      .peak;
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

// The run has grown at most: what was promised of its first tokens is there.
void check_length(const Look& look, std::int64_t length) {
  if (look.length() < length)
    throw InvalidArgument("look: the run has " + std::to_string(look.length()) + " tokens, expected at least " +
                          std::to_string(length));
}

std::string frame_head(const std::string& head) {
  const std::size_t size = (head.size() + 3) / 4 * 4;
  std::string out = "AEX1";
  for (std::size_t n = 0; n < 4; ++n) out += static_cast<char>(size >> (8 * n) & 0xFF);
  return out + head + std::string(size - head.size(), ' ');
}
std::string padding(std::size_t bytes) {
  return std::string((4 - bytes % 4) % 4, '\0');
}

// A row of floats is a multiple of 4 bytes: such frames have no padding.
void append_row(std::string& to, View from, std::int64_t head, std::int64_t n) {
  std::vector<float> row(static_cast<std::size_t>(from.dim()));
  for (std::int64_t d = 0; d < from.dim(); ++d)
    row[static_cast<std::size_t>(d)] = row_of(from, head, n)[d * from.strides[3]];
  to.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(float));
}

std::string tensor_head(const char* name, std::int64_t heads, std::int64_t length, std::int64_t dim) {
  io::JsonObject head;
  head.string("name", name);
  head.string("dtype", "f32");
  head.put("shape", numbers(std::vector<std::int64_t>{heads, length, dim}));
  return frame_head(head.text());
}

}  // namespace

std::string frame(const std::string& head, const void* numbers, std::size_t bytes) {
  std::string out = frame_head(head);
  out.append(static_cast<const char*>(numbers), bytes);
  return out + padding(bytes);
}

std::string whole(FramePieces&& pieces, const Look& look) {
  std::string out;
  while (!pieces.done()) out += pieces.next(look);
  return out;
}

MapInBands::MapInBands(const MapPlace& place, const PieceLimits& limits) : place_(place) {
  const std::int64_t queries = place.end_query - place.first_query, keys = place.end_key - place.first_key;
  step_ = (queries + std::min(place.rows, queries) - 1) / std::min(place.rows, queries);
  rows_ = (queries + step_ - 1) / step_;
  columns_ = std::min(place.columns, keys);
  exact_ = step_ == 1 && columns_ == keys;
  const std::int64_t row_bytes = columns_ * (exact_ ? 1 : 2) * static_cast<std::int64_t>(sizeof(float));
  band_rows_ = std::clamp<std::int64_t>(std::min(limits.weights / (step_ * keys), limits.bytes / row_bytes), 1, rows_);
  // Whole cells divide a band, so that its cells are those of the map; what is left over is a band of its own.
  if (queries % step_ != 0 && band_rows_ >= rows_) band_rows_ = std::max<std::int64_t>(1, rows_ - 1);
}

std::string MapInBands::next(const Look& look) {
  check_length(look, std::max(place_.end_query, place_.end_key));
  const auto start = Clock::now();
  const std::int64_t queries = place_.end_query - place_.first_query, whole_rows = queries / step_;
  const std::int64_t rows = row_ < whole_rows ? std::min(band_rows_, whole_rows - row_) : 1;
  const std::int64_t first = row_ * step_, count = std::min(rows * step_, queries - first);
  MapOptions options{.area = {place_.first_query + first, count, place_.first_key, place_.end_key - place_.first_key}};
  options.rows = rows, options.cols = columns_;
  const PooledMap map = look.map(place_.layer, place_.head, options);
  const Tensor visible = visible_cells(look, place_.layer, place_.head, options);
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

Thumbs::Thumbs(const Look& look, std::int64_t first, std::int64_t end, std::int64_t cells, const PieceLimits& limits)
    : limits_(limits),
      length_(look.length()),
      heads_(look.heads()),
      cells_(std::min(cells, look.length())),
      begin_(first * heads_),
      end_(end * heads_),
      head_(begin_) {}

std::string Thumbs::next(const Look& look) {
  check_length(look, length_);
  const std::int64_t C = cells_, most = std::max<std::int64_t>(
                                     1, std::min(limits_.weights / (length_ * length_), limits_.bytes / (C * C)));
  std::string out;
  if (head_ == begin_) {
    io::JsonObject head;
    head.string("kind", "thumbs");
    head.string("dtype", "u8");
    head.put("shape", numbers(std::vector<std::int64_t>{(end_ - begin_) / heads_, heads_, C, C}));
    head.number("first_layer", begin_ / heads_);
    head.number("scale", std::int64_t{254});
    head.number("masked", std::int64_t{255});
    head.string("maps", "sqrt");
    out = frame_head(head.text());
  }
  const MapOptions options{.area = {0, length_, 0, length_}, .rows = C, .cols = C};
  for (const std::int64_t stop = std::min(end_, head_ + most); head_ < stop; ++head_) {
    const std::int64_t layer = head_ / heads_, head = head_ % heads_;
    const std::size_t at = out.size();
    out.resize(at + static_cast<std::size_t>(C * C), static_cast<char>(255));
    if (!look.kept(layer)) continue;
    const PooledMap map = look.map(layer, head, options);
    const Tensor visible = visible_cells(look, layer, head, options);
    for (std::int64_t n = 0; n < C * C; ++n)
      if (visible.data<float>()[n] > 0)
        out[at + static_cast<std::size_t>(n)] =
            static_cast<char>(std::lround(254 * std::sqrt(std::clamp(map.peak.data<float>()[n], 0.0F, 1.0F))));
  }
  return done() ? out + padding(static_cast<std::size_t>((end_ - begin_) * C * C)) : out;
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
  std::string out = tensor_head(name, view.heads(), view.length(), view.dim());
  for (std::int64_t h = 0; h < view.heads(); ++h)
    for (std::int64_t n = 0; n < view.length(); ++n) append_row(out, view, h, n);
  return out;
}

LayerTensors::LayerTensors(const Look& look, std::int64_t layer, const PieceLimits& limits)
    : limits_(limits), layer_(layer), length_(look.length()) {}

std::string LayerTensors::next(const Look& look) {
  check_length(look, length_);
  static constexpr const char* kNames[kTensors] = {"q", "k", "v"};
  const View view = tensor_ == 0 ? look.q(layer_) : tensor_ == 1 ? look.k(layer_) : look.v(layer_);
  const std::int64_t rows = view.heads() * length_;
  std::string out = row_ == 0 ? tensor_head(kNames[tensor_], view.heads(), length_, view.dim()) : "";
  do append_row(out, view, row_ / length_, row_ % length_);
  while (++row_ < rows && std::ssize(out) < limits_.bytes);
  if (row_ == rows) ++tensor_, row_ = 0;
  return out;
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
