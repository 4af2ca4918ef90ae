// Runs cases and compares them.
#include "support/check.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <thread>

#include "attend/attention.hpp"
#include "attend/runtime.hpp"
#include "cpu/dispatch.hpp"
#include "reference/attention.hpp"
#include "support/buffer.hpp"

namespace attend::test {
namespace {

// Multiplications the reference may spend on one problem, about a tenth of a second.
constexpr std::int64_t kReferenceWork = 20'000'000;

std::int64_t work(const Case& c) {
  return c.B * c.H * c.M * c.N * (c.D + c.E) * (c.backward ? 3 : 1);
}

DType wide(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

void check_gaps(const char* what, const Buffer& buffer, std::vector<std::string>& failures) {
  if (!buffer.gaps_are_whole()) failures.push_back(std::string(what) + ": wrote outside its elements");
}

void check_close(const char* what, const std::vector<double>& got, const std::vector<double>& wanted,
                 std::vector<std::string>& failures) {
  for (std::size_t n = 0; n < wanted.size(); ++n) {
    if (got[n] == wanted[n] || std::abs(got[n] - wanted[n]) <= 1e-11 * (1 + std::abs(wanted[n]))) continue;
    failures.push_back(std::string(what) + "[" + std::to_string(n) + "]: the truth is " + std::to_string(got[n]) +
                       ", the reference says " + std::to_string(wanted[n]));
    return;
  }
}

}  // namespace

Computed compute(const Problem& problem, const Case& c, std::vector<std::string>& failures) {
  return compute(problem, c, failures,
                 [&](const Shape& shape, int flavour) { return layout_strides(shape, c.layout, flavour); });
}

Computed compute(const Problem& problem, const Case& c, std::vector<std::string>& failures, const StrideRule& strides) {
  const auto make = [&](DType dtype, const Shape& shape, int flavour) {
    return Buffer(dtype, shape, strides(shape, flavour));
  };
  Buffer q = make(c.dtype, problem.q_shape(), 0);
  Buffer k = make(c.dtype, problem.k_shape(), 1);
  Buffer v = make(c.dtype, problem.v_shape(), 2);
  Buffer out = make(c.dtype, problem.out_shape(), 3);
  Buffer lse = make(wide(c.dtype), problem.lse_shape(), 2);
  q.fill(problem.q);
  k.fill(problem.k);
  v.fill(problem.v);
  const AttentionOptions& options = problem.options(c.dtype);
  attention(q.view(), k.view(), v.view(), out.view(), options, {.lse = lse.view(), .weights = {}});
  check_gaps("out", out, failures);
  check_gaps("lse", lse, failures);

  Computed computed;
  computed.dtype = c.dtype;
  computed.out = out.read();
  computed.lse = lse.read();
  if (!c.backward) return computed;

  Buffer dout = make(c.dtype, problem.out_shape(), 1);
  dout.fill(problem.dout);
  Buffer dq = make(c.dtype, problem.q_shape(), 2);
  Buffer dk = make(c.dtype, problem.k_shape(), 3);
  Buffer dv = make(c.dtype, problem.v_shape(), 0);
  std::optional<Buffer> dbias;
  std::optional<Buffer> dsinks;
  AttentionGradients gradients = {dq.view(), dk.view(), dv.view(), {}, {}};
  if (c.bias != BiasKind::none) {
    dbias.emplace(make(wide(c.dtype), problem.bias_shape, 1));
    gradients.dbias = dbias->view();
  }
  if (c.sinks) {
    dsinks.emplace(make(wide(c.dtype), Shape{1, c.H, 1, 1}, 0));
    gradients.dsinks = dsinks->view();
  }
  attention_backward(dout.view(), q.view(), k.view(), v.view(), out.view(), lse.view(), gradients, options);
  check_gaps("dq", dq, failures);
  check_gaps("dk", dk, failures);
  check_gaps("dv", dv, failures);
  computed.dq = dq.read();
  computed.dk = dk.read();
  computed.dv = dv.read();
  if (dbias) {
    check_gaps("dbias", *dbias, failures);
    computed.dbias = dbias->read();
  }
  if (dsinks) {
    check_gaps("dsinks", *dsinks, failures);
    computed.dsinks = dsinks->read();
  }
  return computed;
}

std::vector<std::string> check_truth(const Problem& problem, const Truth& truth) {
  const auto view = [](const std::vector<float>& x, const Shape& shape) { return view_of(x.data(), shape); };
  const View q = view(problem.q, problem.q_shape());
  const View k = view(problem.k, problem.k_shape());
  const View v = view(problem.v, problem.v_shape());
  const AttentionOptions& options = problem.options(DType::f64);
  std::vector<std::string> failures;

  Buffer out(DType::f64, problem.out_shape(), Layout::bhld);
  Buffer lse(DType::f64, problem.lse_shape(), Layout::bhld);
  reference::attention(q, k, v, out.view(), options, {.lse = lse.view(), .weights = {}});
  check_close("out", truth.results.out, out.read(), failures);
  check_close("lse", truth.results.lse, lse.read(), failures);
  if (!problem.info.backward) return failures;

  Buffer dq(DType::f64, problem.q_shape(), Layout::bhld);
  Buffer dk(DType::f64, problem.k_shape(), Layout::bhld);
  Buffer dv(DType::f64, problem.v_shape(), Layout::bhld);
  Buffer dbias(DType::f64, problem.bias_shape, Layout::bhld);
  Buffer dsinks(DType::f64, {1, problem.info.H, 1, 1}, Layout::bhld);
  AttentionGradients gradients = {dq.view(), dk.view(), dv.view(), {}, {}};
  if (!problem.bias.empty()) gradients.dbias = dbias.view();
  if (!problem.sinks.empty()) gradients.dsinks = dsinks.view();
  reference::attention_backward(view(problem.dout, problem.out_shape()), q, k, v, gradients, options);
  check_close("dq", truth.results.dq, dq.read(), failures);
  check_close("dk", truth.results.dk, dk.read(), failures);
  check_close("dv", truth.results.dv, dv.read(), failures);
  if (!problem.bias.empty()) check_close("dbias", truth.results.dbias, dbias.read(), failures);
  if (!problem.sinks.empty()) check_close("dsinks", truth.results.dsinks, dsinks.read(), failures);
  return failures;
}

namespace {

struct ListedProblem {
  std::vector<Case> cases;  // its dtypes and layouts
  bool thinned = false;     // for the kernels that take a share of the problems too
};

// What the results of one problem are held to, whichever kernels compute them.
struct Expected : ListedProblem {
  std::optional<Problem> problem;
  Truth truth;
  std::map<DType, Results> naive;
  std::vector<std::string> failures;

