#!/usr/bin/env python3
"""Asks a model the questions of texts that it was not trained on, and counts the answers that are right to the letter.

    tools/ask_embedded_model.py [MODEL] [--count 400] [--seed 777001] [--wrong]      (with the Python package installed)
"""

import argparse
import collections
import json
import subprocess

from attend import llm

# What a question is about, by words that it has: the first that fits.
KINDS = {
    "en": [("who had it at the end", "at the end"), ("whose was it", "who had"), ("what did she have", "what did"),
           ("its color", "what color"), ("how was it", "how was"), ("where did they meet", " meet "), ("whom did she meet", "whom did"), ("sing three times", "three times"),
           ("word in Chinese", "chinese"), ("repeat", "repeat after"), ("repeat", "say "), ("secret word", "secret"),
           ("how did she feel", "feel"), ("small sums", "how m"), ("small sums", "+"), ("small sums", "-")],
    "zh": [("who had it at the end", "最后谁有"), ("whose was it", "谁有"), ("what did she have", "有什么"), ("its color", "什么颜色"),
           ("how was it", "什么样"), ("where did they meet", "在哪里遇见"), ("whom did she meet", "遇见了谁"), ("sing three times", "唱三遍"), ("word in Chinese", "中文"),
           ("word in English", "英文"), ("repeat", "跟我说"), ("repeat", "说"), ("secret word", "暗号"),
           ("how did she feel", "觉得"), ("small sums", "几"), ("small sums", "+"), ("small sums", "-")],
}


def kind_of(question, language):
    text = question.lower()
    return next((kind for kind, word in KINDS[language] if word in text), "talk")


def first_sentences(text, language):
    return "".join(text.split("." if language == "en" else "。")[:2])


def pieces(text, language):
    """Its words; of Chinese, which has no spaces, all pairs of characters."""
    return set(text.lower().rstrip(".?").split() if language == "en" else map("".join, zip(text, text[1:])))


def is_as_asked(request, story, answer, language):
    """Whether the answer begins with all that the request has in common with how the story begins: whom and what it is about."""
    asked = pieces(request, language) & pieces(first_sentences(story, language), language)
    return asked <= pieces(first_sentences(answer, language), language)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="storyteller")
    parser.add_argument("--program", default="build/bin/attend", help="who writes the texts")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=777001)
    parser.add_argument("--wrong", action="store_true", help="print what was wrong")
    given = parser.parse_args()
    model = llm.Model(given.model)
    right, asked = collections.Counter(), collections.Counter()
    for form in ("chat", "exercises"):
        for language in ("en", "zh"):
            lines = subprocess.run([given.program, "corpus", "stories", "-n", str(given.count), "--format", form, "--seed",
                                    str(given.seed), "--language", language], check=True, capture_output=True, text=True).stdout
            talks = [json.loads(line)["conversations"] for line in lines.splitlines()]
            questions = [(talk[:at], talk[at]["content"]) for talk in talks for at in range(1, len(talk), 2)]
            answers = model.chat([messages for messages, _ in questions], max_tokens=80, temperature=0.0)
            for (messages, wanted), answer in zip(questions, answers):
                request = messages[-1]["content"]
                if any(word in request.lower() for word in ("story about", "故事开个头", "故事怎么开始", "的故事")) and len(request) < 80:
                    kind, same = "a story as asked for", is_as_asked(request, wanted, answer.text, language)
                elif len(wanted) > 80:  # a story that can go on in many ways
                    continue
                else:
                    kind, same = kind_of(request, language), answer.text.strip() == wanted
                for kind in (kind, f"all of {form}"):
                    asked[kind, language] += 1
                    right[kind, language] += same
                if given.wrong and not same:
                    print(f"{messages[-1]['content'][-90:]}\n    {wanted}\n    {answer.text.strip()}")
    print("| | English | Chinese |\n|---|---|---|")
    for kind in sorted({kind for kind, _ in asked}):
        counts = (f"{100 * right[kind, lang] / asked[kind, lang]:.0f} % of {asked[kind, lang]:,}" if asked[kind, lang] else ""
                  for lang in ("en", "zh"))
        print(f"| {kind} | " + " | ".join(counts) + " |")


if __name__ == "__main__":
    main()
