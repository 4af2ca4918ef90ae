// A checkpoint is a safetensors file: three arrays, and the rest as its metadata.
#include "llm/train/checkpoint.hpp"

#include <cstring>

#include "io/safetensors.hpp"
#include "io/sha256.hpp"
#include "llm/model/fields.hpp"
#include "llm/model/finite.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kMany = std::int64_t{1} << 60;

std::string state_text(const TrainState& s) {
  io::JsonObject json;
  json.number("step", s.step);
  json.number("epoch", s.data.epoch);
  json.number("document", s.data.document);
  json.number("offset", s.data.offset);
  json.number("best", s.best);
  json.number("best_step", s.best_step);
  json.number("worse", s.worse);
  json.number("tokens", s.tokens);
  json.number("seconds", s.seconds);
  return json.text();
}

TrainState read_state(const std::string& text, const std::string& what) {
  const io::Json json = io::parse_json(text, what);
  const Fields f(json, what);
  const auto whole = [&](const char* name) { return f.integer({name}, 0, kMany); };
  TrainState s;
  s.step = whole("step");
  s.data = {whole("epoch"), whole("document"), whole("offset")};
  s.best_step = whole("best_step"), s.worse = whole("worse"), s.tokens = whole("tokens");
  s.best = f.maybe_number({"best"}, -1e300, 1e300).value_or(0);
  s.seconds = f.maybe_number({"seconds"}, 0, 1e300).value_or(0);
  return s;
}

std::string layout_text(const ParameterLayout& layout) {
  std::string text;
  for (const Parameter& p : layout.all())
    text += p.name + " " + std::to_string(p.rows) + " " + std::to_string(p.cols) + "\n";
  return io::sha256(std::as_bytes(std::span(text)));
}

std::span<const std::byte> bytes_of(const View& flat) {
  return {static_cast<const std::byte*>(flat.data), static_cast<std::size_t>(flat.dim() * size_of(flat.dtype))};
}

}  // namespace

void write_checkpoint(const std::filesystem::path& path, const TrainState& state, const std::string& settings,
                      const ParameterLayout& layout, View parameters, const Moments& moments) {
  const std::vector<std::int64_t> shape = {layout.count()};
  const io::StoredTensor tensors[] = {{"parameters", "F32", shape, bytes_of(parameters)},
                                      {"first", "F32", shape, bytes_of(moments.first.view())},
                                      {"second", "F32", shape, bytes_of(moments.second.view())}};
  io::write_safetensors(path, tensors,
                        {{"state", state_text(state)}, {"settings", settings}, {"parameters", layout_text(layout)}});
}

TrainState read_checkpoint(const std::filesystem::path& path, const std::string& settings,
                           const ParameterLayout& layout, MutableView parameters, Moments& moments) {
  const io::Safetensors file(path);
  const auto note = [&](const char* key) -> std::string {
    for (const auto& [name, value] : file.metadata())
      if (name == key) return value;
    throw io::FileError(path.string() + ": has no \"" + key + "\", expected a checkpoint of attend");
  };
  if (note("settings") != settings)
    throw io::FileError(path.string() +
                        ": belongs to a run with other settings; start a new run, or give back the "
                        "config.json it was made with");
  if (note("parameters") != layout_text(layout))
    throw io::FileError(path.string() + ": holds the parameters of another model");
  const TrainState state = read_state(note("state"), path.string());
  const auto read = [&](const char* name, const MutableView& to) {
    const io::StoredTensor* tensor = file.find(name);
    const auto bytes = bytes_of(to);
    if (tensor == nullptr || tensor->dtype != "F32" || tensor->data.size() != bytes.size())
      throw io::FileError(path.string() + ": \"" + name + "\" is missing or has another size");
    std::memcpy(to.data, tensor->data.data(), bytes.size());
  };
  read("parameters", parameters);
  // Moments may be infinite: a step along them is zero.
  for (const Parameter& p : layout.all())
    check_finite(path.string(), p.name,
                 {static_cast<const float*>(parameters.data) + p.offset, static_cast<std::size_t>(p.count())});
  read("first", moments.first.view());
  read("second", moments.second.view());
  return state;
}

}  // namespace attend::llm
