"""Forward passes of Transformers' models, looked at while they run: what attend.hf.watch gives."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import torch

from . import masks
from ._lens import Observation, RowStatistics, observe


class WatchedCall(NamedTuple):
    """One call of attention: which layer asked, and a look at its weights."""

    layer: int  #: the module's own layer_idx, or its place among those seen
    module: torch.nn.Module
    seen: Observation


class Watch:
    """What the attention of a model did while it was watched: made by attend.hf.watch.

    >>> with attend.hf.watch(model) as watch:
    ...     model(**inputs)
    >>> watch.statistics().entropy.shape          # [layers, batch, heads, queries]
    >>> watch.weights(layer=3, head=5).shape      # [queries, keys]
    >>> watch[3].map(head=5, rows=64, cols=64)    # an Observation: see attend.observe

    A forward pass is a call a layer; generate() makes one a layer for the prompt and for each new token. ``calls`` has
    all of them in order; what is asked by layer is answered from the layer's first.
    """

    def __init__(self, model: torch.nn.Module, layers: Optional[Sequence[int]], watches: List[Watch]) -> None:
        self._watches = watches  # those that are shown every call
        self._modules = {id(module) for module in model.modules()}
        self._wanted = None if layers is None else set(layers)
        self._numbers: Dict[int, int] = {}
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
        # Copies: a static cache writes into its keys again.
        kept = {name: x.detach().clone() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
        q, k, v = (x.detach().clone() for x in (q, k, v))
        self.calls.append(WatchedCall(layer, module, observe(q, k, v, mask, **kept)))
