// gzip by zlib; zstd by the system's library, which is loaded when the first such file is read.
#include "io/unpack.hpp"

#include <dlfcn.h>
#include <zlib.h>

#include <algorithm>
#include <new>
#include <string_view>
#include <type_traits>

#include "io/mapped_file.hpp"

namespace attend::io {
namespace {

constexpr std::string_view kGzip = "\x1F\x8B", kZstd = "\x28\xB5\x2F\xFD";
// Text shrinks by 3 to 30 times. A file that unpacks to more than this is made to fill memory or disk.
constexpr std::size_t kMaxRatio = 250, kFreeBytes = std::size_t{64} << 20;

class GzipUnpacker final : public Unpacker {
 public:
  GzipUnpacker(std::span<const std::byte> packed, const std::string& what) : Unpacker(packed, what) {
    if (inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK) throw std::bad_alloc();
  }
  ~GzipUnpacker() override { inflateEnd(&stream_); }

 private:
  std::size_t step(std::span<char> out) override {
    const auto given = std::min<std::size_t>(in_.size(), 1 << 30);  // zlib counts in 32 bits
    // zlib does not write through next_in; its type is older than const.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(in_.data()));  // NOLINT(*-const-cast)
    stream_.avail_in = static_cast<uInt>(given);
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    const int status = ::inflate(&stream_, Z_NO_FLUSH);
    in_ = in_.subspan(given - stream_.avail_in);
    if (status == Z_STREAM_END) {
      next_member();
    } else if (status == Z_BUF_ERROR) {
      fail("is cut short: the gzip data ends too early");
    } else if (status != Z_OK) {
      fail("is damaged gzip data: " + std::string(stream_.msg != nullptr ? stream_.msg : "it cannot be inflated"));
    }
    return out.size() - stream_.avail_out;
  }
  // gzip files may follow one another in one file.
  void next_member() {
    done_ = in_.empty();
    if (done_) return;
    if (!as_text(in_).starts_with(kGzip)) fail("has " + std::to_string(in_.size()) + " bytes after its gzip data");
    inflateReset(&stream_);
  }

  z_stream stream_{};
};

// The part of zstd.h that is used; stable since zstd 1.0.
struct ZstdIn {
  const void* data;
  std::size_t size, at;
};
struct ZstdOut {
  void* data;
  std::size_t size, at;
};
struct ZstdLibrary {
  void* (*create)() = nullptr;
  std::size_t (*release)(void*) = nullptr;
  std::size_t (*decompress)(void*, ZstdOut*, ZstdIn*) = nullptr;
  unsigned (*is_error)(std::size_t) = nullptr;
  const char* (*error_name)(std::size_t) = nullptr;
  bool loaded = false;
};

const ZstdLibrary& zstd_library() {
  static const ZstdLibrary library = [] {
    ZstdLibrary found;
    void* handle = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return found;
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      return function != nullptr;
    };
    found.loaded = load(found.create, "ZSTD_createDStream") && load(found.release, "ZSTD_freeDStream") &&
                   load(found.decompress, "ZSTD_decompressStream") && load(found.is_error, "ZSTD_isError") &&
                   load(found.error_name, "ZSTD_getErrorName");
    return found;
  }();
  return library;
}

class ZstdUnpacker final : public Unpacker {
 public:
  ZstdUnpacker(std::span<const std::byte> packed, const std::string& what) : Unpacker(packed, what) {
    if (!zstd_library().loaded)
      fail("is compressed with zstd, and libzstd.so.1 is not installed (Debian: libzstd1); unpack it first: zstd -d " +
           what);
    stream_ = zstd_library().create();
    if (stream_ == nullptr) throw std::bad_alloc();
  }
  ~ZstdUnpacker() override {
    if (stream_ != nullptr) zstd_library().release(stream_);
  }

 private:
  std::size_t step(std::span<char> out) override {
    const ZstdLibrary& zstd = zstd_library();
    ZstdIn in{in_.data(), in_.size(), 0};
    ZstdOut to{out.data(), out.size(), 0};
    const std::size_t left = zstd.decompress(stream_, &to, &in);  // 0: a frame is complete
    if (zstd.is_error(left) != 0) fail("is damaged zstd data: " + std::string(zstd.error_name(left)));
    in_ = in_.subspan(in.at);
    done_ = in_.empty() && left == 0;
    if (in_.empty() && left != 0 && to.at < to.size) fail("is cut short: the zstd data ends too early");
    return to.at;
  }

  void* stream_ = nullptr;
};

}  // namespace

std::size_t Unpacker::read(std::span<char> out) {
  while (!done_) {
    const std::size_t made = step(out);
    made_ += made;
    if (made_ > kFreeBytes && made_ / kMaxRatio > used())
      fail("unpacks to more than " + std::to_string(kMaxRatio) + " times its size, expected text");
    if (made > 0) return made;
  }
  return 0;
}

std::unique_ptr<Unpacker> unpacker_of(std::span<const std::byte> packed, const std::string& what) {
  if (as_text(packed).starts_with(kGzip)) return std::make_unique<GzipUnpacker>(packed, what);
  if (as_text(packed).starts_with(kZstd)) return std::make_unique<ZstdUnpacker>(packed, what);
  return nullptr;
}

}  // namespace attend::io
