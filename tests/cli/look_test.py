"""`attend look` from outside, on the golden model: what it prints, what it writes, what it refuses."""

import json
import pathlib
import struct
import xml.etree.ElementTree as xml

import model_test

TEXT = "abcdefgabcdefg hij abc"


class LookTest(model_test.GoldenModel):
    def look(self, *arguments):
        return self.ok("look", "model", TEXT, "-q", *arguments).stdout

    def numbers(self, path):
        data = path.read_bytes()
        length = struct.unpack("<H", data[8:10])[0]
        self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
        self.assertEqual((10 + length) % 64, 0)
        return eval(data[10:10 + length]), struct.unpack(f"<{(len(data) - 10 - length) // 4}f", data[10 + length:])

    def test_prints_heads_a_map_and_the_next_token(self):
        text = self.look("--head", "1.2", "--statistics", "--query", "9", "--cell", "9,4")
        for words in ("2 layers of 4 heads", "kinds of heads", "layer 1, head 2", "runner-up", "next token",
                      "means over rows", "looks at", "is looked at by", "x scale", "softmax"):
            self.assertIn(words, text)
        self.assertNotIn("\x1b", text)

    def test_switches_say_what_changed(self):
        text = self.look("-s", "scale=off", "-s", "knock=zero@0.1")
        for words in ("switch  scale=off,knock=zero@0.1", "the plain run", "this run", "KL", "loss"):
            self.assertIn(words, text)
        same = json.loads(self.look("--json", "-s", "temperature=1"))["change"]
        self.assertEqual(same["kl"], 0)
        other = json.loads(self.look("--json", "--against", "zyx"))["change"]
        self.assertGreater(other["kl"], 0)

    def test_draws_what_changed_most(self):
        text = self.look("-s", "knock=zero@0.1")
        look = json.loads(self.look("--json", "-s", "knock=zero@0.1"))
        heads = look["change"]["heads"]
        self.assertEqual(len(heads), 8)
        self.assertEqual([h["change"] for h in heads], sorted((h["change"] for h in heads), reverse=True))
        self.assertGreater(heads[0]["change"], 0)
        # The edited layer's own weights are computed before the edit; the head that changed most is drawn.
        self.assertEqual({h["layer"] for h in heads if h["change"] > 0}, {1})
        self.assertIn(f"layer 1, head {heads[0]['head']}: ", text)
        for words in ("what changed most against the plain run", f"    {1}.{heads[0]['head']}  {heads[0]['change']:.4f}",
                      "predictions: KL in nats", "tokens: change in loss"):
            self.assertIn(words, text)
        kl = [p["kl"] for p in look["change"]["predictions"]]
        self.assertEqual(kl, sorted(kl, reverse=True))
        self.assertEqual(len(look["change"]["tokens"]), 10)
        # After the last layer there is no other head: the edited one is drawn.
        last = self.look("-s", "knock=zero@1.2")
        self.assertIn("no head's weights changed", last)
        self.assertIn("layer 1, head 2: ", last)
        self.assertIn("layer 0, head 3: ", self.look("-s", "knock=zero@0.1", "--head", "0.3"))
        self.assertIn("compared between runs of as many tokens", self.look("--against", "zyx"))
        refused = self.attend("look", "model", TEXT, "--against", "zyx", "--out", "x.png", "--picture", "tokens")
        self.assertEqual((refused.returncode, "needs two runs of as many tokens" in refused.stderr), (2, True), refused.stderr)

    def test_layers_and_memory(self):
        some = self.look("--layers", "1", "--json")
        self.assertEqual(json.loads(some)["types"], json.loads(self.look("--json"))["types"])
        self.assertIn("layer 1, head ", self.look("--layers", "1"))
        self.look("--layers", "0-1", "--out", "all")
        cases = {("--layers", "1", "--head", "0.0"): (2, "add layer 0 to --layers"),
                 ("--layers", "1-0"): (2, "expected layers and ranges such as 0,3,5-7"),
                 ("--layers", "x"): (2, "expected layers and ranges such as 0,3,5-7"),
                 ("--layers", "7"): (2, "layers 0 to 1"),
                 ("--layers", "1", "--generate", "2"): (2, "leave out --layers")}
        for arguments, (code, words) in cases.items():
            result = self.attend("look", "model", TEXT, *arguments)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(words, result.stderr)
        self.assertIn("leave them out", self.attend("look", "model", "--relations", "--layers", "0").stderr)
        long = "abcdefgh" * 1500  # 12,000 tokens
        refused = self.attend("look", "model", long, "--memory", "1")
        self.assertEqual(refused.returncode, 1, refused.stderr)
        for words in ("12000 tokens take", "limit of 1.0 MiB", "--layers", "--memory"):
            self.assertIn(words, refused.stderr)

    def test_json_holds_it_all(self):
        look = json.loads(self.look("--json"))
        self.assertEqual("".join(token["text"] for token in look["tokens"]), TEXT)
        self.assertEqual(len(look["types"]), 8)
        for head in look["types"]:
            self.assertEqual(head["rows"] + head["left_out"], len(TEXT) - 2)
            self.assertNotEqual(head["kind"]["kind"], head["runner_up"]["kind"])
            self.assertLessEqual(set(head["on_texts"]), {"prose", "exposition", "code", "Chinese"})
            self.assertGreater(len(head["on_texts"]), 0)
        for mass in look["statistics"]["mass"]:
            self.assertAlmostEqual(mass, 1, places=5)
        self.assertEqual(len(look["next"]), 5)

    def test_writes_every_kind_of_file(self):
        folder = pathlib.Path(self.folder.name)
        self.look("--out", "all", "-s", "temperature=2", "--head", "0.0")
        names = {path.name for path in (folder / "all").iterdir()}
        for name in ("sheet", "map", "distance", "dots", "lines", "next", "difference", "changes", "predictions", "tokens"):
            self.assertIn(f"{name}.png", names)
            xml.parse(folder / "all" / f"{name}.svg")
        self.assertEqual(json.loads((folder / "all/look.json").read_text())["switches"], "temperature=2")
        self.assertIn("<html", (folder / "all/look.html").read_text())
        header, weights = self.numbers(folder / "all/weights.npy")
        length = len(TEXT)
        self.assertEqual(header["shape"], (length, length))
        for n in range(length):
            self.assertAlmostEqual(sum(weights[n * length:(n + 1) * length]), 1, places=5)
        self.look("--out", "part.npy", "--head", "0.0", "-s", "temperature=2", "--area", "3:7,0:5")
        header, part = self.numbers(folder / "part.npy")
        self.assertEqual(header["shape"], (4, 5))
        for n in range(4):
            for m in range(5):
                self.assertAlmostEqual(part[n * 5 + m], weights[(3 + n) * length + m], places=6)

    def test_goes_on(self):
        text = self.look("--generate", "4", "--head", "1.0")
        self.assertIn("generating, with head 1.0 in view", text)
        self.assertEqual(len(text[text.index("generating"):].strip().splitlines()), 2 + 4)

    def test_refuses_in_words(self):
        cases = {
            ("look", "model", "abc", "--head", "9.0"): "expected layer 0 to 1",
            ("look", "model", "abc", "--head", "x"): "LAYER.HEAD",
            ("look", "model", "abc", "-s", "knok=zero"): "did you mean",
            ("look", "model", "abc", "-s", "knock=zero@7.1"): "the model has 2 layers",
            ("look", "model", "abc", "--area", "0:9,0:3"): "3 tokens",
            ("look", "model", "abc", "--out", "picture.bmp"): ".png, .svg",
            ("look", "model"): "no text",
            ("look", "model", "abc", "--out", "x.png", "--picture", "difference"): "expected --switch",
            ("look", "model", "abc", "--out", "x.png", "--picture", "changes"): "expected --switch",
        }
        for arguments, words in cases.items():
            result = self.attend(*arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(words, result.stderr)
