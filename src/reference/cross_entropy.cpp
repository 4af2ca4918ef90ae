// Cross-entropy over the logits of a projection by its formula, in double, over views of any dtype.
#include "reference/cross_entropy.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/checked.hpp"
#include "base/elements.hpp"
#include "reference/rows.hpp"

namespace attend::reference {
namespace {

std::size_t at(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

struct Row {
  std::int64_t b, h, i, target;
};

// Calls f(row, softmax of its logits, loss) for every row that counts; g(row) for the others.
template <class F, class G>
void for_each_loss(const View& hidden, const View& weight, std::span<const std::int64_t> targets,
                   const CrossEntropyOptions& options, const F& f, const G& g) {
  std::vector<double> p;  // made where a row counts: a vocabulary of no numbers can be as large as a number can say
  std::int64_t n = 0;
  for_each_row({hidden.batch(), hidden.heads(), hidden.length(), 1}, [&](auto b, auto h, auto i) {
    const Row row{b, h, i, targets[at(n++)]};
    if (row.target == options.ignore_index) return g(row);
    checked_product("cross_entropy: bytes of a row's logits", {weight.length(), std::int64_t{sizeof(double)}});
    p.resize(at(weight.length()));
    for (std::int64_t v = 0; v < weight.length(); ++v) {
      p[at(v)] = 0;
      for (std::int64_t d = 0; d < weight.dim(); ++d) p[at(v)] += load(hidden, b, h, i, d) * load(weight, 0, 0, v, d);
    }
    const double most = *std::max_element(p.begin(), p.end()), logit = p[at(row.target)];
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - most);
    for (double& x : p) x /= sum;
    f(row, p, most - logit + std::log(sum));
  });
}

}  // namespace

void cross_entropy(const View& hidden, const View& weight, std::span<const std::int64_t> targets,
                   const MutableView& loss, const CrossEntropyOptions& options) {
  for_each_loss(
      hidden, weight, targets, options,
      [&](const Row& row, const std::vector<double>&, double value) { store(loss, row.b, row.h, row.i, 0, value); },
      [&](const Row& row) { store(loss, row.b, row.h, row.i, 0, 0); });
}

void cross_entropy_backward(const View& dloss, const View& hidden, const View& weight,
                            std::span<const std::int64_t> targets, const CrossEntropyGradients& gradients,
                            const CrossEntropyOptions& options) {
  const std::int64_t D = weight.dim(), V = weight.length();
  std::vector<double> dweight(at(V * D)), dhidden(at(D));
  const auto give = [&](const Row& row, double value) {
    if (gradients.loss) store(*gradients.loss, row.b, row.h, row.i, 0, value);
    for (std::int64_t d = 0; gradients.dhidden && d < D; ++d)
      store(*gradients.dhidden, row.b, row.h, row.i, d, dhidden[at(d)]);
    std::fill(dhidden.begin(), dhidden.end(), 0.0);
  };
  for_each_loss(
      hidden, weight, targets, options,
      [&](const Row& row, const std::vector<double>& p, double value) {
        const double factor = load(dloss, row.b, row.h, row.i, 0);
        for (std::int64_t v = 0; v < V; ++v) {
          const double dz = factor * (p[at(v)] - (v == row.target ? 1 : 0));
          for (std::int64_t d = 0; d < D; ++d) {
            dhidden[at(d)] += dz * load(weight, 0, 0, v, d);
            dweight[at(v * D + d)] += dz * load(hidden, row.b, row.h, row.i, d);
          }
        }
        give(row, value);
      },
      [&](const Row& row) { give(row, 0); });
  for (std::int64_t v = 0; gradients.dweight && D > 0 && v < V; ++v)
    for (std::int64_t d = 0; d < D; ++d) store(*gradients.dweight, 0, 0, v, d, dweight[at(v * D + d)]);
}

}  // namespace attend::reference
