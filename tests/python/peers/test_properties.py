"""Properties over random shapes, masks, dtypes and memory layouts: NumPy and PyTorch against PyTorch in double."""

import attend
import attend.torch
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

settings.register_profile("attend", deadline=None, derandomize=True, max_examples=300, database=None)
settings.load_profile("attend")

DTYPES = {"float32": np.float32, "float16": np.float16, "float64": np.float64, "bfloat16": ml_dtypes.bfloat16}
FORWARD = {"float32": 5e-6, "float16": 2e-3, "float64": 1e-12, "bfloat16": 1e-2}
BACKWARD = {"float32": 5e-5, "float16": 1e-2, "float64": 1e-11, "bfloat16": 6e-2}


def close(ours, theirs, tolerance):
    np.testing.assert_allclose(np.asarray(ours).astype(np.float64), np.asarray(theirs).astype(np.float64),
                               atol=tolerance, rtol=tolerance)


class Problem:
    """Sizes, arrays, a mask and what the mask means."""

    def __init__(self, data, dtype=None, smallest=0):
        draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
        self.rng = np.random.default_rng(draw(0, 2**32 - 1))
        self.dtype = dtype or data.draw(st.sampled_from(sorted(DTYPES)))
        self.B, self.Hk, group = draw(smallest, 3), draw(1, 3), draw(1, 3)
        self.H = self.Hk * group
        self.M, self.N = draw(smallest, 40), draw(smallest, 140)
        self.D, self.E = draw(1, 40), draw(1, 40)
        self.q = self.array(self.B, self.H, self.M, self.D)
        self.k, self.v = self.array(self.B, self.Hk, self.N, self.D), self.array(self.B, self.Hk, self.N, self.E)
        self.mask, self.visible = attend.no_mask(), np.ones((self.B, self.H, self.M, self.N), bool)
        for rule in data.draw(st.lists(st.sampled_from(RULES), max_size=2, unique=True)):
            mask, visible = rule(self, draw)
            self.mask, self.visible = self.mask & mask, self.visible & visible

    def array(self, *shape):
        return self.rng.standard_normal(shape).astype(ml_dtypes.bfloat16).astype(DTYPES[self.dtype])

    def places(self, align):
        """Key position of each query, minus each key: [M, N]."""
        offset = self.N - self.M if align == "last_key" else 0
        return np.arange(self.M)[:, None] + offset - np.arange(self.N)


def causal(p, draw):
    align = ("last_key", "first_key")[draw(0, 1)]
    return attend.causal(align), p.places(align) >= 0


def window(p, draw):
    align = ("last_key", "first_key")[draw(0, 1)]
    left, right = draw(-1, 20), draw(-1, 20)
    distance = p.places(align)
    visible = np.ones_like(distance, bool)
    if left >= 0:
        visible &= distance <= left
    if right >= 0:
        visible &= -distance <= right
    return attend.window(left, right, align), visible


def padding(p, draw):
    lengths = [draw(0, p.N) for _ in range(p.B)] or [0]
    return attend.padding(lengths), (np.arange(p.N) < np.array(lengths)[:, None])[: p.B, None, None]


def left_padding(p, draw):
    counts = [draw(0, p.N) for _ in range(p.B)] or [0]
    return attend.left_padding(counts), (np.arange(p.N) >= np.array(counts)[:, None])[: p.B, None, None]


def prefix(p, draw):
    length = draw(0, p.N)
    return attend.prefix(length), (np.arange(p.N) < length) | (p.places("last_key") >= 0)


def dense(p, draw):
    shape = [1 if draw(0, 1) else n for n in (p.B, p.H, p.M, p.N)]
    visible = p.rng.random(shape) < 0.6
    return attend.dense(visible), visible


