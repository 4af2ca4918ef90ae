// What a lens is asked about, checked.
#include "ops/lens_area.hpp"

#include <string>

#include "base/check.hpp"
#include "base/checked.hpp"

namespace attend {

void check_lens_head(const char* op, LensHead head, const View& q) {
  if (head.batch < 0 || head.batch >= q.batch() || head.head < 0 || head.head >= q.heads())
    fail(op, "head " + std::to_string(head.head) + " of sequence " + std::to_string(head.batch) +
                 ", expected heads 0 to " + std::to_string(q.heads() - 1) + " of sequences 0 to " +
                 std::to_string(q.batch() - 1));
}

LensArea checked_area(const char* op, const LensArea& area, std::int64_t queries, std::int64_t keys) {
  LensArea whole = area;
  const auto check = [&](const char* what, std::int64_t first, std::int64_t& count, std::int64_t length) {
    if (count == kToTheEnd && first >= 0 && first <= length) count = length - first;
    if (first < 0 || count < 0 || first > length || count > length - first)
      fail(op, std::string(what) + " from " + std::to_string(first) + ", " + std::to_string(count) +
                   " of them; there are " + std::to_string(length));
  };
  check("queries", whole.first_query, whole.queries, queries);
  check("keys", whole.first_key, whole.keys, keys);
  return whole;
}

void check_cells(const char* op, const LensArea& area, std::int64_t rows, std::int64_t cols) {
  if (area.queries == 0 || area.keys == 0) fail(op, "the area of a map is empty");
  check_at_least(op, "rows of a map", rows, 1);
  check_at_least(op, "columns of a map", cols, 1);
  checked_product("cells of a map", {rows + 1, area.queries, 2});
  checked_product("cells of a map", {cols + 1, area.keys, 2});
}

}  // namespace attend
