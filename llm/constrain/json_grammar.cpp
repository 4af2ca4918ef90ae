// JSON and its schemas as rules over bytes.
#include "llm/constrain/json_grammar.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "attend/error.hpp"
#include "base/utf8.hpp"
#include "io/json_text.hpp"
#include "llm/constrain/number_range.hpp"
#include "llm/constrain/schema_forms.hpp"
#include "llm/constrain/text_automaton.hpp"

namespace attend::llm {
namespace {

using io::Json;
using Node = ByteGrammar::Node;
using Rule = ByteGrammar::Rule;

constexpr int kIndent = 24;    // of white space behind a line end: a model could go on with it for ever
constexpr int kDigits = 16;    // of each part of a number, for the same reason
constexpr int kNesting = 500;  // of schemas and references in each other
constexpr std::size_t kReferences = 512;
constexpr std::int64_t kMinimum = 4096;       // the largest minItems and minLength: so many must be written
constexpr std::int64_t kUnbounded = 1 << 30;  // a larger maxItems or maxLength is none
constexpr std::size_t kAlternatives = 256;    // readings that can begin at the same byte
constexpr std::int64_t kMaxMultiple = 1000;
constexpr std::size_t kSharedText = 4096;  // bytes of a schema that is compared with others

// Of format, those that a pattern describes exactly; the others are annotations.
const std::map<std::string_view, std::string_view>& format_patterns() {
  static const std::string kDate =
      "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
      "02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|"
      "(?:[02468][048]|[13579][26])00)-02-29)";
  static const std::string kTime =
      "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
  static const std::string kByte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  static const std::string date = "^" + kDate + "$", time = "^" + kTime + "$", both = "^" + kDate + "T" + kTime + "$",
                           ipv4 = "^(?:" + kByte + "\\.){3}" + kByte + "$";
  static const std::map<std::string_view, std::string_view> kPatterns = {
      {"date", date},
      {"time", time},
      {"date-time", both},
      {"ipv4", ipv4},
      {"uuid", "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"}};
  return kPatterns;
}

class Builder {
 public:
  Builder() : g_(std::make_shared<ByteGrammar>()) {}

  std::shared_ptr<const ByteGrammar> object() {
    g_->finish(any_object());
    return g_;
  }
  std::shared_ptr<const ByteGrammar> schema(const Json& root) {
    forms_.emplace(root);
    g_->finish(value(root, "schema"));
    return g_;
  }
  std::shared_ptr<const ByteGrammar> wrapped(std::span<const WrappedSchema> schemas, const Repeated& repeated) {
    const Rule any = g_->add_rule(), top = g_->add_rule();
    for (const WrappedSchema& one : schemas) {
      forms_.emplace(one.schema);
      references_.clear();  // they mean places in this schema
      values_.clear();
      const Node before = g_->literal(g_->start(any), one.before);
      g_->link(g_->literal(g_->call(before, value(one.schema, one.where)), one.after), g_->end(any));
    }
    const Node enough = g_->add_node();
    Node at = g_->call(g_->literal(g_->start(top), repeated.before), any);
    for (std::int64_t count = 1; count < repeated.most; ++count) {
      g_->link(at, enough);
      at = g_->call(g_->literal(at, repeated.between), any);
    }
    g_->link(at, enough);
    g_->link(g_->literal(enough, repeated.after), g_->end(top));
    g_->finish(top);
    return g_;
  }
  std::shared_ptr<const ByteGrammar> open(const Json& root) {
    forms_.emplace(root);
    const Rule top = g_->add_rule();
    const Node behind = g_->call(g_->start(top), value(root, "schema"));
    g_->link_bytes(behind, 0, 255, behind);
    g_->link(behind, g_->end(top));
    g_->finish(top);
    return g_;
  }

 private:
  [[noreturn]] static void refuse(const std::string& where, const std::string& what) { refuse_schema(where, what); }

  // A rule that is made at its first use; it may call itself.
  template <class Make>
  Rule once(Rule& rule, const Make& make) {
    if (rule < 0) {
      rule = g_->add_rule();
      make(g_->start(rule), g_->end(rule));
    }
    return rule;
  }

  // --- the parts of JSON ---