def blocks(p, draw):
    rows, cols = draw(1, 20), draw(1, 70)
    bits = p.rng.random((-(-p.M // rows), -(-p.N // cols))) < 0.6
    return attend.blocks(bits, rows, cols), np.kron(bits, np.ones((rows, cols), bool))[: p.M, : p.N]


RULES = [causal, window, padding, left_padding, prefix, dense, blocks]


def options_of(p, data):
    """Score options for the engine."""
    options = {}
    if data.draw(st.booleans()):
        options["scale"] = data.draw(st.sampled_from([0.05, 0.5, 1.0]))
    if data.draw(st.booleans()):
        options["softcap"] = data.draw(st.sampled_from([0.7, 3.0, 30.0]))
    if data.draw(st.booleans()):
        shape = [1 if data.draw(st.booleans()) else n for n in (p.B, p.H, p.M, p.N)]
        options["bias"] = p.array(*shape)
    if data.draw(st.booleans()):
        options["alibi_slopes"] = p.rng.random(p.H).astype(np.float32)
    if data.draw(st.booleans()):
        options["sinks"] = p.rng.standard_normal(p.H).astype(np.float32)
    return options


def definition(p, q, k, v, scale=None, softcap=0.0, bias=None, alibi_slopes=None, sinks=None):
    """The same in PyTorch, in double, with the dense mask; differentiable, closed rows zero."""
    group = p.H // p.Hk
    s = q @ k.repeat_interleave(group, 1).mT * (scale or 1 / p.D**0.5)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    if alibi_slopes is not None:
        s = s - torch.as_tensor(alibi_slopes).double()[:, None, None] * torch.from_numpy(np.abs(p.places("last_key")))
    visible = torch.from_numpy(p.visible)
    closed = torch.full((*s.shape[:3], 1), -np.inf, dtype=torch.float64)  # one more key that nobody sees: amax of none
    top = torch.cat((s.detach().masked_fill(~visible, -np.inf), closed), -1).amax(-1, keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, sinks.detach()[:, None, None])
    top = top.masked_fill(top.isinf(), 0.0)
    e = torch.exp((s - top).masked_fill(~visible, -1e4)) * visible
    total = e.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks[:, None, None] - top)
    weights = e / total.clamp_min(1e-300)
    return weights @ v.repeat_interleave(group, 1), weights, (top + torch.log(total))[..., 0]


def doubles(*arrays):
    return [torch.from_numpy(np.asarray(x).astype(np.float64)).requires_grad_() for x in arrays]


@given(st.data())
@settings(max_examples=500)
def test_forward_is_the_definition(data):
    p = Problem(data)
    options = options_of(p, data)
    out, lse, weights = attend.attention(p.q, p.k, p.v, p.mask, return_lse=True, return_weights=True, **options)
    wide = {n: doubles(x)[0].detach() if n in ("bias", "sinks") else x for n, x in options.items()}
    expected, expected_weights, expected_lse = definition(p, *(x.detach() for x in doubles(p.q, p.k, p.v)), **wide)
    assert out.dtype == p.q.dtype and out.shape == (p.B, p.H, p.M, p.E)
    close(out, expected, FORWARD[p.dtype])
    close(weights, expected_weights, min(2e-5, 10 * FORWARD[p.dtype]))
    seen = p.visible.any(-1) if "sinks" not in options else np.ones(p.visible.shape[:3], bool)
    close(lse[seen], expected_lse.numpy()[seen], min(2e-5, 10 * FORWARD[p.dtype]))
    assert (lse[~seen] == -np.inf).all() and not out[~seen].any()


@given(st.data())
@settings(max_examples=300)
def test_backward_is_that_of_the_definition(data):
    p = Problem(data)
    options = options_of(p, data)
    out, lse = attend.attention(p.q, p.k, p.v, p.mask, return_lse=True, **options)
    dout = p.array(*out.shape)
    gradients = attend.attention_backward(dout, p.q, p.k, p.v, out, lse, p.mask, **options)
    wide = {n: doubles(x)[0] if n in ("bias", "sinks") else x for n, x in options.items()}
    inputs = doubles(p.q, p.k, p.v)
    expected = definition(p, *inputs, **wide)[0]
    inputs += [wide[n] for n in ("bias", "sinks") if n in wide]
    ours = [g for g in gradients if g is not None]
    assert len(ours) == len(inputs)
    theirs = torch.autograd.grad(expected, inputs, torch.from_numpy(dout.astype(np.float64)), allow_unused=True)
    for x, got, wanted in zip(inputs, ours, theirs):
        wanted = np.zeros(tuple(x.shape)) if wanted is None else wanted.numpy()
        assert got.shape == wanted.shape
        close(got, wanted, BACKWARD[p.dtype] * max(1.0, np.abs(wanted).max(initial=0.0)))


@given(st.data())
def test_rows_of_weights_sum_to_one(data):
    p = Problem(data)
    out, weights = attend.attention(p.q, p.k, p.v, p.mask, return_weights=True)
    seen = p.visible.any(-1)
    close(weights.sum(-1)[seen], np.ones(int(seen.sum())), 1e-5)
    assert not weights[~p.visible].any() and (weights >= 0).all()
    values = np.repeat(p.v.astype(np.float64), p.H // p.Hk, 1)
    close(out, weights.astype(np.float64) @ values, 2 * FORWARD[p.dtype] + 1e-5 * (p.dtype != "float64"))
    for h in range(p.H):  # an average lies between the least and the greatest
        for b in range(p.B):
            for i in np.flatnonzero(seen[b, h]):
                some = values[b, h][p.visible[b, h, i]]
                slack = FORWARD[p.dtype] * (1 + np.abs(some).max())
                row = out[b, h, i].astype(np.float64)
                assert (row >= some.min(0) - slack).all() and (row <= some.max(0) + slack).all()


@given(st.data())
def test_permutations(data):
    p = Problem(data, smallest=1)
    dense_mask = lambda visible: attend.dense(np.ascontiguousarray(visible))  # noqa: E731
    out = attend.attention(p.q, p.k, p.v, dense_mask(p.visible))
    close(out, attend.attention(p.q, p.k, p.v, p.mask), 2 * FORWARD[p.dtype])
    batch, heads, rows, keys = (p.rng.permutation(n) for n in (p.B, p.Hk, p.M, p.N))
    # A sequence does not see its neighbours, to the bit.
    shuffled = attend.attention(p.q[batch], p.k[batch], p.v[batch], dense_mask(p.visible[batch]))
    assert np.array_equal(shuffled, out[batch])
    # Nor a group of heads the others.
    query_heads = (heads[:, None] * (p.H // p.Hk) + np.arange(p.H // p.Hk)).ravel()
    assert np.array_equal(attend.attention(p.q[:, query_heads], p.k[:, heads], p.v[:, heads],
                                           dense_mask(p.visible[:, query_heads])), out[:, query_heads])
    close(attend.attention(p.q[:, :, rows], p.k, p.v, dense_mask(p.visible[:, :, rows])), out[:, :, rows],
          2 * FORWARD[p.dtype])
    close(attend.attention(p.q, p.k[:, :, keys], p.v[:, :, keys], dense_mask(p.visible[..., keys])), out,
          2 * FORWARD[p.dtype])


@given(st.data())
def test_one_shift_of_all_scores_changes_nothing(data):
    p = Problem(data, dtype="float32")
    shift = p.rng.standard_normal((p.B, p.H, p.M, 1)).astype(np.float32)
    close(attend.attention(p.q, p.k, p.v, p.mask, bias=shift), attend.attention(p.q, p.k, p.v, p.mask), 1e-5)


# --- odd memory -------------------------------------------------------------------------------------------------------


def misaligned(x):
    raw = np.empty(x.nbytes + 1, np.uint8)
    result = raw[1:].view(x.dtype).reshape(x.shape) if x.nbytes else x.copy()
    result[...] = x
    return result


def spread(x):
    big = np.zeros(tuple(2 * n + 1 for n in x.shape), x.dtype)
    result = big[tuple(slice(1, 2 * n + 1, 2) for n in x.shape)]
    result[...] = x
    return result


def field(x):
    records = np.zeros(x.shape, np.dtype({"names": ["a", "x"], "formats": [np.uint8, x.dtype], "offsets": [0, 1],
                                          "itemsize": 1 + x.dtype.itemsize}))
    records["x"] = x
    return records["x"]


def readonly(x):
    result = x.copy()
    result.flags.writeable = False
    return result


class Subclass(np.ndarray):
    pass


def to_torch(x):
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.ascontiguousarray(x).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x.copy())


LAYOUTS = {
    "plain": lambda x: x,
    "fortran": np.asfortranarray,
    "negative": lambda x: np.ascontiguousarray(x[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1],
    "negative length": lambda x: np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1],
    "transposed": lambda x: np.ascontiguousarray(x.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0),
    "read-only": readonly,
    "misaligned": misaligned,
    "spread": spread,
    "field": field,
    "subclass": lambda x: x.view(Subclass),
    "memoryview": lambda x: memoryview(x) if x.dtype != ml_dtypes.bfloat16 else x,
    "torch": to_torch,
}


def as_numpy(x):
    if isinstance(x, torch.Tensor):
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()
    return x


@given(st.data())
@settings(max_examples=400)
def test_any_layout_gives_the_same_bits(data):
    p = Problem(data)
    q, k, v = (LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)))](x) for x in (p.q, p.k, p.v))
    out, lse, weights = (as_numpy(x) for x in attend.attention(q, k, v, p.mask, return_lse=True, return_weights=True))
    expected = attend.attention(p.q, p.k, p.v, p.mask, return_lse=True, return_weights=True)
    for got, wanted in zip((out, lse, weights), expected):
        assert np.array_equal(got, wanted)
    dout = p.array(*out.shape)
    odd = LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)))](dout)
    for got, wanted in zip(attend.attention_backward(odd, q, k, v, out, lse, p.mask),
                           attend.attention_backward(dout, p.q, p.k, p.v, *expected[:2], p.mask)):
        assert (got is None and wanted is None) or np.array_equal(as_numpy(got), wanted)


