// Where the files lie that other implementations made: tests/golden of this source tree.
#pragma once

#include <filesystem>

namespace attend::test {

std::filesystem::path golden_folder();

}  // namespace attend::test
