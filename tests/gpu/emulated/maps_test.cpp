// Pooled maps of the lens on the emulated driver against the f64 reference: masks, score options, areas, cells of every
// size, one row of cells, cells of one weight; the same bits twice; what is refused. A word: cases whose name holds it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "attend/cuda.hpp"
#include "attend/lens.hpp"

namespace {

using namespace attend;
using namespace emulated;

std::string wanted;

struct Case {
  std::string name;
  std::int64_t B, H, Hk, M, N, D;
  DType dtype = DType::bf16;
  Mask mask = no_mask();
  Terms terms = {};
};
struct Asked {
  LensHead head;
  LensArea area;
  std::int64_t rows, cols;
};

// The weights and the largest of them hold to a small part of themselves; sums are of such.
double worst_of(const Array& got, const Tensor& expected) {
  double worst = 0;
  for (std::size_t n = 0; n < got.wide.size(); ++n) {
    const double right = expected.data<float>()[n], off = std::abs(got.get(n) - right) / (1e-4 * right + 1e-7);
    worst = std::max(worst, std::isfinite(off) ? off : 1e9);
  }
  return worst;
}

void run(const Case& c, const std::vector<Asked>& maps) {
  if (c.name.find(wanted) == std::string::npos) return;
  Array q(c.dtype, {c.B, c.H, c.M, c.D}, 1), k(c.dtype, {c.B, c.Hk, c.N, c.D}, 1), out = q;
  Array bias(DType::f32, {c.B, c.H, c.M, c.N}, 1), slopes(DType::f32, {1, c.H, 1, 1}, 0.5);
  Array sinks(DType::f32, {1, c.H, 1, 1}, 1), lse(DType::f32, {c.B, c.H, c.M, 1}, 0);
  for (std::size_t n = 0; n < slopes.wide.size(); ++n) slopes.set(n, std::abs(slopes.floats[n]));
  AttentionOptions options, wide;
  options.mask = wide.mask = c.mask, options.softcap = wide.softcap = c.terms.softcap;
  if (c.terms.scale != 0) options.scale = wide.scale = c.terms.scale;
  if (c.terms.bias) options.bias = bias.view(), wide.bias = bias.wide_view();
  if (c.terms.alibi) options.alibi_slopes = slopes.view(), wide.alibi_slopes = slopes.wide_view();
  if (c.terms.sinks) options.sinks = sinks.view(), wide.sinks = sinks.wide_view();
  cuda::attention(q.view(), k.view(), k.view(), out.view(), options, {.lse = lse.view()});
  if (c.terms.dropout != 0) options.dropout = {c.terms.dropout, 5};
  const Lens lens(q.wide_view(), k.wide_view(), wide);
  for (const Asked& asked : maps) {
    const PooledMap right = lens.map(asked.head, {.area = asked.area, .rows = asked.rows, .cols = asked.cols});
    const Shape shape{1, 1, right.rows, right.cols};
    Array mass(DType::f32, shape, 0), peak(DType::f32, shape, 0), again = mass;
    const auto make = [&](Array& sums, std::optional<MutableView> most) {
      cuda::map(q.view(), k.view(), lse.view(), asked.head, {asked.area, sums.view(), most}, options);
    };
    make(mass, peak.view()), make(again, {});
    const std::string name = c.name + ", " + std::to_string(right.rows) + " x " + std::to_string(right.cols);
    check(name + ": mass, of the bound", worst_of(mass, right.mass) <= 1, worst_of(mass, right.mass));
    check(name + ": peak, of the bound", worst_of(peak, right.peak) <= 1, worst_of(peak, right.peak));
    check(name + ": the same bits", mass.floats == again.floats, 0);
  }
}

void each_case(std::int64_t D) {
  constexpr DType bf16 = DType::bf16, f16 = DType::f16;
  static const std::vector<std::uint8_t> shown = [] {
    std::vector<std::uint8_t> bits(4 * 300 * 300);
    for (std::uint8_t& x : bits) x = numbers() % 2;
    std::fill(bits.begin(), bits.begin() + 70 * 300, std::uint8_t{0});  // rows that see nothing, whole tiles among them
    return bits;
  }();
  const auto dense_mask = [&](std::int64_t M, std::int64_t N) {
    return dense(shown.data(), {1, 1, M, N}, {0, 0, 300, 1});
  };
  const Mask by_head = dense(shown.data(), {2, 2, 200, 300}, {2 * 300 * 300, 300 * 300, 300, 1});
  const LensArea all{}, part{37, 101, 70, 90};
  const std::vector<Asked> few = {{{0, 0}, all, 7, 5}, {{0, 1}, part, 3, 90}};
  const std::vector<Asked> of_batches = {{{0, 1}, all, 7, 5}, {{1, 0}, all, 7, 5}, {{1, 1}, part, 3, 90}};
  const std::vector<Case> cases = {
      {"full", 1, 2, 1, 200, 300, D, bf16},
      {"causal", 2, 2, 2, 200, 300, D, f16, causal()},
      {"window", 1, 2, 1, 300, 300, D, bf16, window(40, 3)},
      {"window of the last", 1, 2, 2, 150, 300, D, f16, window(40, 0)},
      {"prefix", 1, 2, 1, 200, 300, D, bf16, prefix({90})},
      {"segments", 1, 2, 1, 290, 290, D, f16, segments({0, 33, 170, 290}) & causal()},
      {"padding", 1, 2, 1, 200, 300, D, bf16, padding({111})},
      {"dense", 1, 2, 1, 200, 300, D, bf16, dense_mask(200, 300)},
      {"dense by head", 2, 2, 1, 200, 300, D, bf16, by_head},
      {"soft cap", 1, 2, 1, 200, 300, D, bf16, causal(), {.softcap = 3, .sinks = true}},
      {"bias", 1, 2, 1, 200, 300, D, f16, no_mask(), {.bias = true}},
      {"ALiBi", 1, 2, 1, 200, 300, D, bf16, causal(), {.scale = 0.2, .alibi = true}},
      {"negative scale and dropout", 1, 2, 1, 200, 300, D, bf16, causal(), {.scale = -0.1, .dropout = 0.3}},
      {"all of it",
       1,
       2,
       1,
       290,
       290,
       D,
       f16,
       dense_mask(290, 290) & causal(),
       {.softcap = 5, .bias = true, .alibi = true, .sinks = true}}};
  for (Case c : cases) {
    c.name = std::string("D").append(std::to_string(D)).append(" ").append(c.name);
    run(c, c.B > 1 ? of_batches : few);
  }
}

// Cells of all sizes, and areas that begin and end anywhere.
void each_map() {
  const Case causal_case{"cells", 2, 4, 2, 330, 410, 40, DType::bf16, causal()};
  const LensArea area{129, 66, 31, 130}, row{200, 1, 0, kToTheEnd}, column{0, kToTheEnd, 300, 1};
  run(causal_case, {{{0, 0}, {}, 1, 1},
                    {{1, 3}, {}, 1, 410},
                    {{0, 2}, {}, 330, 1},
                    {{1, 1}, {}, 330, 410},
                    {{0, 1}, area, 66, 130},
                    {{1, 2}, area, 4, 130},
                    {{0, 3}, area, 66, 3},
                    {{0, 0}, row, 1, 410},
                    {{1, 0}, column, 330, 1},
                    {{0, 0}, area, 9999, 9999},
                    {{1, 3}, {}, 19, 23},
                    {{1, 3}, {64, 64, 128, 128}, 1, 4}});
  // Several parts of the queries, and more pieces of a cell than a thread adds up.
  run({"parts", 1, 1, 1, 2100, 1500, 16, DType::f16, causal()},
      {{{0, 0}, {}, 1, 1}, {{0, 0}, {}, 1, 1500}, {{0, 0}, {}, 5, 3}, {{0, 0}, {1000, 1100, 0, 700}, 2, 2}});
}

void refusals() {
  Array q(DType::bf16, {1, 2, 40, 64}, 1), lse(DType::f32, {1, 2, 40, 1}, 1), cells(DType::f32, {1, 1, 4, 4}, 1);
  const auto refuses = [&](const char* what, LensHead head, const LensArea& area, const View& of_rows,
                           const MutableView& mass, const char* part) {
    try {
      cuda::map(q.view(), q.view(), of_rows, head, {area, mass});
      check(what, false, 0);
    } catch (const InvalidArgument& error) {
      check(what, std::string(error.what()).find(part) != std::string::npos, 0);
    }
  };
  refuses("a head that is not there", {0, 2}, {}, lse.view(), cells.view(), "expected heads 0 to 1");
  refuses("an area that is not there", {0, 0}, {30, 11}, lse.view(), cells.view(), "there are 40");
  refuses("an empty area", {0, 0}, {30, 0}, lse.view(), cells.view(), "is empty");
  refuses("more rows than queries", {0, 0}, {30, 3}, lse.view(), cells.view(), "at most a cell");
  refuses("an LSE of another shape", {0, 0}, {}, cells.view(), cells.view(), "lse");
  refuses("a map of half numbers", {0, 0}, {}, lse.view(), q.view(), "mass");
}

}  // namespace

int main(int count, char** words) {
  wanted = count > 1 ? words[1] : "";
  for (const std::int64_t D : {64, 128, 256}) each_case(D);
  each_map();
  if (wanted.empty()) refusals();
  std::printf("%d checks, %d failed\n", checks, failed);
  return failed == 0 ? 0 : 1;
}
