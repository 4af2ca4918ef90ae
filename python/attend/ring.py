"""Ring attention, and the layer around it: one sequence over several processes, with mpi4py.

It calls libattend_ring, which is built where MPI is (docs/guide/ring.md) and is no part of the wheel: the environment
variable ATTEND_RING_LIBRARY says where it lies, else the system's library path is searched.

>>> from mpi4py import MPI
>>> import attend.ring
>>> comm = MPI.COMM_WORLD
>>> mine = attend.ring.positions(comm.size, comm.rank, length, "zigzag")       # which tokens this rank holds
>>> out = attend.ring.attention(comm, q[:, :, mine], k[:, :, mine], v[:, :, mine], causal=True, sharding="zigzag")
>>> y, saved = attend.ring.layer(comm, layer, x[:, mine], causal=True, sharding="zigzag", save=True)
>>> gradients = attend.ring.layer_backward(comm, dy[:, mine], saved)          # of the parameters: the same on all ranks

Run it with `mpirun -n 4 python -m mpi4py script.py`: an exception in one rank then ends the others too.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
from typing import Any, NamedTuple, Optional

import numpy as np

from ._arrays import describe, empty, finish, numpy_dtype
from ._layer import LayerGradients, MultiHeadAttention, _squeeze, _to_kind
from ._whole import flag, whole

__all__ = ["Gradients", "attention", "attention_backward", "layer", "layer_backward", "positions"]

_DTYPES = {"f32": 0, "f16": 1, "bf16": 2, "f64": 3}
_SHARDINGS = {"contiguous": 0, "zigzag": 1}
_ROPES = {None: 0, "half_split": 1, "interleaved": 2}
_LAST_KEY, _UNLIMITED, _INVALID_ARGUMENT = 1, -1, 1


class _Tensor(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int32), ("data", ctypes.c_void_p), ("shape", ctypes.c_int64 * 4),
                ("strides", ctypes.c_int64 * 4)]


class _AttentionOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("mask", ctypes.c_void_p), ("has_scale", ctypes.c_int32),
                ("scale", ctypes.c_double), ("softcap", ctypes.c_double), ("rule", ctypes.c_void_p * 5),
                ("bias", ctypes.c_void_p), ("alibi_slopes", ctypes.c_void_p), ("alibi_align", ctypes.c_int32),
                ("alibi_offsets", ctypes.c_void_p), ("alibi_offset_count", ctypes.c_int64), ("sinks", ctypes.c_void_p),
                ("dropout_probability", ctypes.c_double), ("dropout_seed", ctypes.c_uint64),
                ("distance_bias", ctypes.c_void_p)]


class _RingOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("sharding", ctypes.c_int32), ("progress", ctypes.c_int32),
                ("attention", ctypes.POINTER(_AttentionOptions)), ("timeout_seconds", ctypes.c_double),
                ("slice_work", ctypes.c_double), ("times", ctypes.c_void_p)]


class _LayerConfig(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("dtype", ctypes.c_int32),
                *((name, ctypes.c_int64) for name in ("width", "context_width", "output_width", "heads", "kv_heads",
                                                      "head_dim", "value_dim", "value_rank")),
                ("qkv_bias", ctypes.c_int32), ("output_bias", ctypes.c_int32), ("qk_norm", ctypes.c_int32),
                ("norm_eps", ctypes.c_double), ("rope_style", ctypes.c_int32), ("rope_theta", ctypes.c_double),
                ("inner", ctypes.c_void_p), ("rope_scaling", ctypes.c_void_p)]


# The structs above are those of attend.h and attend_ring.h; tests/python/test_numpy_ring.py compares them, field by field.
_INIT = {_AttentionOptions: "attend_attention_options_init_sized", _RingOptions: "attend_ring_options_init_sized",
         _LayerConfig: "attend_layer_config_init_sized"}


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
    for function in _INIT.values():
        if not hasattr(library, function):
            raise ImportError(f"{name} is of an older version than this package: it has no {function}; build it anew "
                              "(docs/guide/ring.md)")
        getattr(library, function).restype = None
    for kind in ("mask", "layer", "layer_saved", "layer_gradients"):
        getattr(library, f"attend_{kind}_free").restype = None
    return library


def _check(status):
    if status:
        text = _library().attend_last_error().decode()
        raise (ValueError if status == _INVALID_ARGUMENT else RuntimeError)(text)


def _initialised(struct):
    """A struct with its defaults. The library is told how large it is here, and a newer one fills in no more."""
    made = struct()
    getattr(_library(), _INIT[struct])(ctypes.byref(made), ctypes.c_size_t(ctypes.sizeof(struct)))
    return made


def _sharding(sharding):
    if sharding not in _SHARDINGS:
        raise ValueError(f'sharding is {sharding!r}, expected "contiguous" or "zigzag"')
    return _SHARDINGS[sharding]


def _tensor(array, name, dims=4):
    if len(array.shape) != dims:
        raise ValueError(f"{name} has {len(array.shape)} dimensions, expected {dims}")
    rest = 4 - dims  # the lse has no last dimension
    return _Tensor(_DTYPES[array.dtype], array.address, (*array.shape, *[1] * rest), (*array.strides, *[1] * rest))


class _Options:
    """The options of a call, and the mask they point to."""

    def __init__(self, sharding, causal, window, scale, softcap, timeout):
        library = _library()
        self.attention, self.ring = _initialised(_AttentionOptions), _initialised(_RingOptions)
        self.ring.sharding, self.ring.timeout_seconds = _sharding(sharding), float(timeout)
        self.ring.attention = ctypes.pointer(self.attention)
        self.attention.softcap = float(softcap)
        if scale is not None:
            self.attention.has_scale, self.attention.scale = 1, float(scale)
        self.mask, causal = ctypes.c_void_p(), flag(causal, "causal")
        if window is not None:
            left, right = (window, 0 if causal else window) if np.isscalar(window) else window
            sides = [ctypes.c_int64(_UNLIMITED if side is None else whole(side, "side")) for side in (left, right)]
            _check(library.attend_mask_window(*sides, ctypes.c_int32(_LAST_KEY), ctypes.byref(self.mask)))
        elif causal:
            _check(library.attend_mask_causal(ctypes.c_int32(_LAST_KEY), ctypes.byref(self.mask)))
        self.attention.mask = self.mask

    def __del__(self):
        if getattr(self, "mask", None):
            _library().attend_mask_free(self.mask)


class _Handle:
    """Something the library made, freed with this object."""

    def __init__(self, kind):
        self.kind, self.pointer = kind, ctypes.c_void_p()

    def __del__(self):
        if self.pointer:
            getattr(_library(), f"attend_{self.kind}_free")(self.pointer)


def positions(ranks: int, rank: int, length: int, sharding: str = "contiguous") -> np.ndarray:
    """The places in the sequence of the tokens that `rank` holds.

    >>> attend.ring.positions(2, 0, 8, "zigzag")
    array([0, 1, 6, 7])
    """
    places = np.empty(max(0, whole(length, "length")) // max(1, whole(ranks, "ranks")), np.int64)
    _check(_library().attend_ring_positions(
        ctypes.c_int32(_sharding(sharding)), ctypes.c_int64(rank), ctypes.c_int64(ranks), ctypes.c_int64(length),
        ctypes.c_void_p(places.ctypes.data or None)))
    return places


def attention(comm: Any, q: Any, k: Any, v: Any, *, causal: bool = False, window: Any = None,
              scale: Optional[float] = None, softcap: float = 0.0, sharding: str = "contiguous", return_lse: bool = False,
              timeout: float = 60.0) -> Any:
    """attend.attention over the ranks of `comm` (an mpi4py communicator), each with its part of q, k and v.

    q, k, v    [batch, heads, length / ranks, dim]: float32, float16 or bfloat16, the tokens of positions()
    window     tokens seen before one's own (and with causal=False after it), or a pair (left, right)
    sharding   "contiguous" or "zigzag"
    timeout    seconds of silence after which a rank counts as gone, which ends the run

    >>> out, lse = attend.ring.attention(comm, q, k, v, causal=True, return_lse=True)
    """
    options = _Options(sharding, causal, window, scale, softcap, timeout)
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
                       sharding: str = "contiguous", timeout: float = 60.0) -> Gradients:
    """The gradients of attention() for dout, with `out` and `lse` as it gave them and the same options.

    >>> gradients = attend.ring.attention_backward(comm, dout, q, k, v, out, lse, causal=True)
    """
    options = _Options(sharding, causal, window, scale, softcap, timeout)
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


def _engine_layer(layer):
    """The layer once more, in the ring's library, with the same parameters."""
    config = layer._config
    for name, value in (("inner", layer.inner), ("rope_scaling", config["rope_scaling"])):
        if value is not None:
            raise ValueError(f"the layer has {name}, expected none: the ring does not pass it on")
    wanted = _initialised(_LayerConfig)
    wanted.dtype, wanted.rope_style = _DTYPES[layer.dtype], _ROPES[config["rope"]]
    for name, _ in _LayerConfig._fields_:
        if name in config and name != "rope_scaling":
            setattr(wanted, name, config[name])
    handle = _Handle("layer")
    _check(_library().attend_layer_create(ctypes.byref(wanted), ctypes.byref(handle.pointer)))
    for name, value in layer.parameters.items():
        place = _Tensor()
        _check(_library().attend_layer_parameter(handle.pointer, name.encode(), ctypes.byref(place)))
        value = np.ascontiguousarray(value)
        ctypes.memmove(place.data, value.ctypes.data, value.nbytes)
    return handle


