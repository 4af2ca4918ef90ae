"""The tokenizers against Hugging Face's: the same ids and the same decoded text on a million lines of mixed text.

The lines are spread over tokenizers of every supported family that are trained here, so nothing is downloaded. Real ones
join in where they are at hand: ATTEND_SMOLLM2 names SmolLM2's GGUF file, ATTEND_MINILM the folder of MiniLM. ATTEND_BUILD
names the build folder (default: build), ATTEND_TOKENIZER_LINES the number of lines (default: a million).
"""

import json
import os
import random
import struct
import subprocess
import unicodedata
from pathlib import Path

import numpy as np
import pytest

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import (  # noqa: E402
    AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers)

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(os.environ.get("ATTEND_BUILD", ROOT / "build")) / "bin" / "attend_tokenize_lines"
TOTAL = int(os.environ.get("ATTEND_TOKENIZER_LINES", 1_000_000))

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
REST = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + REST
QWEN2 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+" + REST
QWEN35 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+" + REST
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


@pytest.fixture(scope="module", autouse=True)
def built():
    assert PROGRAM.exists(), f"{PROGRAM} is not there: ninja -C build attend_tokenize_lines"


# --- text ---

SENTENCES = [
    "The quick brown fox doesn't jump over the lazy dog; it's asleep, they'll say, and we've seen I'm right.",
    "Él añadió: «¿Dónde está el niño?» — über naïve façades, Łódź, Çelik, Åse, œuvre, ĲSSEL, ﬁn, ẞ, İstanbul.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю! Їжак і Ґанок, ЁЛКА.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΟΔΥΣΣΕΥΣ, Ὀδυσσεύς.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ١٢٣٤٥، كِتَابٌ.",
    "דג סקרן שט בים מאוכזב ולפתע מצא לו חברה: שָׁלוֹם.",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश १२३४।",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓",
    "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。注意力机制：你好，世界！２０２５年㈠",
    "いろはにほへと ちりぬるを。カタカナとひらがな、漢字ｶﾞｷﾞ。東京タワー",
    "다람쥐 헌 쳇바퀴에 타고파. 키스의 고유조건은 입술끼리 만나야 하고.",
    "Nhà nước Việt Nam; tiếng Việt có dấu: ắ ặ ữ. e\u0301 a\u030a o\u0308\u0304 q\u0307\u0323 q\u0323\u0307 각 \u1112\u1161\u11ab",
    "for (int i = 0; i < n; ++i) { x[i] += a[i] * b[i]; }  // O(n)\n\treturn std::move(x);\n",
    "def f(x: dict[str, int]) -> None:\n    if x.get('k') is not None:\n        raise ValueError(f'{x!r}')\n",
    "SELECT COUNT(*) FROM t WHERE a >= 10 AND b LIKE '%x_%'; -- 'S 'T 'Re 'VE 'lL 'D 'ſ it'S IT'S we'LL'LL",
    "<html><body class=\"x\">&nbsp;&#8364;</body></html> https://example.org/a/b?c=d&e=f#g user@example.org",
    "Hello World HTTPServer iPhone eBay McDonald XMLHttpRequest camelCaseWord ABCdef ДЖонСмит ǅungla ʰʷ ªº",
    "3.14159 1,000,000 2024-02-29 0x1F 1e-9 ½ ² Ⅷ ④ 𝟘𝟙 ٣ 12345678901234567890 00:00:59 +49 (0)30 123",
]
EMOJI = ["😀", "👩‍💻", "👨‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "❤️", "🇩🇪", "🇯🇵", "🧑🏿‍🚀", "☺", "✈️", "1️⃣", "🤷🏻‍♀️", "\U0001FAE0", "👍🏽👍"]
SPACES = [" ", "  ", "   ", "\n", "\r\n", "\t", "\n\n", " \n", "\n ", "\u00a0", "\u3000", "\u2028", "\v", "\f", "\x85",
          "\u200b", "\u200d", "\ufeff", " \t ", "\r", "\u1680", "        ", "\n\n\n\n", "\u202f", "  \r\n  "]
CONTROLS = ["\x00", "\x01", "\x07", "\x1b[0m", "\x7f", "\x80", "\x9f", "\ufffd", "\u00ad", "\u202e", "\ufffe", "\U0010ffff"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|", "|im_end|>", "<think>", "</think>", "<mask>",
           " <mask> ", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]", "[sep]", "<s>", "</s>", "<|", "<|begin_of_text|>",
           "<|im_start|>user\n", "attend", "attending", "Zu\u0308rich", "Z\u00fcrich", "z\u00fcrich", "ZURICH", "<|im_<|im_end|>"]


