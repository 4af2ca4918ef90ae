// Layer normalisation of one row, and its gradients: in double, rounded once.

struct RowMoments {
  double mean, r;  // r = 1 / sqrt(variance + eps)
};
inline RowMoments row_moments(const float* x, double eps, std::int64_t n) {
  const auto count = static_cast<double>(n);
  const double mean = sum_terms(n, [x](std::int64_t j) { return static_cast<double>(x[j]); }) / count;
  const double squares = sum_terms(n, [=](std::int64_t j) {
    const double distance = static_cast<double>(x[j]) - mean;
    return distance * distance;
  });
  return {mean, 1.0 / __builtin_sqrt(squares / count + eps)};
}

void layer_norm_row(const float* x, const float* weight, const float* bias, double eps, std::int64_t n, float* y) {
  const auto [mean, r] = row_moments(x, eps, n);
  const auto normed = [x, weight, centre = mean, scale = r](std::int64_t j) {
    return (static_cast<double>(x[j]) - centre) * scale * static_cast<double>(weight[j]);
  };
  if (bias == nullptr)
    fill_row(n, y, [&](std::int64_t j) { return static_cast<float>(normed(j)); });
  else
    fill_row(n, y, [&](std::int64_t j) { return static_cast<float>(normed(j) + static_cast<double>(bias[j])); });
}

// With g = dy * weight and z = (x - mean) * r: dx = r * (g - mean(g) - z * mean(g * z)); dweight gains dy * z, dbias
// dy.
void layer_norm_backward_row(const float* dy, const float* x, const float* weight, double eps, std::int64_t n,
                             float* dx, double* dweight, double* dbias) {
  const RowMoments moments = row_moments(x, eps, n);
  const double mean = moments.mean, r = moments.r, count = static_cast<double>(n);
  const auto g = [=](std::int64_t j) { return static_cast<double>(dy[j]) * static_cast<double>(weight[j]); };
  const auto z = [=](std::int64_t j) { return (static_cast<double>(x[j]) - mean) * r; };
  const double shift = sum_terms(n, g) / count;
  const double pull = sum_terms(n, [&](std::int64_t j) { return g(j) * z(j); }) / count;
  for (std::int64_t j = 0; j < n; ++j) dweight[j] += static_cast<double>(dy[j]) * z(j);
  if (dbias != nullptr)
    for (std::int64_t j = 0; j < n; ++j) dbias[j] += static_cast<double>(dy[j]);
  fill_row(n, dx, [&](std::int64_t j) { return static_cast<float>(r * (g(j) - shift - z(j) * pull)); });
}