  // Nothing, a space, or a line end with what indents the next line.
  Rule space() {
    return once(space_, [&](Node from, Node to) {
      g_->link(from, to);
      g_->link_bytes(from, ' ', ' ', to);
      Node at = g_->bytes(from, '\n', '\n');
      for (int i = 0; i < kIndent; ++i) {
        g_->link(at, to);
        const Node next = g_->bytes(at, ' ', ' ');
        g_->link_bytes(at, '\t', '\t', next);
        at = next;
      }
      g_->link(at, to);
    });
  }

  void hex(Node from, int digits, Node to) {
    for (int i = 0; i < digits; ++i) {
      const Node next = i + 1 == digits ? to : g_->add_node();
      for (const auto& [low, high] : {std::pair('0', '9'), std::pair('a', 'f'), std::pair('A', 'F')})
        g_->link_bytes(from, static_cast<unsigned>(low), static_cast<unsigned>(high), next);
      from = next;
    }
  }
  void either(Node from, std::string_view bytes, Node to) {
    for (const char c : bytes) g_->link_bytes(from, static_cast<unsigned char>(c), static_cast<unsigned char>(c), to);
  }

  // The bytes of a range of characters beyond ASCII, which all have the same number of them.
  void encoded(Node from, std::string_view low, std::string_view high, Node to) {
    const auto byte = [](char c) { return static_cast<unsigned char>(c); };
    unsigned first = byte(low[0]), last = byte(high[0]);
    if (low.size() == 1) return g_->link_bytes(from, first, last, to);
    const std::string lowest(low.size() - 1, '\x80'), highest(low.size() - 1, '\xBF');
    const std::string_view low_rest = low.substr(1), high_rest = high.substr(1);
    if (first == last) return encoded(g_->bytes(from, first, last), low_rest, high_rest, to);
    if (low_rest != lowest) {
      encoded(g_->bytes(from, first, first), low_rest, highest, to);
      ++first;
    }
    if (high_rest != highest) {
      encoded(g_->bytes(from, last, last), lowest, high_rest, to);
      --last;
    }
    if (first <= last) encoded(g_->bytes(from, first, last), lowest, highest, to);
  }
  void beyond_ascii(Node from, const CharacterRange& range, Node to) {
    for (const CharacterRange& part :
         {CharacterRange{0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}}) {
      const char32_t low = std::max(range.low, part.low), high = std::min(range.high, part.high);
      if (low > high) continue;
      std::string first, last;
      append_utf8(first, low);
      append_utf8(last, high);
      encoded(from, first, last, to);
    }
  }

  // A Unicode character inside a string: no half of a pair, no broken UTF-8, no control character.
  Rule character() {
    return once(character_, [&](Node from, Node to) {
      g_->link_bytes(from, 0x20, 0x21, to);
      g_->link_bytes(from, 0x23, 0x5B, to);
      g_->link_bytes(from, 0x5D, 0x7F, to);
      beyond_ascii(from, {0x80, 0x10FFFF}, to);
      const Node escape = g_->bytes(from, '\\', '\\');
      either(escape, "\"\\/bfnrt", to);
      const Node code = g_->bytes(escape, 'u', 'u');
      const Node plain = g_->add_node(), d = g_->add_node(), d_plain = g_->add_node(), high = g_->add_node();
      either(code, "0123456789abcefABCEF", plain);
      hex(plain, 3, to);
      either(code, "dD", d);
      either(d, "01234567", d_plain);
      hex(d_plain, 2, to);
      either(d, "89abAB", high);
      const Node pair = g_->add_node(), low = g_->add_node(), last = g_->add_node();
      hex(high, 2, pair);
      either(g_->literal(pair, "\\u"), "dD", low);
      either(low, "cdefCDEF", last);
      hex(last, 2, to);
    });
  }

  // A string of `min` to `max` characters; max < 0: any number.
  void string(Node from, std::int64_t min, std::int64_t max, Node to) {
    const Node inside = g_->repeat(g_->bytes(from, '"', '"'), character(), static_cast<std::int32_t>(min),
                                   static_cast<std::int32_t>(max));
    g_->link_bytes(inside, '"', '"', to);
  }
  Rule string() {
    return once(string_, [&](Node from, Node to) { string(from, 0, -1, to); });
  }

