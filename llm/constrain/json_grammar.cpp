// JSON and its schemas as rules over bytes.
#include "llm/constrain/json_grammar.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "attend/error.hpp"
#include "io/json_text.hpp"

namespace attend::llm {
namespace {

using io::Json;
using Node = ByteGrammar::Node;
using Rule = ByteGrammar::Rule;

constexpr int kIndent = 24;    // of white space behind a line end: a model could go on with it for ever
constexpr int kDigits = 16;    // of each part of a number, for the same reason
constexpr int kNesting = 500;  // of schemas and references in each other
constexpr std::size_t kReferences = 512;
constexpr std::int64_t kItems = 4096;  // that minItems and maxItems may ask for

class Builder {
 public:
  Builder() : g_(std::make_shared<ByteGrammar>()) {}

  std::shared_ptr<const ByteGrammar> object() {
    g_->set_top(any_object());
    return g_;
  }
  std::shared_ptr<const ByteGrammar> schema(const Json& root) {
    root_ = &root;
    g_->set_top(value(root, "schema"));
    return g_;
  }
  std::shared_ptr<const ByteGrammar> wrapped(std::span<const WrappedSchema> schemas, const Repeated& repeated) {
    const Rule any = g_->add_rule(), top = g_->add_rule();
    for (const WrappedSchema& one : schemas) {
      root_ = &one.schema;
      references_.clear();  // they mean places in this schema
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
    g_->set_top(top);
    return g_;
  }
  std::shared_ptr<const ByteGrammar> open(const Json& root) {
    root_ = &root;
    const Rule top = g_->add_rule();
    const Node behind = g_->call(g_->start(top), value(root, "schema"));
    g_->link_bytes(behind, 0, 255, behind);
    g_->link(behind, g_->end(top));
    g_->set_top(top);
    return g_;
  }

 private:
  [[noreturn]] static void refuse(const std::string& where, const std::string& what) {
    throw InvalidArgument(where + ": " + what);
  }

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

  // Every string of Unicode characters: no half of a pair, no broken UTF-8, no control character.
  Rule string() {
    return once(string_, [&](Node from, Node to) {
      const Node inside = g_->bytes(from, '"', '"');
      g_->link_bytes(inside, '"', '"', to);
      g_->link_bytes(inside, 0x20, 0x21, inside);
      g_->link_bytes(inside, 0x23, 0x5B, inside);
      g_->link_bytes(inside, 0x5D, 0x7F, inside);
      const auto tail = [&](unsigned low, unsigned high, unsigned second_low, unsigned second_high, int more) {
        const Node lead = g_->bytes(inside, low, high);
        Node at = lead;
        if (more == 0) return g_->link_bytes(at, second_low, second_high, inside);
        at = g_->bytes(at, second_low, second_high);
        for (int i = 1; i < more; ++i) at = g_->bytes(at, 0x80, 0xBF);
        g_->link_bytes(at, 0x80, 0xBF, inside);
      };
      tail(0xC2, 0xDF, 0x80, 0xBF, 0);
      tail(0xE0, 0xE0, 0xA0, 0xBF, 1);
      tail(0xE1, 0xEC, 0x80, 0xBF, 1);
      tail(0xED, 0xED, 0x80, 0x9F, 1);
      tail(0xEE, 0xEF, 0x80, 0xBF, 1);
      tail(0xF0, 0xF0, 0x90, 0xBF, 2);
      tail(0xF1, 0xF3, 0x80, 0xBF, 2);
      tail(0xF4, 0xF4, 0x80, 0x8F, 2);
      const Node escape = g_->bytes(inside, '\\', '\\');
      either(escape, "\"\\/bfnrt", inside);
      const Node code = g_->bytes(escape, 'u', 'u');
      const Node plain = g_->add_node(), d = g_->add_node(), d_plain = g_->add_node(), high = g_->add_node();
      either(code, "0123456789abcefABCEF", plain);
      hex(plain, 3, inside);
      either(code, "dD", d);
      either(d, "01234567", d_plain);
      hex(d_plain, 2, inside);
      either(d, "89abAB", high);
      const Node pair = g_->add_node(), low = g_->add_node(), last = g_->add_node();
      hex(high, 2, pair);
      either(g_->literal(pair, "\\u"), "dD", low);
      either(low, "cdefCDEF", last);
      hex(last, 2, inside);
    });
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
  Rule words(Rule& rule, std::initializer_list<std::string_view> texts) {
    return once(rule, [&](Node from, Node to) {
      for (const std::string_view text : texts) g_->link(g_->literal(from, text), to);
    });
  }
  Rule boolean() { return words(boolean_, {"true", "false"}); }
  Rule null() { return words(null_, {"null"}); }

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
    const auto comma_item = [&](Node at) { return g_->call(g_->call(g_->literal(at, ","), space()), item); };
    Node at = g_->call(first, item);
    for (std::int64_t n = 1; n < std::max<std::int64_t>(least, most); ++n) {
      if (n >= least) g_->link_call(at, space(), last);
      at = comma_item(at);
    }
    g_->link_call(at, space(), last);
    if (most < 0) g_->link(comma_item(at), at);
  }

  // --- schemas ---

  Rule value(const Json& schema, const std::string& where) {
    const Rule rule = g_->add_rule();
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
    if (schema.find("$ref") != nullptr) return g_->link_call(from, reference(schema, where), to);
    if (const Json* options = schema.find("anyOf")) {
      if (options->array() == nullptr || options->array()->empty())
        refuse(where + ".anyOf", "expected an array of schemas");
      for (std::size_t i = 0; i < options->array()->size(); ++i)
        g_->link_call(from, value((*options->array())[i], where + ".anyOf[" + std::to_string(i) + "]"), to);
      return;
    }
    if (const Json* only = schema.find("const")) return g_->link(g_->literal(from, io::json_text(*only)), to);
    if (const Json* values = schema.find("enum")) return one_of(*values, schema, where, from, to);
    const std::vector<std::string> types = types_of(schema, where);
    if (types.empty()) {
      if (schema.find("properties") != nullptr) return object_schema(schema, where, from, to);
      if (schema.find("items") != nullptr) return array_schema(schema, where, from, to);
      return g_->link_call(from, any(), to);
    }
    for (const std::string& type : types) typed(type, schema, where, from, to);
  }

  // Each keyword is one that is understood, and stands where it means something.
  static void check_keywords(const Json& schema, const std::string& where) {
    static const std::set<std::string_view> kNotes = {"title", "description", "default",    "examples", "$schema",
                                                      "$id",   "$comment",    "deprecated", "$defs",    "definitions"};
    static const std::set<std::string_view> kKnown = {"type",  "properties", "required", "additionalProperties",
                                                      "items", "minItems",   "maxItems", "enum",
                                                      "const", "anyOf",      "$ref"};
    const bool alone = schema.find("$ref") != nullptr || schema.find("anyOf") != nullptr;
    const bool literal = schema.find("enum") != nullptr || schema.find("const") != nullptr;
    for (const auto& [key, unused] : *schema.object()) {
      if (kNotes.contains(key)) continue;
      if (!kKnown.contains(key))
        refuse(where, "the keyword " + io::json_quoted(key) +
                          " is not supported; supported are type, properties, required, additionalProperties, items, "
                          "minItems, maxItems, enum, const, anyOf, $ref and $defs");
      const bool fits =
          alone ? key == "$ref" || key == "anyOf" : !literal || key == "enum" || key == "const" || key == "type";
      if (!fits)
        refuse(where, "the keyword " + io::json_quoted(key) + " beside " + (alone ? "$ref or anyOf" : "enum or const") +
                          " is not supported");
    }
    if (alone && schema.find("$ref") != nullptr && schema.find("anyOf") != nullptr)
      refuse(where, "$ref and anyOf beside each other are not supported");
    if (schema.find("enum") != nullptr && schema.find("const") != nullptr)
      refuse(where, "enum and const beside each other are not supported");
  }

  static std::vector<std::string> types_of(const Json& schema, const std::string& where) {
    static const std::set<std::string_view> kTypes = {"object",  "array",   "string", "number",
                                                      "integer", "boolean", "null"};
    const Json* type = schema.find("type");
    std::vector<std::string> types;
    if (type == nullptr) return types;
    if (type->string() != nullptr) {
      types.push_back(*type->string());
    } else if (type->array() != nullptr && !type->array()->empty()) {
      for (const Json& one : *type->array())
        types.push_back(one.string() != nullptr ? *one.string() : refuse_type(where));
    } else {
      refuse_type(where);
    }
    for (const std::string& one : types)
      if (!kTypes.contains(one))
        refuse(where + ".type",
               "got " + io::json_quoted(one) + ", expected object, array, string, number, integer, boolean or null");
    return types;
  }
  [[noreturn]] static std::string refuse_type(const std::string& where) {
    refuse(where + ".type", "expected a name of a type, or an array of them");
  }

  static bool is_of(const Json& v, const std::string& type) {
    double x = 0;
    if (type == "object") return v.object() != nullptr;
    if (type == "array") return v.array() != nullptr;
    if (type == "string") return v.string() != nullptr;
    if (type == "number") return v.number(x);
    if (type == "integer") return v.integer() != nullptr;
    if (type == "boolean") return v.boolean() != nullptr;
    return v.is_null();
  }

  void one_of(const Json& values, const Json& schema, const std::string& where, Node from, Node to) {
    if (values.array() == nullptr || values.array()->empty()) refuse(where + ".enum", "expected an array of values");
    const std::vector<std::string> types = types_of(schema, where);
    // Values that begin alike share their beginning: a thousand of them are still one reading at a time.
    std::map<std::pair<Node, char>, Node> known;
    std::size_t used = 0;
    for (const Json& v : *values.array()) {
      if (!types.empty() && std::none_of(types.begin(), types.end(), [&](const std::string& t) { return is_of(v, t); }))
        continue;
      ++used;
      Node at = from;
      for (const char c : io::json_text(v)) {
        const auto [found, fresh] = known.try_emplace({at, c}, 0);
        if (fresh) found->second = g_->bytes(at, static_cast<unsigned char>(c), static_cast<unsigned char>(c));
        at = found->second;
      }
      g_->link(at, to);
    }
    if (used == 0) refuse(where + ".enum", "none of its values is of the type");
  }

  void typed(const std::string& type, const Json& schema, const std::string& where, Node from, Node to) {
    if (type == "object") return object_schema(schema, where, from, to);
    if (type == "array") return array_schema(schema, where, from, to);
    const Rule rule = type == "string"    ? string()
                      : type == "number"  ? number()
                      : type == "integer" ? integer()
                      : type == "boolean" ? boolean()
                                          : null();
    g_->link_call(from, rule, to);
  }

  static std::int64_t items_of(const Json& schema, const char* key, std::int64_t otherwise, const std::string& where) {
    const Json* count = schema.find(key);
    if (count == nullptr) return otherwise;
    if (count->integer() == nullptr || *count->integer() < 0 || *count->integer() > kItems)
      refuse(where + "." + key, "expected a whole number from 0 to " + std::to_string(kItems));
    return *count->integer();
  }

  void array_schema(const Json& schema, const std::string& where, Node from, Node to) {
    const std::int64_t least = items_of(schema, "minItems", 0, where), most = items_of(schema, "maxItems", -1, where);
    if (most >= 0 && most < least) refuse(where, "maxItems is less than minItems");
    const Json* items = schema.find("items");
    array(from, to, items != nullptr ? value(*items, where + ".items") : any(), least, most);
  }

  void object_schema(const Json& schema, const std::string& where, Node from, Node to) {
    static const Json::Object kNone;
    const Json* properties = schema.find("properties");
    if (properties != nullptr && properties->object() == nullptr) refuse(where + ".properties", "expected an object");
    const Json::Object& named = properties != nullptr ? *properties->object() : kNone;
    std::set<std::string> required;
    if (const Json* names = schema.find("required")) {
      if (names->array() == nullptr) refuse(where + ".required", "expected an array of names");
      for (const Json& name : *names->array()) {
        if (name.string() == nullptr || (properties == nullptr ? nullptr : properties->find(*name.string())) == nullptr)
          refuse(where + ".required", "it names " + io::json_text(name) + ", which is not among the properties");
        required.insert(*name.string());
      }
    }
    const Json* others = schema.find("additionalProperties");
    const bool closed = others != nullptr && others->boolean() != nullptr && !*others->boolean();
    if (others != nullptr && others->boolean() == nullptr && !named.empty())
      refuse(where + ".additionalProperties", "a schema beside named properties is not supported, expected false");
    if (named.empty() && !closed) {
      const Rule map = g_->add_rule();
      map_of(map, others != nullptr && others->boolean() == nullptr ? value(*others, where + ".additionalProperties")
                                                                    : any());
      return g_->link_call(from, map, to);
    }
    properties_in_order(named, required, where, from, to);
  }

  // Two lines of nodes, one before the first property that is written and one behind it: only then is there a comma.
  void properties_in_order(const Json::Object& named, const std::set<std::string>& required, const std::string& where,
                           Node from, Node to) {
    Node none = g_->call(g_->literal(from, "{"), space()), some = g_->add_node();
    for (const auto& [name, schema] : named) {
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

  // "#", "#/$defs/name", "#/properties/a/items": made once for each, so that a schema may refer to itself.
  Rule reference(const Json& schema, const std::string& where) {
    const Json& ref = *schema.find("$ref");
    if (ref.string() == nullptr || !ref.string()->starts_with("#"))
      refuse(where + ".$ref",
             "got " + io::json_text(ref) + ", expected a place in this schema such as \"#/$defs/name\"");
    const auto [found, fresh] = references_.try_emplace(*ref.string(), -1);
    if (!fresh) return found->second;
    if (references_.size() > kReferences)
      refuse(where, "it refers to more than " + std::to_string(kReferences) + " places");
    const Json* target = root_;
    std::string path = ref.string()->substr(1);
    while (!path.empty()) {
      if (path.front() != '/') refuse(where + ".$ref", "got " + io::json_text(ref) + ", expected '/' behind '#'");
      const std::size_t end = std::min(path.find('/', 1), path.size());
      const Json* next = target->find(unescaped(path.substr(1, end - 1)));
      if (next == nullptr && target->array() != nullptr) next = element(*target->array(), path.substr(1, end - 1));
      if (next == nullptr) refuse(where + ".$ref", "there is no " + io::json_text(ref));
      target = next;
      path.erase(0, end);
    }
    const Rule rule = g_->add_rule();
    references_[*ref.string()] = rule;
    fill(rule, *target, *ref.string());
    check_loop(rule, rule, where);
    return rule;
  }

  // Whether a rule can call itself before it has consumed a byte: it would call for ever.
  void check_loop(Rule rule, Rule wanted, const std::string& where) const {
    std::set<Node> seen;
    std::vector<Node> open = {g_->start(rule)};
    while (!open.empty()) {
      const Node n = open.back();
      open.pop_back();
      if (!seen.insert(n).second) continue;
      const ByteGrammar::NodeData& node = g_->node(n);
      open.insert(open.end(), node.empty.begin(), node.empty.end());
      for (const ByteGrammar::Call& call : node.calls) {
        if (call.rule == wanted) refuse(where + ".$ref", "it refers to itself with nothing around it");
        open.push_back(g_->start(call.rule));
      }
    }
  }

  static const Json* element(const Json::Array& array, const std::string& text) {
    if (text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos) return nullptr;
    const auto i = static_cast<std::size_t>(std::stoul(text));
    return i < array.size() ? &array[i] : nullptr;
  }
  static std::string unescaped(std::string text) {
    for (const auto& [from, to] : {std::pair<std::string, std::string>("~1", "/"), {"~0", "~"}})
      for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
        text.replace(at, from.size(), to);
    return text;
  }

  std::shared_ptr<ByteGrammar> g_;
  const Json* root_ = nullptr;
  int depth_ = 0;
  std::map<std::string, Rule> references_;
  Rule space_ = -1, string_ = -1, integer_ = -1, number_ = -1, boolean_ = -1, null_ = -1;
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
