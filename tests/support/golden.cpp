// The folder is compiled in here alone: __FILE__ is relative under some compiler caches.
#include "support/golden.hpp"

namespace attend::test {

std::filesystem::path golden_folder() {
  return ATTEND_GOLDEN_FOLDER;
}

}  // namespace attend::test
