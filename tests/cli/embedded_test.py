"""The model inside the program: used where none is named, and written to a file like any other."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

PROGRAM = ""


class EmbeddedModel(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.env = {k: v for k, v in os.environ.items() if k not in ("ATTEND_ISA", "ATTEND_THREADS")}
        self.env["ATTEND_HOME"] = str(pathlib.Path(self.folder.name, "store"))

    def attend(self, *arguments, code=0, **more):
        result = subprocess.run([PROGRAM, *arguments], cwd=self.folder.name, env=self.env, text=True, capture_output=True,
                                timeout=120, **more)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def test_is_meant_where_no_model_is_named(self):
        named = self.attend("generate", "storyteller", "Once upon a time", "-n", "30")
        unnamed = self.attend("generate", "Once upon a time", "-n", "30")
        self.assertEqual(named.stdout, unnamed.stdout)
        self.assertIn("model: storyteller", unnamed.stderr)
        self.assertNotIn("model:", named.stderr)
        self.assertEqual(self.attend("generate", "-", "-n", "30", "-q", input="Once upon a time").stdout, named.stdout)
        self.assertNotEqual(self.attend("generate", "从前", "-n", "30").stdout.strip(), "")
        self.assertIn("storyteller", self.attend("info").stdout)
        self.assertRegex(self.attend("models").stdout, r"inside the program\n  storyteller +[0-9,]+ parameters")
        self.assertIn("storyteller\n", self.attend("completion", "models").stdout)
        self.assertIn("no model \"nonsuch\"", self.attend("generate", "nonsuch", code=2).stderr)

    def test_chats_in_both_languages(self):
        talk = {"Hello!": "Hello! Shall I tell you a story?", "What is 3 + 4?": "3 + 4 = 7.",
                "Repeat after me: pok zim hey.": "pok zim hey.", "Thank you!": "You are welcome!",
                "Kate had a red ball. Dan had a big hat. Who had the red ball?": "The red ball was Kate's.",
                "What did Dan have?": "Dan had a big hat."}
        for talk in (talk, {"你好！": "你好！要我讲个故事吗？", "5 + 8 等于几？": "5 + 8 = 13。", "谢谢！": "不客气！",
                            "小明有一个红色的球。小丹有一顶大大的帽子。谁有红色的球？": "红色的球是小明的。",
                            "帽子是什么样的？": "帽子是大大的。"}):
            said = self.attend("chat", "-q", "-t", "0", "--repetition-penalty", "1", input="\n".join(talk) + "\n").stdout
            self.assertEqual(said.splitlines(), list(talk.values()))
        story = self.attend("generate", "--chat", "storyteller", "Tell me a story about Lily and a red kite.", "-q").stdout
        self.assertRegex(story, r"^Once upon a time, there was .* named Lily\..* kite\. .* friends from then on\.$")

    def test_relations_are_held_against_the_best_rule(self):
        for chinese in ([], ["--chinese"]):
            reports = json.loads(self.attend("look", "storyteller", "--relations", "--stories", "12", "--json", *chinese).stdout)
            self.assertEqual([r["relation"] for r in reports],
                             ["adjective_noun", "pronoun_antecedent", "verb_subject", "repeat_first"])
            for report in reports:
                rates = {rule["rule"]: rule["rate"] for rule in report["rules"]}
                self.assertEqual(list(rates.values()), sorted(rates.values(), reverse=True))
                self.assertTrue({"a fixed distance", "the last name said", "the last noun said"} <= set(rates), rates)
                self.assertEqual(report["chance"], max(rates.values()))
                self.assertAlmostEqual(report["cases"] - report["rule_wrong"], report["chance"] * report["cases"], places=6)
                for head in report["heads"]:
                    self.assertLessEqual(head["hits_rule_wrong"], min(head["hits"], report["rule_wrong"]))
                    self.assertEqual(head["holds"], head["low"] > report["chance"])
            pronouns = {rule["rule"]: rule["rate"] for rule in reports[1]["rules"]}
            self.assertGreater(pronouns["the last name said"], pronouns["a fixed distance"])
            self.assertGreaterEqual(reports[1]["rule_wrong"], 4)  # in the six contrast stories
        text = self.attend("look", "storyteller", "--relations", "--stories", "12").stdout
        self.assertIn("the last name said", text)
        self.assertIn("rule wrong:", text)

    def test_a_small_model_is_introduced_as_one(self):
        said = self.attend("generate", "--chat", "storyteller", "Hello!", "-n", "4").stderr
        self.assertRegex(said, r"storyteller is a small model \([0-9,]+ parameters\): it tells stories and knows nothing else;")
        chat = self.attend("chat", "storyteller", "-n", "4", input="Hello!\n")
        self.assertIn("storyteller is a small model (", chat.stderr)
        self.assertNotIn("small model (", self.attend("generate", "storyteller", "Once", "-n", "2").stderr)
        self.assertEqual(self.attend("generate", "--chat", "storyteller", "Hello!", "-n", "4", "-q").stderr, "")
        self.attend("export", "storyteller", "s.gguf")
        said = self.attend("generate", "--chat", "s.gguf", "Hello!", "-n", "4").stderr
        self.assertRegex(said, r"s\.gguf is a small model \([0-9,]+ parameters\): its answers are often wrong; 'attend models'")

    def test_does_not_embed(self):
        self.assertIn("minilm", self.attend("embed", "storyteller", "a text", code=2).stderr)

    def test_is_exported_like_any_other(self):
        story = self.attend("generate", "storyteller", "Once upon a time", "-n", "40", "-q").stdout
        self.attend("export", "storyteller", "s.gguf")
        self.assertEqual(self.attend("generate", "s.gguf", "Once upon a time", "-n", "40", "-q").stdout, story)
        # Other sums: words that the corpus draws at random may differ, an answer may not.
        self.attend("export", "storyteller", "folder", "--type", "f32")
        asked = ["--chat", "Kate had a red ball. Dan had a big hat. Who had the red ball?", "-q"]
        self.assertEqual(self.attend("generate", "folder", *asked).stdout, self.attend("generate", "storyteller", *asked).stdout)

    def test_the_demo_asks_it(self):
        out = self.attend("demo", "--length", "64", "--heads", "2", "--kv-heads", "1", "--dim", "16").stdout
        self.assertIn("storyteller", out)
        self.assertIn("Tell me a story about", out)


if __name__ == "__main__":
    unittest.main()