  // A character of a set that is not written as one byte. Each has one spelling.
  Rule long_character(const CharacterSet& set) {
    const auto [found, is_new] = characters_.try_emplace(set, -1);
    if (!is_new) return found->second;
    const Rule rule = g_->add_rule();
    const Node from = g_->start(rule), to = g_->end(rule);
    static constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
    for (const CharacterRange& range : set) {
      if (range.high >= 0x80) beyond_ascii(from, range, to);
      for (char32_t c = range.low; c <= range.high && c < 0x80; ++c) {
        const std::size_t place = kShort.find(static_cast<char>(c));
        std::string escape = "\\";
        if (place != std::string_view::npos)
          escape += kLetters[place];
        else
          escape.append("u00").append(1, "01"[c / 16]).append(1, "0123456789abcdef"[c % 16]);
        g_->link(g_->literal(from, escape), to);
      }
    }
    return characters_[set] = rule;
  }

  void text(const TextAutomaton& automaton, Node from, Node to) {
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < automaton.states.size(); ++i) nodes.push_back(g_->add_node());
    g_->link_bytes(from, '"', '"', nodes.front());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (automaton.states[i].accepts) g_->link_bytes(nodes[i], '"', '"', to);
      for (const TextAutomaton::Edge& edge : automaton.states[i].edges) {
        const Node next = nodes[static_cast<std::size_t>(edge.to)];
        CharacterSet others;
        for (const CharacterRange& range : edge.characters) split(range, nodes[i], next, others);
        if (!others.empty()) g_->link_call(nodes[i], long_character(others), next);
      }
    }
  }
  // Links the part of a range that is written as it is, in one byte; the rest goes to `others`.
  void split(const CharacterRange& range, Node from, Node to, CharacterSet& others) {
    static constexpr std::array<std::pair<CharacterRange, bool>, 6> kParts = {{{{0, 0x1F}, false},
                                                                               {{0x20, 0x21}, true},
                                                                               {{'"', '"'}, false},
                                                                               {{0x23, 0x5B}, true},
                                                                               {{'\\', '\\'}, false},
                                                                               {{0x5D, 0x7F}, true}}};
    for (const auto& [part, plain] : kParts) {
      const CharacterRange both = {std::max(range.low, part.low), std::min(range.high, part.high)};
      if (both.low > both.high) continue;
      if (plain)
        g_->link_bytes(from, both.low, both.high, to);
      else
        others.push_back(both);
    }
    if (range.high >= 0x80) others.push_back({std::max<char32_t>(range.low, 0x80), range.high});
  }

  Node digits(Node from, int most) {
    const Node to = g_->add_node();
    for (int i = 0; i < most; ++i) {
      from = g_->bytes(from, '0', '9');
      g_->link(from, to);
    }
    return to;
  }

  Node whole_part(Node from) {
    const Node sign = g_->add_node(), to = g_->add_node();
    g_->link(from, sign);
    g_->link_bytes(from, '-', '-', sign);
    g_->link_bytes(sign, '0', '0', to);
    const Node first = g_->bytes(sign, '1', '9');
    g_->link(first, to);
    g_->link(digits(first, kDigits - 1), to);
    return to;
  }
  Rule integer() {
    return once(integer_, [&](Node from, Node to) { g_->link(whole_part(from), to); });
  }
  Rule number() {
    return once(number_, [&](Node from, Node to) {
      const Node whole = whole_part(from), fraction = g_->add_node();
      g_->link(whole, fraction);
      g_->link(digits(g_->bytes(whole, '.', '.'), kDigits), fraction);
      g_->link(fraction, to);
      const Node e = g_->add_node(), sign = g_->add_node();
      either(fraction, "eE", e);
      g_->link(e, sign);
      either(e, "+-", sign);
      g_->link(digits(sign, 2), to);
    });
  }
  Rule boolean() {
    return once(boolean_, [&](Node from, Node to) { words({"true", "false"}, from, to); });
  }
  Rule null() {
    return once(null_, [&](Node from, Node to) { words({"null"}, from, to); });
  }

