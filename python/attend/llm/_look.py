"""A look inside a language model: where every head attends, what kind it is, what changes when parts are switched off."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from .. import _core
from .._errors import InvalidArgument
from . import _arguments as arguments
from ._look_page import document, frame
from ._model import Model

_SWITCHES = ("scale", "temperature", "mask", "padding", "knock", "only", "positions", "shuffle")


class KindScore(NamedTuple):
    """How well a rule for a kind of head holds."""

    kind: str  #: "previous", "induction", ..., "mixed"
    score: Optional[float]  #: None: the text has no row to measure it on
    threshold: float
    rule: str  #: in words


class HeadType(NamedTuple):
    """What kind of head one is, by its rows without the weight on sinks; rows above 0.95 on sinks are left out."""

    layer: int
    head: int
    kind: KindScore
    runner_up: KindScore
    scores: List[KindScore]
    rows: int
    left_out: int
    median_sink: float
    on_texts: Dict[str, str]  #: its kind on each of four fixed texts, without switches: how much the kind changes

    @property
    def stability(self) -> float:
        """The share of the fixed texts on which the kind is the same; NaN if the model could read none of them."""
        kinds = list(self.on_texts.values())
        return kinds.count(self.kind.kind) / len(kinds) if kinds else float("nan")


class InductionProbe(NamedTuple):
    """Where heads attend on random tokens that come twice: the mean weight on the token that followed the last time."""

    seed: int
    tokens: int  #: random ones, then the same again
    induction: np.ndarray  #: [layers, heads], over the second half, without sinks
    duplicate: np.ndarray
    first_loss: float  #: mean over each half: a model that copies has a small second one
    second_loss: float


class NextToken(NamedTuple):
    """A token that may come next."""

    token: int
    text: str
    probability: float


class Change(NamedTuple):
    """What differs between two runs."""

    kl: Optional[float]  #: of the next token's distribution, before to after, in nats; None: the vocabularies differ
    before: List[NextToken]
    after: List[NextToken]
    loss_before: Optional[float]  #: mean over all tokens; None unless both runs have losses
    loss_after: Optional[float]


class HeadChange(NamedTuple):
    """How much a head's weights differ between two runs."""

    layer: int
    head: int
    change: float  #: total variation, the sum of |after - before| / 2, mean over queries: 0 to 1
    query: int  #: the query whose weights changed most
    query_change: float


class PredictionChange(NamedTuple):
    """How much the prediction after a token differs between two runs."""

    position: int
    kl: float  #: before to after, in nats
    before: NextToken  #: the likeliest
    after: NextToken


class TokenChange(NamedTuple):
    """How much the loss of a token differs between two runs."""

    position: int
    loss_before: float
    loss_after: float


class Changes(NamedTuple):
    """What differs most between two runs, largest first."""

    heads: List[HeadChange]  #: of the layers that both runs keep
    predictions: List[PredictionChange]
    tokens: List[TokenChange]  #: empty unless both runs have losses of the same tokens


class LookStep(NamedTuple):
    """One token that Look.next() added."""

    token: int
    text: str
    probability: float
    ends: bool  #: the token ends the answer
    cache_bytes: int  #: keys and values of all tokens so far


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def _tokens_of(found: Sequence[Tuple[int, bytes, float]]) -> List[NextToken]:
    return [NextToken(token, _text(piece), probability) for token, piece, probability in found]


def _largest(weights: np.ndarray, count: int) -> List[Tuple[int, float]]:
    order = np.lexsort((np.arange(len(weights)), -weights))[:arguments.number(count, "count", 0)]
    return [(int(n), float(weights[n])) for n in order if weights[n] > 0]


