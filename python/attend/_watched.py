"""Forward passes of Transformers' models, looked at while they run: what attend.hf.watch gives."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

from . import masks
from ._errors import InvalidArgument
from ._key_log import KeyLog, Piece
from ._lens import Observation, RowStatistics, observe
from ._observed_page import Part, document
from ._token_bytes import token_bytes


class WatchedCall:
    """One call of attention: which layer asked, and a look at its weights."""

    def __init__(self, layer: int, module: torch.nn.Module, path: str, observe_it: Callable[[], Observation],
                 is_first: bool) -> None:
        self.layer = layer  #: the module's own layer_idx, or its place among those seen
        self.module = module
        self.path = path  #: where the model has it: "decoder.layers.3.encoder_attn"
        self._observe, self._is_first = observe_it, is_first
        self._seen: Callable[[], Optional[Observation]] = lambda: None

    @property
    def seen(self) -> Observation:
        """The Observation, made when it is asked for. A layer's first stays; another as long as the caller has it."""
        seen = self._seen()
        if seen is None:
            seen = self._observe()
            self._seen = (lambda: seen) if self._is_first else weakref.ref(seen)
        return seen

    def __repr__(self) -> str:
        return f"<attend.hf.WatchedCall of layer {self.layer}, {self.path}>"


def _kind(path: str) -> str:
    """What a layer of attention is for, by the names that Transformers' models have: "cross", "encoder" or "decoder"."""
    low = path.lower()
    if any(word in low for word in ("cross", "encdec", "encoder_attn")):
        return "cross"
    return "encoder" if "encoder" in low and "decoder" not in low else "decoder"


def token_texts(tokenizer: Any, ids: Any) -> List[Dict[str, Any]]:
    """Each token's text as the explorer takes it, with the space before a word."""
    special = set(getattr(tokenizer, "all_special_ids", ()))
    texts = []
    for one in np.asarray(ids.detach().cpu() if isinstance(ids, torch.Tensor) else ids).reshape(-1).tolist():
        piece, text = tokenizer.convert_ids_to_tokens(one), tokenizer.decode([one])
        spaced = piece.startswith("\u2581") and not text.startswith(" ")
        raw = token_bytes(piece, text)  # of a part of a character, from which the page joins it
        texts.append({"id": one, "text": " " + text if spaced else text, **({"special": True} if one in special else {}),
                      **({"bytes": raw} if raw else {})})
    return texts