  Rule any() {
    return once(any_, [&](Node from, Node to) {
      for (const Rule rule : {any_object(), any_array(), string(), number(), boolean(), null()})
        g_->link_call(from, rule, to);
    });
  }
  Rule any_object() {
    if (any_object_ < 0) {
      any_object_ = g_->add_rule();
      map_of(any_object_, any());
    }
    return any_object_;
  }
  Rule any_array() {
    return once(any_array_, [&](Node from, Node to) { array(from, to, any(), 0, -1); });
  }

  // {"key": value, ...} with any keys.
  void map_of(Rule rule, Rule item) {
    const Rule pair = g_->add_rule();
    const Node colon = g_->literal(g_->call(g_->start(pair), string()), ":");
    g_->link_call(g_->call(colon, space()), item, g_->end(pair));
    list(g_->start(rule), g_->end(rule), '{', '}', pair, 0, -1);
  }

  void array(Node from, Node to, Rule item, std::int64_t least, std::int64_t most) {
    list(from, to, '[', ']', item, least, most);
  }

  // [item, item, ...]: `least` to `most` of them; most < 0: any number.
  void list(Node from, Node to, char open, char close, Rule item, std::int64_t least, std::int64_t most) {
    const Node first =
        g_->call(g_->bytes(from, static_cast<unsigned char>(open), static_cast<unsigned char>(open)), space());
    const Node last = g_->add_node();  // before what closes it
    g_->link_bytes(last, static_cast<unsigned char>(close), static_cast<unsigned char>(close), to);
    if (least == 0) g_->link(first, last);
    if (most == 0) return;
    const Rule next = g_->add_rule();
    g_->link_call(g_->call(g_->literal(g_->start(next), ","), space()), item, g_->end(next));
    const auto repeats = [](std::int64_t count) { return static_cast<std::int32_t>(count); };
    const Node at = g_->repeat(g_->call(first, item), next, repeats(std::max<std::int64_t>(least - 1, 0)),
                               most < 0 ? -1 : repeats(most - 1));
    g_->link_call(at, space(), last);
  }

  // --- schemas ---

  // Schemas of the same text are one rule: alternatives that are the same are read once.
  Rule value(const Json& schema, const std::string& where) {
    const std::string text = io::json_text(schema);
    if (const auto found = values_.find(text); found != values_.end()) return found->second;
    const Rule rule = g_->add_rule();
    if (text.size() <= kSharedText) values_.emplace(text, rule);
    fill(rule, schema, where);
    return rule;
  }

  void fill(Rule rule, const Json& schema, const std::string& where) {
    if (++depth_ > kNesting)
      refuse(where.substr(0, 200), "it nests deeper than " + std::to_string(kNesting) + " schemas");
    fill_inner(rule, schema, where);
    --depth_;
  }

  void fill_inner(Rule rule, const Json& schema, const std::string& where) {
    const Node from = g_->start(rule), to = g_->end(rule);
    if (const bool* whether = schema.boolean()) {
      if (!*whether) refuse(where, "false allows no value, expected a schema");
      return g_->link_call(from, any(), to);
    }
    if (schema.object() == nullptr) refuse(where, std::string("got ") + schema.kind() + ", expected an object");
    check_keywords(schema, where);
    if (schema.find("allOf") != nullptr || is_extended_reference(schema)) {
      if (const Json* only = only_part(schema)) return fill(rule, *only, where + ".allOf[0]");
      const Json& merged = forms_->merged(schema, where);
      if (merged.object()->empty()) return g_->link_call(from, any(), to);
      return fill(rule, merged, where);
    }
    if (schema.find("$ref") != nullptr) return g_->link_call(from, reference(schema, where), to);
    for (const char* key : {"anyOf", "oneOf"})
      if (const Json* options = schema.find(key)) return one_of(*options, where + "." + key, from, to);
    if (const auto literals = literals_of(schema, where); !literals.empty()) {
      std::vector<std::string> texts;
      add_literals(schema, where, texts);
      return words(texts, from, to);
    }
    const std::vector<std::string> types = types_as_written(schema, where);
    if (types.empty()) return g_->link_call(from, any(), to);
    for (const std::string& type : types) typed(type, schema, where, from, to);
  }

