// The tile registers of AMX: eight of sixteen rows of 64 bytes. Included inside an anonymous namespace.
#define ATTEND_TILE_ZERO(tile) _tile_zero(tile)
// g++ 12 is not told that a tile load reads memory: without these it may move what is written before behind it, or
// what is written after before it.
#define ATTEND_TILE_LOAD(tile, from, stride) \
  do {                                       \
    __asm__ volatile("" ::: "memory");       \
    _tile_loadd(tile, from, stride);         \
    __asm__ volatile("" ::: "memory");       \
  } while (false)
#define ATTEND_TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define ATTEND_TILE_DOT(sum, a, b) _tile_dpbf16ps(sum, a, b)

// Tiles are usable while one of these lives. Their contents are the thread's, so no two may overlap.
class TileSession {
 public:
  TileSession() {
    struct alignas(64) Config {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = 64;
      config.rows[tile] = 16;
    }
    // g++ 12 is told that eight of these 64 bytes are read, and dropped the others where it saw no other use of them.
    __asm__ volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);
  }
  ~TileSession() { _tile_release(); }  // else every switch of threads would save eight kilobytes
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
};
