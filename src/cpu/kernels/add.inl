// Sums of rows, in f32 and in double.

void add_row(const float* x, const float* y, std::int64_t n, float* z) {
  map_vectors<2, 1>({x, y}, {z}, n, [](const V(&from)[2], V(&to)[1]) { to[0] = add(from[0], from[1]); });
}

void accumulate_row(const float* x, std::int64_t n, double* sums) {
  for (std::int64_t j = 0; j < n; ++j) sums[j] += static_cast<double>(x[j]);
}
