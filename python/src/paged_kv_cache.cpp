// The paged KV cache, and attention over it.
#include <atomic>

#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {
namespace {

// The cache of C++ leaves it to the caller that changes come alone. From Python threads or a callback they may not:
// such a call is refused.
class GuardedCache {
 public:
  explicit GuardedCache(const PagedKvCacheOptions& options) : cache(options) {}

  // Runs f without the GIL, alone, and to its end: a change that Ctrl-C cut in two would be half a change.
  template <class F>
  auto change(F&& f) {
    int nobody = 0;
    if (!users_.compare_exchange_strong(nobody, -1)) refuse();
    const Leave leave{users_, 1};
    const EngineCall call;
    return f(cache);
  }

  // Runs f without the GIL, beside others of its kind.
  template <class F>
  auto use(F&& f) const {
    int users = users_.load();
    do {
      if (users < 0) refuse();
    } while (!users_.compare_exchange_weak(users, users + 1));
    const Leave leave{users_, -1};
    const EngineCall call;
    return f(cache);
  }

 private:
  struct Leave {
    std::atomic<int>& users;
    int by;
    ~Leave() { users += by; }
  };
  [[noreturn]] static void refuse() {
    throw std::runtime_error(
        "PagedKvCache: another call is at work on this cache; calls that change it must come alone");
  }

  PagedKvCache cache;
  mutable std::atomic<int> users_ = 0;  // -1: one that changes it
};

using Cache = GuardedCache;
using Number = std::int64_t;

}  // namespace

void bind_paged_kv_cache(nb::module_& m) {
  nb::exception<OutOfPages>(m, "OutOfPages", PyExc_RuntimeError).doc() =
      "A PagedKvCache has no room for what was to be kept; nothing was changed.";
  nb::class_<Cache>(m, "PagedKvCache")
      .def(
          "__init__",
          [](Cache* self, const std::string& dtype, Number kv_heads, Number key_dim, Number value_dim, Number pages,
             bool int8) {
            new (self) Cache({.dtype = dtype_named(dtype),
                              .kv_heads = kv_heads,
                              .key_dim = key_dim,
                              .value_dim = value_dim,
                              .pages = pages,
                              .int8 = int8});
          },
          "dtype"_a, "kv_heads"_a, "key_dim"_a, "value_dim"_a, "pages"_a, "int8"_a)
      .def_prop_ro("bytes", [](const Cache& c) { return c.use([](auto& cache) { return cache.bytes(); }); })
      .def_prop_ro("bytes_per_token",
                   [](const Cache& c) { return c.use([](auto& cache) { return cache.bytes_per_token(); }); })
      .def_prop_ro("free_pages", [](const Cache& c) { return c.use([](auto& cache) { return cache.free_pages(); }); })
      .def(
          "length",
          [](const Cache& c, Number sequence) { return c.use([=](auto& cache) { return cache.length(sequence); }); },
          "sequence"_a)
      .def(
          "pages_to_append",
          [](const Cache& c, Number sequence, Number count) {
            return c.use([=](auto& cache) { return cache.pages_to_append(sequence, count); });
          },
          "sequence"_a, "count"_a)
      .def("add", [](Cache& c) { return c.change([](auto& cache) { return cache.add(); }); })
      .def(
          "fork",
          [](Cache& c, Number sequence, Number length) {
            return c.change([=](auto& cache) { return cache.fork(sequence, length); });
          },
          "sequence"_a, "length"_a)
      .def(
          "remove", [](Cache& c, Number sequence) { c.change([=](auto& cache) { cache.remove(sequence); }); },
          "sequence"_a)
      .def(
          "append",
          [](Cache& c, Number sequence, const ArrayView& k, const ArrayView& v) {
            c.change([&](auto& cache) { cache.append(sequence, k.in(), v.in()); });
          },
          "sequence"_a, "k"_a, "v"_a)
      .def(
          "replace",
          [](Cache& c, Number sequence, Number at, const ArrayView& k, const ArrayView& v) {
            c.change([&](auto& cache) { cache.replace(sequence, at, k.in(), v.in()); });
          },
          "sequence"_a, "at"_a, "k"_a, "v"_a)
      .def(
          "truncate",
          [](Cache& c, Number sequence, Number length) {
            c.change([=](auto& cache) { cache.truncate(sequence, length); });
          },
          "sequence"_a, "length"_a)
      .def(
          "forget",
          [](Cache& c, Number sequence, Number first, Number count) {
            c.change([=](auto& cache) { cache.forget(sequence, first, count); });
          },
          "sequence"_a, "first"_a, "count"_a)
      .def(
          "attention",
          [](const Cache& c, const ArrayView& q, const std::vector<Number>& sequences, const ArrayView& out_array,
             const AttentionOptions& options, const std::optional<ArrayView>& lse, const std::optional<ArrayView>& sums,
             nb::object values) {
            AttentionExtras extras{.lse = out("lse", lse)};
            if (sums) extras.row_sums = row_sums_of(sums->out("sums"), values);
            const MutableView result = out_array.out("out");
            c.use([&](auto& cache) { attention(q.in(), cache, sequences, result, options, extras); });
          },
          "q"_a, "sequences"_a, "out"_a, "options"_a, "lse"_a.none(), "sums"_a.none(), "values"_a.none());
}

}  // namespace attend::python
