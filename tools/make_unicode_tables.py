#!/usr/bin/env python3
"""Makes llm/text/unicode_tables.cpp: where Hugging Face's `tokenizers` and utf8proc see a character differently.

Tokenizers must cut text as Hugging Face's do, and these take their characters from several versions of Unicode: regular
expressions and char::is_numeric from a newer one than utf8proc, BERT's code and the normal forms from older ones. So every
character is put to both, and each table holds the ranges in which they differ.

usage: make_unicode_tables.py [--check]       needs the package tokenizers, libutf8proc and clang-format-19
  --check   write nothing; exit code 1 if the file is not what would be written
"""

import argparse
import ctypes
import ctypes.util
import pathlib
import re
import subprocess
import sys

FILE = pathlib.Path(__file__).resolve().parents[1] / "llm/text/unicode_tables.cpp"
# What the file was made with: another version may give other tables.
TOKENIZERS = "0.23.3"
UTF8PROC_UNICODE = "15.0.0"

CHARACTERS = [chr(c) for c in range(128, 0x110000) if not 0xD800 <= c <= 0xDFFF]
CATEGORIES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co".split()


class Utf8proc:
    """Categories, combining classes and pairs as utf8proc has them."""

    STABLE, COMPOSE, DECOMPOSE = 1 << 1, 1 << 3, 1 << 4  # utf8proc.h

    def __init__(self):
        self.library = ctypes.CDLL(ctypes.util.find_library("utf8proc") or "libutf8proc.so.2")
        self.library.utf8proc_unicode_version.restype = ctypes.c_char_p
        self.library.utf8proc_get_property.restype = ctypes.POINTER(ctypes.c_uint16)  # category, combining class, ...
        self.version = self.library.utf8proc_unicode_version().decode()

    def category(self, c):
        return CATEGORIES[self.library.utf8proc_category(ord(c))]

    def combining_class(self, c):
        return self.library.utf8proc_get_property(ord(c))[1]

    def pair(self, c):
        """The two characters that compose to c, or None."""
        parts = (ctypes.c_int32 * 8)()
        if self.library.utf8proc_decompose_char(ord(c), parts, 8, self.DECOMPOSE, None) != 2:
            return None
        pair = chr(parts[0]) + chr(parts[1])
        composed = self.library.utf8proc_normalize_utf32(parts, ctypes.c_ssize_t(2), self.COMPOSE | self.STABLE)
        return pair if composed == 1 and parts[0] == ord(c) else None


