// Reads zip archives. Parsers subtract, never add: what is left is compared with what is asked for.
#include "io/zip.hpp"

#include <zlib.h>

#include <algorithm>
#include <new>
#include <utility>

#include "io/json.hpp"

namespace attend::io {
namespace {

constexpr std::uint32_t kEntrySign = 0x04034b50, kDirectorySign = 0x02014b50, kEndSign = 0x06054b50,
                        kEnd64Sign = 0x06064b50, kLocator64Sign = 0x07064b50;
constexpr std::size_t kEntryBytes = 30, kDirectoryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr std::size_t kLongestComment = 65535;
constexpr std::uint32_t kAll32 = 0xFFFFFFFF;  // stands for a number that is in the zip64 field
constexpr std::uint16_t kAll16 = 0xFFFF;
constexpr std::uint64_t kMostDeflateRatio = 1032;  // 258 bytes for two bits is the best that deflate can do

template <std::size_t kBytes>
std::uint64_t load(std::span<const std::byte> bytes, std::size_t at) {
  std::uint64_t x = 0;
  for (std::size_t n = kBytes; n-- > 0;) x = x << 8 | std::to_integer<std::uint64_t>(bytes[at + n]);
  return x;
}
std::uint16_t u16(std::span<const std::byte> bytes, std::size_t at) {
  return static_cast<std::uint16_t>(load<2>(bytes, at));
}
std::uint32_t u32(std::span<const std::byte> bytes, std::size_t at) {
  return static_cast<std::uint32_t>(load<4>(bytes, at));
}
std::uint64_t u64(std::span<const std::byte> bytes, std::size_t at) {
  return load<8>(bytes, at);
}

// Why a name may not be put under a folder; empty if it may.
std::string danger(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.front() == '/') return "is absolute";
  if (name.find('\0') != name.npos || name.find('\\') != name.npos) return "holds a zero byte or a backslash";
  if (name.size() > 1 && name[1] == ':') return "begins with a drive";
  while (!name.empty()) {
    const std::size_t length = std::min(name.find('/'), name.size());
    const std::string_view part = name.substr(0, length);
    if (part == "..") return "leads out of its folder";
    if (part.empty() || part == ".") return "has an empty part";
    name.remove_prefix(std::min(length + 1, name.size()));
  }
  return "";
}

}  // namespace

class ZipReader {
 public:
  ZipReader(std::span<const std::byte> bytes, Zip& out) : all_(bytes), out_(out) {}

  void read() {
    find_directory();
    if (count_ > directory_.size() / kDirectoryBytes)
      fail("its directory should hold " + std::to_string(count_) + " entries, more than fit in its " +
           std::to_string(directory_.size()) + " bytes");
    std::span<const std::byte> left = directory_;
    for (std::uint64_t n = 0; n < count_; ++n) read_entry(left);
    if (!left.empty()) fail("its directory has " + std::to_string(left.size()) + " bytes that belong to no entry");
    check_overlaps();
  }

 private:
  [[noreturn]] void fail(const std::string& text) const { throw FileError(out_.what_ + ": " + text); }
  [[noreturn]] void fail(std::string_view name, const std::string& text) const {
    fail("entry " + json_quoted(name) + " " + text);
  }

  // The record at the end of the file, behind which only a comment may stand.
  std::size_t find_end() const {
    if (all_.size() >= kEndBytes) {
      const std::size_t last = all_.size() - kEndBytes;
      for (std::size_t back = 0; back <= std::min(last, kLongestComment); ++back)
        if (u32(all_, last - back) == kEndSign && u16(all_, last - back + 20) == back) return last - back;
    }
    fail("it does not end as a zip archive does");
  }

  void find_directory() {
    std::size_t end = find_end();
    const std::span<const std::byte> record = all_.subspan(end, kEndBytes);
    if ((u16(record, 4) != 0 && u16(record, 4) != kAll16) || (u16(record, 6) != 0 && u16(record, 6) != kAll16))
      fail("it is a part of an archive that was split");
    count_ = u16(record, 10);
    std::uint64_t size = u32(record, 12), offset = u32(record, 16);
    const bool large = end >= kLocator64Bytes && u32(all_, end - kLocator64Bytes) == kLocator64Sign;
    if (large) {
      const std::size_t locator = end - kLocator64Bytes;
      const std::uint64_t at = u64(all_, locator + 8);
      if (locator < kEnd64Bytes || at > locator - kEnd64Bytes || u32(all_, static_cast<std::size_t>(at)) != kEnd64Sign)
        fail("its zip64 record should begin at byte " + std::to_string(at) + ", where none is");
      end = static_cast<std::size_t>(at);
      if (u64(all_, end + 4) != locator - end - 12) fail("its zip64 record has the wrong length");
      count_ = u64(all_, end + 32);
      size = u64(all_, end + 40);
      offset = u64(all_, end + 48);
    }
    if (offset > end || size != end - offset)
      fail("its directory should have " + std::to_string(size) + " bytes from " + std::to_string(offset) +
           " on, expected it to reach to byte " + std::to_string(end));
    directory_ = all_.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
  }

