"""Characters whose bytes several tokens share: shown as parts of the character wherever a token is named."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

CHINESE = "从前有一只小猫，它喜欢鱼。有一天，小猫"  # the page's own example
BROKEN = "\ufffd"

# Everything that can be read or heard on the page.
SAID = """() => [document.body.innerText, ...[...document.querySelectorAll('[aria-label], [title]')].flatMap((node) =>
  [node.getAttribute('aria-label') ?? '', node.title])].join('\\n')"""


def joined(page, tokens, after=None):
    """What characters.js makes of tokens given as hex: [text, text in a line, text to be heard] of each."""
    return page.evaluate("""async ([tokens, after]) => {
      const {joinCharacters, following, textOf, textInLine, textSaid} = await import('/characters.js');
      const made = tokens.map((bytes) => bytes.startsWith('=') ? {text: bytes.slice(1)} : {text: '', bytes});
      joinCharacters(made);
      const all = after === null ? made : [following(made, {text: '', bytes: after})];
      return all.map((token) => [textOf(token), textInLine(token), textSaid(token)]);
    }""", [tokens, after])


def hexed(text):
    return text.encode().hex()


def test_parts_of_characters_are_numbered(explorer):
    page = explorer().open()
    cat = hexed("猫")
    assert joined(page, [cat[:2], cat[2:4], cat[4:]]) == [
        ["猫¹⁄₃", "猫¹⁄₃", "猫 1/3"], ["猫²⁄₃", "²⁄₃", "猫 2/3"], ["猫³⁄₃", "³⁄₃", "猫 3/3"]]
    fish = hexed("鱼")
    # A token may end one character and begin the next, and hold whole ones between.
    assert [one[0] for one in joined(page, ["=a", cat[:4], cat[4:] + hexed("有") + fish[:2], fish[2:], "=b"])] == [
        "a", "猫¹⁄₂", "猫²⁄₂有鱼¹⁄₂", "鱼²⁄₂", "b"]
    assert [one[1] for one in joined(page, [cat[:4], cat[4:] + hexed("有") + fish[:2], fish[2:]])] == ["猫¹⁄₂", "²⁄₂有鱼¹⁄₂", "²⁄₂"]
    family = hexed("👩")
    assert [one[0] for one in joined(page, [family[n : n + 2] for n in range(0, 8, 2)])] == ["👩¹⁄₄", "👩²⁄₄", "👩³⁄₄", "👩⁴⁄₄"]


@pytest.mark.parametrize("tokens, wanted", [
    (["e7", "8c"], ["<0xE7>", "<0x8C>"]),  # the text ends inside a character
    (["ff", "e7", "41"], ["<0xFF>", "<0xE7>", "A"]),
    (["c0af"], ["<0xC0><0xAF>"]), (["eda080"], ["<0xED><0xA0><0x80>"]), (["f5808080"], ["<0xF5><0x80><0x80><0x80>"]),
    (["80", hexed("é")[:2], hexed("é")[2:]], ["<0x80>", "é¹⁄₂", "é²⁄₂"]),
    (["efbb", "bf"], ["\ufeff¹⁄₂", "\ufeff²⁄₂"]),
])
def test_bytes_that_make_no_character_are_shown_as_bytes(explorer, tokens, wanted):
    assert [one[0] for one in joined(explorer().open(), tokens)] == wanted


def test_the_next_token_completes_a_character_or_begins_one(explorer):
    page = explorer().open()
    cat = hexed("猫")
    assert joined(page, [cat[:2], cat[2:4]], cat[4:])[0][0] == "猫³⁄₃"
    assert joined(page, ["=x"], cat[:4])[0][0] == "<0xE7><0x8C>"
    assert joined(page, [cat[:2], cat[2:4], cat[4:]], cat[:2])[0][0] == "<0xE7>"


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_no_token_of_the_chinese_example_is_a_replacement_character(explorer, tmp_path, locale):
    page = explorer(locale=locale).open()
    page.type(CHINESE)
    tokens = page.data("run.tokens")
    assert b"".join(bytes.fromhex(t["bytes"]) if "bytes" in t else t["text"].encode() for t in tokens).decode().strip() == CHINESE
    shared = [unit for token in tokens for unit in token.get("units", []) if unit["of"] > 1]
    assert shared, "the bundled model's tokenizer splits characters"
    assert set("".join(unit["text"] for unit in shared)) <= set(CHINESE)
    for n in range(len(tokens)):
        page.evaluate("(n) => window.explorer.set({query: n, key: null})", n)
        page.settle()
        assert BROKEN not in page.evaluate(SAID)
    for sign in (".", ".", "x"):  # generated tokens, the next ones, those before the switches
        page.press(sign)
        assert BROKEN not in page.evaluate(SAID)
    for view in ("heat", "lines"):
        page.evaluate("(view) => window.explorer.set({view})", view)
        page.settle()
        file = tmp_path / f"{view}.svg"
        page.download("SVG").save_as(file)
        written = "".join(ElementTree.parse(file).getroot().itertext())
        assert BROKEN not in written and re.search("[⁰¹²³⁴]⁄[₂₃₄]", written), "the axes name parts of characters"
    assert page.errors == []


def test_a_character_is_found_in_all_its_tokens(explorer):
    page = explorer().open()
    page.type(CHINESE)
    for wanted in ("猫", "小猫", "有一天"):
        page.evaluate("(find) => window.explorer.set({find})", wanted)
        page.settle()
        tokens, found = page.data("run.tokens"), set(page.data("found"))
        holds = lambda n: any(unit["text"] in wanted for unit in tokens[n].get("units", [{"text": tokens[n]["text"].strip()}]))
        assert found and all(holds(n) for n in found)
        raw = b"".join(bytes.fromhex(tokens[n]["bytes"]) if "bytes" in tokens[n] else tokens[n]["text"].encode() for n in sorted(found))
        assert raw.decode().count(wanted) == CHINESE.count(wanted)
