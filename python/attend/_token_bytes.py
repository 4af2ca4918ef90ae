"""The bytes of a token whose text is not valid UTF-8 by itself: a part of a character."""

from __future__ import annotations

import re
from typing import Any, Dict, Optional, Sequence


def _byte_alphabet() -> Dict[str, int]:
    """The characters that GPT-2 and its successors write bytes as."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{chr(byte): byte for byte in plain}, **{chr(256 + n): byte for n, byte in enumerate(others)}}


_ALPHABET = _byte_alphabet()


def token_bytes(piece: str, text: str) -> Optional[str]:
    """The bytes in hex of a tokenizer's piece that decodes to `text`; None where the text says all, or nothing is known."""
    if "\ufffd" not in text:
        return None
    found = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece)  # SentencePiece's fallback
    if found:
        return found[1].lower()
    if piece and all(char in _ALPHABET for char in piece):
        return bytes(_ALPHABET[char] for char in piece).hex()
    return None


def joined_text(tokens: Sequence[Dict[str, Any]]) -> str:
    """The text of tokens as the page takes them, with the characters that several of them share."""
    parts = (bytes.fromhex(one["bytes"]) if "bytes" in one else one["text"].encode() for one in tokens)
    return b"".join(parts).decode(errors="replace")
