"""How an answer is made: the options that generate(), stream(), chat() and a Chat share."""

from __future__ import annotations

import difflib
from typing import Any, Dict, List, Sequence, TypedDict, Union

from . import _arguments as arguments


class Options(TypedDict, total=False):
    """What may be given to generate(), stream(), chat() and stream_chat(), all by name.

    ============================  =======  ==============================================================================
    ``max_tokens``                256      the answer has at most so many
    ``temperature``               0.0      0: always the likeliest token; more: bolder
    ``top_k``                     0        only the k likeliest; 0: all
    ``top_p``                     1.0      only the likeliest whose probabilities reach p together
    ``min_p``                     0.0      only those at least so likely, beside the likeliest
    ``repetition_penalty``        1.0      above 1: tokens of the prompt and the answer become less likely
    ``presence_penalty``          0.0      taken off the logits of tokens of the answer
    ``seed``                      0        the same seed gives the same answer
    ``stop``                      none     a text, or several, that end the answer and are not part of it
    ``stop_tokens``               none     ids that do the same, besides the model's own
    ``logprobs``                  0        so many of the likeliest tokens are reported with each token
    ============================  =======  ==============================================================================
    """

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    seed: int
    stop: Union[str, Sequence[str]]
    stop_tokens: Sequence[int]
    logprobs: int


DEFAULTS = {"max_tokens": 256, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
            "presence_penalty": 0.0, "seed": 0, "stop": (), "stop_tokens": (), "logprobs": 0}
WHOLE = ("max_tokens", "top_k", "logprobs")


def read_options(options: Dict[str, Any], model_stops: List[int]) -> Dict[str, Any]:
    """All options as the engine takes them. Ranges are checked there."""
    for name in options:
        if name not in DEFAULTS:
            close = difflib.get_close_matches(name, DEFAULTS, 1)
            raise TypeError(f"there is no option {name!r}" + (f"; did you mean {close[0]!r}?" if close else
                                                             f", expected some of {', '.join(DEFAULTS)}"))
    values = {**DEFAULTS, **options}
    read = {}
    for name, value in values.items():
        if name == "stop":
            read[name] = arguments.texts([value] if isinstance(value, str) else value, name)
        elif name == "stop_tokens":
            read[name] = model_stops + arguments.token_ids(value, name)
        elif name == "seed":
            read[name] = arguments.number(value, name, 0, 2**64 - 1)
        else:
            read[name] = (arguments.number if name in WHOLE else arguments.real)(value, name)
    return read
