// What a lens is asked about, checked: the same on the CPU and on a GPU.
#pragma once

#include "attend/lens.hpp"

namespace attend {

void check_lens_head(const char* op, LensHead head, const View& q);  // throws InvalidArgument
// No kToTheEnd left; throws InvalidArgument.
LensArea checked_area(const char* op, const LensArea& area, std::int64_t queries, std::int64_t keys);
// Of a map over such an area; throws InvalidArgument where it has no cells or its places are too large to be counted.
void check_cells(const char* op, const LensArea& area, std::int64_t rows, std::int64_t cols);

}  // namespace attend