class Look:
    """One run of a model, and what was kept of it: made by attend.look. Arrays are NumPy's, float32.

    >>> seen = attend.look(model, "The cat sat because the cat was tired")
    >>> seen.types[0].kind
    >>> seen.weights(1, 2)             # [tokens, tokens] of layer 1, head 2
    >>> seen.statistic("entropy")      # [layers, heads, tokens]
    >>> seen                           # in a notebook: the explorer, with every head, weight and cell of this run
    """

    def __init__(self, core: Any, model: Model, switches: str) -> None:
        self._core, self.model, self.switches = core, model, switches
        self._types: Optional[List[HeadType]] = None

    def __repr__(self) -> str:
        switched = f", {self.switches}" if self.switches else ""
        return (f"<attend.Look at {len(self)} tokens: {self.layers} layers of {self.heads} heads{switched}, "
                f"{self._core.milliseconds:.0f} ms, {self._core.bytes / 1e6:,.1f} MB>")

    def __len__(self) -> int:
        return self._core.length

    @property
    def layers(self) -> int:
        """Of the model."""
        return self._core.layers

    @property
    def heads(self) -> int:
        """Of each layer."""
        return self._core.heads

    @property
    def kv_heads(self) -> int:
        """Of keys and values; heads // kv_heads query heads share one."""
        return self._core.kv_heads

    @property
    def token_ids(self) -> List[int]:
        """The tokens that were run."""
        return [token for token, _ in self._core.tokens]

    @property
    def tokens(self) -> List[str]:
        """Their texts; a piece of a character is U+FFFD."""
        return [_text(piece) for _, piece in self._core.tokens]

    # --- statistics ---

    def statistic(self, name: str) -> np.ndarray:
        """One number of every row of every head, [layers, heads, tokens].

        mass, entropy, distance_mean, distance_variance, sink_tokens, self, previous, local, recent, duplicate, induction,
        maximum or argmax: see attend.RowStatistics. What lies on the sinks counts as sink_tokens alone.
        """
        return self._core.statistic(arguments.text(name, "name"))

    @property
    def types(self) -> List[HeadType]:
        """What kind of head each is, layer by layer."""
        if self._types is None:
            self._types = [
                HeadType(layer, head, KindScore(*kind), KindScore(*runner_up), [KindScore(*s) for s in scores], *rest)
                for layer, head, kind, runner_up, scores, *rest in self._core.types()]
        return self._types

    # --- weights ---

    def map(self, layer: int, head: int, *, cells: int = 512, peak: bool = False, values: bool = False) -> np.ndarray:
        """A head's weights pooled over at most cells x cells cells: their sum, or with ``peak`` their largest.

        ``values``: of weight x length of the key's value instead.
        """
        side = arguments.number(cells, "cells", 1)
        return self._core.map(self._head(layer, head)[0], head, side, side, bool(values))[1 if peak else 0]

    def zoom(self, layer: int, head: int, queries: slice = slice(None), keys: slice = slice(None)) -> np.ndarray:
        """The exact weights of some queries and keys, [queries, keys]."""
        self._head(layer, head)
        ranges = []
        for part, name in ((queries, "queries"), (keys, "keys")):
            if not isinstance(part, slice) or part.step not in (None, 1):
                raise InvalidArgument(f"{name} is {part!r}, expected a slice without a step")
            first, end, _ = part.indices(len(self))
            ranges += [first, max(end - first, 0)]
        return self._core.zoom(layer, head, *ranges)

    def weights(self, layer: int, head: int) -> np.ndarray:
        """All of a head's weights, [tokens, tokens]; map() pools those of long texts."""
        return self.zoom(layer, head)

    def row(self, layer: int, head: int, query: int) -> np.ndarray:
        """What a token looks at, [tokens]."""
        at = self._place(query, "query")
        return self.zoom(layer, head, slice(at, at + 1))[0]

    def received(self, layer: int, head: int) -> np.ndarray:
        """The attention that each key gets from all queries, [tokens], float64: the sums of the columns."""
        return self._core.received(*self._head(layer, head))

    def lse(self, layer: int) -> np.ndarray:
        """The log-sum-exp of each row's scores, [heads, tokens]: weight = exp(score - lse)."""
        return self._core.lse(self._head(layer, 0)[0])

    def column(self, layer: int, head: int, key: int) -> np.ndarray:
        """Who looks at a token, [tokens]."""
        at = self._place(key, "key")
        return self.zoom(layer, head, keys=slice(at, at + 1))[:, 0]

    def top(self, layer: int, head: int, query: int, count: int = 5) -> List[Tuple[int, float]]:
        """The tokens that this one looks at most: positions and weights, falling."""
        return _largest(self.row(layer, head, query), count)

    def users(self, layer: int, head: int, key: int, count: int = 5) -> List[Tuple[int, float]]:
        """The tokens that look at this one most: positions and weights, falling."""
        return _largest(self.column(layer, head, key), count)

    def cell(self, layer: int, head: int, query: int, key: int) -> Dict[str, Any]:
        """The whole arithmetic of one weight: q, k, products, dot, scale, scaled, ..., weight, v, weighted."""
        return self._core.cell(*self._head(layer, head), self._place(query, "query"), self._place(key, "key"))

    def q(self, layer: int) -> np.ndarray:
        """Queries as they are multiplied, after their rotation, [heads, tokens, head_dim]."""
        return self._core.q(self._head(layer, 0)[0])

    def k(self, layer: int) -> np.ndarray:
        """Keys, [kv_heads, tokens, head_dim]."""
        return self._core.k(self._head(layer, 0)[0])

    def v(self, layer: int) -> np.ndarray:
        """Values, [kv_heads, tokens, head_dim]."""
        return self._core.v(self._head(layer, 0)[0])

    def value_lengths(self, layer: int, kv_head: int) -> np.ndarray:
        """The length of each token's value, [tokens]."""
        return self._core.value_lengths(*self._head(layer, kv_head))

    @property
    def probe(self) -> InductionProbe:
        """The model's heads on random tokens that come twice, without switches: what the kind "induction" is measured on."""
        return InductionProbe(*self._core.probe())

    # --- predictions ---

    def logits(self, position: int = -1) -> np.ndarray:
        """The logits of what follows the token at a position, [vocabulary]."""
        return self._core.logits(self._place(position, "position"))

    def next_tokens(self, position: int = -1, count: int = 10) -> List[NextToken]:
        """What the model expects after the token at a position."""
        return _tokens_of(self._core.next_tokens(self._place(position, "position"), arguments.number(count, "count", 0)))

    @property
    def losses(self) -> np.ndarray:
        """-log p of each token by those before it, [tokens]; NaN for the first. Of runs with losses=True."""
        return self._core.losses()

    def against(self, before: Look, top: int = 10) -> Change:
        """What differs between another run and this one: other switches, another text, another model."""
        if not isinstance(before, Look):
            raise TypeError(f"before is a {type(before).__name__}, expected a Look")
        kl, likely, now, losses = self._core.compare(before._core, arguments.number(top, "top", 0))
        loss = losses[0] if losses else (None, None, 0)
        return Change(kl, _tokens_of(likely), _tokens_of(now), loss[0], loss[1])

    def changes(self, before: Look, count: int = 10) -> Changes:
        """The heads, predictions and tokens that differ most between another run of as many tokens and this one.

        All heads are listed, and at most ``count`` predictions and tokens. For runs of different lengths the lists are empty.
        """
        if not isinstance(before, Look):
            raise TypeError(f"before is a {type(before).__name__}, expected a Look")
        heads, predictions, tokens = self._core.changes(before._core, arguments.number(count, "count", 0))
        return Changes([HeadChange(*one) for one in heads],
                       [PredictionChange(position, kl, *_tokens_of([was, now])) for position, kl, was, now in predictions],
                       [TokenChange(*one) for one in tokens])

    # --- while generating ---

    def next(self, *, temperature: float = 0.0, seed: int = 0) -> LookStep:
        """Chooses the next token and runs it with the same switches: the run is a token longer."""
        self._types = None
        token, piece, *rest = self._core.next(float(temperature), arguments.number(seed, "seed", 0))
        return LookStep(token, _text(piece), *rest)

    def back(self, count: int = 1) -> None:
        """Forgets the last tokens, but never those the run began with."""
        self._types = None
        self._core.back(arguments.number(count, "count", 0))

    # --- parts ---

    def html(self) -> str:
        """The explorer's page around this run: one document that needs no server and no network, to be written to a file."""
        return document(self)

    def _repr_html_(self) -> str:
        return frame(self)

    def _head(self, layer: int, head: int) -> Tuple[int, int]:
        return arguments.number(layer, "layer", 0), arguments.number(head, "head", 0)

    def _place(self, position: int, name: str) -> int:
        place = int(position)
        at = place + len(self) if place < 0 else place
        if not 0 <= at < len(self):
            raise InvalidArgument(f"{name} is {position}, expected {-len(self)} to {len(self) - 1}")
        return at


