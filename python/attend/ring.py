"""Ring attention: one sequence over several processes, with mpi4py.

It calls libattend_ring, which is built where MPI is (docs/guide/ring.md) and is no part of the wheel: the environment
variable ATTEND_RING_LIBRARY says where it lies, else the system's library path is searched.

>>> from mpi4py import MPI
>>> import attend.ring
>>> comm = MPI.COMM_WORLD
>>> mine = attend.ring.positions(comm.size, comm.rank, length, "zigzag")       # which tokens this rank holds
>>> out = attend.ring.attention(comm, q[:, :, mine], k[:, :, mine], v[:, :, mine], causal=True, split="zigzag")

Run it with `mpirun -n 4 python -m mpi4py script.py`: an exception in one rank then ends the others too.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
from typing import Any, NamedTuple, Optional

import numpy as np

from ._arrays import describe, empty, finish

__all__ = ["Gradients", "attention", "attention_backward", "positions"]

_DTYPES = {"f32": 0, "f16": 1, "bf16": 2, "f64": 3}
_SPLITS = {"contiguous": 0, "zigzag": 1}
_LAST_KEY, _UNLIMITED, _INVALID_ARGUMENT = 1, -1, 1


class _Tensor(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int32), ("data", ctypes.c_void_p), ("shape", ctypes.c_int64 * 4),
                ("strides", ctypes.c_int64 * 4)]


class _AttentionOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("mask", ctypes.c_void_p), ("has_scale", ctypes.c_int32),
                ("scale", ctypes.c_double), ("softcap", ctypes.c_double), ("rule", ctypes.c_void_p * 5),
                ("bias", ctypes.c_void_p), ("alibi_slopes", ctypes.c_void_p), ("alibi_align", ctypes.c_int32),
                ("alibi_offsets", ctypes.c_void_p), ("alibi_offset_count", ctypes.c_int64), ("sinks", ctypes.c_void_p),
                ("dropout_probability", ctypes.c_double), ("dropout_seed", ctypes.c_uint64)]


class _RingOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("split", ctypes.c_int32), ("progress", ctypes.c_int32),
                ("attention", ctypes.POINTER(_AttentionOptions)), ("timeout_seconds", ctypes.c_double),
                ("slice_work", ctypes.c_double), ("times", ctypes.c_void_p)]


class Gradients(NamedTuple):
    """What attention_backward returns: the gradients of this rank's tokens.

    >>> dq, dk, dv = attend.ring.attention_backward(comm, dout, q, k, v, out, lse, causal=True)
    """

    dq: Any
    dk: Any
    dv: Any


@functools.lru_cache(maxsize=None)
def _library():
    name = os.environ.get("ATTEND_RING_LIBRARY") or ctypes.util.find_library("attend_ring")
    if not name:
        raise ImportError("libattend_ring was not found: set ATTEND_RING_LIBRARY to its path (docs/guide/ring.md says how "
                          "to build it)")
    library = ctypes.CDLL(name)
    library.attend_last_error.restype = ctypes.c_char_p
    library.attend_mask_free.restype = None
    return library


def _check(status):
    if status:
        text = _library().attend_last_error().decode()
        raise (ValueError if status == _INVALID_ARGUMENT else RuntimeError)(text)


def _split(split):
    if split not in _SPLITS:
        raise ValueError(f'split is {split!r}, expected "contiguous" or "zigzag"')
    return _SPLITS[split]


def _tensor(array, name, dims=4):
    if len(array.shape) != dims:
        raise ValueError(f"{name} has {len(array.shape)} dimensions, expected {dims}")
    rest = 4 - dims  # the lse has no last dimension
    return _Tensor(_DTYPES[array.dtype], array.address, (*array.shape, *[1] * rest), (*array.strides, *[1] * rest))


class _Options:
    """The options of a call, and the mask they point to."""

    def __init__(self, split, causal, window, scale, softcap, timeout):
        library = _library()
        self.attention, self.ring = _AttentionOptions(), _RingOptions()
        library.attend_attention_options_init(ctypes.byref(self.attention))
        library.attend_ring_options_init(ctypes.byref(self.ring))
        self.ring.split, self.ring.timeout_seconds = _split(split), float(timeout)
        self.ring.attention = ctypes.pointer(self.attention)
        self.attention.softcap = float(softcap)
        if scale is not None:
            self.attention.has_scale, self.attention.scale = 1, float(scale)
        self.mask = ctypes.c_void_p()
        if window is not None:
            left, right = (window, 0 if causal else window) if np.isscalar(window) else window
            sides = [ctypes.c_int64(_UNLIMITED if side is None else int(side)) for side in (left, right)]
            _check(library.attend_mask_window(*sides, ctypes.c_int32(_LAST_KEY), ctypes.byref(self.mask)))
        elif causal:
            _check(library.attend_mask_causal(ctypes.c_int32(_LAST_KEY), ctypes.byref(self.mask)))
        self.attention.mask = self.mask

    def __del__(self):
        if getattr(self, "mask", None):
            _library().attend_mask_free(self.mask)


def positions(ranks: int, rank: int, length: int, split: str = "contiguous") -> np.ndarray:
    """The places in the sequence of the tokens that `rank` holds.

    >>> attend.ring.positions(2, 0, 8, "zigzag")
    array([0, 1, 6, 7])
    """
    places = np.empty(max(0, int(length)) // max(1, int(ranks)), np.int64)
    _check(_library().attend_ring_positions(
        ctypes.c_int32(_split(split)), ctypes.c_int64(rank), ctypes.c_int64(ranks), ctypes.c_int64(length),
        ctypes.c_void_p(places.ctypes.data or None)))
    return places


def attention(comm: Any, q: Any, k: Any, v: Any, *, causal: bool = False, window: Any = None,
              scale: Optional[float] = None, softcap: float = 0.0, split: str = "contiguous", return_lse: bool = False,
              timeout: float = 60.0) -> Any:
    """attend.attention over the ranks of `comm` (an mpi4py communicator), each with its part of q, k and v.

    q, k, v    [batch, heads, length / ranks, dim]: float32, float16 or bfloat16, the tokens of positions()
    window     tokens seen before one's own (and with causal=False after it), or a pair (left, right)
    split      "contiguous" or "zigzag"
    timeout    seconds of silence after which a rank counts as gone, which ends the run

    >>> out, lse = attend.ring.attention(comm, q, k, v, causal=True, return_lse=True)
    """
    options = _Options(split, causal, window, scale, softcap, timeout)
    arrays = [describe(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v"))]
    tensors = [_tensor(array, name) for array, name in zip(arrays, "qkv")]
    kind, (B, H, M, _) = arrays[0].kind, arrays[0].shape
    out, out_array = empty(kind, arrays[0].dtype, (B, H, M, arrays[2].shape[3]))
    lse, lse_array = empty(kind, "f32", (B, H, M))
    tensors += [_tensor(out_array, "out"), _tensor(lse_array, "lse", 3)]
    _check(_library().attend_ring_attention(comm.py2f(), *map(ctypes.byref, tensors), ctypes.byref(options.ring)))
    return (finish(kind, out), finish(kind, lse)) if return_lse else finish(kind, out)


def attention_backward(comm: Any, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, causal: bool = False,
                       window: Any = None, scale: Optional[float] = None, softcap: float = 0.0,
                       split: str = "contiguous", timeout: float = 60.0) -> Gradients:
    """The gradients of attention() for dout, with `out` and `lse` as it gave them and the same options.

    >>> gradients = attend.ring.attention_backward(comm, dout, q, k, v, out, lse, causal=True)
    """
    options = _Options(split, causal, window, scale, softcap, timeout)
    names = ("dout", "q", "k", "v", "out")
    arrays = [describe(x, name) for x, name in zip((dout, q, k, v, out), names)]
    lse_array = describe(lse, "lse")
    tensors = [_tensor(array, name) for array, name in zip(arrays, names)] + [_tensor(lse_array, "lse", 3)]
    kind, results = arrays[1].kind, []
    for array in arrays[1:4]:
        gradient, gradient_array = empty(kind, array.dtype, array.shape)
        results.append(gradient)
        tensors.append(_tensor(gradient_array, "a gradient"))
    _check(_library().attend_ring_attention_backward(comm.py2f(), *map(ctypes.byref, tensors),
                                                     ctypes.byref(options.ring)))
    return Gradients(*(finish(kind, x) for x in results))
