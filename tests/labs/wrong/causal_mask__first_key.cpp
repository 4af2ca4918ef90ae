void causal_mask(bool* mask, int M, int N) {
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) mask[i * N + j] = j <= i;
}