  struct Sizes {
    std::uint64_t packed, unpacked, offset;
  };

  // Numbers that are all ones stand in the extra field of kind 1 instead, in this order.
  Sizes read_sizes(std::string_view name, std::span<const std::byte> record, std::span<const std::byte> extra) const {
    Sizes sizes = {u32(record, 20), u32(record, 24), u32(record, 42)};
    std::span<const std::byte> large;
    while (!extra.empty()) {
      if (extra.size() < 4 || u16(extra, 2) > extra.size() - 4) fail(name, "has a broken extra field");
      if (u16(extra, 0) == 1) large = extra.subspan(4, u16(extra, 2));
      extra = extra.subspan(4 + std::size_t{u16(extra, 2)});
    }
    for (std::uint64_t* x : {&sizes.unpacked, &sizes.packed, &sizes.offset}) {
      if (*x != kAll32) continue;
      if (large.size() < 8) fail(name, "lacks its zip64 sizes");
      *x = u64(large, 0);
      large = large.subspan(8);
    }
    return sizes;
  }

  void read_entry(std::span<const std::byte>& left) {
    if (left.size() < kDirectoryBytes || u32(left, 0) != kDirectorySign) fail("its directory is broken");
    const std::span<const std::byte> record = left.first(kDirectoryBytes);
    left = left.subspan(kDirectoryBytes);
    const auto take = [&](std::size_t size) {
      if (size > left.size()) fail("its directory ends inside an entry");
      const std::span<const std::byte> taken = left.first(size);
      left = left.subspan(size);
      return taken;
    };
    ZipEntry entry;
    entry.name = as_text(take(u16(record, 28)));
    const std::span<const std::byte> extra = take(u16(record, 30));
    take(u16(record, 32));
    if (const std::string why = danger(entry.name); !why.empty()) fail(entry.name, "has a name that " + why);
    if (!out_.places_.emplace(entry.name, out_.entries_.size()).second) fail(entry.name, "stands twice");
    if ((u16(record, 8) & 1) != 0) fail(entry.name, "is encrypted");
    const std::uint16_t method = u16(record, 10);
    if (method != 0 && method != 8)
      fail(entry.name, "is packed by method " + std::to_string(method) + ", expected 0 (stored) or 8 (deflated)");
    entry.deflated = method == 8;
    entry.checksum = u32(record, 16);
    const Sizes sizes = read_sizes(entry.name, record, extra);
    entry.size = sizes.unpacked;
    place(entry, sizes, method);
    out_.entries_.push_back(entry);
  }

  // Finds the entry's bytes behind its own header, which must agree with the directory.
  void place(ZipEntry& entry, const Sizes& sizes, std::uint16_t method) {
    const std::span<const std::byte> before = all_.first(all_.size() - directory_size_and_after());
    if (sizes.offset > before.size() || before.size() - sizes.offset < kEntryBytes)
      fail(entry.name, "should begin at byte " + std::to_string(sizes.offset) + ", behind the last one there is");
    std::span<const std::byte> left = before.subspan(static_cast<std::size_t>(sizes.offset));
    if (u32(left, 0) != kEntrySign || u16(left, 8) != method) fail(entry.name, "has a header of its own that differs");
    const std::size_t name = u16(left, 26), extra = u16(left, 28);
    left = left.subspan(kEntryBytes);
    if (name > left.size() || as_text(left.first(name)) != entry.name)
      fail(entry.name, "has another name in its own header");
    left = left.subspan(name);
    if (extra > left.size() || sizes.packed > left.size() - extra)
      fail(entry.name,
           "should have " + std::to_string(sizes.packed) + " bytes, " + std::to_string(left.size()) + " are left");
    entry.packed = left.subspan(extra, static_cast<std::size_t>(sizes.packed));
    if (!entry.deflated && sizes.packed != sizes.unpacked)
      fail(entry.name,
           "is stored in " + std::to_string(sizes.packed) + " bytes and should have " + std::to_string(sizes.unpacked));
    if (entry.deflated && sizes.unpacked / kMostDeflateRatio > sizes.packed)
      fail(entry.name, "should grow from " + std::to_string(sizes.packed) + " to " + std::to_string(sizes.unpacked) +
                           " bytes, more than can be packed so small");
    if (entry.is_folder() && sizes.unpacked != 0) fail(entry.name, "is a folder with bytes");
    starts_.emplace_back(sizes.offset, out_.entries_.size());
  }
  std::size_t directory_size_and_after() const {
    return static_cast<std::size_t>(all_.data() + all_.size() - directory_.data());
  }

