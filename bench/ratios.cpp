// The chart of ratios to PyTorch: bars from 1x on a logarithmic axis, so that twice as fast and twice as slow are as
// long.
#include "ratios.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>
#include <vector>

#include "draw/picture.hpp"
#include "io/atomic_file.hpp"
#include "io/json.hpp"

namespace attend::bench {
namespace {

constexpr const char* kRival = "PyTorch SDPA";

const io::Json& at(const io::Json& json, std::initializer_list<const char*> path) {
  const io::Json* here = &json;
  for (const char* key : path) {
    here = here->find(key);
    if (here == nullptr)
      throw std::runtime_error(fmt::format("the figures have no \"{}\": run.py --json writes them", key));
  }
  return *here;
}

std::string text_at(const io::Json& json, std::initializer_list<const char*> path) {
  const io::Json& value = at(json, path);
  if (value.string() == nullptr)
    throw std::runtime_error(fmt::format("the figures have {} where a text belongs", value.kind()));
  return *value.string();
}

double number_at(const io::Json& json, std::initializer_list<const char*> path) {
  double number = 0;
  if (!at(json, path).number(number)) throw std::runtime_error("the figures have no number where one belongs");
  return number;
}

std::string warning_of(const io::Json& card) {
  const io::Json *busy = card.find("busy"), *share = card.find("others_cpu_share");
  if (busy == nullptr || busy->boolean() == nullptr || !*busy->boolean()) return "";
  double taken = 0;
  const bool known = share != nullptr && share->number(taken);
  return fmt::format("Made on a BUSY machine{}; not fit to be published.",
                     known ? fmt::format(": others took {:.0f} % of the CPUs", 100 * taken) : "");
}

std::string ratio_label(double ratio) {
  return ratio < 9.95 ? fmt::format("{:.2f}", ratio) : fmt::format("{:.0f}", ratio);
}

// The place of a shape among the labels; it is added where it is new.
std::size_t place_of(draw::Bars& bars, const std::string& shape) {
  const auto found = std::find(bars.labels.begin(), bars.labels.end(), shape);
  if (found != bars.labels.end()) return static_cast<std::size_t>(found - bars.labels.begin());
  bars.labels.push_back(shape);
  for (draw::Bars::Kind& kind : bars.kinds) {
    kind.values.push_back(std::nan(""));
    kind.spread.emplace_back(std::nan(""), std::nan(""));
  }
  return bars.labels.size() - 1;
}

void add_row(draw::Bars& bars, const io::Json& row) {
  const io::Json* rival = at(row, {"peers"}).find(kRival);
  if (rival == nullptr || text_at(*rival, {"status"}) != "ok") return;
  const std::string direction = text_at(row, {"direction"}), dtype = text_at(row, {"dtype"});
  const std::size_t place = place_of(bars, text_at(row, {"shape"}));
  const std::string name = dtype == "f32" ? "float32" : "bfloat16";
  for (draw::Bars::Kind& kind : bars.kinds) {
    if (kind.panel != direction || kind.name != name) continue;
    kind.values[place] = number_at(*rival, {"ratio", "median"});
    kind.spread[place] = {number_at(*rival, {"ratio", "low"}), number_at(*rival, {"ratio", "high"})};
  }
}

draw::Bars bars_of(const io::Json& figures) {
  const io::Json& card = at(figures, {"machine"});
  const std::string version = text_at(card, {"versions", kRival});
  draw::Bars bars{
      .captions = {fmt::format("attend: how many times as fast as PyTorch {}", version.substr(0, version.find('+'))),
                   {fmt::format("{}, {:.0f} threads, {}. Median of interleaved rounds, thin line: quartiles. "
                                "Right of 1× attend is faster.",
                                text_at(card, {"cpu", "model"}), number_at(card, {"threads"}),
                                text_at(card, {"date"}).substr(0, 10))},
                   warning_of(card)},
      .kinds = {},
      .across = {"", 2, [](double v) { return fmt::format("{:g}×", v); }},
      .origin = 1,
      .label = ratio_label};
  for (const char* direction : {"forward", "backward"})
    for (const char* name : {"float32", "bfloat16"}) bars.kinds.push_back({name, {}, {}, direction});
  const io::Json::Array* rows = at(figures, {"rows"}).array();
  if (rows == nullptr) throw std::runtime_error("the figures have no list of rows");
  for (const io::Json& row : *rows) add_row(bars, row);
  if (bars.labels.empty())
    throw std::runtime_error(fmt::format("no row has a ratio to {}: there is no chart to draw", kRival));
  // A direction or format that was not measured has no place.
  std::erase_if(bars.kinds, [](const draw::Bars::Kind& kind) {
    return std::all_of(kind.values.begin(), kind.values.end(), [](double v) { return std::isnan(v); });
  });
  return bars;
}

}  // namespace

void draw_ratios(const std::string& figures, const std::string& svg) {
  const std::string text = draw::to_svg(bars_of(io::read_json(figures)), {.theme = draw::Theme::readers});
  io::write_file_atomically(svg, std::as_bytes(std::span(text)));
}

}  // namespace attend::bench