def look(model: Union[Model, str, None], text: Union[str, Sequence[int], np.ndarray], *, keep: bool = True,
         layers: Optional[Sequence[int]] = None, losses: bool = False, sinks: int = 1, memory_limit: int = 0,
         compute: Optional[str] = None, **switches: Any) -> Look:
    """Runs a text through a model and looks at its attention: weights, statistics, kinds of heads, next tokens.

    model: an llm.Model, or what llm.Model() takes. text: a text, or token ids.
    keep: queries, keys and values, for maps and weights; ``layers``: of these layers alone.
    losses: of every token, for Look.losses and Look.against. sinks: so many first tokens count as sinks.
    memory_limit: bytes; more is refused with a sentence. 0: half of what is free.
    compute: "file" or "f32", as llm.Model takes it, for a model that this call opens; an llm.Model has its own. With a
        quantised model and "file" (the default) rows are rounded to int8 before each product, and weights differ from those
        of an f32 pass.

    Switches edit the forward pass, for all heads, or with @LAYER or @LAYER.HEAD behind the value for some; a list has
    several: scale="off", temperature=2, mask="window:64" (full, causal, sinks:4+64), padding="3-7",
    knock=["zero@3.5", "mean@4"], only="layer@3.5", positions="off", shuffle=7.

    >>> plain = attend.look("smollm2", "one two three one two")
    >>> attend.look(plain.model, "one two three one two", knock="zero@1.2").against(plain).kl
    """
    if not isinstance(model, Model):
        model = Model(model, compute="file" if compute is None else compute)
    elif compute is not None and compute != model.info.compute:
        raise InvalidArgument(f"compute is {compute!r}, and the model was opened with {model.info.compute!r}: open it with "
                              f"llm.Model(..., compute={compute!r})")
    edits = []
    for name, values in switches.items():
        if name not in _SWITCHES:
            raise TypeError(f"look() got the switch {name!r}, expected one of {', '.join(_SWITCHES)}")
        for value in values if isinstance(values, (list, tuple)) else [values]:
            edits.append(f"{name}={value}")
    chosen = [] if layers is None else [arguments.number(n, f"layers[{i}]", 0) for i, n in enumerate(layers)]
    text_of_switches = ",".join(edits)
    core = _core.look(model._core, model._tokens(text, "text"), text_of_switches, bool(keep), chosen, bool(losses),
                      arguments.number(sinks, "sinks", 0), arguments.number(memory_limit, "memory_limit", 0))
    return Look(core, model, text_of_switches)
