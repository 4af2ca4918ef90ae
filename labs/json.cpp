// A lab and its report as JSON, in both languages.
#include <cmath>

#include "io/json.hpp"
#include "labs/lab.hpp"

namespace attend::labs {
namespace {

std::string json_of(const Text& text) {
  io::JsonObject object;
  object.string("en", text.en);
  object.string("zh", text.zh);
  return object.text();
}

template <class Items, class Write>
std::string list_of(const Items& items, const Write& write) {
  std::string text = "[";
  for (const auto& item : items) {
    if (text.size() > 1) text += ",";
    text += write(item);
  }
  return text + "]";
}

std::string texts(const std::vector<Text>& list) {
  return list_of(list, [](const Text& text) { return json_of(text); });
}

std::string json_of(const Table& table) {
  io::JsonObject object;
  object.string("kind", "table");
  object.put("title", json_of(table.title));
  object.put("columns", texts(table.columns));
  object.put("rows", list_of(table.rows, texts));
  return object.text();
}

std::string json_of(const MapFigure& map) {
  io::JsonObject object;
  object.string("kind", "map");
  object.string("name", map.name);
  object.put("title", json_of(map.title));
  object.put("rows_are", json_of(map.rows_are));
  object.put("columns_are", json_of(map.columns_are));
  object.put("row_labels", texts(map.row_labels));
  object.put("column_labels", texts(map.column_labels));
  object.put("values", list_of(map.values, [](const std::vector<double>& row) {
               return list_of(row, [](double value) { return io::json_number(value); });
             }));
  object.truth("digits", map.digits);
  return object.text();
}

std::string json_of(const CurvesFigure& figure) {
  io::JsonObject object;
  object.string("kind", "curves");
  object.string("name", figure.name);
  object.put("title", json_of(figure.title));
  object.put("across", json_of(figure.across));
  object.put("up", json_of(figure.up));
  object.truth("log_x", figure.log_x);
  object.truth("log_y", figure.log_y);
  object.put("curves", list_of(figure.curves, [](const Curve& curve) {
               io::JsonObject one;
               one.put("name", json_of(curve.name));
               one.put("points", list_of(curve.points, [](const auto& point) {
                         return fmt::format("[{},{}]", io::json_number(point.first), io::json_number(point.second));
                       }));
               return one.text();
             }));
  return object.text();
}

std::string json_of(const Block& block) {
  if (const auto* text = std::get_if<Text>(&block)) {
    io::JsonObject object;
    object.string("kind", "text");
    object.put("text", json_of(*text));
    return object.text();
  }
  return std::visit([](const auto& other) { return json_of(other); }, block);
}

void put_lab(io::JsonObject& object, const Lab& lab, const Arguments& arguments) {
  object.string("name", lab.name);
  object.put("title", json_of(lab.title));
  object.put("question", json_of(lab.question));
  object.put("lesson", json_of(lab.lesson));
  object.put("guess", json_of(lab.guess));
  object.put("why", texts(lab.why));
  object.number("about_seconds", std::int64_t{lab.seconds});
  object.number("minutes", std::int64_t{lab.minutes});
  object.put("parameters", list_of(lab.parameters, [&](const Parameter& p) {
               io::JsonObject one;
               one.string("name", p.name);
               one.put("help", json_of(p.help));
               one.string("value", arguments.text(p.name));
               if (p.words) {
                 one.string("preset", p.preset_words);
               } else {
                 one.number("preset", p.preset);
                 one.number("least", p.least);
                 one.number("most", p.most);
               }
               return one.text();
             }));
}

}  // namespace

std::string to_json(const Lab& lab) {
  io::JsonObject object;
  put_lab(object, lab, Arguments(lab.parameters, {}));
  return object.text();
}

std::string to_json(const Report& report) {
  io::JsonObject object, numbers;
  put_lab(object, *report.lab, report.arguments);
  object.put("blocks", list_of(report.results.blocks, [](const Block& block) { return json_of(block); }));
  for (const auto& [name, value] : report.results.numbers.all()) numbers.number(name, value);
  object.put("numbers", numbers.text());
  object.put("conclusions", list_of(report.conclusions, [](const Conclusion& conclusion) {
               io::JsonObject one;
               one.string("name", conclusion.name);
               one.truth("holds", conclusion.holds);
               one.truth("decided", conclusion.decided);
               one.put("text", json_of(conclusion.text));
               return one.text();
             }));
  object.number("seconds", report.seconds);
  return object.text();
}

}  // namespace attend::labs
