// JSON from bytes: what is read can be written, and read again as the same.
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "io/json.hpp"
#include "io/json_view.hpp"
#include "seeded.hpp"

namespace attend::test {
namespace {

using io::Json;

std::string written(const Json& value) {
  if (value.is_null()) return "null";
  if (const bool* x = value.boolean()) return *x ? "true" : "false";
  if (const std::int64_t* x = value.integer()) return std::to_string(*x);
  if (const std::string* x = value.string()) return io::json_quoted(*x);
  std::string out;
  if (const Json::Array* items = value.array()) {
    for (const Json& item : *items) out += (out.empty() ? "" : ",") + written(item);
    return "[" + out + "]";
  }
  if (const Json::Object* fields = value.object()) {
    for (const auto& [key, item] : *fields)
      out += (out.empty() ? "" : ",") + io::json_quoted(key) + ":" + written(item);
    return "{" + out + "}";
  }
  double x = 0;
  if (!value.number(x) || !std::isfinite(x)) stop("a value of no kind, or a number that is none");
  char text[40];
  (void)std::snprintf(text, sizeof text, "%.17e", x);
  return text;
}

constexpr io::JsonLimits kLimits{.bytes = 1 << 20, .depth = 32};

// What reads in place refuses the same texts, with the same words.
void check_view(std::string_view text, const std::string& expected) {
  std::string error;
  try {
    (void)io::view_json(text, "fuzz", kLimits);
  } catch (const io::FileError& e) {
    error = e.what();
  }
  if (error != expected) stop("read in place: " + error + "\nnot: " + expected);
}

void run(std::string_view text) {
  Json value;
  try {
    value = io::parse_json(text, "fuzz", kLimits);
  } catch (const io::FileError& error) {
    if (!std::string_view(error.what()).starts_with("fuzz: ")) stop("an error without its place");
    return check_view(text, error.what());
  }
  check_view(text, "");
  const std::string once = written(value);
  if (written(io::parse_json(once, "again")) != once) stop("it reads differently: " + once);
}

}  // namespace
}  // namespace attend::test

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  static const std::vector<std::string> kExamples = {
      R"({"a":[1,-2.5e3,true,false,null,"x\u00e9\ud83d\ude00\n"],"b":{"c":{}},"":[[]]})",
      R"( {"dtype" : "F32", "shape" : [2, 3], "data_offsets" : [0, 24]} )"};
  return attend::test::mutate_or_begin(data, size, most, seed, kExamples);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  attend::test::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
