// Bytes as text.
#pragma once

#include <string>
#include <string_view>

namespace attend::io {

std::string base64(std::string_view bytes);  // with the padding

}  // namespace attend::io
