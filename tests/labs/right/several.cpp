#include <algorithm>
#include <cmath>
#include <vector>

void softmax(const float* x, float* y, int rows, int cols) {
  for (int r = 0; r < rows; ++r, x += cols, y += cols) {
    const float top = *std::max_element(x, x + cols);
    float sum = 0;
    for (int c = 0; c < cols; ++c) sum += y[c] = std::isinf(top) ? 0 : std::exp(x[c] - top);
    for (int c = 0; c < cols && sum > 0; ++c) y[c] /= sum;
  }
}

void causal_mask(bool* mask, int M, int N) {
  for (int n = 0; n < M * N; ++n) mask[n] = n % N <= n / N + N - M;
}

void repeat_kv(const float* k, float* out, int B, int Hk, int L, int D, int groups) {
  for (int h = 0; h < B * Hk; ++h)
    for (int g = 0; g < groups; ++g) out = std::copy_n(k + h * L * D, L * D, out);
}

struct KVCache {
  std::vector<std::vector<float>> keys, values;  // of each head
  template <class Rope>
  void step(const float* q, const float* k, const float* v, int position, const Rope& rope, float* out, int B, int H,
            int T, int D) {
    keys.resize(B * H);
    values.resize(B * H);
    std::vector<int> places(T);
    for (int t = 0; t < T; ++t) places[t] = position + t;
    std::vector<float> rq(B * H * T * D), rk(rq.size());
    rope(q, places.data(), rq.data(), B, H, T, D);
    rope(k, places.data(), rk.data(), B, H, T, D);
    for (int h = 0; h < B * H; ++h) {
      keys[h].insert(keys[h].end(), rk.begin() + h * T * D, rk.begin() + (h + 1) * T * D);
      values[h].insert(values[h].end(), v + h * T * D, v + (h + 1) * T * D);
      for (int t = 0; t < T; ++t) {
        const int N = position + t + 1;
        std::vector<float> w(N);
        for (int j = 0; j < N; ++j)
          for (int d = 0; d < D; ++d) w[j] += rq[(h * T + t) * D + d] * keys[h][j * D + d] / std::sqrt(float(D));
        softmax(std::vector<float>(w).data(), w.data(), 1, N);
        for (int d = 0; d < D; ++d) {
          out[(h * T + t) * D + d] = 0;
          for (int j = 0; j < N; ++j) out[(h * T + t) * D + d] += w[j] * values[h][j * D + d];
        }
      }
    }
  }
};
