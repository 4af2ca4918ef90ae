"""Text to tokens and back."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Union, overload

from .. import _core
from . import _arguments as arguments


class Tokenizer:
    """Text to token ids and back: byte-level BPE and WordPiece, with the ids of Hugging Face's ``tokenizers``.

    From a GGUF file, or a folder with tokenizer.json or vocab.txt; that of a model is ``model.tokenizer``. Nothing
    changes it: any number of threads may use one.

    >>> tok = llm.Tokenizer("folder")
    >>> tok.decode(tok.encode("Hello"))
    """

    def __init__(self, path: Any) -> None:
        self._core = path if isinstance(path, _core.Tokenizer) else _core.open_tokenizer(arguments.path_bytes(path, "path"))

    @property
    def vocab_size(self) -> int:
        """The largest id + 1; some ids may have no token."""
        return self._core.vocabulary

    @property
    def special_tokens(self) -> Dict[str, int]:
        """The tokens with a meaning of their own, as far as the file names them: bos, eos, pad, unknown, cls, sep, mask."""
        return self._core.special

    @property
    def chat_template(self) -> str:
        """The chat template as it stands in the file, in Jinja; "" if there is none."""
        return self._core.chat_template

    @overload
    def encode(self, text: str, *, add_special: bool = ..., parse_special: bool = ...) -> List[int]: ...
    @overload
    def encode(self, text: Sequence[str], *, add_special: bool = ..., parse_special: bool = ...) -> List[List[int]]: ...

    def encode(self, text: Union[str, Sequence[str]], *, add_special: bool = True, parse_special: bool = True) -> list:
        """The ids of a text; of a list of texts, a list of such.

        add_special: with the tokens that the model wants before and after a text ([CLS], <s>, ...). parse_special: text
        such as ``<|im_start|>`` becomes its token; False for text from strangers.
        """
        flags = bool(add_special), bool(parse_special)
        if isinstance(text, str):
            return self._core.encode(arguments.text(text, "text"), *flags)
        return [self._core.encode(one, *flags) for one in arguments.texts(text, "text")]

    def decode(self, tokens: Any, *, skip_special: bool = False) -> str:
        """The text of token ids. Ids without a token give nothing; broken UTF-8 becomes U+FFFD."""
        return self._core.decode(arguments.token_ids(tokens, "tokens"), bool(skip_special))

    def piece(self, token: int) -> bytes:
        """The bytes of one token, which may be a part of a character; b"" for an id without a token."""
        return self._core.piece(self._token(token))

    def find(self, piece: Union[str, bytes]) -> Optional[int]:
        """The id of the token with these bytes, such as " the" or "<|im_end|>"; None if there is none."""
        return self._core.find(piece if isinstance(piece, bytes) else arguments.text(piece, "piece").encode())

    def is_special(self, token: int) -> bool:
        """Whether the token has a meaning of its own, as <|im_end|> has."""
        return self._core.is_special(self._token(token))

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, special_tokens={self.special_tokens})"

    @staticmethod
    def _token(token: int) -> int:
        return arguments.number(token, "token", 0, 2**31 - 1)
