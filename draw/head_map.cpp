// Where one head looks, and how bright it is drawn.
#include "draw/head_map.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace attend::draw {

double HeadMap::brightest() const {
  std::vector<double> seen;
  std::copy_if(shares.begin(), shares.end(), std::back_inserter(seen), [](double x) { return !std::isnan(x); });
  const auto at = seen.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(seen.size() - 1) * 0.995);
  std::nth_element(seen.begin(), at, seen.end());
  if (*at <= 0) return 1;
  const double digit = std::pow(10.0, std::floor(std::log10(*at)));
  return std::round(*at / digit) * digit;
}

}  // namespace attend::draw
