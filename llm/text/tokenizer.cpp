// Encoding and decoding.
#include "llm/text/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "attend/error.hpp"
#include "llm/text/tokenizer_data.hpp"
#include "llm/text/unicode.hpp"

namespace attend::llm {
namespace {

constexpr std::size_t kLongestText = std::size_t{1} << 30;

void check_length(std::size_t bytes) {
  if (bytes <= kLongestText) return;
  throw InvalidArgument("text to encode has " + std::to_string(bytes) + " bytes, expected at most " +
                        std::to_string(kLongestText));
}

// One text on its way to tokens.
class Encoding {
 public:
  Encoding(const TokenizerData& data, bool add_special) : data_(data), add_special_(add_special) {
    if (add_special_) tokens_.insert(tokens_.end(), data_.before.begin(), data_.before.end());
  }

  void text(std::string_view text, bool parse_special) {
    if (data_.added.empty()) return normalized(text, parse_special);
    std::vector<AddedTokens::Segment> segments;
    data_.added.split(text, parse_special, segments);
    for (const AddedTokens::Segment& s : segments) segment(s, text, parse_special);
  }
  void text(std::string_view text, std::span<const ByteRange> trusted) {
    std::vector<AddedTokens::Segment> segments;
    data_.added.split(text, trusted, segments);
    for (const AddedTokens::Segment& s : segments) {
      // Special tokens in the normalised text: only where all of it is trusted.
      const auto range =
          std::partition_point(trusted.begin(), trusted.end(), [&](const ByteRange& r) { return r.end < s.end; });
      const bool parse_special = range != trusted.end() && range->begin <= s.begin;
      segment(s, text, parse_special);
    }
  }

  std::vector<Token> finish() {
    if (add_special_) tokens_.insert(tokens_.end(), data_.after.begin(), data_.after.end());
    return std::move(tokens_);
  }

 private:
  void segment(const AddedTokens::Segment& s, std::string_view text, bool parse_special) {
    if (s.token >= 0) {
      tokens_.push_back(s.token);
    } else {
      normalized(text.substr(s.begin, s.end - s.begin), parse_special);
    }
  }
  void normalized(std::string_view text, bool parse_special) {
    if (data_.normalizer.empty()) return split(text, parse_special);
    split(data_.normalizer.apply(text), parse_special);
  }
  void split(std::string_view text, bool parse_special) {
    if (data_.added_normalized.empty()) return words(text);
    std::vector<AddedTokens::Segment> segments;
    data_.added_normalized.split(text, parse_special, segments);
    for (const AddedTokens::Segment& s : segments) {
      if (s.token >= 0) {
        tokens_.push_back(s.token);
      } else {
        words(text.substr(s.begin, s.end - s.begin));
      }
    }
  }
  void words(std::string_view text) {
    if (text.empty()) return;
    std::deque<std::string> made;
    data_.pre_tokenizer.split(text, words_, made);
    for (const std::string_view word : words_) data_.model->encode(word, tokens_);
  }

  const TokenizerData& data_;
  bool add_special_;
  std::vector<Token> tokens_;
  PreTokenizer::Words words_;
};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::size_t found = text.find(from);
  if (found == std::string::npos) return;
  std::string out;
  std::size_t done = 0;
  for (; found != std::string::npos; found = text.find(from, done)) {
    out.append(text, done, found - done).append(to);
    done = found + from.size();
  }
  text = out.append(text, done);
}

// Token by token, as the WordPiece decoder does it: spaces go from before punctuation and English short forms.
void clean_up(std::string& text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kReplaced = {{{" .", "."},
                                                                                        {" ?", "?"},
                                                                                        {" !", "!"},
                                                                                        {" ,", ","},
                                                                                        {" ' ", "'"},
                                                                                        {" n't", "n't"},
                                                                                        {" 'm", "'m"},
                                                                                        {" do not", " don't"},
                                                                                        {" 's", "'s"},
                                                                                        {" 've", "'ve"},
                                                                                        {" 're", "'re"}}};
  for (const auto& [from, to] : kReplaced) replace_all(text, from, to);
}

}  // namespace

