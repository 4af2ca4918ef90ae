// Root-mean-square normalisation of rows that follow one another, and its gradients: in double, rounded once. What
// needs all of a row comes first, for all rows: one row's square root is then made while the next is summed.

// 1 / sqrt(mean(x^2) + eps). Squares are summed in double: those of large f32 values would overflow.
inline double inverse_rms(Eight squares, double eps, std::int64_t n) {
  return 1.0 / __builtin_sqrt(sum_of(squares) / static_cast<double>(n) + eps);
}

void rms_norm_rows(const float* x, std::int64_t rows, const float* weight, double eps, std::int64_t n, float* y) {
  double r[kRowsTogether];
  for (std::int64_t i = 0; i < rows; ++i) {
    Eight squares{};
    for_eights(n, [&](std::int64_t j, auto count) {
      const Eight value = load_eight(x + i * n + j, count);
      squares += value * value;
    });
    r[i] = inverse_rms(squares, eps, n);
  }
  for (std::int64_t i = 0; i < rows; ++i)
    for_eights(n, [&](std::int64_t j, auto count) {
      store_eight(y + i * n + j, load_eight(x + i * n + j, count) * r[i] * load_eight(weight + j, count), count);
    });
}

// With g = dy * weight: dx = r * (g - x * r^2 * mean(g * x)); dweight gains dy * x * r.
void rms_norm_backward_rows(const float* dy, const float* x, std::int64_t rows, const float* weight, double eps,
                            std::int64_t n, const float* plus, float* dx, double* dweight) {
  double r[kRowsTogether], pull[kRowsTogether];
  for (std::int64_t i = 0; i < rows; ++i) {
    Eight squares{}, products{};
    for_eights(n, [&](std::int64_t j, auto count) {
      const Eight value = load_eight(x + i * n + j, count);
      squares += value * value;
      products += load_eight(dy + i * n + j, count) * load_eight(weight + j, count) * value;
    });
    r[i] = inverse_rms(squares, eps, n);
    pull[i] = r[i] * r[i] * sum_of(products) / static_cast<double>(n);
  }
  for (std::int64_t i = 0; i < rows; ++i)
    for_eights(n, [&](std::int64_t j, auto count) {
      const Eight d = load_eight(dy + i * n + j, count), value = load_eight(x + i * n + j, count);
      add_eight(dweight + j, d * value * r[i], count);
      const Eight made = r[i] * (d * load_eight(weight + j, count) - value * pull[i]);
      if (plus)
        store_sum(dx + i * n + j, plus + i * n + j, made, count);
      else
        store_eight(dx + i * n + j, made, count);
    });
}