SCALARS = st.sampled_from([">f4", ">f2", ">f8", "i4", "u1", "?", "c8", "O", "M8[s]", "U3", "S5", "g", "V8", "i8"])


@given(st.data())
@settings(max_examples=500)
def test_no_wrong_dtype_gets_in(data):
    dtype = np.dtype(data.draw(SCALARS))
    shape = tuple(data.draw(st.lists(st.integers(0, 3), min_size=4, max_size=4)))
    bad, good = np.zeros(shape, dtype), np.zeros(shape, np.float32)
    at = data.draw(st.integers(0, 2))
    with pytest.raises(TypeError, match="expected"):
        attend.attention(*(bad if n == at else good for n in range(3)))
    with pytest.raises(TypeError, match="expected"):
        attend.softmax(bad)
    with pytest.raises(TypeError, match="expected"):
        attend.rope(bad)


@given(st.data())
@settings(max_examples=300)
def test_any_shapes_are_a_result_or_an_error(data):
    rank = lambda: data.draw(st.sampled_from([4, 4, 4, 4, 3, 5, 1, 0]))  # noqa: E731
    shapes = [tuple(data.draw(st.lists(st.integers(0, 4), min_size=r, max_size=r))) for r in (rank(), rank(), rank())]
    if data.draw(st.booleans()):  # close to right more often than chance
        B, H, M, D = (shapes[0] + (1, 1, 1, 1))[:4]
        shapes = [(B, H, M, D), (B, H, data.draw(st.integers(0, 3)), D), None]
        shapes[2] = (*shapes[1][:3], data.draw(st.integers(0, 3)))
    dtypes = data.draw(st.lists(st.sampled_from([np.float32, np.float32, np.float64]), min_size=3, max_size=3))
    q, k, v = (np.ones(shape, dtype) for shape, dtype in zip(shapes, dtypes))
    mask_shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=5)))
    options = data.draw(st.sampled_from([
        {}, {"mask": "dense"}, {"bias": np.zeros(mask_shape, np.float32)}, {"sinks": np.zeros(mask_shape, np.float32)},
        {"alibi_slopes": np.zeros(mask_shape, np.float32)}, {"dropout": 0.5}, {"dropout": 1.0}, {"softcap": -1.0},
        {"scale": float("inf")}, {"layout": "blhd"}, {"layout": "dlhb"}]))
    try:
        if options.get("mask") == "dense":
            options = {"mask": attend.dense(np.ones(mask_shape, bool))}
        out, lse = attend.attention(q, k, v, return_lse=True, **options)
    except (ValueError, TypeError) as error:
        assert str(error)
        return
    assert out.shape[:3] == q.shape[:3] and out.shape[3] == v.shape[3] and np.isfinite(out.astype(np.float64)).all()
    gradients = attend.attention_backward(np.ones_like(out), q, k, v, out, lse, **options)
    assert gradients.dq.shape == q.shape and gradients.dk.shape == k.shape and gradients.dv.shape == v.shape


