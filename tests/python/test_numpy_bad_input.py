"""Bad input to attend.attention and the masks: an exception that says what to do, never a crash."""

import math

import numpy as np
import pytest

import attend
from numpy_cases import qkv

F32 = dict(dtype=np.float32)


def arrays(**changes):
    q, k, v = qkv(**F32)
    return {"q": q, "k": k, "v": v, **changes}


Q, K, V = qkv(**F32)
BAD = {
    "rank 3": (dict(q=Q[0]), ValueError, "q has 3 dimensions, expected 4"),
    "rank 5": (dict(k=K[None]), ValueError, "k has 5 dimensions, expected 4"),
    "rank 0": (dict(v=np.float32(1.0)), ValueError, "v has 0 dimensions"),
    "integers": (dict(q=Q.astype(int)), TypeError, "q dtype is int64, expected float32"),
    "complex": (dict(k=K.astype(complex)), TypeError, "k dtype is complex128"),
    "booleans": (dict(v=V > 0), TypeError, "v dtype is bool"),
    "objects": (dict(q=Q.astype(object)), TypeError, "q dtype is object"),
    "strings": (dict(q=Q.astype(str)), TypeError, "q dtype is <U"),
    "long double": (dict(q=Q.astype(np.longdouble)), TypeError, "q dtype is"),
    "records": (dict(q=np.zeros(Q.shape, "f4,f4")), TypeError, "q dtype is"),
    "times": (dict(q=Q.astype("m8[s]")), TypeError, "q dtype is"),
    "byte-swapped": (dict(q=Q.astype(">f4")), TypeError, "q dtype is >f4"),
    "a list": (dict(q=Q.tolist()), TypeError, "q is a list, expected an array"),
    "None": (dict(k=None), TypeError, "k is a NoneType, expected an array"),
    "a number": (dict(v=1.0), TypeError, "v is a float, expected an array"),
    "a string": (dict(v="v"), TypeError, "v is a str, expected an array"),
    "mixed dtypes": (dict(k=K.astype(np.float16)), ValueError, "k dtype is f16, expected f32"),
    "other batch": (dict(k=K[:1], v=V[:1]), ValueError, "k batch is 1, expected 2"),
    "other dim": (dict(k=K[..., :4]), ValueError, "k dim is 4, expected 8"),
    "other length": (dict(v=V[:, :, :3]), ValueError, "v length is 3, expected 7"),
    "other heads": (dict(v=V[:, :1]), ValueError, "v heads is 1, expected 2"),
    "heads that do not divide": (dict(q=Q[:, :3]), ValueError, "q has 3 heads and k 2"),
    "no heads": (dict(q=Q[:, :0], k=K[:, :0], v=V[:, :0]), ValueError, "heads"),
    "dim 0": (dict(q=Q[..., :0], k=K[..., :0]), ValueError, "head dim is 0"),
    "value dim 0": (dict(v=V[..., :0]), ValueError, "value dim 0"),
    "mask: an array": (dict(mask=np.ones((5, 7), bool)), TypeError, "mask is a ndarray.*attend.dense"),
    "mask: a string": (dict(mask="causal"), TypeError, "mask is a str"),
    "mask: the function": (dict(mask=attend.causal), TypeError, "mask is a function"),
    "mask: shape": (dict(mask=attend.dense(np.ones((5, 6), bool))), ValueError, "mask"),
    "mask: lengths": (dict(mask=attend.padding([1, 2, 3])), ValueError, "padding"),
    "mask: blocks": (dict(mask=attend.blocks(np.ones((1, 1), bool), 2, 2)), ValueError, "block"),
    "mask: segments": (dict(mask=attend.segments([0, 50])), ValueError, "segment"),
    "bias: shape": (dict(bias=np.ones((5, 6), np.float32)), ValueError, "bias shape is"),
    "bias: rank": (dict(bias=np.ones((1,) * 5, np.float32)), ValueError, "bias has 5 dimensions"),
    "bias: dtype": (dict(bias=np.ones((5, 7), int)), TypeError, "bias dtype is int64"),
    "bias: float64": (dict(bias=np.ones((5, 7))), ValueError, "bias is f64"),
    "alibi: shape": (dict(alibi_slopes=np.ones(3, np.float32)), ValueError, "ALiBi slopes"),
    "alibi: rank": (dict(alibi_slopes=np.ones((1, 1, 4), np.float32)), ValueError, "alibi_slopes has 3"),
    "alibi: align": (dict(alibi_slopes=np.ones(4, np.float32), alibi_align="x"), ValueError, "align is 'x'"),
    "return_lse: a word": (dict(return_lse="no"), TypeError, "return_lse is 'no', expected True or False"),
    "return_lse: None": (dict(return_lse=None), TypeError, "return_lse is None, expected True or False"),
    "return_weights: a number": (dict(return_weights=2), TypeError, "return_weights is 2, expected True or False"),
    "sinks: shape": (dict(sinks=np.ones(5, np.float32)), ValueError, "sinks"),
    "sinks: rank": (dict(sinks=np.ones((), np.float32)), ValueError, "sinks has 0 dimensions"),
    "scale: nan": (dict(scale=math.nan), ValueError, "scale is"),
    "scale: text": (dict(scale="x"), (TypeError, ValueError), "x"),
    "softcap": (dict(softcap=-1.0), ValueError, "softcap is -1"),
    "softcap: inf": (dict(softcap=math.inf), ValueError, "softcap is inf"),
    "dropout: 1": (dict(dropout=1.0), ValueError, "dropout probability is 1"),
    "dropout: nan": (dict(dropout=math.nan), ValueError, "dropout probability is nan"),
    "seed": (dict(dropout=0.5, seed=-1), (TypeError, ValueError), None),
    "layout": (dict(layout="lbhd"), ValueError, "layout is 'lbhd', expected \"bhld\" or \"blhd\""),
    "layout: type": (dict(layout=["bhld"]), (TypeError, ValueError), None),
    "unknown option": (dict(masks=None), TypeError, "masks"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    changes, error, text = BAD[name]
    with pytest.raises(error, match=text):
        attend.attention(**arrays(**changes))


BAD_MASKS = {
    "align": (lambda: attend.causal("middle"), ValueError, "align is 'middle'"),
    "offsets": (lambda: attend.causal(offsets=[0.5]), TypeError, "offsets is float64, expected whole numbers"),
    "offsets: rank": (lambda: attend.causal(offsets=[[1]]), ValueError, "offsets has 2 dimensions"),
    "padding": (lambda: attend.padding(["a"]), TypeError, "lengths is"),
    "padding: None": (lambda: attend.padding(None), TypeError, "lengths is object"),
    "padding: huge": (lambda: attend.padding([2**70]), (TypeError, ValueError), None),
    "dense": (lambda: attend.dense(np.zeros((2, 2))), TypeError, "dense mask dtype is float64, expected bool"),
    "dense: rank": (lambda: attend.dense(np.ones((1,) * 5, bool)), ValueError, "dense mask has 5 dimensions"),
    "dense: None": (lambda: attend.dense(None), TypeError, "dense mask dtype is object"),
    "blocks": (lambda: attend.blocks(np.ones(3, bool), 1, 1), ValueError, "bits has 1 dimensions"),
    "window": (lambda: attend.window("x", -1), TypeError, "left is 'x', expected a whole number"),
    "window of one side": (lambda: attend.window(3), TypeError, r"both sides: window\(3, 0\)"),
    "and": (lambda: attend.causal() & True, TypeError, "unsupported operand"),
    "and, other side": (lambda: None & attend.causal(), TypeError, "unsupported operand"),
}


@pytest.mark.parametrize("name", BAD_MASKS)
def test_bad_masks(name):
    make, error, text = BAD_MASKS[name]
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize("make", [
    lambda: attend.window(-5, -1), lambda: attend.window(2, -7), lambda: attend.blocks(np.ones((1, 1), bool), 0, 7),
    lambda: attend.blocks(np.ones((1, 1), bool), -5, 7), lambda: attend.padding([-1, 2]), lambda: attend.padding([]),
    lambda: attend.left_padding([1, -1]), lambda: attend.segments([1, 3]), lambda: attend.segments([0, 3, 2]),
    lambda: attend.segments([]), lambda: attend.segments([0, 5], [0]), lambda: attend.prefix([-3]),
    lambda: attend.causal(offsets=[]), lambda: attend.causal(offsets=[1, 2, 3]),
    lambda: attend.blocks(np.ones((3, 5, 7), bool), 1, 1)])
def test_masks_that_make_no_sense(make):
    """Refused when made or when used."""
    with pytest.raises((TypeError, ValueError)):
        attend.attention(Q, K, V, make())


@pytest.mark.parametrize("offset", [2**62, -2**62, 2**63 - 1, -2**63])
def test_offsets_far_away(offset):
    """Numbers at the edge of int64 give an answer or a refusal, never a wrong sum."""
    for make in (lambda: attend.causal(offsets=offset), lambda: attend.window(2**63 - 1, 2**63 - 1, offsets=offset)):
        try:
            out = attend.attention(Q, K, V, make())
        except ValueError:
            continue
        assert (out == attend.attention(Q, K, V)).all() or (out == 0).all()


def test_bad_backward():
    out, lse = attend.attention(Q, K, V, return_lse=True)
    good = dict(dout=out, q=Q, k=K, v=V, out=out, lse=lse)
    for changes, error, text in [
            (dict(lse=lse[0]), ValueError, "lse has 2 dimensions"), (dict(lse=lse[..., :2]), ValueError, "lse"),
            (dict(lse=lse.astype(np.float64)), ValueError, "lse dtype is f64, expected f32"),
            (dict(dout=out[..., :2]), ValueError, "dout"), (dict(out=out[:, :2]), ValueError, "out"),
            (dict(dout=out.astype(np.float64)), ValueError, "dout dtype is f64"),
            (dict(dout=None), TypeError, "dout is a NoneType"), (dict(q=Q[0]), ValueError, "q has 3 dimensions")]:
        with pytest.raises(error, match=text):
            attend.attention_backward(**{**good, **changes})


def test_sizes_that_overflow():
    """Shapes whose products pass 2**63 are refused before anything is allocated or read."""
    one = np.ones((1, 1, 1, 1), np.float32)
    huge = lambda *shape: np.lib.stride_tricks.as_strided(one, shape, (0, 0, 0, 0))  # noqa: E731
    with pytest.raises((ValueError, MemoryError)):
        attend.attention(huge(2**20, 2**20, 2**20, 1), huge(2**20, 1, 1, 1), huge(2**20, 1, 1, 1))
    with pytest.raises((ValueError, MemoryError)):
        attend.attention(huge(1, 1, 2**31, 1), huge(1, 1, 2**31, 1), huge(1, 1, 2**31, 1), return_weights=True)


FLAGS = {
    "return_lse": lambda flag: attend.adaptive_span(Q, K, V, np.full(4, 2, np.float32), return_lse=flag),
    "return_state": lambda flag: attend.linear_attention(K, K, V, return_state=flag),
    "return_projected": lambda flag: attend.linformer(Q, K, V, np.ones((1, 3, 7), np.float32), return_projected=flag),
    "return_weights": lambda flag: attend.MultiHeadAttention(8, 2)(Q[0], return_weights=flag),
    "save": lambda flag: attend.MultiHeadAttention(8, 2)(Q[0], save=flag),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_true_or_false(name):
    for flag in (False, True, np.True_, 1, 0):
        FLAGS[name](flag)
    for flag in ("no", "", None, 2, [False], np.ones(2)):
        with pytest.raises(TypeError, match=f"{name} is .*, expected True or False"):
            FLAGS[name](flag)
