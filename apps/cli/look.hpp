// What `attend look` was asked for, and what it has seen: for its printing, its pictures and its files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attend/llm/look.hpp"
#include "draw/html.hpp"
#include "draw/picture.hpp"
#include "draw/terminal.hpp"

namespace attend::cli {

struct LookView {  // what of the chosen head is shown
  std::int64_t layer = 0, head = 0;
  LensArea area{};
  llm::Measure measure = llm::Measure::weight;
  bool peak = false;
};

// One look: a run, its head types, and a plain run beside it where there are switches (or another text).
struct Looked {
  llm::Look look;
  std::vector<llm::HeadType> types;
  std::optional<llm::Look> before{};
  std::optional<llm::LookComparison> change{};
  llm::LookChanges changes{};  // what differs most from `before`
  std::string before_name{};   // "the plain run", ...
  LookView view{};
  std::int64_t next = 5;
};

const llm::HeadType& type_of(const Looked& looked, std::int64_t layer, std::int64_t head);
// "previous 0.62"
std::string badge(const llm::KindScore& score);
std::string name_of(const llm::ModelInfo& model);  // of its file, or of the embedded one
std::vector<std::string> pieces(const llm::Look& look, const LensArea& area, bool queries);

// ---- printed ----
// Whether rows are rounded before products with quantised weights; nothing for a model without any.
void print_compute(const llm::ModelInfo& info);
void print_look(const Looked& looked, const draw::Screen& screen);
void print_statistics(const Looked& looked);
void print_query(const Looked& looked, std::int64_t query, std::int64_t count);
void print_cell(const Looked& looked, std::int64_t query, std::int64_t key);
void print_relations(const std::vector<llm::RelationReport>& reports, const draw::Screen& screen);

// ---- pictures ----
draw::HeatMap map_picture(const Looked& looked, const LookView& view, std::int64_t most_cells);
draw::HeatMap difference_picture(const Looked& looked, const LookView& view, std::int64_t most_cells);
draw::HeadSheet sheet_picture(const Looked& looked);
draw::TokenLines lines_picture(const Looked& looked, const LookView& view);
draw::Bars next_picture(const Looked& looked);
draw::HeatMap changes_picture(const Looked& looked);  // of every head's weights
draw::Bars predictions_picture(const Looked& looked);
draw::Bars tokens_picture(const Looked& looked);

// ---- files ----
std::string look_json(const Looked& looked);
std::string relations_json(const std::vector<llm::RelationReport>& reports);
// A folder gets everything, a file what its ending says: .png, .svg, .pdf, .json, .npy or .html. `kind` is the picture
//
// of a file: map, dots, lines, distance, sheet, next, difference, changes, predictions or tokens. The paths that were
// written.
std::vector<std::string> write_look(const Looked& looked, const std::string& out, const std::string& kind,
                                    draw::Theme theme);

}  // namespace attend::cli
