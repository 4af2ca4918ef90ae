// Bytes as text, against the words of RFC 4648.
#include "io/base64.hpp"

#include <gtest/gtest.h>

namespace attend::io {
namespace {

TEST(Base64, IsThatOfTheStandard) {
  const std::pair<const char*, const char*> all[] = {{"", ""},
                                                     {"f", "Zg=="},
                                                     {"fo", "Zm8="},
                                                     {"foo", "Zm9v"},
                                                     {"foob", "Zm9vYg=="},
                                                     {"fooba", "Zm9vYmE="},
                                                     {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : all) EXPECT_EQ(base64(bytes), text);
  EXPECT_EQ(base64(std::string("\xff\xfe\x00\xfb", 4)), "//4A+w==");
}

}  // namespace
}  // namespace attend::io