class Watch:
    """What the attention of a model did while it was watched: made by attend.hf.watch.

    >>> with attend.hf.watch(model) as watch:
    ...     model(**inputs)
    >>> watch.statistics().entropy.shape          # [layers, batch, heads, queries]
    >>> watch.weights(layer=3, head=5).shape      # [queries, keys]
    >>> watch[3].map(head=5, rows=64, cols=64)    # an Observation: see attend.observe

    A forward pass is a call a layer; generate() makes one a layer for the prompt and for each new token. ``calls`` has
    all of them in order; what is asked by layer is answered from the layer's first. Keys and values that calls of a
    layer share through a cache are stored once: memory is linear in the tokens.
    """

    def __init__(self, model: torch.nn.Module, layers: Optional[Sequence[int]], watches: List[Watch]) -> None:
        self._watches = watches  # those that are shown every call
        self._model = model
        self._modules = {id(module): path for path, module in model.named_modules()}
        self._wanted = None if layers is None else set(layers)
        self._numbers: Dict[int, int] = {}
        self._logs: Dict[int, KeyLog] = {}  # of the last calls of each module
        self._copies: Dict[str, Tuple[Any, int, torch.Tensor]] = {}  # by option: the tensor given last, its version, its copy
        self.calls: List[WatchedCall] = []

    def __enter__(self) -> Watch:
        self._watches.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        self._watches.remove(self)

    def __repr__(self) -> str:
        return f"<attend.hf.Watch of {len(self.calls)} calls in {len(self.layers)} layers>"

    def __len__(self) -> int:
        return len(self.calls)

    def __getitem__(self, layer: int) -> Observation:
        for call in self.calls:
            if call.layer == layer:
                return call.seen
        raise KeyError(f"layer {layer} was not seen; expected one of {self.layers}")

    @property
    def layers(self) -> List[int]:
        """The layers that were seen, rising."""
        return sorted({call.layer for call in self.calls})

    def statistics(self, *, tokens: Any = None, **options: Any) -> RowStatistics:
        """The statistics of every row of every layer that was seen: arrays of [layers, batch, heads, queries].

        ``tokens`` are the keys' (input_ids), for duplicate and induction; options are those of Observation.statistics.
        Layers that differ in their heads have no common array: ask watch[layer].statistics() for those.
        """
        if isinstance(tokens, torch.Tensor):
            tokens = tokens.detach().cpu().numpy()
        rows = [self[layer].statistics(tokens=tokens, **options) for layer in self.layers]
        return RowStatistics(*(np.stack(columns) for columns in zip(*rows)))

    def weights(self, layer: int, head: int, batch: int = 0) -> np.ndarray:
        """The weights of one head, [queries, keys]; watch[layer].map() pools those of long texts."""
        return self[layer].zoom(head, batch)

    def parts(self) -> Dict[str, List[Observation]]:
        """Its layers by what they are for, each layer's first call: "encoder", "decoder", and "cross", the layers with which
        a decoder looks at an encoder."""
        found: Dict[str, List[Observation]] = {}
        seen = set()
        for call in self.calls:
            if call.path not in seen:
                seen.add(call.path)
                found.setdefault(_kind(call.path), []).append(call.seen)
        return found

    def html(self, tokens: Any = None, source: Any = None, *, tokenizer: Any = None, batch: int = 0) -> str:
        """The explorer's page around what was seen, for any browser: every head, every weight, every cell's arithmetic.

        tokens     of the text that the model reads, or that its decoder writes: texts, or ids with a tokenizer
        source     of the text that an encoder has read, for models with both
        tokenizer  of Transformers, to write ids as texts
        batch      which text of the batch

        An encoder, a decoder and the cross-attention between them are parts of one page.

        >>> with attend.hf.watch(model) as watch:
        ...     model(**inputs)
        >>> open("watch.html", "w").write(watch.html(inputs["input_ids"][0], tokenizer=tokenizer))
        """
        def texts(given: Any, length: int) -> List[Any]:
            if given is None:
                return [str(n) for n in range(length)]
            return list(given) if tokenizer is None else token_texts(tokenizer, given)

        parts = []
        for kind, layers in self.parts().items():
            alone = kind == "encoder" and source is None  # an encoder by itself reads the only text
            asking = texts(source if kind == "encoder" and not alone else tokens, layers[0].queries)
            parts.append(Part(kind, layers, asking, texts(source, layers[0].keys) if kind == "cross" else None))
            if kind != "cross" and layers[0].queries != layers[0].keys:
                raise InvalidArgument(f"html: the first call had {layers[0].queries} queries and {layers[0].keys} keys; expected a text "
                                      "as a whole: watch a forward pass without a cache before it")
        parameters = sum(p.numel() for p in self._model.parameters())
        return document(parts, type(self._model).__name__, parameters, batch)

    def _repr_html_(self) -> str:
        from ._explorer_page import frame

        return frame(self.html())

    def take(self, module: torch.nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: masks.Mask,
             options: Dict[str, Any]) -> None:
        """Shown a call of attention, [batch, heads, length, dim]: keeps it if it is the model's."""
        if id(module) not in self._modules:
            return
        layer = getattr(module, "layer_idx", None)
        if layer is None:
            layer = self._numbers.setdefault(id(module), len(self._numbers))
        if self._wanted is not None and layer not in self._wanted:
            return
        is_first = id(module) not in self._logs
        with torch.inference_mode(False), torch.no_grad():
            # Copies: a static cache writes into its keys again.
            kept = {name: self._copied(name, x) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
            log = self._logs.get(id(module))
            if log is None or not log.accepts(k, v):
                log = self._logs[id(module)] = KeyLog(k.detach(), v.detach())
            pieces = log.add(k.detach(), v.detach(), q.shape[2])
            look = functools.partial(_observed, q.detach().clone(), log, pieces, mask, kept)
        self.calls.append(WatchedCall(layer, module, self._modules[id(module)], look, is_first))

    def _copied(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """A copy of an option's tensor; of one that all layers of a pass are given, one copy."""
        if x.is_inference():  # has no version
            return x.detach().clone()
        last, version, copy = self._copies.get(name, (lambda: None, 0, x))
        if last() is not x or version != x._version:
            copy = x.detach().clone()
            self._copies[name] = weakref.ref(x), x._version, copy
        return copy


def _observed(q: torch.Tensor, log: KeyLog, pieces: Sequence[Piece], mask: masks.Mask, options: Dict[str, Any]) -> Observation:
    return observe(q, *log.read(pieces), mask, **options)
