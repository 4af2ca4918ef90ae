// Pooled maps on the GPU: check, describe, put the kernels on the stream.
#include <algorithm>
#include <memory>
#include <string>

#include "attend/cuda.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "cuda/cuda_call.hpp"
#include "cuda/lens_args.hpp"
#include "ops/lens_area.hpp"

namespace attend::cuda {
namespace {

constexpr const char* kOp = "cuda::map";
constexpr int kThreads = 256;
constexpr std::int64_t kMostParts = 16, kLeastQueries = 1024;  // parts of the queries, and how many each has
constexpr std::int64_t kMostBytes = 256LL << 20;               // of pieces: longer maps are made in bands
constexpr std::int64_t kManyPieces = 16;                       // of a cell: a warp adds them up
constexpr float kLog2E = 1.4426950408889634F;

void launch_rows(const DeviceCall& on, const char* name, std::int64_t threads, const LensArgs& a) {
  const std::int64_t blocks = divide_up(threads, kThreads);
  if (blocks > kFarKey) fail(kOp, "more than 2^29 blocks of cells");
  launch(kernel("lens_cells", name, 0), static_cast<int>(blocks), kThreads, 0, on.stream, &a);
}

// Queries of a part: by their number alone, so that sums have one order.
std::int64_t part_queries(std::int64_t M) {
  std::int64_t queries = kLeastQueries;
  while (queries * kMostParts < M) queries *= 2;
  return queries;
}

void check_map(const DeviceCall& on, const View& lse, const LensArea& area, const MapView& map) {
  const View& q = on.call.q;
  check_lse(kOp, lse, q.shape, q.dtype);
  check_on_device(kOp, "lse", lse.data);
  const auto check_cells_of = [&](const char* what, const MutableView& cells) {
    check_writable(kOp, what, cells);
    check_dtype(kOp, what, cells.dtype, DType::f32);
    check_shape(kOp, what, cells.shape, {1, 1, map.mass.length(), map.mass.dim()});
    check_on_device(kOp, what, cells.data);
  };
  check_cells_of("mass", map.mass);
  if (map.peak) check_cells_of("peak", *map.peak);
  check_cells(kOp, area, map.mass.length(), map.mass.dim());
  if (map.mass.length() > area.queries || map.mass.dim() > area.keys)
    fail(kOp, "a map of " + to_string(map.mass.shape) + ", expected at most a cell to each of " +
                  std::to_string(area.queries) + " queries and " + std::to_string(area.keys) + " keys");
  if (q.dim() % 8 != 0) fail(kOp, "head dim is " + std::to_string(q.dim()) + ", expected a multiple of 8");
}

// What the kernels are given, but for the memory and the band.
LensArgs describe(const DeviceCall& on, const View& lse, LensHead head, const LensArea& area, const MapView& map) {
  const AttentionProblem& p = on.call.unread_problem();
  LensArgs a;
  a.q_rows = plain_rows("q", on.call.q), a.k_rows = plain_rows("k", on.call.k);
  a.lse = device_operand(operand_of(lse)), a.sinks = device_operand(on.call.options.sinks);
  a.mask = on.mask, a.terms = on.terms;
  a.scale = p.scale, a.scale2 = on.has_terms || on.has_bits ? kLog2E : p.scale * kLog2E;
  a.b = static_cast<int>(head.batch), a.h = static_cast<int>(head.head), a.hk = a.h / static_cast<int>(p.G);
  a.M = static_cast<int>(p.M), a.N = static_cast<int>(p.N), a.D = static_cast<int>(p.D);
  a.queries = {area.first_query, area.queries, map.mass.length()};
  a.keys = {area.first_key, area.keys, map.mass.dim()};
  a.part_queries = static_cast<int>(part_queries(p.M));
  a.mass = device_operand(operand_of(map.mass));
  if (map.peak) a.peak = device_operand(operand_of(*map.peak));
  return a;
}

void run(DeviceCall& on, const View& lse, LensHead head, const LensArea& area, const MapView& map) {
  const std::int64_t D = on.call.q.dim();
  const PlainShape shape = D <= 64 ? kLens64 : D <= 128 ? kLens128 : kLens256;
  const int tile_keys = lens_rows(shape);
  if (on.has_bits) on.make_bits(shape.columns, tile_keys, DeviceCall::OneHead{head.batch, head.head});
  LensArgs a = describe(on, lse, head, area, map);
  const int end_key = static_cast<int>(area.first_key + area.keys);
  a.first_tile = static_cast<int>(area.first_key) / tile_keys;
  a.tiles = static_cast<int>(divide_up(end_key, tile_keys)) - a.first_tile;
  a.row_pieces = a.key_piece(static_cast<int>(a.keys.cells) - 1, (end_key - 1) / kLensKeys) + 1;
  a.padded = static_cast<int>(divide_up(a.M, shape.columns)) * shape.columns;

  const auto parts_of = [&](int first_row, int end_row) {
    a.first_row = first_row, a.end_row = end_row;
    a.first_part = a.queries.begin(first_row) / a.part_queries;
    a.parts = (a.queries.begin(end_row) - 1) / a.part_queries - a.first_part + 1;
  };
  const auto pieces_of = [&](std::int64_t rows) {
    return checked_product("pieces of cells", {rows + a.parts, a.row_pieces});
  };
  const int rows = static_cast<int>(a.queries.cells);
  parts_of(0, rows);
  const std::int64_t most = kMostBytes / 8 / a.row_pieces - a.parts;
  const int each = static_cast<int>(std::clamp<std::int64_t>(most, 1, rows));
  const std::int64_t pieces = pieces_of(each);
  const bool terms = on.has_terms || on.has_bits;
  Workspace memory(on.device,
                   (terms ? 3 : 2) * Workspace::round(a.padded * std::int64_t{4}) +
                       Workspace::round(a.padded * std::int64_t{8}) + Workspace::round(pieces * 8),
                   on.stream, on.allocator);
  a.lse2 = memory.part<float>(a.padded), a.position = memory.part<float>(a.padded);
  if (terms) a.top = memory.part<float>(a.padded);
  a.seen = memory.part<int2>(a.padded);
  a.pieces = memory.part<float2>(pieces);
  launch_rows(on, "lens_queries", a.padded, a);
  if (terms) launch_rows(on, (std::string("lens_tops_") + name(on.call.q.dtype)).c_str(), a.M, a);

  const std::string dim = std::to_string(shape.D);
  const std::string kind = terms ? "lens_map_terms_" : "lens_map_";
  const int shared = lens_bytes(shape);
  const CUfunction sweep = kernel(("lens_map_" + dim).c_str(), kind + dim + "_" + name(on.call.q.dtype), shared);
  const std::int64_t of_cell = (divide_up(area.keys, a.keys.cells) / kLensKeys + 1) *
                               (divide_up(area.queries, a.queries.cells) / a.part_queries + 1);
  a.lanes = of_cell > kManyPieces ? 32 : 1;
  for (int row = 0; row < rows; row += each) {
    parts_of(row, std::min(rows, row + each));
    const std::int64_t items = checked_product("items", {a.tiles, a.parts});
    if (items > kFarKey) fail(kOp, "more than 2^29 items");
    check(driver().fill(reinterpret_cast<CUdeviceptr>(a.pieces), 0,
                        static_cast<std::size_t>(pieces_of(a.end_row - a.first_row)) * 8, on.stream),
          "cuMemset");
    launch(sweep, static_cast<int>(items), kPlainThreads, shared, on.stream, &a);
    launch_rows(on, "lens_cells", checked_product("cells", {a.end_row - a.first_row, a.keys.cells, a.lanes}), a);
  }
}

}  // namespace

void map(View q, View k, View lse, LensHead head, const MapView& map, const AttentionOptions& options, Stream stream) {
  AttentionOptions before_dropout = options;
  before_dropout.dropout = {};
  const AttentionCall call(q, k, k, before_dropout);
  check_lens_head(kOp, head, q);
  const LensArea area = checked_area(kOp, map.area, q.length(), k.length());
  DeviceCall on(kOp, call, static_cast<CUstream>(stream));
  check_map(on, lse, area, map);
  run(on, lse, head, area, map);
}

}  // namespace attend::cuda