std::string TokenizerData::decoded(Token token, bool first) const {
  std::string text(pieces[static_cast<std::size_t>(token)]);
  if (decoder == DecoderKind::byte_level) return text;
  if (!first) {
    if (!prefix.empty() && text.starts_with(prefix)) {
      text.erase(0, prefix.size());
    } else {
      text.insert(0, 1, ' ');
    }
  }
  if (cleanup) clean_up(text);
  return text;
}

Tokenizer Tokenizer::open(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) return tokenizer_from_folder(path);
  return tokenizer_from_gguf(io::Gguf(path), path.string());
}

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerData> data) : data_("Tokenizer", std::move(data)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::int64_t Tokenizer::vocabulary() const {
  return static_cast<std::int64_t>(data_->pieces.size());
}

const SpecialTokens& Tokenizer::special() const {
  return data_->special;
}

std::vector<Token> Tokenizer::encode(std::string_view text, bool add_special, bool parse_special) const {
  check_length(text.size());
  Encoding encoding(*data_, add_special);
  if (is_utf8(text)) {
    encoding.text(text, parse_special);
  } else {
    encoding.text(utf8_repaired(text), parse_special);
  }
  return encoding.finish();
}

std::vector<Token> Tokenizer::encode_parts(std::span<const TextPart> parts, bool add_special) const {
  std::string text;
  std::vector<ByteRange> trusted;
  for (const TextPart& part : parts) {
    check_length(part.text.size());
    check_length(text.size() + part.text.size());
    const std::size_t begin = text.size();
    text += utf8_repaired(part.text);  // each for itself: a cut character does not reach into the next part
    if (!part.trusted) continue;
    if (!trusted.empty() && trusted.back().end == begin) {
      trusted.back().end = text.size();
    } else {
      trusted.push_back({begin, text.size()});
    }
  }
  Encoding encoding(*data_, add_special);
  encoding.text(text, trusted);
  return encoding.finish();
}

std::string Tokenizer::decode(std::span<const Token> tokens, bool skip_special) const {
  std::string bytes;
  bool first = true;
  for (const Token token : tokens) {
    if (!data_->present(token) || (skip_special && is_special(token))) continue;
    bytes += data_->decoded(token, first);
    first = false;
  }
  return is_utf8(bytes) ? bytes : utf8_repaired(bytes);
}

std::string_view Tokenizer::piece(Token token) const {
  return data_->present(token) ? data_->pieces[static_cast<std::size_t>(token)] : std::string_view();
}

std::optional<Token> Tokenizer::find(std::string_view piece) const {
  const Token token = data_->by_piece.find(data_->pieces, piece);
  return token < 0 ? std::nullopt : std::optional(token);
}

bool Tokenizer::is_special(Token token) const {
  return data_->present(token) && (data_->kinds[static_cast<std::size_t>(token)] & TokenizerData::kSpecial) != 0;
}

const std::string& Tokenizer::chat_template() const {
  return data_->chat_template;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : data_(tokenizer.data_.pointer().get()), skip_special_(skip_special) {}

std::string StreamDecoder::push(Token token) {
  if (!data_->present(token)) return "";
  if (skip_special_ && (data_->kinds[static_cast<std::size_t>(token)] & TokenizerData::kSpecial) != 0) return "";
  held_ += data_->decoded(token, first_);
  first_ = false;
  const std::size_t ready = held_.size() - utf8_cut_tail(held_);
  std::string text = utf8_repaired(std::string_view(held_).substr(0, ready));
  held_.erase(0, ready);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = utf8_repaired(held_);
  held_.clear();
  first_ = true;
  return text;
}

}  // namespace attend::llm
