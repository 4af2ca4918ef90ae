// The programs that call a learner's functions, as text.
#include "labs/exercises/drivers.hpp"

namespace attend::labs {

const char* const kPythonDriver = R"PY(
import ctypes.util, importlib.util, os, sys, tempfile, traceback
# Importing PyTorch must not write: searching a folder for temporary files does, and a library by asking a compiler.
tempfile.tempdir = os.getcwd()
ctypes.util._findLib_gcc = lambda name: None
learner = sys.argv[1]
cases_text = sys.stdin.read()
answers = os.fdopen(3, "w", encoding="utf-8", errors="backslashreplace")
def say(*words):
    answers.write(" ".join(str(w) for w in words) + "\n")
    answers.flush()
def one_line(error):
    lines = traceback.extract_tb(error.__traceback__)
    place = next((f" (line {f.lineno})" for f in reversed(lines) if f.filename == learner), "")
    return (type(error).__name__ + ": " + str(error)).replace("\n", " ")[:300] + place
try:
    import numpy as np
except ImportError:
    say("fatal numpy")
    sys.exit(0)
def real_tokens():
    for line in cases_text.splitlines():
        yield from line.split()
def read_cases():
    token = real_tokens()
    for word in token:
        assert word == "case", word
        case = {"exercise": next(token), "arrays": {}, "numbers": {}}
        for word in token:
            if word == "end":
                break
            name = next(token)
            if word == "array":
                kind, rank = next(token), int(next(token))
                shape = [int(next(token)) for _ in range(rank)]
                count = 1
                for side in shape:
                    count *= side
                values = [float(next(token)) for _ in range(count)]
                dtype = {"f": np.float32, "i": np.int64, "b": np.bool_}[kind]
                case["arrays"][name] = np.array(values, dtype=np.float64).astype(dtype).reshape(shape)
            elif word == "whole":
                case["numbers"][name] = int(next(token))
            else:
                case["numbers"][name] = float(next(token))
        yield case
def reference_rope(theta):
    def rope(x, positions):
        x = as_numpy(x)
        d = x.shape[-1]
        angle = np.asarray(positions, dtype=np.float64)[:, None] * theta ** (-2.0 * np.arange(d // 2) / d)
        c, s = np.cos(angle), np.sin(angle)
        a, b = x[..., : d // 2].astype(np.float64), x[..., d // 2 :].astype(np.float64)
        return given(np.concatenate([a * c - b * s, a * s + b * c], axis=-1).astype(np.float32))
    return rope
def as_numpy(x):
    return x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)
def run_cache(function, case):
    a = case["arrays"]
    cache, outputs, at = function(), [], 0
    rope = reference_rope(case["numbers"]["theta"])
    for count in a["chunks"]:
        part = [given(np.ascontiguousarray(a[n][:, :, at : at + count])) for n in ("q", "k", "v")]
        out = cache.step(*part, at, rope)
        if out is None:
            return None
        outputs.append(as_numpy(out))
        at += int(count)
    return np.concatenate(outputs, axis=2)
def call(function, case):
    a, n = case["arrays"], case["numbers"]
    x = {name: given(value.copy()) for name, value in a.items()}
    kept = {name: value.copy() for name, value in a.items()}
    e = case["exercise"]
    if e == "softmax":
        out = function(x["x"])
    elif e == "scaled_dot_product_attention":
        out = function(x["q"], x["k"], x["v"], x["mask"]) if "mask" in x else function(x["q"], x["k"], x["v"])
    elif e == "multi_head_attention":
        out = function(x["x"], x["wq"], x["wk"], x["wv"], x["wo"], n["heads"])
    elif e == "repeat_kv":
        out = function(x["k"], n["groups"])
    elif e == "rope":
        out = function(x["x"], x["positions"], n["theta"])
    elif e == "causal_mask":
        out = function(n["m"], n["n"])
    else:
        return run_cache(function, case), []
    changed = [name for name, value in x.items() if not np.array_equal(as_numpy(value), kept[name], equal_nan=value.dtype != bool and kept[name].dtype.kind == "f")]
    return out, changed
say("begin", "load")
try:
    spec = importlib.util.spec_from_file_location("learner", learner)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
except SystemExit:
    say("fatal exit")
    sys.exit(0)
except MemoryError:
    say("fatal memory")
    sys.exit(0)
except BaseException as error:
    say("fatal error", one_line(error))
    sys.exit(0)
torch = sys.modules.get("torch") if hasattr(module, "torch") else None
def given(x):
    return torch.from_numpy(x) if torch is not None else x
names = {c["exercise"] for c in read_cases()}
say("has", *[n for n in sorted(names) if callable(getattr(module, n, None))])
for index, case in enumerate(read_cases()):
    function = getattr(module, case["exercise"], None)
    if not callable(function):
        continue
    say("begin", index)
    try:
        with np.errstate(all="ignore"):
            out, changed = call(function, case)
        for name in changed:
            say("changed", name)
        if out is None:
            say("none")
        else:
            dtype = str(getattr(out, "dtype", type(out).__name__)).replace("torch.", "")
            out = as_numpy(out)
            if out.dtype.kind not in "fiub":
                say("error", "returned " + str(out.dtype))
                continue
            say("answer", dtype, out.ndim, *out.shape, *[repr(float(v)) for v in out.astype(np.float64).ravel()])
    except NotImplementedError:
        say("unwritten")
    except SystemExit:
        say("exit")
    except MemoryError:
        say("memory")
    except BaseException as error:
        say("error", one_line(error))
say("done")
)PY";

const char* const kCppDriver = R"CPP(
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <vector>
  namespace lab_driver {
  struct Array {
    std::vector<std::int64_t> shape;
    std::vector<float> data;
  };
  struct Case {
    std::string exercise;
    std::map<std::string, Array> arrays;
    std::map<std::string, double> numbers;
  };
  static float* real(Case& c, const char* name) {
    return c.arrays[name].data.data();
  }
  static int side(Case& c, const char* name, int n) {
    return static_cast<int>(c.arrays[name].shape[static_cast<std::size_t>(n)]);
  }
  static int whole(Case& c, const char* name) {
    return static_cast<int>(c.numbers[name]);
  }
  static bool read(std::istream& in, Case& c) {
    std::string word, name, kind;
    if (!(in >> word >> c.exercise)) return false;
    while (in >> word && word != "end") {
      in >> name;
      if (word != "array") {
        std::string value;
        in >> value;
        c.numbers[name] = std::strtod(value.c_str(), nullptr);
        continue;
      }
      int rank = 0;
      in >> kind >> rank;
      Array a;
      std::int64_t count = 1;
      for (int n = 0; n < rank; ++n) {
        std::int64_t s;
        in >> s;
        a.shape.push_back(s);
        count *= s;
      }
      for (std::int64_t n = 0; n < count; ++n) {
        std::string value;
        in >> value;
        a.data.push_back(std::strtof(value.c_str(), nullptr));
      }
      c.arrays[name] = a;
    }
    return true;
  }
  static Array make(std::vector<std::int64_t> shape) {
    Array a;
    a.shape = shape;
    std::int64_t count = 1;
    for (auto s : shape) count *= s;
    a.data.assign(static_cast<std::size_t>(count), std::nanf(""));
    return a;
  }
  static void put(std::ostream& out, const Array& a, const char* dtype) {
    out << "answer " << dtype << " " << a.shape.size();
    for (auto s : a.shape) out << " " << s;
    char text[40];
    for (float v : a.data) {
      std::snprintf(text, sizeof text, " %.9g", static_cast<double>(v));
      out << text;
    }
    out << "\n";
  }
  static std::vector<std::int64_t> shape4(int a, int b, int c, int d) {
    return {a, b, c, d};
  }
  static void run(Case& c, std::ostream& out) {
    Array y;
#ifdef HAS_softmax
    if (c.exercise == "softmax") {
      y = make(c.arrays["x"].shape);
      softmax(real(c, "x"), y.data.data(), side(c, "x", 0), side(c, "x", 1));
      return put(out, y, "float32");
    }
#endif
#ifdef HAS_scaled_dot_product_attention
    if (c.exercise == "scaled_dot_product_attention") {
      const int B = side(c, "q", 0), H = side(c, "q", 1), M = side(c, "q", 2), D = side(c, "q", 3), N = side(c, "k", 2),
                E = side(c, "v", 3);
      std::unique_ptr<bool[]> mask;
      if (c.arrays.count("mask")) {
        mask.reset(new bool[static_cast<std::size_t>(M * N)]);
        for (int n = 0; n < M * N; ++n)
          mask[static_cast<std::size_t>(n)] = c.arrays["mask"].data[static_cast<std::size_t>(n)] != 0;
      }
      y = make(shape4(B, H, M, E));
      scaled_dot_product_attention(real(c, "q"), real(c, "k"), real(c, "v"), mask.get(), y.data.data(), B, H, M, N, D, E);
      return put(out, y, "float32");
    }
#endif
#ifdef HAS_multi_head_attention
    if (c.exercise == "multi_head_attention") {
      y = make(c.arrays["x"].shape);
      multi_head_attention(real(c, "x"), real(c, "wq"), real(c, "wk"), real(c, "wv"), real(c, "wo"), y.data.data(),
                           side(c, "x", 0), side(c, "x", 1), side(c, "x", 2), whole(c, "heads"));
      return put(out, y, "float32");
    }
#endif
#ifdef HAS_repeat_kv
    if (c.exercise == "repeat_kv") {
      const int B = side(c, "k", 0), H = side(c, "k", 1), L = side(c, "k", 2), D = side(c, "k", 3),
                G = whole(c, "groups");
      y = make(shape4(B, H * G, L, D));
      repeat_kv(real(c, "k"), y.data.data(), B, H, L, D, G);
      return put(out, y, "float32");
    }
#endif
#ifdef HAS_rope
    if (c.exercise == "rope") {
      std::vector<int> positions;
      for (float p : c.arrays["positions"].data) positions.push_back(static_cast<int>(p));
      y = make(c.arrays["x"].shape);
      rope(real(c, "x"), positions.data(), y.data.data(), side(c, "x", 0), side(c, "x", 1), side(c, "x", 2),
           side(c, "x", 3), c.numbers["theta"]);
      return put(out, y, "float32");
    }
#endif
#ifdef HAS_causal_mask
    if (c.exercise == "causal_mask") {
      const int M = whole(c, "m"), N = whole(c, "n");
      std::unique_ptr<bool[]> mask(new bool[static_cast<std::size_t>(M * N)]());
      causal_mask(mask.get(), M, N);
      y = make({M, N});
      for (int n = 0; n < M * N; ++n)
        y.data[static_cast<std::size_t>(n)] = mask[static_cast<std::size_t>(n)] ? 1.0F : 0.0F;
      return put(out, y, "bool");
    }
#endif
#ifdef HAS_KVCache
    if (c.exercise == "KVCache") {
      const int B = side(c, "q", 0), H = side(c, "q", 1), T = side(c, "q", 2), D = side(c, "q", 3);
      const double theta = c.numbers["theta"];
      const auto given_rope = [theta](const float* x, const int* positions, float* r, int b, int h, int l, int d) {
        for (int row = 0; row < b * h * l; ++row)
          for (int i = 0; i < d / 2; ++i) {
            const double angle = positions[row % l] * std::pow(theta, -2.0 * i / d), u = x[row * d + i],
                         v = x[row * d + i + d / 2];
            r[row * d + i] = static_cast<float>(u * std::cos(angle) - v * std::sin(angle));
            r[row * d + i + d / 2] = static_cast<float>(u * std::sin(angle) + v * std::cos(angle));
          }
      };
      y = make(c.arrays["q"].shape);
      KVCache cache;
      int at = 0;
      for (float size : c.arrays["chunks"].data) {
        const int count = static_cast<int>(size);
        const auto part = [&](const char* name) {
          std::vector<float> p;
          for (int bh = 0; bh < B * H; ++bh)
            p.insert(p.end(), real(c, name) + (bh * T + at) * D, real(c, name) + (bh * T + at + count) * D);
          return p;
        };
        const std::vector<float> q = part("q"), k = part("k"), v = part("v");
        std::vector<float> result(static_cast<std::size_t>(B * H * count * D), std::nanf(""));
        cache.step(q.data(), k.data(), v.data(), at, given_rope, result.data(), B, H, count, D);
        for (int bh = 0; bh < B * H; ++bh)
          for (int n = 0; n < count * D; ++n)
            y.data[static_cast<std::size_t>((bh * T + at) * D + n)] =
                result[static_cast<std::size_t>(bh * count * D + n)];
        at += count;
      }
      return put(out, y, "float32");
    }
#endif
    (void)y;
    (void)c;
    (void)out;
    (void)&shape4;
    (void)&whole;
    (void)&side;
    (void)&real;
    (void)&make;
    (void)&put;
  }
  static const char* const kHas =
#ifdef HAS_softmax
      " softmax"
#endif
#ifdef HAS_scaled_dot_product_attention
      " scaled_dot_product_attention"
#endif
#ifdef HAS_multi_head_attention
      " multi_head_attention"
#endif
#ifdef HAS_repeat_kv
      " repeat_kv"
#endif
#ifdef HAS_rope
      " rope"
#endif
#ifdef HAS_causal_mask
      " causal_mask"
#endif
#ifdef HAS_KVCache
      " KVCache"
#endif
      "";
  }  // namespace lab_driver
  int main() {
    std::ostringstream out;
    std::FILE* answers = fdopen(3, "w");
    const auto send = [&] {
      const std::string text = out.str();
      std::fwrite(text.data(), 1, text.size(), answers);
      std::fflush(answers);
      out.str("");
    };
    out << "begin load\nhas" << lab_driver::kHas << "\n";
    const std::string has = std::string(lab_driver::kHas) + " ";
    lab_driver::Case c;
    for (int index = 0; lab_driver::read(std::cin, c); ++index, c = {}) {
      if (has.find(" " + c.exercise + " ") == std::string::npos) continue;
      out << "begin " << index << "\n";
      send();
      try {
        lab_driver::run(c, out);
      } catch (const std::bad_alloc&) {
        out << "memory\n";
      } catch (const std::exception& error) {
        const std::string what = error.what();
        out << (what == "not written yet" ? "unwritten" : "error " + what) << "\n";
      } catch (...) {
        out << "error it threw something that is no exception\n";
      }
      send();
    }
    out << "done\n";
    send();
  }
)CPP";

}  // namespace attend::labs