  // Entries that share bytes let a small archive unpack to a huge one.
  void check_overlaps() {
    std::sort(starts_.begin(), starts_.end());
    const std::byte* end = all_.data();
    for (const auto& [start, place] : starts_) {
      const ZipEntry& entry = out_.entries_[place];
      if (all_.data() + start < end) fail(entry.name, "shares bytes with the one before it");
      end = entry.packed.data() + entry.packed.size();
    }
  }

  std::span<const std::byte> all_, directory_;
  Zip& out_;
  std::uint64_t count_ = 0;
  std::vector<std::pair<std::uint64_t, std::size_t>> starts_;
};

Zip::Zip(const std::filesystem::path& path) : file_(path), what_(path.string()) {
  ZipReader(file_.bytes(), *this).read();
}

Zip parse_zip(std::span<const std::byte> bytes, const std::string& what) {
  Zip zip;
  zip.what_ = what;
  ZipReader(bytes, zip).read();
  return zip;
}

void Zip::fail(const ZipEntry& entry, const std::string& text) const {
  throw FileError(what_ + ": entry " + json_quoted(entry.name) + " " + text);
}

const ZipEntry* Zip::find(std::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &entries_[place->second];
}

std::span<const std::byte> Zip::view(const ZipEntry& entry) const {
  if (entry.deflated) fail(entry, "is deflated, expected a stored one");
  return entry.packed;
}

void Zip::inflate(const ZipEntry& entry, const PutBytes& put) const {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  struct Guard {
    z_stream& stream;
    ~Guard() { inflateEnd(&stream); }
  } const guard{stream};
  std::vector<std::byte> piece(static_cast<std::size_t>(std::clamp<std::uint64_t>(entry.size, 64, 1 << 18)));
  std::span<const std::byte> in = entry.packed;
  std::uint64_t left = entry.size;
  for (int status = Z_OK; status != Z_STREAM_END;) {
    const std::size_t given = std::min<std::size_t>(in.size(), 1 << 30);  // zlib counts in 32 bits
    // zlib does not write through next_in; its type is older than const.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(in.data()));
    stream.avail_in = static_cast<uInt>(given);
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    status = ::inflate(&stream, Z_NO_FLUSH);
    const std::size_t made = piece.size() - stream.avail_out;
    const bool stuck = made == 0 && stream.avail_in == given && status != Z_STREAM_END;
    if ((status != Z_OK && status != Z_STREAM_END) || stuck)
      fail(entry, "cannot be inflated: " + std::string(stream.msg != nullptr ? stream.msg : "it ends too early"));
    if (made > left) fail(entry, "inflates to more than the " + std::to_string(entry.size) + " bytes it should have");
    in = in.subspan(given - stream.avail_in);
    left -= made;
    put(std::span(piece).first(made));
  }
  if (left != 0)
    fail(entry, "inflates to " + std::to_string(entry.size - left) + " bytes, expected " + std::to_string(entry.size));
  if (!in.empty()) fail(entry, "has " + std::to_string(in.size()) + " bytes behind its end");
}

void Zip::unpack(const ZipEntry& entry, std::uint64_t most, const PutBytes& put) const {
  if (entry.size > most)
    fail(entry, "has " + std::to_string(entry.size) + " bytes, expected at most " + std::to_string(most));
  uLong checksum = ::crc32(0, nullptr, 0);
  const auto check_and_put = [&](std::span<const std::byte> bytes) {
    checksum = ::crc32_z(checksum, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
    put(bytes);
  };
  if (entry.deflated)
    inflate(entry, check_and_put);
  else if (!entry.packed.empty())
    check_and_put(entry.packed);
  if (checksum != entry.checksum) fail(entry, "fails its checksum: its bytes were changed");
}

std::vector<std::byte> Zip::read(const ZipEntry& entry, std::uint64_t most) const {
  std::vector<std::byte> out;
  unpack(entry, most, [&](std::span<const std::byte> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); });
  return out;
}

}  // namespace attend::io
