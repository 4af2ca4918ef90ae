// Stretches of address space in large pages, and pieces cut from them.
#include "base/long_lived_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <new>

#include "attend/runtime.hpp"
#include "base/checked.hpp"

namespace attend {
namespace {

void advise([[maybe_unused]] void* first, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  (void)::madvise(first, bytes, MADV_HUGEPAGE);
#endif
}

constexpr std::int64_t kLargePage = std::int64_t{2} << 20, kStretch = std::int64_t{32} << 20, kAlignment = 64;

class Stretch {
 public:
  explicit Stretch(std::int64_t bytes) : bytes_(bytes), mapped_bytes_(static_cast<std::size_t>(bytes + kLargePage)) {
    mapped_ = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    constexpr auto kPage = static_cast<std::uintptr_t>(kLargePage);
    const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(mapped_) % kPage;
    first_ = static_cast<char*>(mapped_) + (past == 0 ? 0 : kPage - past);
    advise(first_, static_cast<std::size_t>(bytes));
  }
  ~Stretch() { (void)::munmap(mapped_, mapped_bytes_); }
  Stretch(const Stretch&) = delete;
  Stretch& operator=(const Stretch&) = delete;

  char* take(std::int64_t bytes) {  // null: no room
    if (bytes > bytes_ - used_) return nullptr;
    char* piece = first_ + used_;
    used_ += bytes;
    return piece;
  }

 private:
  std::int64_t bytes_, used_ = 0;
  std::size_t mapped_bytes_;
  void* mapped_;
  char* first_;
};

}  // namespace

std::shared_ptr<char> long_lived_memory(std::int64_t bytes) {
  // Room for rounding up, and for the large page that is lost to alignment.
  checked_product("memory", {bytes + 2 * kLargePage, 2});
  const std::int64_t rounded = std::max(kAlignment, divide_up(bytes, kAlignment) * kAlignment);
  if (rounded >= kStretch) {
    auto own = std::make_shared<Stretch>(rounded);
    char* piece = own->take(rounded);
    return {std::move(own), piece};
  }
  static std::mutex mutex;
  static std::weak_ptr<Stretch> current;  // lives as long as its pieces
  const std::lock_guard lock(mutex);
  std::shared_ptr<Stretch> stretch = current.lock();
  char* piece = stretch ? stretch->take(rounded) : nullptr;
  if (piece == nullptr) {
    stretch = std::make_shared<Stretch>(kStretch);
    current = stretch;
    piece = stretch->take(rounded);
  }
  return {std::move(stretch), piece};
}

void use_large_pages(void* memory, std::int64_t bytes) {
  if (bytes < 2 * kLargePage) return;
  constexpr std::uintptr_t kSmallPage = 4096;  // a larger one makes the call fail, and nothing is lost
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(memory) % kSmallPage,
                       skipped = past == 0 ? 0 : kSmallPage - past;
  advise(static_cast<char*>(memory) + skipped, static_cast<std::uintptr_t>(bytes) - skipped);
}

}  // namespace attend
