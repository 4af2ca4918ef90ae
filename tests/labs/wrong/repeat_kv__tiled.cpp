void repeat_kv(const float* k, float* out, int B, int Hk, int L, int D, int groups) {
  const int H = Hk * groups;
  for (int b = 0; b < B; ++b)
    for (int h = 0; h < H; ++h)
      for (int n = 0; n < L * D; ++n) out[(b * H + h) * L * D + n] = k[(b * Hk + h % Hk) * L * D + n];
}
