"""The explorer around observations: attention of any model, of one text over itself or over another one."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from . import _core, _explorer_page
from ._errors import InvalidArgument
from ._lens import Observation, observe
from ._token_bytes import joined_text

_THUMB_CELLS = 24
_MASKED = 255
_ADDED = ("bias", "sinks", "alibi_slopes", "distance_bias")  # what makes a score more than scale x q.k
_HIDES = -1e30  # a bias below says that the key is not seen


class Part(NamedTuple):
    """Layers of one kind: an encoder's, a decoder's, or those that let a decoder look at an encoder."""

    name: str
    layers: Sequence[Observation]
    queries: Sequence[Any]  #: texts of the tokens, or dicts with "text" and "special"
    keys: Optional[Sequence[Any]] = None  #: of another text; None: the queries' own


def _frame(head: Dict[str, Any], values: np.ndarray) -> str:
    """As apps/explorer/frames.js reads it, in base64."""
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 4)
    numbers = values.tobytes()
    return base64.b64encode(b"AEX1" + struct.pack("<I", len(text)) + text + numbers + b"\0" * (-len(numbers) % 4)).decode()


def _numbers(values: Any) -> np.ndarray:
    """float32 in NumPy, whatever holds it."""
    if hasattr(values, "detach"):  # a tensor of PyTorch, whose bf16 NumPy has not
        values = values.detach().float().cpu().numpy()
    return np.ascontiguousarray(values, np.float32)


def _tensors(seen: Observation, batch: int) -> Dict[str, np.ndarray]:
    """q, k and v of one text, [heads, length, dim]."""
    if seen.arrays[2] is None:
        raise InvalidArgument("html: the page shows values too; expected observe(q, k, v, ...)")
    four = {name: _numbers(x) for name, x in zip("qkv", seen.arrays)}
    if seen.layout == "blhd":
        four = {name: x.swapaxes(1, 2) for name, x in four.items()}
    return {name: np.ascontiguousarray(x[batch]) for name, x in four.items()}


def _visible(seen: Observation, batch: int) -> np.ndarray:
    """Which keys each query may see, [heads, queries, keys]: the same mask over zeros weighs every visible key alike."""
    zeros = [np.zeros((seen.batches, heads, length, 1), np.float32)
             for heads, length in ((seen.heads, seen.queries), (1, seen.keys))]
    plain = observe(*zeros, mask=seen.mask)
    shown = np.stack([plain.zoom(head, batch) > 0 for head in range(seen.heads)])
    bias = seen.options.get("bias")
    if bias is None:
        return shown
    four = _numbers(bias)
    four = four.reshape((1,) * (4 - four.ndim) + four.shape)
    return shown & (four[min(batch, len(four) - 1)] > _HIDES)


def _thumb(weights: np.ndarray) -> np.ndarray:
    """A small square picture: 254 x the root of each cell's largest weight, 255 where nothing can be seen."""
    for axis, length in enumerate(weights.shape):
        cells = np.arange(_THUMB_CELLS)
        first = cells * length // _THUMB_CELLS
        end = np.maximum((cells + 1) * length // _THUMB_CELLS, first + 1)
        parts = [np.fmax.reduce(weights.take(range(a, b), axis), axis) for a, b in zip(first, end)]
        weights = np.stack(parts, axis)
    hidden = np.isnan(weights)
    return np.where(hidden, _MASKED, np.rint(254 * np.sqrt(np.clip(np.where(hidden, 0, weights), 0, 1)))).astype(np.uint8)


def _head(layer: int, head: int, weights: np.ndarray) -> Dict[str, Any]:
    """What the rows of a head are like. Which kind it is, is not said: that takes a probe of the model."""
    w = np.nan_to_num(weights).astype(np.float64)
    most = np.log(np.maximum(2, (~np.isnan(weights)).sum(1)))
    entropy = -(w * np.log(np.where(w > 0, w, 1))).sum(1) / most
    distance = (w * (np.arange(len(w))[:, None] - np.arange(w.shape[1]))).sum(1)
    rows = slice(1, None) if len(w) > 1 else slice(None)  # the first has no choice, where it looks at itself
    return {"layer": layer, "head": head, "entropy": float(entropy[rows].mean()), "sink": float(w[rows, 0].mean()),
            "distance": float(distance[rows].mean()), "rows": len(w), "left_out": 0}


def _tokens(texts: Sequence[Any], length: int, what: str) -> List[Dict[str, Any]]:
    if len(texts) != length:
        raise InvalidArgument(f"html: {len(texts)} tokens were given as {what}, expected {length}, as many as there are")
    return [{"id": n, **(one if isinstance(one, dict) else {"text": str(one)})} for n, one in enumerate(texts)]


def _bytes(seen: Observation, batch: int) -> int:
    tensors = _tensors(seen, batch)
    return 4 * (seen.heads * seen.queries * seen.keys + sum(x.size for x in tensors.values()))


def _part(part: Part, name: str, parameters: int, batch: int, limit: int) -> Dict[str, Any]:
    first = part.layers[0]
    if getattr(first.arrays[0], "is_cuda", False):
        raise InvalidArgument("html: q is a CUDA tensor, expected the CPU's; run the model there, or observe(q.cpu(), ...)")
    shape = (first.heads, first.queries, first.keys)
    for n, seen in enumerate(part.layers):
        if (seen.heads, seen.queries, seen.keys) != shape:
            raise InvalidArgument(f"html: layer {n} of {part.name} has {seen.heads} heads, {seen.queries} queries and {seen.keys} keys, "
                                  f"expected {shape[0]}, {shape[1]} and {shape[2]} as layer 0 has; watch one text at a time")
    if not 0 <= batch < first.batches:
        raise InvalidArgument(f"html: batch is {batch}, expected one of the {first.batches} texts")
    each = _bytes(first, batch)
    if each > limit:
        raise InvalidArgument(f"html: one layer of {shape[1]} x {shape[2]} weights is {each / 2**20:.1f} MiB, expected at most "
                              f"{limit / 2**20:.1f}; look at a shorter text")
    weights = []
    for seen in part.layers:
        shown = _visible(seen, batch)
        rows = np.stack([seen.zoom(head, batch) for head in range(seen.heads)])
        weights.append(np.where(shown, rows, np.nan).astype(np.float32))
    heads = [_head(layer, head, w) for layer, all_heads in enumerate(weights) for head, w in enumerate(all_heads)]
    kept = list(range(len(part.layers)))
    if each * len(kept) > limit:  # the layer with the head that chooses most
        kept = [min(heads, key=lambda one: one["entropy"])["layer"]]
    frames = {"thumbs": _frame({"kind": "thumbs", "dtype": "u8", "shape": [len(weights), shape[0], _THUMB_CELLS, _THUMB_CELLS]},
                               np.stack([np.stack([_thumb(w) for w in all_heads]) for all_heads in weights]))}
    kernel = _core.kernel_name()
    scores: List[Dict[str, Any]] = []
    for layer, seen in enumerate(part.layers):
        tensors = _tensors(seen, batch)
        more = bool(seen.options.get("softcap")) or any(seen.options.get(option) is not None for option in _ADDED)
        scores.append({"scale": seen.options.get("scale") or 1 / math.sqrt(tensors["q"].shape[2]), "more": more})
        if layer not in kept:
            continue
        for tensor, values in tensors.items():
            frames[f"{tensor}.{layer}"] = _frame({"name": tensor, "dtype": "f32", "shape": list(values.shape)}, values)
        if more:
            sums = seen.lse[batch].astype(np.float32)
            frames[f"lse.{layer}"] = _frame({"name": "lse", "dtype": "f32", "shape": list(sums.shape)}, sums)
        for head, w in enumerate(weights[layer]):
            frames[f"map.{layer}.{head}"] = _frame({"kind": "map", "dtype": "f32", "shape": [1, *w.shape], "kernel": kernel}, w)
    queries = _tokens(part.queries, shape[1], "tokens")
    run = {"run": "kept", "prompt_tokens": shape[1], "tokens": queries, "heads": heads, "kept": kept, "next": [], "ms": None,
           "kernel": kernel, "dtype": "f32"}
    if part.keys is not None:
        run["keys"] = _tokens(part.keys, shape[2], "source")
    tensors = _tensors(first, batch)
    model = {"name": name, "layers": len(part.layers), "heads": shape[0], "kv_heads": tensors["k"].shape[0],
             "head_dim": tensors["q"].shape[2], "parameters": parameters, "causal": False, "positions": "added"}
    about = {"protocol": 1, "model": model, "limits": {"exact": max(shape[1:]), "tokens": max(shape[1:])}, "kernel": kernel, "dtype": "f32"}
    state = {"text": joined_text(queries).strip()}
    if len(kept) == 1:
        state.update(layer=kept[0], head=0)
    return {"name": part.name, "about": about, "run": run, "state": state, "frames": frames, "scores": scores}


def document(parts: Sequence[Part], name: str, parameters: int = 0, batch: int = 0, limit: int = 24 << 20) -> str:
    """One HTML document: the explorer with these parts, each with all its layers where they fit into `limit` bytes together."""
    if not parts:
        raise InvalidArgument("html: nothing was seen; run the model while it is watched")
    made = [_part(part, name, parameters, batch, limit // len(parts)) for part in parts]
    return _explorer_page.document(json.dumps({"format": 1, "parts": made}, ensure_ascii=False, allow_nan=False))