def fragments(rng):
    """A pool of pieces of text; lines are made of a few of them."""
    words = [word for sentence in SENTENCES for word in sentence.split(" ")]
    assigned = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    narrow = [c for c in assigned if c < 0x3400]
    pool = []
    for _ in range(30_000):
        kind = rng.randrange(12)
        if kind <= 2:
            pool.append(" ".join(rng.choices(words, k=rng.randint(1, 8))))
        elif kind == 3:
            pool.append(rng.choice(SENTENCES))
        elif kind == 4:
            sentence = rng.choice(SENTENCES)
            at = rng.randrange(len(sentence))
            pool.append(sentence[at:at + rng.randint(1, 30)])
        elif kind == 5:
            pool.append("".join(rng.choices(EMOJI, k=rng.randint(1, 3))))
        elif kind == 6:
            pool.append("".join(rng.choices(SPACES, k=rng.randint(1, 3))))
        elif kind == 7:
            pool.append(rng.choice(CONTROLS + SPECIAL))
        elif kind == 8:
            pool.append(str(rng.randrange(10 ** rng.randint(1, 20))))
        elif kind == 9:
            pool.append("".join(chr(c) for c in rng.choices(narrow, k=rng.randint(1, 6))))
        elif kind == 10:
            pool.append("".join(chr(c) for c in rng.choices(assigned, k=rng.randint(1, 4))))
        else:
            pool.append("".join(chr(rng.randrange(32, 127)) for _ in range(rng.randint(1, 12))))
    return pool


def make_lines(seed, count):
    """Bytes; one line in ten has broken UTF-8, few are long."""
    rng = random.Random(seed)
    pool = fragments(random.Random(7))
    lines = []
    for i in range(count):
        line = "".join(rng.choices(pool, k=rng.randint(1, 5))).encode()
        if i % 10 == 0:
            at = rng.randrange(len(line) + 1)
            broken = rng.randbytes(rng.randint(0, 3))
            line = line[:at] + broken + line[at + rng.randint(0, 2):]
        if i % 2000 == 1:
            line *= 40
        lines.append(line)
    lines[:4] = [b"", b" ", b"\n", "你好，世界".encode() * 300]
    return lines


# --- tokenizers ---

def plain(name):
    return AddedToken(name, special=True, normalized=False)


MARKS = [plain("<|endoftext|>"), plain("<|im_start|>"), plain("<|im_end|>")]


def trained(model_trainer, tokenizer, extra=()):
    rng = random.Random(3)
    pool = fragments(random.Random(7))
    text = SENTENCES * 20 + ["".join(rng.choices(pool, k=4)) for _ in range(4000)]
    tokenizer.train_from_iterator(text, model_trainer)
    tokenizer.add_tokens(list(extra))
    return tokenizer


def bpe(steps, normalizer=None, size=4000, extra=(), **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = steps if not isinstance(steps, list) else pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=MARKS, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return trained(trainer, tokenizer, extra)


def split(pattern):
    return [pre_tokenizers.Split(Regex(pattern), "isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def gpt2():
    return bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), extra=[AddedToken("<think>", normalized=False)])


def gpt2_prefix():
    tokenizer = bpe(pre_tokenizers.ByteLevel(add_prefix_space=True), extra=[
        AddedToken("<mask>", lstrip=True, rstrip=True, special=True, normalized=False),
        AddedToken("attend", single_word=True, normalized=False), AddedToken("<|", normalized=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("<|im_end|>", 2), ("<|im_start|>", 1))
    return tokenizer


def smollm2():
    return bpe([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])


def qwen2():
    return bpe(split(QWEN2), normalizer=normalizers.NFC(), extra=[
        AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False),
        AddedToken("Zu\u0308rich", normalized=True)])


def qwen35():
    return bpe(split(QWEN35), normalizer=normalizers.NFC())


def llama3():
    tokenizer = bpe(split(LLAMA3), ignore_merges=True, extra=[plain("<|begin_of_text|>"), plain("<|im_")])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                      special_tokens=[("<|begin_of_text|>", begin)])])
    return tokenizer


def tekken():
    return bpe(split(TEKKEN), ignore_merges=True)


