#!/usr/bin/env python3
"""Finds phrases that the field does not use in documents and in strings, and prints what to write instead.

usage: check_words.py [root] [--limit N] [--list [PHRASE]] [--counts] [--dump documents|strings]

Documents are all Markdown files, without code blocks and inline code. Strings are the string literals of C++, CUDA, C, Python
(docstrings included), JavaScript and `dev`; tests are left out. Fails if documents and strings together contain more than N
matches per 100,000 words (--limit), or any match of a phrase that is marked "never".
"""

import argparse
import ast
import dataclasses
import pathlib
import re
import subprocess
import sys


@dataclasses.dataclass(frozen=True)
class Phrase:
    name: str
    pattern: str
    instead: str
    never: bool = False
    exceptions: str = ""  # matches of this pattern are correct uses


PHRASES = (
    Phrase("stands / lies", r"\b(stands?|stood|lies|lay)\b", "is, is stored, is at", True,
           r"\b(stands? for|standard|understood|stands? out)\b"),
    Phrase("alone", r"\balone\b", "only", exceptions=r"\bstand-alone\b"),
    Phrase("beside", r"\bbesides?\b", "next to, together with, compared with"),
    Phrase("behind", r"\bbehind\b", "after, past; fine for a proxy or a pointer",
           exceptions=r"\bbehind (a|the|your|an?other) (reverse )?(proxy|nginx|flag|option|server)\b"),
    Phrase("told", r"\b(is |are |was |be )?told\b", "given, passed, printed, reported"),
    Phrase("is no", r"\b(is|are|was|were) no [a-z]", "is not a(n), does not",
           exceptions=r"\b(is|are|was|were) no (longer|more|less|fewer|way|need|limit|[a-z]*er)\b"),
    Phrase("of its own", r"\bof (its|their|one's|his|her|your|my|our) own\b", "separate, dedicated"),
    Phrase("is made", r"\b(is|are|was|were|be) made\b( again)?", "is computed, is created, is recomputed",
           exceptions=r"\b(is|are|was|were|be) made (of|up|for|from|with|by)\b"),
    Phrase("nobody / whoever", r"\b(nobody|whoever)\b", "no one, unused, the caller", True),
    Phrase("anew", r"\banew\b", "again, from scratch", True),
    Phrase("halves", r"\bhalves\b", "bf16/f16 values, half precision", exceptions=r"\b(two|both|three|of the) halves\b"),
    Phrase("rivals / peers", r"\b(rivals?|peers)\b", "baseline(s)", exceptions=r"--peers|bench/peers|python/peers"),
    Phrase("mend", r"\bmend(ed|s|ing)?\b", "fix"),
    Phrase("knocked out", r"\bknock(ed|s|ing)? out\b", "ablated"),
    Phrase("by hand", r"\bby hand\b", "manually"),
    Phrase("quiet / busy machine", r"\b(quiet|busy) (machine|computer|core|cpu)s?\b", "idle / loaded machine"),
    Phrase("may never", r"\bmay never\b", "must not"),
    Phrase("to the bit", r"\b(to the bit|the same bits|bit for bit)\b", "bit-identical, bitwise deterministic"),
    Phrase("model inside", r"\bmodel inside\b", "bundled model"),
    Phrase("refused by name", r"\b(refused|rejected) by name\b", "rejected with an error that names …"),
    Phrase("is no number", r"\bis no (whole )?number\b", "must be a number / an integer; is NaN or infinite"),
)

# What people search for: reported by --counts, never an error.
TERMS = ("latency", "overhead", "persistent kernel", "warp-specialized", "split-KV", "preempt", "prefix cache", "chunked prefill",
         "deadlock", "throughput")

