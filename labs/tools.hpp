// What labs measure with: random tensors, small matrices in double, differences, times, fits.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "attend/attention.hpp"
#include "attend/tensor.hpp"
#include "labs/report.hpp"

namespace attend::labs {

// Standard normal times `size`, the same on every machine.
Tensor random_tensor(const Shape& shape, std::uint64_t seed, double size = 1);
std::vector<double> doubles_of(View view);  // f32 or f64, any strides, in logical order
Rows rows_of(View view, std::int64_t batch = 0, std::int64_t head = 0);
double largest_difference(View a, View b);  // of two f32 views of one shape; NaN where either has one
bool same_bits(View a, View b);
double largest(View a);  // of |a|; NaN where it has one
double mean_square(View a);
View slice(View view, std::int64_t axis, std::int64_t first, std::int64_t count);

// NaN if one of them is: a number that is not there is neither small nor large.
double largest_of(std::initializer_list<double> values);
double smallest_of(std::initializer_list<double> values);
double mean_of(const std::vector<double>& values);
double deviation_of(const std::vector<double>& values);  // standard
double entropy_of(const std::vector<double>& weights);   // in nats
std::vector<double> softmax_of(std::vector<double> scores);

// Seconds of one call: the least of `repeats`.
double seconds_of(const std::function<void()>& call, int repeats = 3);
// Seconds of CPU of one call on one thread, the least of `repeats`: what other programs do meanwhile does not show.
double work_seconds_of(const std::function<void()>& call, int repeats = 3);
// b of y = a x^b, by least squares over logarithms.
double fitted_exponent(const std::vector<std::pair<double, double>>& points);
// Bytes of memory that `call` made the process hold beyond what it held before, at its peak; below 0: the system does
// not say.
double peak_bytes_of(const std::function<void()>& call);

Text shape_text(const Shape& shape);  // "[1, 8, 4096, 64]"
Text number_text(double value, int digits = 3);
// A matrix as a figure with its numbers.
MapFigure matrix(std::string name, Text title, Rows values, std::vector<Text> row_labels = {},
                 std::vector<Text> column_labels = {});
std::vector<Text> labels_of(const std::vector<std::string>& words);
std::vector<std::string> words_in(const std::string& text);  // parted by spaces

}  // namespace attend::labs
