// What the explorer's page draws of a run: maps, small pictures, one cell, values and tensors; binary as frames, as
// frames.js reads them.
#pragma once

#include <cstdint>
#include <string>

#include "attend/llm/look.hpp"

namespace attend::llm {

// "AEX1", the bytes of the head as u32, the head (JSON), the numbers; little-endian, each part padded to 4 bytes.
std::string frame(const std::string& head, const void* numbers, std::size_t bytes);

struct MapPlace {
  std::int64_t layer = 0, head = 0;
  std::int64_t first_query = 0, end_query = 0, first_key = 0, end_key = 0;
  std::int64_t rows = 0, columns = 0;  // of cells, wished
};

// How much of an answer is computed and held at once; at least a row of cells, a small picture or a row of a tensor.
struct PieceLimits {
  std::int64_t weights = std::int64_t{1} << 26;  // that are computed for it
  std::int64_t bytes = std::int64_t{256} << 10;
};

// Frames that are computed piece by piece: a piece is some whole frames, or a part of one. Holds no run: each call is
// given the one that the answer began with, which may have grown. InvalidArgument where it has become shorter.
class FramePieces {
 public:
  virtual ~FramePieces() = default;
  virtual bool done() const = 0;
  virtual std::string next(const Look& look) = 0;
};

// A map in bands of whole rows of cells, a frame each. What no query of a cell may see is NaN.
class MapInBands : public FramePieces {
 public:
  MapInBands(const MapPlace& place, const PieceLimits& limits);
  bool done() const override { return row_ >= rows_; }
  std::string next(const Look& look) override;

 private:
  MapPlace place_;
  std::int64_t step_ = 1, rows_ = 0, columns_ = 0, band_rows_ = 0, row_ = 0;  // step_: queries in a row of cells
  bool exact_ = false;
  double milliseconds_ = 0;
};

// Small pictures of the heads of the layers [first, end), one frame in parts: u8, 254 x sqrt(the largest weight in the
// cell), 255 masked.
class Thumbs : public FramePieces {
 public:
  Thumbs(const Look& look, std::int64_t first, std::int64_t end, std::int64_t cells, const PieceLimits& limits);
  bool done() const override { return head_ >= end_; }
  std::string next(const Look& look) override;

 private:
  PieceLimits limits_;
  std::int64_t length_, heads_, cells_, begin_, end_, head_;  // heads counted through all layers
};

// q, k and v of a layer, a frame each, in parts.
class LayerTensors : public FramePieces {
 public:
  LayerTensors(const Look& look, std::int64_t layer, const PieceLimits& limits);
  bool done() const override { return tensor_ >= kTensors; }
  std::string next(const Look& look) override;

 private:
  static constexpr std::int64_t kTensors = 3;
  PieceLimits limits_;
  std::int64_t layer_, length_;
  std::int64_t tensor_ = 0, row_ = 0;  // rows of all its heads, one after the other
};

// All of it at once.
std::string whole(FramePieces&& pieces, const Look& look);
// The lengths of the value vectors that the head reads.
std::string values_frame(const Look& look, std::int64_t layer, std::int64_t head);
std::string tensor_frame(const char* name, const View& view);  // one of q, k and v
// The arithmetic of one cell and what can be checked of its row.
std::string cell_json(const Look& look, std::int64_t layer, std::int64_t head, std::int64_t query, std::int64_t key);

}  // namespace attend::llm
