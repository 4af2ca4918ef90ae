// The tile registers of AMX in plain C++, so that machines without them test the kernels built on them. Included inside
// an anonymous namespace.
struct EmulatedTile {
  std::uint32_t cells[16][16];
};
thread_local EmulatedTile emulated_tiles[8];

inline void emulated_load(EmulatedTile& tile, const void* from, std::int64_t stride) {
  for (int r = 0; r < 16; ++r) __builtin_memcpy(tile.cells[r], static_cast<const char*>(from) + r * stride, 64);
}
inline void emulated_store(const EmulatedTile& tile, void* to, std::int64_t stride) {
  for (int r = 0; r < 16; ++r) __builtin_memcpy(static_cast<char*>(to) + r * stride, tile.cells[r], 64);
}
inline void emulated_dot(EmulatedTile& sum, const EmulatedTile& a, const EmulatedTile& b) {
  for (int r = 0; r < 16; ++r) {
    V row = load(reinterpret_cast<const float*>(sum.cells[r]));
    for (int k = 0; k < 16; ++k) row = multiply_add(set1_cell(a.cells[r][k]), load_cells(b.cells[k]), row);
    store(reinterpret_cast<float*>(sum.cells[r]), row);
  }
}

#define ATTEND_TILE_ZERO(tile) (emulated_tiles[tile] = {})
#define ATTEND_TILE_LOAD(tile, from, stride) emulated_load(emulated_tiles[tile], from, stride)
#define ATTEND_TILE_STORE(tile, to, stride) emulated_store(emulated_tiles[tile], to, stride)
#define ATTEND_TILE_DOT(sum, a, b) emulated_dot(emulated_tiles[sum], emulated_tiles[a], emulated_tiles[b])

struct TileSession {};
