// Size arithmetic that cannot wrap.
#include "base/checked.hpp"

#include <string>

#include "attend/error.hpp"

namespace attend {

std::int64_t checked_product(const char* what, std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 1;
  bool has_zero = false;
  bool has_negative = false;
  bool overflow = false;
  for (const std::int64_t factor : factors) {
    has_zero = has_zero || factor == 0;
    has_negative = has_negative || factor < 0;
    overflow = __builtin_mul_overflow(product, factor, &product) || overflow;
  }
  if (has_zero && !has_negative) return 0;  // whatever the other factors are
  if (!has_negative && !overflow) return product;

  std::string text;
  for (const std::int64_t factor : factors) text += (text.empty() ? "" : " x ") + std::to_string(factor);
  throw InvalidArgument(std::string(what) + " is " + text +
                        (has_negative ? ", expected no negative factor" : ", expected a product below 2^63"));
}

}  // namespace attend