class HuggingFace:
    """What the package `tokenizers` makes of a character."""

    def __init__(self):
        import tokenizers
        from tokenizers import Regex, normalizers, pre_tokenizers

        self.version = tokenizers.__version__
        self._regex = {}
        self._make_regex = lambda pattern: pre_tokenizers.Split(Regex(pattern), "isolated")
        self._digits = pre_tokenizers.Digits(individual_digits=True)
        self._bert = pre_tokenizers.BertPreTokenizer()
        self._clean = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
        self._strip_bert = normalizers.BertNormalizer(
            clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
        self._strip = normalizers.StripAccents()
        self._nfd = normalizers.NFD()
        self._nfc = normalizers.NFC()

    @staticmethod
    def _cuts(pre_tokenizer, c, beside="x"):
        """Whether c between two characters that are not cut off is a piece of its own."""
        return len(pre_tokenizer.pre_tokenize_str(f"{beside}{c}{beside}")) == 3

    def matches(self, pattern, c):
        if pattern not in self._regex:
            self._regex[pattern] = self._make_regex(pattern)
        return self._cuts(self._regex[pattern], c, "!")

    def numeric(self, c):
        return self._cuts(self._digits, c)

    def bert_punctuation(self, c):
        return self._cuts(self._bert, c)

    def bert_control(self, c):
        return self._clean.normalize_str(f"x{c}x") == "xx"

    def nonspacing(self, c):
        return self._strip_bert.normalize_str(f"x{c}x") == "xx"

    def combining(self, c):
        return self._strip.normalize_str(f"x{c}x") == "xx"

    def reordered(self, c, combining_class):
        """Whether NFD moves c past a mark of a lower class, or, if c has the lowest, the highest one past c."""
        text = f"x{c}\u0334" if combining_class > 1 else f"x\u0345{c}"
        return self._nfd.normalize_str(text) != text

    def composes(self, pair):
        return len(self._nfc.normalize_str(pair)) == 1


def make_tables(hf, utf8proc):
    """name -> its characters"""
    category = {c: utf8proc.category(c) for c in CHARACTERS}

    def new(pattern):
        return [c for c in CHARACTERS if category[c] == "Cn" and hf.matches(pattern, c)]

    def missing(begins, has):
        return [c for c in CHARACTERS if category[c].startswith(begins) and not has(c)]

    classes = {c: utf8proc.combining_class(c) for c in CHARACTERS}
    pairs = filter(None, map(utf8proc.pair, CHARACTERS))
    uncomposed = {pair[1] for pair in pairs if not hf.composes(pair)}
    return {
        "kNewLetters": new(r"\p{L}"),
        "kNewNumbers": new(r"\p{N}"),
        "kNewMarks": new(r"\p{M}"),
        "kNewUpper": new(r"[\p{Lu}\p{Lt}]"),
        "kNewLower": new(r"\p{Ll}"),
        "kNewDigits": [c for c in CHARACTERS if category[c][0] != "N" and hf.numeric(c)],
        "kNotBertPunctuation": missing("P", hf.bert_punctuation),
        "kNotBertControl": missing(("Cc", "Cf", "Co"), hf.bert_control),
        "kNotNonspacing": missing("Mn", hf.nonspacing),
        "kNotCombining": missing("M", hf.combining),
        "kNotReordered": [
            c for c in CHARACTERS if c in uncomposed or classes[c] and not hf.reordered(c, classes[c])],
    }


COMMENTS = {
    "kNewLetters": "Assigned in Unicode 16: the regular expressions know them, utf8proc may not yet.",
    "kNewDigits": "char::is_numeric of Rust, Unicode 17.",
    "kNotBertPunctuation":
        "Assigned after Unicode 8: punctuation, controls and marks that the BERT code takes for ordinary characters.",
    "kNotReordered": "Assigned after Unicode 9: marks that the normal forms leave where they are and join with nothing.",
}


def ranges_of(characters):
    ranges = []
    for c in sorted(map(ord, characters)):
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    return ranges


def write_source(tables):
    lines = [
        "// Where Hugging Face's tables of characters and utf8proc's (Unicode 15) differ, found by asking both for every",
        "// character: made by tools/make_unicode_tables.py.",
        '#include "llm/text/unicode_tables.hpp"',
        "",
        "namespace attend::llm {",
        "namespace {",
        "",
    ]
    for name, characters in tables.items():
        if name in COMMENTS:
            lines.append(f"// {COMMENTS[name]}")
        ranges = ", ".join(f"{{0x{first:X}, 0x{last:X}}}" for first, last in ranges_of(characters))
        lines.append(f"constexpr CharRange {name}Ranges[] = {{{ranges}}};")
    lines += ["", "}  // namespace", ""]
    lines += [f"const std::span<const CharRange> {name} = {name}Ranges;" for name in tables]
    lines += ["", "}  // namespace attend::llm", ""]
    return "\n".join(lines)


def without_spaces(text):
    return re.sub(r"\s+", "", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    hf, utf8proc = HuggingFace(), Utf8proc()
    versions = f"tokenizers {hf.version}, utf8proc with Unicode {utf8proc.version}"
    if (hf.version, utf8proc.version) != (TOKENIZERS, UTF8PROC_UNICODE):
        print(f"note: {versions}; the file was made with tokenizers {TOKENIZERS} and Unicode {UTF8PROC_UNICODE}")
    text = write_source(make_tables(hf, utf8proc))
    if check:
        same = without_spaces(text) == without_spaces(FILE.read_text())  # the layout is clang-format's, checked by it
        print(f"{FILE.name}: {'as made' if same else 'NOT what tools/make_unicode_tables.py makes'} by {versions}")
        return 0 if same else 1
    formatted = subprocess.run(
        ["clang-format-19", f"--assume-filename={FILE}"], input=text, capture_output=True, text=True, check=True)
    FILE.write_text(formatted.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
