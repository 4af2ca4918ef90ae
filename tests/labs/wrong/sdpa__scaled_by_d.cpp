#include <cmath>
#include <vector>

void scaled_dot_product_attention(const float* q, const float* k, const float* v, const bool* mask, float* out, int B,
                                  int H, int M, int N, int D, int E) {
  for (int bh = 0; bh < B * H; ++bh)
    for (int i = 0; i < M; ++i) {
      std::vector<float> w(N);
      float top = -INFINITY, sum = 0;
      for (int j = 0; j < N; ++j) {
        float dot = 0;
        for (int d = 0; d < D; ++d) dot += q[(bh * M + i) * D + d] * k[(bh * N + j) * D + d];
        w[j] = mask == nullptr || mask[i * N + j] ? dot / static_cast<float>(D) : -INFINITY;
        top = std::fmax(top, w[j]);
      }
      for (int j = 0; j < N; ++j) sum += w[j] = std::isinf(top) ? 0 : std::exp(w[j] - top);
      for (int e = 0; e < E; ++e) {
        float total = 0;
        for (int j = 0; j < N; ++j) total += w[j] * v[(bh * N + j) * E + e];
        out[(bh * M + i) * E + e] = sum == 0 ? 0 : total / sum;
      }
    }
}
