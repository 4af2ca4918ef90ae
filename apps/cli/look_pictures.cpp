// The pictures of a look: maps, lines, the sheet of all heads, the next tokens.
#include <fmt/format.h>

#include <algorithm>

#include "draw/labels.hpp"
#include "look.hpp"

namespace attend::cli {
namespace {

constexpr std::int64_t kSheetCells = 24;  // along a side of a small map
constexpr std::int64_t kLineTokens = 64;  // that lines can show

// Shares of attention by cell. What lies behind the diagonal and has no weight is masked.
draw::Grid grid_of(const PooledMap& map, bool peak) {
  draw::Grid grid = draw::grid_of(map.rows, map.cols, 0.0);
  for (std::int64_t r = 0; r < map.rows; ++r) {
    const double queries = static_cast<double>(map.query_of(r + 1) - map.query_of(r));
    for (std::int64_t c = 0; c < map.cols; ++c) {
      const std::int64_t at = r * map.cols + c;
      const double mass = static_cast<double>(map.mass.data<float>()[at]) / queries;
      const bool ahead = map.key_of(c) >= map.query_of(r + 1);
      grid.at(r, c) = ahead && mass == 0 ? draw::kMasked
                      : peak             ? static_cast<double>(map.peak.data<float>()[at])
                                         : mass;
    }
  }
  return grid;
}

// Cells that all hold as many tokens: what axes can name.
MapOptions cells_of(const llm::Look& look, const LensArea& area, std::int64_t most) {
  const std::int64_t queries = area.queries < 0 ? look.length() - area.first_query : area.queries;
  const std::int64_t keys = area.keys < 0 ? look.length() - area.first_key : area.keys;
  const std::int64_t step = std::max<std::int64_t>(1, (std::max(queries, keys) + most - 1) / most);
  return {.area = area, .rows = (queries + step - 1) / step, .cols = (keys + step - 1) / step};
}

draw::TokenAxis axis(const llm::Look& look, const char* name, const LensArea& area, bool queries, std::int64_t cells) {
  const std::int64_t first = queries ? area.first_query : area.first_key, tokens = queries ? area.queries : area.keys;
  draw::TokenAxis axis{.name = name, .first = first, .per_cell = (tokens + cells - 1) / cells, .tokens = tokens};
  if (axis.per_cell == 1 && cells <= draw::kLabelledCells) axis.labels = pieces(look, area, queries);
  return axis;
}

std::string head_title(const Looked& looked, const LookView& view) {
  const llm::HeadType& type = type_of(looked, view.layer, view.head);
  return fmt::format("layer {}, head {}: {}", view.layer, view.head, badge(type.kind));
}

std::vector<std::string> run_lines(const Looked& looked) {
  const llm::Look& look = looked.look;
  std::vector<std::string> lines = {fmt::format("{}, {} tokens", name_of(look.model()), look.length())};
  if (!look.options().switches.empty()) lines.push_back("switched: " + llm::to_text(look.options().switches));
  return lines;
}

void put_axes(draw::HeatMap& picture, const llm::Look& look, const PooledMap& map) {
  picture.down = axis(look, "queries", map.area, true, map.rows);
  picture.across = axis(look, "keys", map.area, false, map.cols);
}

std::string unit_of(const LookView& view) {
  if (view.measure == llm::Measure::weight_value) return "weight x length of the value";
  return view.peak ? "largest weight of the cell" : "share of the query's attention";
}

draw::Bars changes_bars(const Looked& looked, const char* title, const char* unit) {
  draw::Bars bars;
  bars.captions = {title + looked.before_name, run_lines(looked)};
  bars.across.name = unit;
  bars.kinds.push_back({unit});
  return bars;
}

// "14 ␣Bob"
std::string label_of(const llm::Look& look, std::int64_t position) {
  return fmt::format("{} {}", position, draw::token_label(look.tokens()[static_cast<std::size_t>(position)].text));
}

}  // namespace

std::vector<std::string> pieces(const llm::Look& look, const LensArea& area, bool queries) {
  const std::int64_t first = queries ? area.first_query : area.first_key, asked = queries ? area.queries : area.keys;
  const std::int64_t end = asked < 0 ? look.length() : first + asked;
  std::vector<std::string> texts;
  for (std::int64_t i = first; i < end; ++i) texts.push_back(look.tokens()[static_cast<std::size_t>(i)].text);
  return texts;
}

draw::HeatMap map_picture(const Looked& looked, const LookView& view, std::int64_t most_cells) {
  const PooledMap map =
      looked.look.map(view.layer, view.head, cells_of(looked.look, view.area, most_cells), view.measure);
  draw::HeatMap picture;
  picture.captions = {head_title(looked, view), run_lines(looked)};
  picture.values = grid_of(map, view.peak);
  put_axes(picture, looked.look, map);
  picture.colours.unit = unit_of(view);
  return picture;
}

draw::HeatMap difference_picture(const Looked& looked, const LookView& view, std::int64_t most_cells) {
  const MapOptions cells = cells_of(looked.look, view.area, most_cells);
  const PooledMap map = llm::difference(looked.look.map(view.layer, view.head, cells, view.measure),
                                        looked.before->map(view.layer, view.head, cells, view.measure));
  draw::HeatMap picture;
  picture.captions = {fmt::format("layer {}, head {}: against {}", view.layer, view.head, looked.before_name),
                      run_lines(looked)};
  picture.values = grid_of(map, view.peak);
  put_axes(picture, looked.look, map);
  picture.colours.palette = draw::Palette::difference;
  picture.colours.unit = "change of " + unit_of(view);
  return picture;
}

draw::HeatMap changes_picture(const Looked& looked) {
  draw::HeatMap picture;
  picture.captions = {"how much each head's weights differ from " + looked.before_name, run_lines(looked)};
  picture.values = draw::grid_of(looked.look.layers(), looked.look.heads(), draw::kMasked);
  for (const llm::HeadChange& one : looked.changes.heads) picture.values.at(one.layer, one.head) = one.change;
  picture.down.name = "layers";
  picture.across.name = "heads";
  picture.colours.unit = "share of the attention that moved";
  return picture;
}

draw::Bars predictions_picture(const Looked& looked) {
  draw::Bars bars = changes_bars(looked, "the predictions that differ most from ", "KL in nats");
  for (const llm::PredictionChange& one : looked.changes.predictions) {
    bars.labels.push_back(label_of(looked.look, one.position));
    bars.kinds[0].values.push_back(one.divergence);
  }
  return bars;
}

draw::Bars tokens_picture(const Looked& looked) {
  draw::Bars bars = changes_bars(looked, "the tokens whose loss differs most from ", "change in loss, in nats");
  for (const llm::TokenChange& one : looked.changes.tokens) {
    bars.labels.push_back(label_of(looked.look, one.position));
    bars.kinds[0].values.push_back(one.after - one.before);
  }
  return bars;
}

draw::HeadSheet sheet_picture(const Looked& looked) {
  const llm::Look& look = looked.look;
  draw::HeadSheet sheet;
  sheet.captions = {fmt::format("{} layers of {} heads", look.layers(), look.heads()), run_lines(looked)};
  sheet.heads = look.heads();
  sheet.kv_heads = look.kv_heads();
  for (std::int64_t layer = 0; layer < look.layers(); ++layer)
    for (std::int64_t head = 0; head < look.heads(); ++head) {
      draw::HeadSheet::Cell& cell = sheet.cells.emplace_back();
      cell.badge = badge(type_of(looked, layer, head).kind);
      if (look.kept(layer)) cell.map = grid_of(look.map(layer, head, cells_of(look, {}, kSheetCells)), false);
    }
  return sheet;
}

draw::TokenLines lines_picture(const Looked& looked, const LookView& view) {
  const llm::Look& look = looked.look;
  LensArea area = view.area;
  if (area.queries < 0) area.queries = std::min(kLineTokens, look.length() - area.first_query);
  if (area.keys < 0) area.keys = std::min(kLineTokens, look.length() - area.first_key);
  const std::vector<float> weights = look.zoom(view.layer, view.head, area);
  draw::TokenLines lines;
  lines.captions = {head_title(looked, view), run_lines(looked)};
  lines.queries = pieces(look, area, true);
  lines.keys = pieces(look, area, false);
  lines.heads.push_back(
      {fmt::format("{}.{}", view.layer, view.head), draw::grid_of(weights.data(), area.queries, area.keys, false)});
  return lines;
}

draw::Bars next_picture(const Looked& looked) {
  draw::Bars bars;
  bars.captions = {"the next token", run_lines(looked)};
  bars.across.name = "probability";
  const std::vector<llm::NextToken> now = looked.look.next_tokens(-1, looked.next);
  if (!looked.change) {
    bars.kinds.push_back({"probability"});
    for (const llm::NextToken& token : now) {
      bars.labels.push_back(token.text);
      bars.kinds[0].values.push_back(token.probability);
    }
    return bars;
  }
  // Tokens that are likely in either run, with both probabilities.
  const std::vector<float> before = looked.before->next_logits(), after = looked.look.next_logits();
  std::vector<llm::NextToken> shown = looked.change->before;
  for (const llm::NextToken& token : now)
    if (std::none_of(shown.begin(), shown.end(), [&](const llm::NextToken& t) { return t.id == token.id; }))
      shown.push_back(token);
  const std::vector<llm::NextToken> all_before = looked.before->next_tokens(-1, std::ssize(before)),
                                    all_after = looked.look.next_tokens(-1, std::ssize(after));
  const auto probability = [](const std::vector<llm::NextToken>& all, llm::Token id) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const llm::NextToken& t) { return t.id == id; });
    return found == all.end() ? 0.0 : found->probability;
  };
  bars.kinds = {{looked.before_name}, {"this run"}};
  for (const llm::NextToken& token : shown) {
    bars.labels.push_back(token.text);
    bars.kinds[0].values.push_back(probability(all_before, token.id));
    bars.kinds[1].values.push_back(probability(all_after, token.id));
  }
  return bars;
}

}  // namespace attend::cli
