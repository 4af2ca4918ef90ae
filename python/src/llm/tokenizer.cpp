// Tokenizers and chat templates.
#include "attend/llm/tokenizer.hpp"

#include <memory>
#include <string_view>

#include <nanobind/stl/string_view.h>

#include "../engine_call.hpp"
#include "attend/llm/chat_template.hpp"
#include "bindings.hpp"

namespace attend::python {
namespace {

using llm::ChatTemplate;
using llm::Message;
using llm::SpecialTokens;
using llm::Token;
using llm::Tokenizer;
using Tokens = std::vector<Token>;

std::string_view view_of(const nb::bytes& bytes) {
  return {bytes.c_str(), bytes.size()};
}

// Those the file names.
nb::dict special_tokens(const SpecialTokens& special) {
  nb::dict named;
  const auto add = [&](const char* name, const std::optional<Token>& token) {
    if (token) named[name] = *token;
  };
  add("bos", special.bos);
  add("eos", special.eos);
  add("pad", special.pad);
  add("unknown", special.unknown);
  add("cls", special.cls);
  add("sep", special.sep);
  add("mask", special.mask);
  return named;
}

std::vector<Message> messages_of(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::vector<Message> messages;
  for (const auto& [role, content] : pairs) messages.push_back({role, content});
  return messages;
}

void bind_chat_template(nb::module_& m) {
  nb::class_<ChatTemplate>(m, "ChatTemplate")
      .def("set_thinking", &ChatTemplate::set_thinking, "on"_a)
      .def(
          "encode",
          [](const ChatTemplate& t, const Tokenizer& tokenizer,
             const std::vector<std::pair<std::string, std::string>>& messages) {
            return llm::encode_chat(tokenizer, t, messages_of(messages), true);
          },
          "tokenizer"_a, "messages"_a);
}

}  // namespace

void bind_tokenizer(nb::module_& m) {
  nb::class_<Tokenizer>(m, "Tokenizer")
      .def_prop_ro("vocabulary", &Tokenizer::vocabulary)
      .def_prop_ro("special", [](const Tokenizer& t) { return special_tokens(t.special()); })
      .def_prop_ro("chat_template", [](const Tokenizer& t) { return t.chat_template(); })
      .def("encode", &Tokenizer::encode, "text"_a, "add_special"_a, "parse_special"_a, nb::call_guard<GilRelease>())
      .def(
          "decode", [](const Tokenizer& t, const Tokens& tokens, bool skip) { return t.decode(tokens, skip); },
          "tokens"_a, "skip_special"_a, nb::call_guard<GilRelease>())
      .def(
          "piece",
          [](const Tokenizer& t, Token token) {
            const std::string_view piece = t.piece(token);
            return nb::bytes(piece.data(), piece.size());
          },
          "token"_a)
      .def(
          "find", [](const Tokenizer& t, const nb::bytes& piece) { return t.find(view_of(piece)); }, "piece"_a)
      .def("is_special", &Tokenizer::is_special, "token"_a);
  m.def(
      "open_tokenizer",
      [](const nb::bytes& path) { return std::make_shared<Tokenizer>(Tokenizer::open(std::string(view_of(path)))); },
      "path"_a);
  bind_chat_template(m);
}

}  // namespace attend::python