ESCAPES = re.compile(r"\\(n|t|r|\\|\"|'|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|0)")
CPP_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\((.*?)\)\1"|"((?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
JS_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|`((?:\\.|[^`\\])*)`|"((?:\\.|[^"\\\n])*)"|\'((?:\\.|[^\'\\\n])*)\'', re.DOTALL)
SHELL_STRING = re.compile(r'"((?:\\.|[^"\\])*)"|\'([^\']*)\'')
TEXT = re.compile(r"[A-Za-z]{2,} [A-Za-z(]|[\u4e00-\u9fff]{2,}")  # two words; identifiers, formats and paths are left out


@dataclasses.dataclass(frozen=True)
class Piece:
    place: str  # file:line
    text: str


def cpp_strings(text):
    """[(offset, string)], neighbouring literals joined."""
    joined, end = [], None
    for token in CPP_TOKEN.finditer(text):
        if token[0].startswith(("//", "/*", "'")):
            continue
        string = token[2] if token[2] is not None else ESCAPES.sub(" ", token[3] or "")
        if joined and end is not None and not text[end:token.start()].strip():
            joined[-1] = (joined[-1][0], joined[-1][1] + string)
        else:
            joined.append((token.start(), string))
        end = token.end()
    return joined


def js_strings(text):
    return [(token.start(), next((group for group in token.groups() if group), "")) for token in JS_TOKEN.finditer(text)
            if not token[0].startswith(("//", "/*"))]


def python_strings(text):
    """[(offset, string)] of literals, with the fixed parts of f-strings."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return [(starts[node.lineno - 1], node.value) for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def shell_strings(text):
    return [(token.start(), token[1] or token[2] or "") for token in SHELL_STRING.finditer(text)]


def html_strings(text):
    return [(token.start(), token[1]) for token in re.finditer(r">([^<>]+)<", text)]


STRINGS = {".cpp": cpp_strings, ".hpp": cpp_strings, ".h": cpp_strings, ".c": cpp_strings, ".cu": cpp_strings, ".cuh": cpp_strings,
           ".inl": cpp_strings, ".py": python_strings, ".pyi": python_strings, ".js": js_strings, ".html": html_strings,
           ".sh": shell_strings, "": shell_strings}


def prose(text):
    """Markdown without code, links' targets and images' paths; as many lines as before."""
    def blank(match):
        return "\n" * match[0].count("\n")

    text = re.sub(r"```.*?```", blank, text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def tracked(root):
    names = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True, text=True)
    return [pathlib.Path(name) for name in names.stdout.splitlines() if (root / name).is_file()]


def documents(root):
    for name in tracked(root):
        if name.suffix == ".md":
            for number, paragraph in paragraphs(prose((root / name).read_text())):
                yield Piece(f"{name}:{number}", paragraph)


def paragraphs(text):
    """[(line, text)] of blocks between blank lines; phrases may cross a line's end."""
    line = 1
    for block in re.split(r"(\n\s*\n)", text):
        if block.strip():
            yield line + len(block) - len(block.lstrip("\n")), " ".join(block.split())
        line += block.count("\n")


def strings(root):
    for name in tracked(root):
        if name.parts[0] == "tests" or (name.suffix == "" and name.name != "dev") or name.suffix not in STRINGS:
            continue
        if name.name == pathlib.Path(__file__).name:
            continue
        text = (root / name).read_text()
        for offset, string in STRINGS[name.suffix](text):
            if TEXT.search(string):
                yield Piece(f"{name}:{text.count(chr(10), 0, offset) + 1}", " ".join(string.split()))


def matches(phrase, text):
    correct = [range(*match.span()) for match in re.finditer(phrase.exceptions, text, re.IGNORECASE)] if phrase.exceptions else []
    return [match for match in re.finditer(phrase.pattern, text, re.IGNORECASE)
            if not any(match.start() in span for span in correct)]


def words(pieces):
    return sum(len(re.findall(r"[A-Za-z][A-Za-z'-]*", piece.text)) for piece in pieces)


def report(sources, out):
    """Prints a table of all phrases and returns (matches per 100,000 words, names of "never" phrases that occur)."""
    total, never = 0, []
    print(f"{'phrase':24}" + "".join(f"{name:>12}" for name in sources) + "   write instead", file=out)
    for phrase in PHRASES:
        counts = [sum(len(matches(phrase, piece.text)) for piece in pieces) for pieces in sources.values()]
        total += sum(counts)
        never += [phrase.name] if phrase.never and sum(counts) else []
        print(f"{phrase.name:24}" + "".join(f"{count:12}" for count in counts) + f"   {phrase.instead}", file=out)
    rate = 100_000 * total / max(1, sum(map(words, sources.values())))
    print(f"{'words':24}" + "".join(f"{words(pieces):12}" for pieces in sources.values()), file=out)
    print(f"{rate:.0f} matches per 100,000 words", file=out)
    return rate, never


def show(sources, wanted):
    for phrase in PHRASES:
        if wanted not in ("", phrase.name):
            continue
        for pieces in sources.values():
            for piece in pieces:
                for match in matches(phrase, piece.text):
                    around = piece.text[max(0, match.start() - 60):match.end() + 60]
                    print(f"{piece.place}: …{around}…  [{match[0]} → {phrase.instead}]")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    parser.add_argument("--limit", type=float, help="matches per 100,000 words that are accepted")
    parser.add_argument("--list", nargs="?", const="", metavar="PHRASE", help="print every match, or those of one phrase")
    parser.add_argument("--counts", action="store_true", help="also count the terms that people search for")
    parser.add_argument("--dump", choices=("documents", "strings"), help="print all text of one kind, one piece per line")
    options = parser.parse_args()
    sources = {"documents": list(documents(options.root)), "strings": list(strings(options.root))}
    if options.dump:
        print("\n".join(f"{piece.place}\t{piece.text}" for piece in sources[options.dump]))
        return 0
    if options.list is not None:
        show(sources, options.list)
        return 0
    rate, never = report(sources, sys.stdout)
    if options.counts:
        for term in TERMS:
            pattern = re.compile(re.escape(term).replace(r"\ ", r"[\s-]").replace(r"\-", r"[\s-]"), re.IGNORECASE)
            found = [sum(len(pattern.findall(piece.text)) for piece in pieces) for pieces in sources.values()]
            print(f"{term:24}" + "".join(f"{count:12}" for count in found))
    if options.limit is not None and (rate > options.limit or never):
        print(f"error: {rate:.0f} matches per 100,000 words, expected at most {options.limit:.0f}; must not occur: "
              f"{', '.join(never) or 'nothing more'}\n       'tools/check_words.py --list' shows each with its replacement", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
