"""Tokens that are parts of a character: their bytes, and the text that the explorer's page joins from them."""

import json

import numpy as np
import pytest

import attend
from attend._token_bytes import joined_text, token_bytes


@pytest.mark.parametrize("piece, text, wanted", [
    ("çĮ", "\ufffd", "e78c"), ("«", "\ufffd", "ab"), ("Ġç", " \ufffd", "20e7"),  # GPT-2's alphabet of bytes
    ("<0xE7>", "\ufffd", "e7"), ("<0x0a>", "\ufffd", "0a"),  # SentencePiece's fallback
    ("cat", "cat", None), ("Ġcat", " cat", None), ("猫", "猫", None), ("猫", "\ufffd", None), ("", "\ufffd", None)])
def test_bytes_of_a_part_of_a_character(piece, text, wanted):
    assert token_bytes(piece, text) == wanted


def test_every_byte_has_a_character():
    from attend._token_bytes import _ALPHABET

    assert sorted(_ALPHABET.values()) == list(range(256))
    assert "".join(c for c, byte in _ALPHABET.items() if 33 <= byte <= 126) == "".join(map(chr, range(33, 127)))


def test_the_page_has_the_whole_text():
    tokens = [{"text": "a "}, {"text": "\ufffd", "bytes": "e78c"}, {"text": "\ufffd", "bytes": "ab"}, {"text": "b"}]
    assert joined_text(tokens) == "a 猫b"
    assert joined_text(tokens[:2]) == "a \ufffd"
    x = np.ones((1, 1, 4, 8), np.float32)
    html = attend.observe(x, x, x, mask=attend.causal()).html(tokens)
    data = json.loads(html.split('id="attend-data">')[1].split("</script>")[0])
    part = data["parts"][0]
    assert part["state"]["text"] == "a 猫b"
    assert [token.get("bytes") for token in part["run"]["tokens"]] == [None, "e78c", "ab", None]
