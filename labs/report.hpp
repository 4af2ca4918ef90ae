// What a lab hands back: blocks of text, tables and figures as data, the numbers it measured, and conclusions from
// them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "labs/text.hpp"

namespace attend::labs {

// The measured values that conclusions are made from, by name.
class Numbers {
 public:
  void put(const std::string& name, double value) { values_[name] = value; }
  double at(std::string_view name) const;  // std::logic_error for a name that nobody measured
  const std::map<std::string, double, std::less<>>& all() const { return values_; }

 private:
  std::map<std::string, double, std::less<>> values_;
};

using Rows = std::vector<std::vector<double>>;

struct Table {
  Text title;
  std::vector<Text> columns;
  std::vector<std::vector<Text>> rows;  // as many cells as columns
};

// A matrix, drawn as cells. NaN: hidden.
struct MapFigure {
  std::string name;  // of its files, and in JSON
  Text title;
  std::vector<Text> row_labels, column_labels;  // empty: numbers
  Text rows_are, columns_are;                   // what runs down, what runs across
  Rows values;
  bool digits = false;  // small enough for its numbers to be read
};

struct Curve {
  Text name;
  std::vector<std::pair<double, double>> points;  // x rising
};
struct CurvesFigure {
  std::string name;
  Text title, across, up;  // what x and y are
  std::vector<Curve> curves;
  bool log_x = false, log_y = false;
};

using Block = std::variant<Text, Table, MapFigure, CurvesFigure>;

// A claim held against the run: `text` is the sentence for what came out.
struct Conclusion {
  std::string name;
  bool holds = false;
  Text text;
  bool decided = true;  // not where it failed with sizes that are too small to judge it
};
inline Conclusion conclude(std::string name, bool holds, Text yes, Text no) {
  return {std::move(name), holds, holds ? std::move(yes) : std::move(no)};
}

struct Results {
  std::vector<Block> blocks;
  Numbers numbers;

  void add(Block block) { blocks.push_back(std::move(block)); }
  template <class Number>
  void put(const std::string& name, Number value) {
    numbers.put(name, static_cast<double>(value));
  }
};

}  // namespace attend::labs