  void report(const std::string& name, const std::vector<std::string>& texts) {
    for (const std::string& text : texts) failures.push_back(name + ": " + text);
  }

  void prepare(const ListedProblem& listed) {
    static_cast<ListedProblem&>(*this) = listed;
    try {
      problem.emplace(cases.front());
      truth = true_attention(*problem);
      if (work(problem->info) <= kReferenceWork) report(problem->info.problem_name(), check_truth(*problem, truth));
      for (const Case& c : cases)
        if (!naive.contains(c.dtype))
          naive[c.dtype] = c.dtype == DType::f64 ? truth.results : naive_attention(*problem, c.dtype);
    } catch (const std::exception& error) {
      report(cases.front().name(), {std::string("threw ") + error.what()});
      cases.clear();
    }
  }

  // With the kernels in use. f64 has no kernels: once is enough.
  void check(bool with_f64) {
    for (const Case& c : cases) {
      if (c.dtype == DType::f64 && !with_f64) continue;
      const std::string name = std::string(kernels().name) + ": " + c.name();
      try {
        std::vector<std::string> texts;
        const Computed computed = compute(*problem, c, texts);
        report(name, texts);
        report(name, compare(*problem, truth, naive[c.dtype], computed));
      } catch (const std::exception& error) {
        report(name, {std::string("threw ") + error.what()});
      }
    }
  }
};

}  // namespace

std::string sweep_mode() {
  if (const char* mode = std::getenv("ATTEND_SWEEP")) return mode;
  return std::string(kernel_name()) == usable_kernels().front()->name ? "" : "quick";
}

void run_parallel(std::int64_t count, const std::function<void(std::int64_t)>& item) {
  std::atomic<std::int64_t> next = 0;
  const auto work_off = [&] {
    for (std::int64_t n = next++; n < count; n = next++) item(n);
  };
  std::vector<std::thread> threads;
  for (unsigned t = 1; t < std::max(1U, std::thread::hardware_concurrency()); ++t) threads.emplace_back(work_off);
  work_off();
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::string> check_cases(const std::vector<Case>& cases, const std::vector<KernelShare>& shares,
                                     bool progress) {
  std::vector<ListedProblem> problems;
  for (const std::vector<Case>& group : group_by_problem(cases))
    problems.push_back({group, problems.size() % kThinned == 0});
  if (std::ranges::all_of(shares, &KernelShare::thinned))
    std::erase_if(problems, [](const ListedProblem& problem) { return !problem.thinned; });
  // Those of about the same length together, so that no thread is left alone with a long one.
  std::sort(problems.begin(), problems.end(), [](const ListedProblem& a, const ListedProblem& b) {
    return work(a.cases.front()) > work(b.cases.front());
  });
  // The kernels in use are the process's: all threads compute with the same ones, a few problems at a time.
  const KernelTable& before = kernels();
  std::vector<std::string> failures;
  constexpr std::int64_t kTogether = 24;
  for (std::int64_t first = 0; first < std::ssize(problems); first += kTogether) {
    std::vector<Expected> some(static_cast<std::size_t>(std::min(kTogether, std::ssize(problems) - first)));
    const auto of = [&](std::int64_t n) -> Expected& { return some[static_cast<std::size_t>(n)]; };
    run_parallel(std::ssize(some),
                 [&](std::int64_t n) { of(n).prepare(problems[static_cast<std::size_t>(first + n)]); });
    for (const KernelShare& share : shares) {
      use_kernels(*share.table);
      run_parallel(std::ssize(some), [&](std::int64_t n) {
        if (of(n).thinned || !share.thinned) of(n).check(&share == &shares.front());
      });
    }
    for (const Expected& done : some) failures.insert(failures.end(), done.failures.begin(), done.failures.end());
    if (progress && first % (10 * kTogether) == 0) {
      std::printf("  %td of %zu problems, %zu failures\n", first + std::ssize(some), problems.size(), failures.size());
      std::fflush(stdout);
    }
  }
  use_kernels(before);
  std::sort(failures.begin(), failures.end());
  return failures;
}

std::string summary(const std::vector<std::string>& failures) {
  std::string text = std::to_string(failures.size()) + " failures";
  for (std::size_t n = 0; n < std::min<std::size_t>(20, failures.size()); ++n) text.append("\n  ").append(failures[n]);
  return text;
}

}  // namespace attend::test