@given(st.data())
def test_softmax_and_rope_of_any_layout(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shape = (data.draw(st.integers(0, 3)), data.draw(st.integers(1, 3)), data.draw(st.integers(0, 9)),
             2 * data.draw(st.integers(1, 20)))
    dtype = data.draw(st.sampled_from(sorted(DTYPES)))
    x = rng.standard_normal(shape).astype(DTYPES[dtype])
    odd = LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)))](x)
    y = as_numpy(attend.softmax(odd))
    close(y, torch.softmax(torch.from_numpy(x.astype(np.float64)), -1), FORWARD[dtype])
    assert np.array_equal(y, attend.softmax(x))
    style = data.draw(st.sampled_from(["half_split", "interleaved"]))
    turned = as_numpy(attend.rope(odd, style=style))
    assert np.array_equal(turned, attend.rope(x, style=style))
    # A turn keeps lengths, and the turn back undoes it.
    close((turned.astype(np.float64) ** 2).sum(-1), (x.astype(np.float64) ** 2).sum(-1), 20 * FORWARD[dtype])
    close(attend.rope_backward(turned, style=style), x, 4 * FORWARD[dtype])


# --- PyTorch's function -----------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=250)
def test_scaled_dot_product_attention_is_pytorchs(data):
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    integer = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    lead = tuple(integer(1, 3) for _ in range(integer(0, 4)))
    # Not empty: PyTorch then answers before it looks at shapes.
    L, S, E, Ev = integer(1, 30), integer(1, 80), integer(1, 20), integer(1, 20)

    def some(*tail):  # part of the leading dimensions, some of them 1
        kept = lead[integer(0, len(lead)) :]
        return torch.randn(*(1 if data.draw(st.booleans()) else n for n in kept), *tail, dtype=torch.float64)

    q, k, v = (x.requires_grad_() for x in (some(L, E), some(S, E), some(S, Ev)))
    mask = None
    kind = data.draw(st.sampled_from(["none", "causal", "bool", "float"]))
    if kind in ("bool", "float"):
        mask = some(L if data.draw(st.booleans()) else 1, S if data.draw(st.booleans()) else 1)
        mask = mask > -0.5 if kind == "bool" else mask.requires_grad_()
    try:
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal")
    except RuntimeError:  # a mask that broadcasts over more than the scores
        return
    out = attend.torch.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal")
    assert out.shape == expected.shape
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    inputs = [q, k, v] + ([mask] if kind == "float" else [])
    dout = torch.randn_like(out)
    for got, wanted in zip(torch.autograd.grad(out, inputs, dout), torch.autograd.grad(expected, inputs, dout)):
        torch.testing.assert_close(got, wanted, atol=1e-11, rtol=1e-11)
