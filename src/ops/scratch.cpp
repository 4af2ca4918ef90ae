// Keeps freed working memory for the thread's next call.
#include "ops/scratch.hpp"

#include <algorithm>
#include <new>

#include "attend/runtime.hpp"
#include "base/checked.hpp"

namespace attend {
namespace {

constexpr std::int64_t kAlign = 64;
constexpr std::int64_t kMostKeptBytes = 64 << 20;

char* allocate(std::int64_t bytes) {
  return static_cast<char*>(::operator new(static_cast<std::size_t>(bytes), std::align_val_t{kAlign}));
}
void release(char* p) {
  ::operator delete(p, std::align_val_t{kAlign});
}

// The pieces a thread keeps, most recently used last.
class Shelf {
 public:
  Shelf() = default;
  ~Shelf() { clear(); }
  Shelf(const Shelf&) = delete;
  Shelf& operator=(const Shelf&) = delete;

  void clear() {
    while (count_ > 0) release(remove(0).memory);
  }

  // The smallest kept piece that is large enough; `bytes` becomes its size. Null when there is none.
  char* take(std::int64_t& bytes) {
    int best = -1;
    for (int n = 0; n < count_; ++n)
      if (pieces_[n].bytes >= bytes && (best < 0 || pieces_[n].bytes < pieces_[best].bytes)) best = n;
    if (best < 0) return nullptr;
    const Piece piece = remove(best);
    bytes = piece.bytes;
    return piece.memory;
  }

  void keep(char* memory, std::int64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    return release(memory);  // reuse would hide what the sanitizer looks for
#endif
    if (bytes > kMostKeptBytes) return release(memory);
    while (count_ == kMostPieces || kept_ + bytes > kMostKeptBytes) release(remove(0).memory);
    pieces_[count_++] = {memory, bytes};
    kept_ += bytes;
  }

 private:
  static constexpr int kMostPieces = 16;
  struct Piece {
    char* memory;
    std::int64_t bytes;
  };

  Piece remove(int n) {
    const Piece piece = pieces_[n];
    std::copy(pieces_ + n + 1, pieces_ + count_, pieces_ + n);
    --count_;
    kept_ -= piece.bytes;
    return piece;
  }

  Piece pieces_[kMostPieces];
  int count_ = 0;
  std::int64_t kept_ = 0;
};

thread_local Shelf shelf;

}  // namespace

Scratch::Scratch(std::int64_t bytes_each, int workers)
    : workers_(workers),
      each_(divide_up(bytes_each, kAlign) * kAlign),
      bytes_(checked_product("scratch", {each_, workers}) + kAlign),
      memory_(shelf.take(bytes_)) {
  if (memory_ == nullptr) memory_ = allocate(bytes_);
}

void release_memory() {
  shelf.clear();
}

Scratch::~Scratch() {
  shelf.keep(memory_, bytes_);
}

}  // namespace attend