  // Of allOf with one part and nothing else, as some programs wrap every $ref.
  static const Json* only_part(const Json& schema) {
    const Json* parts = schema.find("allOf");
    const bool one = parts != nullptr && parts->array() != nullptr && parts->array()->size() == 1 &&
                     std::all_of(schema.object()->begin(), schema.object()->end(), [](const auto& field) {
                       return field.first == "allOf" || is_annotation(field.first);
                     });
    return one ? &parts->array()->front() : nullptr;
  }
  static bool is_extended_reference(const Json& schema) {
    return schema.find("$ref") != nullptr &&
           std::any_of(schema.object()->begin(), schema.object()->end(),
                       [](const auto& field) { return field.first != "$ref" && !is_annotation(field.first); });
  }

  // Each keyword is one that is understood, in a place where it means something.
  static void check_keywords(const Json& schema, const std::string& where) {
    static const std::set<std::string_view> kKnown = {"type",
                                                      "properties",
                                                      "required",
                                                      "additionalProperties",
                                                      "items",
                                                      "minItems",
                                                      "maxItems",
                                                      "enum",
                                                      "const",
                                                      "anyOf",
                                                      "oneOf",
                                                      "allOf",
                                                      "$ref",
                                                      "minLength",
                                                      "maxLength",
                                                      "pattern",
                                                      "format",
                                                      "minimum",
                                                      "maximum",
                                                      "multipleOf",
                                                      "uniqueItems",
                                                      "exclusiveMinimum",
                                                      "exclusiveMaximum"};
    const bool options = schema.find("anyOf") != nullptr || schema.find("oneOf") != nullptr;
    const bool literal = schema.find("enum") != nullptr || schema.find("const") != nullptr;
    const bool merged = schema.find("allOf") != nullptr || schema.find("$ref") != nullptr;
    for (const auto& [key, unused] : *schema.object()) {
      if (is_annotation(key)) continue;
      if (!kKnown.contains(key))
        refuse(where, "the keyword " + io::json_quoted(key) +
                          " is not supported; supported are type, properties, required, additionalProperties, items, "
                          "minItems, maxItems, minLength, maxLength, pattern, format, minimum, maximum, "
                          "exclusiveMinimum, exclusiveMaximum, multipleOf, enum, const, anyOf, oneOf, allOf, $ref and "
                          "$defs");
      if (merged) continue;  // what is wrong is found when they are one
      if (options && key != "anyOf" && key != "oneOf")
        refuse(where, "the keyword " + io::json_quoted(key) + " together with anyOf or oneOf is not supported");
      if (literal && key != "enum" && key != "const" && key != "type")
        refuse(where, "the keyword " + io::json_quoted(key) + " together with enum or const is not supported");
    }
    if (schema.find("anyOf") != nullptr && schema.find("oneOf") != nullptr)
      refuse(where, "anyOf together with oneOf is not supported");
    if (schema.find("enum") != nullptr && schema.find("const") != nullptr)
      refuse(where, "enum together with const is not supported");
    const Json* unique = schema.find("uniqueItems");
    if (unique != nullptr && (unique->boolean() == nullptr || *unique->boolean()))
      refuse(where, "the keyword \"uniqueItems\" is not supported, expected false");
  }

