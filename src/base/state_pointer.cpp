// What every use of an object that was moved from throws.
#include "attend/state_pointer.hpp"

#include "base/check.hpp"

namespace attend {

void throw_moved_from(const char* type) {
  fail(type, "this object was moved from and holds nothing; use the one it was moved to, or assign a new one");
}

}  // namespace attend