def _rows(array, name):
    """[batch, length, width] as the engine's [batch, 1, length, width]."""
    if len(array.shape) != 3:
        raise ValueError(f"{name} has {len(array.shape)} dimensions, expected 3: batch, length and width")
    (B, M, W), strides = array.shape, array.strides
    return _Tensor(_DTYPES[array.dtype], array.address, (B, 1, M, W), (strides[0], M * W, strides[1], strides[2]))


def layer(comm: Any, layer: MultiHeadAttention, x: Any, *, causal: bool = False, window: Any = None,
          scale: Optional[float] = None, softcap: float = 0.0, sharding: str = "contiguous", save: bool = False,
          timeout: float = 60.0) -> Any:
    """layer(x) over the ranks of `comm`, each with its tokens x [batch, length / ranks, width]: self-attention.

    The layer's parameters must be the same on all ranks. save adds what layer_backward needs.

    >>> y, saved = attend.ring.layer(comm, layer, x[:, mine], causal=True, sharding="zigzag", save=True)
    """
    options, handle, saved = _Options(sharding, causal, window, scale, softcap, timeout), _engine_layer(layer), None
    array = describe(x, "x")
    rows = _rows(array, "x")
    out, out_array = empty(array.kind, layer.dtype, (*array.shape[:2], layer._core.output_width))
    out_rows = _rows(out_array, "out")
    if save:
        saved = _Handle("layer_saved")
    _check(_library().attend_ring_layer_forward(comm.py2f(), handle.pointer, ctypes.byref(rows), ctypes.byref(options.ring),
                                                ctypes.byref(out_rows), ctypes.byref(saved.pointer) if save else None))
    out = finish(array.kind, out)
    return (out, (saved, handle, options, layer)) if save else out


def layer_backward(comm: Any, dout: Any, saved: Any) -> LayerGradients:
    """The gradients of layer() for dout, from what it saved: dx of this rank's tokens, those of the parameters summed over
    all ranks.

    >>> gradients = attend.ring.layer_backward(comm, dy[:, mine], saved)
    """
    kept, handle, options, layer = saved
    array = describe(dout, "dout")
    rows = _rows(array, "dout")
    made = _Handle("layer_gradients")
    _check(_library().attend_ring_layer_backward(comm.py2f(), handle.pointer, ctypes.byref(rows), kept.pointer,
                                                 ctypes.byref(options.ring), ctypes.byref(made.pointer)))
    return LayerGradients(_to_kind(array.kind, _gradient(made, "dx", layer.dtype)[:, 0]), None,
                          {name: _squeeze(_gradient(made, name, layer.dtype)) for name in layer.parameters})


def _gradient(made, name, dtype):
    place = _Tensor()
    _check(_library().attend_layer_gradient(made.pointer, name.encode(), ctypes.byref(place)))
    result = np.empty(tuple(place.shape), numpy_dtype(dtype))
    ctypes.memmove(result.ctypes.data, place.data, result.nbytes)
    return result