  // Where the type is not given, the keywords tell it.
  static std::vector<std::string> types_as_written(const Json& schema, const std::string& where) {
    static const std::vector<std::pair<const char*, std::vector<const char*>>> kKeywords = {
        {"object", {"properties", "required", "additionalProperties"}},
        {"array", {"items", "minItems", "maxItems"}},
        {"string", {"minLength", "maxLength", "pattern"}},
        {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};
    std::vector<std::string> types = types_of(schema, where);
    if (!types.empty()) return types;
    for (const auto& [type, keywords] : kKeywords)
      if (std::any_of(keywords.begin(), keywords.end(), [&](const char* key) { return schema.find(key) != nullptr; }))
        return {type};
    return types;
  }

  // Alternatives: those that are literals are read as one, and those that are the same once.
  void one_of(const Json& options, const std::string& where, Node from, Node to) {
    if (options.array() == nullptr || options.array()->empty()) refuse(where, "expected an array of schemas");
    std::vector<const Json*> schemas;
    if (where.ends_with(".oneOf"))
      schemas = forms_->exclusive(*options.array(), where);
    else
      for (const Json& option : *options.array()) schemas.push_back(&option);
    std::vector<std::string> texts;
    std::set<Rule> rules;
    for (std::size_t i = 0; i < schemas.size(); ++i) {
      const std::string here = where + "[" + std::to_string(i) + "]";
      const Json& schema = *schemas[i];
      const bool plain = schema.find("$ref") == nullptr && schema.find("allOf") == nullptr;
      if (plain && (schema.find("enum") != nullptr || schema.find("const") != nullptr)) {
        check_keywords(schema, here);
        add_literals(schema, here, texts);
      } else if (const Rule rule = value(schema, here); rules.insert(rule).second) {
        g_->link_call(from, rule, to);
      }
      if (rules.size() > kAlternatives)
        refuse(where, "it has more than " + std::to_string(kAlternatives) + " different alternatives");
    }
    words(texts, from, to);
  }

  static void add_literals(const Json& schema, const std::string& where, std::vector<std::string>& texts) {
    const std::vector<std::string> types = types_of(schema, where);
    const std::size_t before = texts.size();
    for (const Json* value : literals_of(schema, where))
      if (types.empty() ||
          std::any_of(types.begin(), types.end(), [&](const auto& t) { return is_of_type(*value, t); }))
        texts.push_back(io::json_text(*value));
    if (texts.size() == before) refuse(where + ".enum", "none of its values is of the type");
  }

  // Texts that begin alike share their beginning: a thousand of them are still one reading at a time.
  void words(const std::vector<std::string>& texts, Node from, Node to) {
    std::map<std::pair<Node, char>, Node> known;
    std::set<Node> last;
    for (const std::string& text : texts) {
      Node at = from;
      for (const char c : text) {
        const auto [found, is_new] = known.try_emplace({at, c}, 0);
        if (is_new) found->second = g_->bytes(at, static_cast<unsigned char>(c), static_cast<unsigned char>(c));
        at = found->second;
      }
      if (last.insert(at).second) g_->link(at, to);
    }
  }

  void typed(const std::string& type, const Json& schema, const std::string& where, Node from, Node to) {
    if (type == "object") return object_schema(schema, where, from, to);
    if (type == "array") return array_schema(schema, where, from, to);
    if (type == "string") return string_schema(schema, where, from, to);
    if (type == "number" || type == "integer") return number_schema(schema, where, type == "integer", from, to);
    g_->link_call(from, type == "boolean" ? boolean() : null(), to);
  }

  // The counts of minItems and maxItems, or of minLength and maxLength; the second is -1 for none.
  static std::pair<std::int64_t, std::int64_t> counts_of(const Json& schema, const std::string& of,
                                                         const std::string& where) {
    const auto count = [&](const std::string& key, std::int64_t otherwise, std::int64_t largest) {
      const Json* value = schema.find(key);
      if (value == nullptr) return otherwise;
      const std::optional<std::int64_t> whole = whole_of(*value);
      if (!whole || *whole < 0 || *whole > largest)
        refuse(where + "." + key, "expected a whole number from 0 to " + std::to_string(largest));
      return *whole;
    };
    const std::int64_t min = count("min" + of, 0, kMinimum);
    std::int64_t max = count("max" + of, -1, std::numeric_limits<std::int64_t>::max());
    if (max > kUnbounded) max = -1;
    if (max >= 0 && max < min) refuse(where, "max" + of + " is less than min" + of);
    return {min, max};
  }
  // JSON schema takes 3.0 for a whole number.
  static std::optional<std::int64_t> whole_of(const Json& value) {
    if (value.integer() != nullptr) return *value.integer();
    double x = 0;
    if (!value.number(x) || x != std::floor(x) || std::abs(x) > 1e15) return std::nullopt;
    return static_cast<std::int64_t>(x);
  }

  void string_schema(const Json& schema, const std::string& where, Node from, Node to) {
    const auto [min, max] = counts_of(schema, "Length", where);
    std::vector<std::pair<std::string, std::string_view>> patterns;  // and the keywords that ask for them
    for (const char* key : {"pattern", "format"}) {
      const Json* value = schema.find(key);
      if (value == nullptr) continue;
      if (value->string() == nullptr) refuse(where + "." + key, "expected a string");
      if (std::string_view(key) == "pattern") {
        patterns.emplace_back(key, *value->string());
      } else if (const auto known = format_patterns().find(*value->string()); known != format_patterns().end()) {
        patterns.emplace_back(key, known->second);
      }
    }
    if (patterns.empty()) {
      if (min == 0 && max < 0) return g_->link_call(from, string(), to);
      return string(from, min, max, to);
    }
    std::optional<TextAutomaton> all;
    const auto add = [&](TextAutomaton one) { all = all ? text_of_both(*all, one, budget_) : std::move(one); };
    try {
      for (const auto& [key, pattern] : patterns) add(text_of_pattern(pattern, budget_));
      if (min > 0 || max >= 0) add(text_of_length(min, max, budget_));
    } catch (const InvalidArgument& error) {
      refuse(where, error.what());
    }
    if (all->states.empty()) refuse(where, "no string has its pattern, format and length");
    text(*all, from, to);
  }

  void number_schema(const Json& schema, const std::string& where, bool whole, Node from, Node to) {
    NumberRange range;
    if (whole) range.max_fraction = 0;
    const auto narrow = [&](const char* key, bool exclusive, std::optional<NumberBound>& bound, bool low) {
      const Json* value = schema.find(key);
      if (value == nullptr) return false;
      double unused = 0;
      if (!value->number(unused)) refuse(where + "." + key, "expected a number");
      const NumberBound given{decimal_of(*value), exclusive};
      const auto order = bound ? compare(given.value, bound->value) : std::strong_ordering::equal;
      const bool tighter = !bound || (low ? order > 0 : order < 0) || (order == 0 && exclusive);
      if (tighter) bound = given;
      return true;
    };
    bool narrowed = narrow("minimum", false, range.low, true);
    narrowed |= narrow("exclusiveMinimum", true, range.low, true);
    narrowed |= narrow("maximum", false, range.high, false);
    narrowed |= narrow("exclusiveMaximum", true, range.high, false);
    if (const Json* multiple = schema.find("multipleOf")) {
      narrowed = true;
      set_multiple(*multiple, where, range);
    }
    if (!narrowed) return g_->link_call(from, whole ? integer() : number(), to);
    if (!link_numbers(*g_, from, range, to)) refuse(where, "no number is within its bounds");
  }

  // Whole multiples by their remainder, and steps of 0.1, 0.01, ... by the digits of the fraction.
  static void set_multiple(const Json& multiple, const std::string& where, NumberRange& range) {
    double x = 0;
    if (!multiple.number(x) || x <= 0) refuse(where + ".multipleOf", "expected a number above 0");
    const Decimal step = decimal_of(multiple);
    const std::size_t digits = step.fraction.size();
    const bool power = step.whole == "0" && digits <= 16 && step.fraction == std::string(digits - 1, '0') + "1";
    const bool whole = step.fraction.empty() && x <= static_cast<double>(kMaxMultiple);
    if (!power && !whole)
      refuse(where + ".multipleOf", "got " + io::json_text(multiple) + ", expected a whole number up to " +
                                        std::to_string(kMaxMultiple) + ", or 0.1, 0.01, 0.001, ...");
    range.max_fraction = std::min(range.max_fraction, power ? static_cast<std::int32_t>(step.fraction.size()) : 0);
    if (whole) range.multiple_of = static_cast<std::int64_t>(x);
  }

  void array_schema(const Json& schema, const std::string& where, Node from, Node to) {
    const auto [least, most] = counts_of(schema, "Items", where);
    const Json* items = schema.find("items");
    array(from, to, items != nullptr ? value(*items, where + ".items") : any(), least, most);
  }

  void object_schema(const Json& schema, const std::string& where, Node from, Node to) {
    static const Json::Object kNone;
    const Json* properties = schema.find("properties");
    if (properties != nullptr && properties->object() == nullptr) refuse(where + ".properties", "expected an object");
    const Json::Object& named = properties != nullptr ? *properties->object() : kNone;
    std::set<std::string_view> names_of, required;
    for (const auto& [name, unused] : named) names_of.insert(name);
    if (const Json* names = schema.find("required")) {
      if (names->array() == nullptr) refuse(where + ".required", "expected an array of names");
      for (const Json& name : *names->array()) {
        if (name.string() == nullptr || !names_of.contains(*name.string()))
          refuse(where + ".required", "it names " + io::json_text(name) + ", which is not among the properties");
        required.insert(*name.string());
      }
    }
    const Json* others = schema.find("additionalProperties");
    const bool closed = others != nullptr && others->boolean() != nullptr && !*others->boolean();
    if (others != nullptr && others->boolean() == nullptr && !named.empty())
      refuse(where + ".additionalProperties",
             "a schema together with named properties is not supported, expected false");
    if (named.empty() && !closed) {
      const Rule map = g_->add_rule();
      map_of(map, others != nullptr && others->boolean() == nullptr ? value(*others, where + ".additionalProperties")
                                                                    : any());
      return g_->link_call(from, map, to);
    }
    properties_in_order(named, required, where, from, to);
  }

  // Two lines of nodes, one before the first property that is written and one behind it: only then is there a comma.
  void properties_in_order(const Json::Object& named, const std::set<std::string_view>& required,
                           const std::string& where, Node from, Node to) {
    Node none = g_->call(g_->literal(from, "{"), space()), some = g_->add_node();
    std::size_t optional = 0;  // in a row: each is a reading
    for (const auto& [name, schema] : named) {
      optional = required.contains(name) ? 0 : optional + 1;
      if (optional > kAlternatives)
        refuse(where + ".properties",
               "more than " + std::to_string(kAlternatives) + " in a row are not required; expected them in required");
      const Rule pair = g_->add_rule();
      const Node colon = g_->literal(g_->start(pair), io::json_quoted(name) + ":");
      g_->link_call(g_->call(colon, space()), value(schema, where + ".properties." + name), g_->end(pair));
      const Node after = g_->add_node();
      g_->link_call(none, pair, after);
      g_->link_call(g_->call(g_->literal(some, ","), space()), pair, after);
      if (required.contains(name)) {
        none = g_->add_node();  // not reached: something is written
      } else {
        g_->link(some, after);
      }
      some = after;
    }
    const Node last = g_->add_node();
    g_->link(none, last);
    g_->link_call(some, space(), last);
    g_->link_bytes(last, '}', '}', to);
  }

  // Made once for each place, so that a schema may refer to itself.
  Rule reference(const Json& schema, const std::string& where) {
    const Json& ref = *schema.find("$ref");
    if (ref.string() == nullptr) refuse(where + ".$ref", "expected a string");
    const auto [found, is_new] = references_.try_emplace(*ref.string(), -1);
    if (!is_new) return found->second;
    if (references_.size() > kReferences)
      refuse(where, "it refers to more than " + std::to_string(kReferences) + " places");
    const Json& target = forms_->target(*ref.string(), where);
    const Rule rule = references_[*ref.string()] = g_->add_rule();
    fill(rule, target, *ref.string());
    return rule;
  }

  std::shared_ptr<ByteGrammar> g_;
  std::optional<SchemaForms> forms_;
  AutomatonBudget budget_;
  int depth_ = 0;
  std::map<std::string, Rule> references_, values_;  // by place, and by text
  std::map<CharacterSet, Rule> characters_;
  Rule space_ = -1, character_ = -1, string_ = -1, integer_ = -1, number_ = -1, boolean_ = -1, null_ = -1;
  Rule any_ = -1, any_object_ = -1, any_array_ = -1;
};

}  // namespace

std::shared_ptr<const ByteGrammar> json_object_grammar() {
  static const std::shared_ptr<const ByteGrammar> grammar = Builder().object();
  return grammar;
}

std::shared_ptr<const ByteGrammar> json_schema_grammar(const Json& schema) {
  return Builder().schema(schema);
}

std::shared_ptr<const ByteGrammar> wrapped_schemas_grammar(std::span<const WrappedSchema> schemas,
                                                           const Repeated& repeated) {
  return Builder().wrapped(schemas, repeated);
}

std::shared_ptr<const ByteGrammar> open_schema_grammar(const Json& schema) {
  return Builder().open(schema);
}

}  // namespace attend::llm
