// Root-mean-square normalisation of one row, and its gradients: in double, rounded once.

// 1 / sqrt(mean(x^2) + eps). Squares are summed in double: those of large f32 values would overflow.
inline double inverse_rms(const float* x, double eps, std::int64_t n) {
  const double squares = sum_terms(n, [x](std::int64_t j) {
    const auto value = static_cast<double>(x[j]);
    return value * value;
  });
  return 1.0 / __builtin_sqrt(squares / static_cast<double>(n) + eps);
}

void rms_norm_row(const float* x, const float* weight, double eps, std::int64_t n, float* y) {
  const double r = inverse_rms(x, eps, n);
  fill_row(n, y, [=](std::int64_t j) {
    return static_cast<float>(static_cast<double>(x[j]) * r * static_cast<double>(weight[j]));
  });
}

// With g = dy * weight: dx = r * (g - x * r^2 * mean(g * x)); dweight gains dy * x * r.
void rms_norm_backward_row(const float* dy, const float* x, const float* weight, double eps, std::int64_t n, float* dx,
                           double* dweight) {
  const double r = inverse_rms(x, eps, n);
  const double dot = sum_terms(n, [=](std::int64_t j) {
    return static_cast<double>(dy[j]) * static_cast<double>(weight[j]) * static_cast<double>(x[j]);
  });
  const double pull = r * r * dot / static_cast<double>(n);
  for (std::int64_t j = 0; j < n; ++j) dweight[j] += static_cast<double>(dy[j]) * static_cast<double>(x[j]) * r;
  fill_row(n, dx, [=](std::int64_t j) {
    const double g = static_cast<double>(dy[j]) * static_cast<double>(weight[j]);
    return static_cast<float>(r * (g - static_cast<double>(x[j]) * pull));
  });
}
