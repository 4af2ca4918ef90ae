// What the kernels that write a mask's bits are given, as plain data.
#pragma once

#include <cstdint>

#include "cuda/device_mask.hpp"

namespace attend::cuda {

constexpr int kMostHoles = 4;
constexpr int kMaskThreads = 256;

// A rule that can hide keys inside an interval.
struct HoleRule {
  int blocks = 0;                          // 1: a bit for each block of queries and keys; 0: one for each query and key
  const std::uint8_t* data = nullptr;      // device memory; nonzero: visible
  std::int64_t strides[4] = {0, 0, 0, 0};  // in bytes: batch, head, row, column of blocks or of queries and keys
  int block_queries = 1, block_keys = 1;
};

struct MaskBitsArgs {
  HoleRule rules[kMostHoles];
  int rule_count = 0;
  int B = 1, H = 1;  // of the bits: 1 where all are alike
  int M = 0, N = 0;
  int tile_queries = 0, tile_keys = 0;
  std::uint32_t* words = nullptr;
  MaskTile* tiles = nullptr;
  int row_words = 0, row_tiles = 0;
  // Where the keys are wanted as rows too: [key, word of 32 queries], [tile of keys, tile of queries].
  std::uint32_t* key_words = nullptr;
  MaskTile* key_tiles = nullptr;
  int words_of_key = 0, rows_of_tiles = 0;
  int counted = 0;  // 1: tiles count those before them in their row that show something
};

}  // namespace attend::cuda
