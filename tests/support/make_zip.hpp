// Zip archives for tests and fuzzers, with every field open to be made wrong.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

namespace attend::test {

struct ZipMember {
  std::string name, bytes = {};
  bool deflated = false;
  std::uint16_t flags = 0;
  std::string local_extra = {};  // as torch uses it, to put the bytes on a multiple of 64
};

inline std::string little_endian(std::uint64_t x, int bytes) {
  std::string out;
  for (int n = 0; n < bytes; ++n, x >>= 8) out += static_cast<char>(x & 0xFF);
  return out;
}

inline std::string deflated(const std::string& bytes) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, static_cast<uLong>(bytes.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  ::deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string make_zip(const std::vector<ZipMember>& members, bool zip64 = false,
                            const std::string& comment = "") {
  std::string file, directory;
  for (const ZipMember& m : members) {
    const std::string packed = m.deflated ? deflated(m.bytes) : m.bytes;
    const auto crc = ::crc32(0, reinterpret_cast<const Bytef*>(m.bytes.data()), static_cast<uInt>(m.bytes.size()));
    const std::string start = little_endian(20, 2) + little_endian(m.flags, 2) + little_endian(m.deflated ? 8 : 0, 2) +
                              little_endian(0, 4) + little_endian(crc, 4);
    const std::uint64_t all32 = 0xFFFFFFFF;
    const std::string extra = zip64 ? little_endian(1, 2) + little_endian(24, 2) + little_endian(m.bytes.size(), 8) +
                                          little_endian(packed.size(), 8) + little_endian(file.size(), 8)
                                    : "";
    directory += std::string("PK\x01\x02") + little_endian(20, 2) + start +
                 little_endian(zip64 ? all32 : packed.size(), 4) + little_endian(zip64 ? all32 : m.bytes.size(), 4) +
                 little_endian(m.name.size(), 2) + little_endian(extra.size(), 2) + little_endian(0, 10) +
                 little_endian(zip64 ? all32 : file.size(), 4) + m.name + extra;
    file += std::string("PK\x03\x04") + start + little_endian(packed.size(), 4) + little_endian(m.bytes.size(), 4) +
            little_endian(m.name.size(), 2) + little_endian(m.local_extra.size(), 2) + m.name + m.local_extra + packed;
  }
  const std::size_t at = file.size(), end64 = at + directory.size();
  file += directory;
  if (zip64) {
    file += std::string("PK\x06\x06") + little_endian(44, 8) + little_endian(45, 2) + little_endian(45, 2) +
            little_endian(0, 8) + little_endian(members.size(), 8) + little_endian(members.size(), 8) +
            little_endian(directory.size(), 8) + little_endian(at, 8);
    file += std::string("PK\x06\x07") + little_endian(0, 4) + little_endian(end64, 8) + little_endian(1, 4);
  }
  const std::uint64_t count = zip64 ? 0xFFFF : members.size();
  return file + "PK\x05\x06" + little_endian(0, 4) + little_endian(count, 2) + little_endian(count, 2) +
         little_endian(zip64 ? 0xFFFFFFFF : directory.size(), 4) + little_endian(zip64 ? 0xFFFFFFFF : at, 4) +
         little_endian(comment.size(), 2) + comment;
}

}  // namespace attend::test
