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

// A map in bands of whole rows of cells. What no query of a cell may see is NaN.
class MapInBands {
 public:
  MapInBands(const Look& look, const MapPlace& place, std::int64_t band_weights);
  bool whole() const { return band_rows_ >= rows_; }  // one band is all of it
  bool done() const { return row_ >= rows_; }
  std::string next();  // the next band as a frame

 private:
  Look look_;
  MapPlace place_;
  std::int64_t step_ = 1, rows_ = 0, columns_ = 0, band_rows_ = 0, row_ = 0;  // step_: queries in a row of cells
  bool exact_ = false;
  double milliseconds_ = 0;
};

// Small pictures of the heads of the layers [first, end): u8, 254 x sqrt(the largest weight in the cell), 255 masked.
std::string thumbs_frame(const Look& look, std::int64_t first, std::int64_t end, std::int64_t cells);
// The lengths of the value vectors that the head reads.
std::string values_frame(const Look& look, std::int64_t layer, std::int64_t head);
std::string tensor_frame(const char* name, const View& view);  // one of q, k and v
// q, k and v of a layer, a frame each.
std::string tensor_frames(const Look& look, std::int64_t layer);
// The arithmetic of one cell and what can be checked of its row.
std::string cell_json(const Look& look, std::int64_t layer, std::int64_t head, std::int64_t query, std::int64_t key);

}  // namespace attend::llm