def bert(lowercase=True, **options):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=60))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, **options)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained(trainers.WordPieceTrainer(vocab_size=4000, special_tokens=names, show_progress=False), tokenizer,
            [AddedToken("Z\u00fcrich", normalized=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")])
    return tokenizer


def bert_cased():
    return bert(lowercase=False, clean_text=False)


TRAINED = [gpt2, gpt2_prefix, smollm2, qwen2, qwen35, llama3, tekken, bert, bert_cased]


class Gguf:
    """The settings of a GGUF file."""

    SIMPLE = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def __init__(self, path):
        self.file = open(path, "rb")
        assert self.file.read(4) == b"GGUF"
        _, _, count = self.take("IQQ")
        self.values = {}
        for _ in range(count):
            key = self.text()
            self.values[key] = self.value(self.take("I")[0])

    def take(self, form):
        return struct.unpack("<" + form, self.file.read(struct.calcsize("<" + form)))

    def text(self):
        return self.file.read(self.take("Q")[0]).decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.take("IQ")
            return [self.value(inner) for _ in range(count)]
        return self.take(self.SIMPLE[kind])[0]


def smollm2_of_gguf(path):
    """As the model's own tokenizer.json has it."""
    values = Gguf(path).values
    tokens, types = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([plain(token) for token, kind in zip(tokens, types) if kind == 3])
    return tokenizer


# --- comparison ---

def ask(path, lines, *options):
    """Ids and decoded text of each line."""
    packed = b"".join(struct.pack("<I", len(line)) + line for line in lines)
    done = subprocess.run([PROGRAM, path, *options], input=packed, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    answer, at, results = done.stdout, 0, []
    for _ in lines:
        count = int.from_bytes(answer[at:at + 4], "little")
        ids = np.frombuffer(answer, np.int32, count, at + 4).tolist()
        at += 4 + 4 * count
        size = int.from_bytes(answer[at:at + 4], "little")
        results.append((ids, answer[at + 4:at + 4 + size]))
        at += 4 + size
    assert at == len(answer)
    return results


def compare(name, tokenizer, path, lines, *options, **arguments):
    texts = [line.decode("utf-8", "replace") for line in lines]
    for begin in range(0, len(lines), 50_000):
        part = slice(begin, begin + 50_000)
        theirs = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts[part], **arguments)]
        decoded = tokenizer.decode_batch(theirs, skip_special_tokens=False)
        for line, (ids, text), ids_there, text_there in zip(lines[part], ask(path, lines[part], *options), theirs, decoded):
            assert ids == ids_there, f"{name}: {line!r}: {show(tokenizer, ids)} is not {show(tokenizer, ids_there)}"
            assert text == text_there.encode(), f"{name}: {line!r} decodes as {text!r}, not {text_there!r}"


def show(tokenizer, ids):
    return [(i, tokenizer.id_to_token(i)) for i in ids[:60]]


@pytest.mark.parametrize("make", TRAINED, ids=lambda make: make.__name__)
def test_trained(make, tmp_path):
    tokenizer = make()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    lines = make_lines(TRAINED.index(make), -(-TOTAL // len(TRAINED)))
    compare(make.__name__, tokenizer, path, lines)

    some = lines[:max(100, len(lines) // 20)]
    compare(make.__name__, tokenizer, path, some, "--no-add-special", add_special_tokens=False)
    tokenizer.encode_special_tokens = True
    compare(make.__name__, tokenizer, path, some, "--no-parse-special")


@pytest.mark.skipif("ATTEND_SMOLLM2" not in os.environ, reason="ATTEND_SMOLLM2 names no GGUF file")
def test_smollm2():
    path = os.environ["ATTEND_SMOLLM2"]
    compare("SmolLM2", smollm2_of_gguf(path), path, make_lines(100, TOTAL // 10))


@pytest.mark.skipif("ATTEND_MINILM" not in os.environ, reason="ATTEND_MINILM names no folder")
def test_minilm():
    folder = os.environ["ATTEND_MINILM"]
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    compare("MiniLM", tokenizer, folder, make_lines(101, TOTAL // 10))


def test_merges_as_strings(tmp_path):
    """Files of before 2024 write a merge as one string."""
    tokenizer = gpt2()
    content = json.loads(tokenizer.to_str())
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    compare("strings", tokenizer, path, make_lines(102, 2000))


def digits_and_case():
    return bpe([pre_tokenizers.Digits(individual_digits=True), *split(TEKKEN)])


@pytest.mark.parametrize("make", [digits_and_case, qwen35, bert], ids=lambda make: make.__name__)
def test_every_character(make, tmp_path):
    """In a word, alone, and after an accent: categories, case and normal forms are the same for all of Unicode."""
    tokenizer = make()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    lines = []
    for begin in range(0, len(characters), 40):
        part = characters[begin:begin + 40]
        lines.append(("a".join(part) + " " + " ".join(part) + "".join("e\u0301" + c for c in part)).encode())
    compare(make.__name__, tokenizer, path, lines)


def test_golden_chats():
    """The chats that the unit tests compare with are still what transformers renders."""
    folder = ROOT / "tests" / "golden" / "tokenizers"
    scope = {"__name__": "make", "__file__": str(folder / "make.py")}
    exec(compile((folder / "make.py").read_text(), "make.py", "exec"), scope)
    assert scope["make_chats"]() == json.loads((folder / "chats.json").read_text())
