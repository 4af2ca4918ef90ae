// What labs measure with.
#include "labs/tools.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>

#include "attend/runtime.hpp"
#include "base/random.hpp"
#include "io/readable.hpp"

namespace attend::labs {
namespace {

double element(const View& view, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
  const std::int64_t at = b * view.strides[0] + h * view.strides[1] + i * view.strides[2] + d * view.strides[3];
  if (view.dtype == DType::f64) return static_cast<const double*>(view.data)[at];
  return static_cast<double>(static_cast<const float*>(view.data)[at]);
}

// "VmHWM:     1234 kB" of /proc/self/status, in bytes; below 0: it is not there.
double status_bytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  std::string name, unit;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    double value = 0;
    if (words >> name >> value >> unit && name == field + ":") return value * 1024;
  }
  return -1;
}

}  // namespace

Tensor random_tensor(const Shape& shape, std::uint64_t seed, double size) {
  Tensor tensor(DType::f32, shape);
  for (std::int64_t n = 0; n < tensor.size(); ++n)
    tensor.data<float>()[n] = static_cast<float>(size * normal(seed, static_cast<std::uint64_t>(n)));
  return tensor;
}

std::vector<double> doubles_of(View view) {
  std::vector<double> values;
  for (std::int64_t b = 0; b < view.batch(); ++b)
    for (std::int64_t h = 0; h < view.heads(); ++h)
      for (std::int64_t i = 0; i < view.length(); ++i)
        for (std::int64_t d = 0; d < view.dim(); ++d) values.push_back(element(view, b, h, i, d));
  return values;
}

Rows rows_of(View view, std::int64_t batch, std::int64_t head) {
  Rows rows(static_cast<std::size_t>(view.length()));
  for (std::int64_t i = 0; i < view.length(); ++i)
    for (std::int64_t d = 0; d < view.dim(); ++d)
      rows[static_cast<std::size_t>(i)].push_back(element(view, batch, head, i, d));
  return rows;
}

double largest_difference(View a, View b) {
  const std::vector<double> x = doubles_of(a), y = doubles_of(b);
  double most = 0;
  for (std::size_t n = 0; n < x.size(); ++n) most = largest_of({most, std::abs(x[n] - y[n])});
  return most;
}

bool same_bits(View a, View b) {
  if (a.shape != b.shape) return false;
  const std::vector<double> x = doubles_of(a), y = doubles_of(b);
  return std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
}

double largest(View a) {
  double most = 0;
  for (const double value : doubles_of(a)) most = largest_of({most, std::abs(value)});
  return most;
}

double mean_square(View a) {
  double sum = 0;
  const std::vector<double> values = doubles_of(a);
  for (const double value : values) sum += value * value;
  return sum / static_cast<double>(values.size());
}

View slice(View view, std::int64_t axis, std::int64_t first, std::int64_t count) {
  const auto n = static_cast<std::size_t>(axis);
  view.data = static_cast<const char*>(view.data) + first * view.strides[n] * size_of(view.dtype);
  view.shape[n] = count;
  return view;
}

double largest_of(std::initializer_list<double> values) {
  double most = *values.begin();
  for (const double value : values)
    if (std::isnan(value) || value > most) most = value;
  return most;
}

double smallest_of(std::initializer_list<double> values) {
  double least = *values.begin();
  for (const double value : values)
    if (std::isnan(value) || value < least) least = value;
  return least;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

double entropy_of(const std::vector<double>& weights) {
  double sum = 0;
  for (const double w : weights)
    if (w > 0) sum -= w * std::log(w);
  return sum;
}

std::vector<double> softmax_of(std::vector<double> scores) {
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& s : scores) sum += s = std::exp(s - most);
  for (double& s : scores) s /= sum;
  return scores;
}

double seconds_of(const std::function<void()>& call, int repeats) {
  double least = 0;
  for (int n = 0; n < repeats; ++n) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    if (n == 0 || passed.count() < least) least = passed.count();
  }
  return least;
}

double work_seconds_of(const std::function<void()>& call, int repeats) {
  struct OneThread {
    int before = threads();
    OneThread() { set_threads(1); }
    ~OneThread() { set_threads(before); }
  } one_thread;
  const auto now = [] {
    timespec time{};
    (void)::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  double least = 0;
  for (int n = 0; n < repeats; ++n) {
    const double start = now();
    call();
    const double passed = now() - start;
    if (n == 0 || passed < least) least = passed;
  }
  return std::max(least, 1e-9);
}

double fitted_exponent(const std::vector<std::pair<double, double>>& points) {
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  const auto n = static_cast<double>(points.size());
  for (const auto& [x, y] : points) {
    const double u = std::log(x), v = std::log(y);
    sx += u;
    sy += v;
    sxx += u * u;
    sxy += u * v;
  }
  return (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

double peak_bytes_of(const std::function<void()>& call) {
  release_memory();
  {
    std::ofstream reset("/proc/self/clear_refs");  // 5: the peak counts from now on
    reset << "5";
    reset.flush();
    if (!reset) return (call(), -1);
  }
  const double before = status_bytes("VmRSS");
  call();
  const double peak = status_bytes("VmHWM");
  return before < 0 || peak < 0 ? -1 : std::max(0.0, peak - before);
}

Text shape_text(const Shape& shape) {
  return same("[{}, {}, {}, {}]", shape[0], shape[1], shape[2], shape[3]);
}

Text number_text(double value, int digits) {
  const double size = std::abs(value);
  if (size != 0 && (size < std::pow(10.0, -digits) || size >= 1e7)) return same("{:.1e}", value);
  return same("{:.{}f}", value, digits);
}

MapFigure matrix(std::string name, Text title, Rows values, std::vector<Text> row_labels,
                 std::vector<Text> column_labels) {
  MapFigure map;
  map.name = std::move(name);
  map.title = std::move(title);
  map.row_labels = std::move(row_labels);
  map.column_labels = std::move(column_labels);
  map.rows_are = say("query", "查询");
  map.columns_are = say("key", "键");
  map.values = std::move(values);
  map.digits = true;
  return map;
}

std::vector<Text> labels_of(const std::vector<std::string>& words) {
  std::vector<Text> labels;
  for (const std::string& word : words) labels.push_back({word, word});
  return labels;
}

std::vector<std::string> words_in(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

}  // namespace attend::labs
