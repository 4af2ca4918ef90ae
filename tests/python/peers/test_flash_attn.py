"""attend.flash_attn against its definition written out in PyTorch with a dense mask."""

import math

import attend.flash_attn
import pytest
import torch
from attend.flash_attn import (
    flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache)

FORWARD = {torch.float32: 5e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float64: 1e-12}
BACKWARD = {torch.float32: 3e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3, torch.float64: 1e-11}


def close(ours, theirs, tolerance):
    torch.testing.assert_close(ours.double(), theirs.double(), atol=tolerance, rtol=tolerance)


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape).bfloat16().to(dtype)


def scores_of(q, k, scale=None, causal=False, window_size=(-1, -1), softcap=0.0, slopes=None):
    """[M, H, D] and [N, Hk, D] of one sequence -> [H, M, N] in double, -inf where hidden; slopes [H]."""
    M, H, D = q.shape
    N = k.shape[0]
    k = k.double().repeat_interleave(H // k.shape[1], 1)
    s = torch.einsum("mhd,nhd->hmn", q.double(), k) * (1 / math.sqrt(D) if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    place = torch.arange(M)[:, None] + N - M
    distance = place - torch.arange(N)
    if slopes is not None:
        s = s - slopes.double()[:, None, None] * distance.abs()
    left, right = window_size
    right = 0 if causal else right
    hidden = ((distance > left) & (left >= 0)) | ((-distance > right) & (right >= 0))
    return s.masked_fill(hidden, float("-inf"))


def reference(q, k, v, slopes=None, **options):
    """One sequence: out [M, H, E], lse [H, M], weights [H, M, N]."""
    s = scores_of(q, k, slopes=slopes, **options)
    lse = torch.logsumexp(s, -1)
    weights = torch.softmax(s, -1).nan_to_num(0.0)
    v = v.double().repeat_interleave(q.shape[1] // v.shape[1], 1)
    return torch.einsum("hmn,nhe->mhe", weights, v), lse, weights


def batched(q, k, v, slopes=None, **options):
    rows = [reference(q[b], k[b], v[b], None if slopes is None else (slopes if slopes.dim() == 1 else slopes[b]),
                      **options) for b in range(q.shape[0])]
    return tuple(torch.stack(parts) for parts in zip(*rows))


CASES = {
    "full": {},
    "causal": {"causal": True},
    "scale": {"softmax_scale": 0.4},
    "window": {"window_size": (7, 3)},
    "left": {"window_size": (5, -1)},
    "right": {"window_size": (-1, 4)},
    "own_key": {"window_size": (0, 0)},
    "causal_window": {"causal": True, "window_size": (6, 9)},
    "softcap": {"softcap": 1.5, "causal": True},
    "alibi": {"alibi_slopes": (4,)},
    "alibi_batch": {"alibi_slopes": (2, 4), "causal": True, "window_size": (20, -1)},
    "everything": {"softcap": 3.0, "causal": True, "window_size": (11, 0), "alibi_slopes": (4,), "softmax_scale": 0.3},
}


def options_of(case):
    """The call's options and the reference's."""
    ours = dict(CASES[case])
    if "alibi_slopes" in ours:
        ours["alibi_slopes"] = torch.rand(ours["alibi_slopes"])
    names = {"softmax_scale": "scale", "alibi_slopes": "slopes"}
    return ours, {names.get(name, name): value for name, value in ours.items()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", FORWARD, ids=str)
@pytest.mark.parametrize("M, N", [(24, 24), (9, 40), (40, 9), (1, 70)])
def test_func(case, dtype, M, N):
    q, k, v = (draw(2, n, h, d, dtype=dtype).requires_grad_() for n, h, d in ((M, 4, 16), (N, 2, 16), (N, 2, 24)))
    ours, theirs = options_of(case)
    out, lse, weights = flash_attn_func(q, k, v, return_attn_probs=True, **ours)
    doubles = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = batched(*doubles, **theirs)
    assert out.dtype == dtype and out.is_contiguous() and out.shape == (2, M, 4, 24)
    close(out, expected[0], FORWARD[dtype])
    close(lse, expected[1], max(1e-5, FORWARD[dtype]) if dtype != torch.float64 else 1e-12)
    close(weights, expected[2], FORWARD[dtype] if dtype == torch.float64 else 1e-5)
    torch.testing.assert_close(flash_attn_func(q, k, v, **ours), out, atol=0, rtol=0)
    dout = draw(*out.shape, dtype=dtype)
    # A closed row has NaN in the definition's gradient: its scores are all -inf.
    visible = expected[1].isfinite().transpose(1, 2)[..., None]
    expected_out = torch.where(visible, expected[0], 0.0) if bool(visible.all()) else safe(doubles, theirs)
    for got, wanted in zip(torch.autograd.grad(out, (q, k, v), dout),
                           torch.autograd.grad(expected_out, doubles, dout.double())):
        close(got, wanted, BACKWARD[dtype] * max(1.0, float(wanted.abs().max())))


def safe(doubles, options):
    """The definition without the closed rows' NaN in backward."""
    q, k, v = doubles
    rows = []
    for b in range(q.shape[0]):
        slopes = options.get("slopes")
        each = options | {"slopes": slopes if slopes is None or slopes.dim() == 1 else slopes[b]}
        s = scores_of(q[b], k[b], **each)
        p = torch.where(s.isinf(), 0.0, torch.exp(s.masked_fill(s.isinf(), -1e3)))
        weights = p / p.sum(-1, keepdim=True).clamp_min(1e-300)
        rows.append(torch.einsum("hmn,nhe->mhe", weights, v[b].repeat_interleave(q.shape[2] // v.shape[2], 1)))
    return torch.stack(rows)


@pytest.mark.parametrize("case", ["full", "causal", "window", "everything"])
def test_packed(case):
    ours, _ = options_of(case)
    qkv = draw(2, 30, 3, 4, 16).requires_grad_()
    kv, q = draw(2, 30, 2, 2, 16).requires_grad_(), draw(2, 12, 4, 16)
    dout = draw(2, 30, 4, 16)
    packed, plain = flash_attn_qkvpacked_func(qkv, **ours), flash_attn_func(*qkv.unbind(2), **ours)
    assert torch.equal(packed, plain)
    assert torch.equal(*(torch.autograd.grad(out, qkv, dout)[0] for out in (packed, plain)))
    packed, plain = flash_attn_kvpacked_func(q, kv, **ours), flash_attn_func(q, *kv.unbind(2), **ours)
    assert torch.equal(packed, plain)
    assert torch.equal(*(torch.autograd.grad(out, kv, dout[:, :12])[0] for out in (packed, plain)))


LENGTHS = [([7, 1, 20, 4], [7, 1, 20, 4]), ([3, 9, 1, 5], [10, 9, 33, 2]), ([0, 6, 4], [5, 0, 8])]


def cumulative(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


@pytest.mark.parametrize("lengths_q, lengths_k", LENGTHS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_varlen(case, dtype, lengths_q, lengths_k):
    documents = len(lengths_q)
    ours, theirs = options_of(case)
    if case == "alibi_batch":
        ours["alibi_slopes"] = theirs["slopes"] = torch.rand(documents, 4)
    cu_q, cu_k = cumulative(lengths_q), cumulative(lengths_k)
    q, k, v = (draw(n, h, 16, dtype=dtype).requires_grad_()
               for n, h in ((sum(lengths_q), 4), (sum(lengths_k), 2), (sum(lengths_k), 2)))
    fixed = (cu_q, cu_k, max(lengths_q), max(lengths_k))
    out = flash_attn_varlen_func(q, k, v, *fixed, **ours)
    with torch.no_grad():
        again, lse, weights = flash_attn_varlen_func(q, k, v, *fixed, return_attn_probs=True, **ours)
    close(out, again, 1e-6 if dtype == torch.float32 else 1e-2)
    assert lse.shape == (4, sum(lengths_q)) and weights.shape == (documents, 4, max(lengths_q), max(lengths_k))
    dout = draw(*out.shape, dtype=dtype)
    gradients = torch.autograd.grad(out, (q, k, v), dout)
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    for s in range(documents):
        rows, keys = slice(cu_q[s], cu_q[s + 1]), slice(cu_k[s], cu_k[s + 1])
        slopes = theirs.get("slopes")
        each = theirs | {"slopes": slopes[s] if slopes is not None and slopes.dim() == 2 else slopes}
        expected = reference(q[rows].detach(), k[keys].detach(), v[keys].detach(), **each)
        close(out[rows], expected[0], FORWARD[dtype])
        close(lse[:, rows], expected[1], 1e-5)
        close(weights[s, :, : lengths_q[s], : lengths_k[s]], expected[2], 1e-5)
        # The gradients of the document by itself, already compared with the definition above.
        alone = [x[None].detach().requires_grad_() for x in (q[rows], k[keys], v[keys])]
        single = flash_attn_func(*alone, **{**ours, **({"alibi_slopes": each["slopes"]} if slopes is not None else {})})
        for whole, part, where in zip((dq, dk, dv), torch.autograd.grad(single, alone, dout[None, rows]),
                                      (rows, keys, keys)):
            whole[where] = part[0]
    for got, wanted in zip(gradients, (dq, dk, dv)):
        close(got, wanted, BACKWARD[dtype])


def test_varlen_is_one_call_and_leaves_padding_zero(monkeypatch):
    calls = []
    original = attend.flash_attn.attention
    monkeypatch.setattr(attend.flash_attn, "attention", lambda *a: (calls.append(1), original(*a))[1])
    q, cu = draw(20, 2, 8), torch.tensor([0, 4, 15], dtype=torch.int32)
    out = flash_attn_varlen_func(q, q, q, cu, cu, 11, 11, causal=True)
    assert len(calls) == 1 and not out[15:].any() and out[:15].any()
    again, lse, _ = flash_attn_varlen_func(q, q, q, cu, cu, 11, 11, causal=True, return_attn_probs=True)
    close(again, out, 1e-6)
    assert (lse[:, 15:] == float("-inf")).all()


def test_varlen_packed():
    cu_q, cu_k = cumulative([5, 8]), cumulative([9, 8])
    qkv, kv, q = draw(17, 3, 4, 8), draw(17, 2, 2, 8), draw(13, 4, 8)
    assert torch.equal(flash_attn_varlen_qkvpacked_func(qkv, cu_k, 9, causal=True),
                       flash_attn_varlen_func(*qkv.unbind(1), cu_k, cu_k, 9, 9, causal=True))
    assert torch.equal(flash_attn_varlen_kvpacked_func(q, kv, cu_q, cu_k, 8, 9, causal=True),
                       flash_attn_varlen_func(q, *kv.unbind(1), cu_q, cu_k, 8, 9, causal=True))


def test_varlen_pages():
    lengths_q, lengths_k = [3, 1, 4], [10, 4, 0]
    k_pages, v_pages = draw(9, 4, 2, 8), draw(9, 4, 2, 8)
    table = torch.tensor([[7, 2, 5], [0, -1, 99], [-5, 3, 1]], dtype=torch.int32)
    q = draw(8, 4, 8)
    out = flash_attn_varlen_func(q, k_pages, v_pages, cumulative(lengths_q), cumulative(lengths_k), 4, 10, causal=True,
                                 block_table=table)
    k, v = (torch.cat([x[[7, 2, 5]].flatten(0, 1)[:10], x[0]]) for x in (k_pages, v_pages))
    assert torch.equal(out, flash_attn_varlen_func(q, k, v, cumulative(lengths_q), cumulative(lengths_k), 4, 10,
                                                   causal=True))


def test_gradcheck():
    q, k, v = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((2, 4, 4, 3), (2, 6, 2, 3),
                                                                                 (2, 6, 2, 2)))
    slopes = torch.rand(2, 4)
    assert torch.autograd.gradcheck(lambda *x: flash_attn_func(*x, causal=True, window_size=(3, 0), softcap=2.0,
                                                               alibi_slopes=slopes), (q, k, v))
    cu = cumulative([1, 3])
    packed = [x[0].detach().requires_grad_() for x in (q, k[:, :4], v[:, :4])]
    assert torch.autograd.gradcheck(lambda *x: flash_attn_varlen_func(*x, cu, cu, 3, 3, causal=True), packed)


def test_compile():
    torch._dynamo.reset()
    cu = cumulative([4, 7])

    def model(q, k, v, cu):
        dense = flash_attn_func(q, k, v, causal=True, window_size=(4, 0))
        return dense.tanh() + flash_attn_varlen_func(q[0], k[0], v[0], cu, cu, 7, 7, causal=True)

    inputs = [draw(1, 11, 2, 8).requires_grad_() for _ in range(3)]
    eager, compiled = model(*inputs, cu), torch.compile(model, fullgraph=True)(*inputs, cu)
    close(compiled, eager, 1e-6)
    for got, wanted in zip(*(torch.autograd.grad(out.sum(), inputs) for out in (compiled, eager))):
        close(got, wanted, 1e-6)


@pytest.mark.parametrize("varlen", [False, True])
def test_dropout_and_s_dmask(varlen):
    q, k, v = draw(1, 20, 4, 8), draw(1, 50, 2, 8), draw(1, 50, 2, 8).requires_grad_()
    if varlen:
        cu_q, cu_k = cumulative([20]), cumulative([50])
        run = lambda: tuple(x[None] if n == 0 else x for n, x in enumerate(flash_attn_varlen_func(  # noqa: E731
            q[0], k[0], v[0], cu_q, cu_k, 20, 50, dropout_p=0.3, causal=True, return_attn_probs=True)))
    else:
        run = lambda: flash_attn_func(q, k, v, dropout_p=0.3, causal=True, return_attn_probs=True)  # noqa: E731
    torch.manual_seed(4)
    out, _, s_dmask = run()
    weights = reference(q[0], k[0], v[0].detach(), causal=True)[2]
    close(s_dmask[0].abs(), weights, 1e-5)
    visible = weights > 0
    assert abs(float((s_dmask[0][visible] < 0).double().mean()) - 0.3) < 0.03
    dropped = torch.where(s_dmask > 0, s_dmask, 0.0) / 0.7
    expected = torch.einsum("bhmn,bnhe->bmhe", dropped, v.repeat_interleave(2, 2))
    close(out, expected, 1e-5)
    dout = draw(*out.shape)
    close(torch.autograd.grad(out, v, dout)[0], torch.autograd.grad(expected, v, dout)[0], 1e-5)
    torch.manual_seed(4)
    assert torch.equal(run()[0], out)
    assert not torch.equal(run()[0], out)


def test_varlen_drops_the_same_with_and_without_the_weights():
    lengths_q, lengths_k = [7, 20, 1, 0, 30], [9, 31, 4, 3, 30]
    q = draw(sum(lengths_q), 4, 8)
    k, v = draw(sum(lengths_k), 2, 8), draw(sum(lengths_k), 2, 8)
    cu_q, cu_k = cumulative(lengths_q), cumulative(lengths_k)
    fixed = q, k, v, cu_q, cu_k, max(lengths_q), max(lengths_k)
    for slopes in (None, torch.rand(4) * 0.3, torch.rand(5, 4) * 0.3):
        options = dict(dropout_p=0.4, causal=True, alibi_slopes=slopes)
        torch.manual_seed(7)
        alone = flash_attn_varlen_func(*fixed, **options)
        torch.manual_seed(7)
        out, lse, s_dmask = flash_attn_varlen_func(*fixed, **options, return_attn_probs=True)
        assert torch.equal(out, alone)
        kept = torch.where(s_dmask > 0, s_dmask, 0.0) / 0.6
        for s, (q0, k0) in enumerate(zip(cu_q.tolist()[:-1], cu_k.tolist()[:-1])):
            M, N = lengths_q[s], lengths_k[s]
            of_document = slopes if slopes is None or slopes.dim() == 1 else slopes[s]
            _, lse_s, weights = reference(q[q0 : q0 + M], k[k0 : k0 + N], v[k0 : k0 + N], of_document, causal=True)
            close(s_dmask[s, :, :M, :N].abs(), weights, 1e-5)
            close(lse[:, q0 : q0 + M], lse_s, 1e-5)
            expected = torch.einsum("hmn,nhe->mhe", kept[s, :, :M, :N],
                                    v[k0 : k0 + N].repeat_interleave(2, 1))
            close(out[q0 : q0 + M], expected, 1e-5)


def test_empty():
    assert flash_attn_func(draw(0, 3, 2, 8), draw(0, 5, 2, 8), draw(0, 5, 2, 8)).shape == (0, 3, 2, 8)
    assert flash_attn_func(draw(2, 0, 2, 8), draw(2, 5, 2, 8), draw(2, 5, 2, 8)).shape == (2, 0, 2, 8)
    assert not flash_attn_func(draw(2, 3, 2, 8), draw(2, 0, 2, 8), draw(2, 0, 2, 8), causal=True).any()
    none = torch.zeros(1, dtype=torch.int32)
    out, lse, weights = flash_attn_varlen_func(draw(0, 2, 8), draw(0, 2, 8), draw(0, 2, 8), none, none, 0, 0,
                                               return_attn_probs=True)
    assert out.shape == (0, 2, 8) and lse.shape == (2, 0) and weights.shape == (0, 2, 0, 0)


# --- the cache --------------------------------------------------------------------------------------------------------


def rotate(x, cos, sin, positions, interleaved):
    """One token after another, pair after pair: x [length, heads, dim]."""
    x = x.double().clone()
    half = cos.shape[1]
    for t, p in enumerate(positions):
        for i in range(half):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
            first, second = x[t, :, a].clone(), x[t, :, b].clone()
            c, s = cos[p, i].double(), sin[p, i].double()
            x[t, :, a], x[t, :, b] = first * c - second * s, first * s + second * c
    return x


def angles(positions, half):
    return torch.rand(positions, half) * 6 - 3


KV = [c for c in CASES if c not in ("scale", "own_key")]


@pytest.mark.parametrize("case", KV)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("where", ["rows", "batch_idx", "pages", "leftpad"])
@pytest.mark.parametrize("M, new", [(1, 1), (3, 3), (5, 0), (2, 4)])
def test_cache(case, dtype, where, M, new):
    ours, theirs = options_of(case)
    B, Hk, D, capacity, page = 2, 2, 16, 40, 8
    lengths, pads = [17, 30], [0, 0]
    extra = {}
    if where == "batch_idx":
        extra["cache_batch_idx"] = torch.tensor([3, 1], dtype=torch.int32)
    elif where == "leftpad":
        pads = [5, 0]
        extra["cache_leftpad"] = torch.tensor(pads, dtype=torch.int32)
    elif where == "pages":
        extra["block_table"] = torch.tensor([[4, 9, 2, 11, -1], [0, 7, 1, 3, 10]], dtype=torch.int32)
    pool = (12, page) if where == "pages" else (4 if where == "batch_idx" else B, capacity)
    k_cache, v_cache = draw(*pool, Hk, D, dtype=dtype), draw(*pool, Hk, D, dtype=dtype)
    q, k, v = draw(B, M, 4, D, dtype=dtype), draw(B, new, Hk, D, dtype=dtype), draw(B, new, Hk, D, dtype=dtype)

    def tokens(cache, b, count):
        if where == "pages":
            cache = cache[extra["block_table"][b, : -(-count // page)].long()].flatten(0, 1)
            return cache[:count]
        return cache[(3, 1)[b] if where == "batch_idx" else b, :count]

    before = [x.clone() for x in (k_cache, v_cache)]
    out, lse = flash_attn_with_kvcache(
        q, k_cache, v_cache, *((k, v) if new else ()), cache_seqlens=torch.tensor(lengths, dtype=torch.int32),
        return_softmax_lse=True, num_splits=3, **extra, **ours)
    changed = sum(int((x != y).flatten(2).any(2).sum()) for x, y in zip(before, (k_cache, v_cache)))
    assert changed == 2 * B * new
    for b in range(B):
        keys, values = (torch.cat([tokens(cache, b, lengths[b]), x[b]]) for cache, x in zip(before, (k, v)))
        assert torch.equal(tokens(k_cache, b, lengths[b] + new), keys)
        assert torch.equal(tokens(v_cache, b, lengths[b] + new), values)
        slopes = theirs.get("slopes")
        each = theirs | {"slopes": slopes[b] if slopes is not None and slopes.dim() == 2 else slopes}
        expected = reference(q[b], keys[pads[b] :], values[pads[b] :], **each)
        close(out[b], expected[0], FORWARD[dtype])
        close(lse[b], expected[1], 1e-5)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("mode", ["causal", "window", "full"])
@pytest.mark.parametrize("leftpad", [False, True])
def test_cache_rotary(interleaved, mode, leftpad):
    B, M, D, half = 2, 3, 16, 6
    lengths, pads = [4, 9], [2, 3] if leftpad else [0, 0]
    k_cache, v_cache = draw(B, 16, 2, D), draw(B, 16, 2, D)
    q, k, v = draw(B, M, 4, D), draw(B, M, 2, D), draw(B, M, 2, D)
    cos, sin = angles(20, half).cos(), angles(20, half).sin()
    options = {"causal": {"causal": True}, "window": {"window_size": (4, 2)}, "full": {}}[mode]
    before = k_cache.clone()
    out = flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, rotary_cos=cos, rotary_sin=sin, rotary_interleaved=interleaved,
        cache_seqlens=torch.tensor(lengths), **({"cache_leftpad": torch.tensor(pads)} if leftpad else {}), **options)
    for b, (n, pad) in enumerate(zip(lengths, pads)):
        places = [n + t for t in range(M)]  # in the cache, as FlashAttention's own test has it: padding counts
        keys = torch.cat([before[b, :n].double(), rotate(k[b], cos, sin, places, interleaved)])
        close(k_cache[b, : n + M], keys, 1e-6)
        turned = rotate(q[b], cos, sin, [n] * M if mode == "full" else places, interleaved)
        expected = reference(turned, keys[pad:], v_cache[b, pad : n + M], **options)[0]
        close(out[b], expected, 1e-5)


def test_cache_without_lengths_and_with_one_for_all():
    q, k_cache, v_cache = draw(2, 3, 4, 8), draw(2, 12, 2, 8), draw(2, 12, 2, 8)
    assert torch.equal(flash_attn_with_kvcache(q, k_cache, v_cache, causal=True),
                       flash_attn_func(q, k_cache, v_cache, causal=True))
    close(flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=7, causal=True),
          flash_attn_func(q, k_cache[:, :7], v_cache[:, :7], causal=True), 1e-6)


def test_what_lies_past_the_length_does_not_matter():
    q, k_cache, v_cache = draw(2, 1, 4, 8), draw(2, 12, 2, 8), draw(2, 12, 2, 8)
    lengths = torch.tensor([5, 12])
    expected = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths)
    k_cache[0, 5:] = v_cache[0, 5:] = float("nan")
    assert torch.equal(flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths), expected)


def test_operators():
    q, k, v, slopes = draw(2, 4, 3, 8), draw(2, 2, 9, 8), draw(2, 2, 9, 6), torch.rand(2, 4)
    torch.library.opcheck(attend.flash_attn._rows_op, (q, k, v, slopes, [9, 7], [0, 2], None, 0.0, 4, 0))
    torch.library.opcheck(attend.flash_attn.weights_op,
                          (q, k, v, None, None, slopes, None, None, torch.tensor(3), 0.5, 0.0, -1, 0, False, 0.25))
    meta = flash_attn_with_kvcache(*(x.to("meta").transpose(1, 2) for x in (q, k, v)), cache_seqlens=5)
    assert meta.shape == (2, 3, 4, 6)


def test_decoding_agrees_with_the_whole_sequence():
    L = 12
    q, k, v = draw(2, L, 4, 8), draw(2, L, 2, 8), draw(2, L, 2, 8)
    expected = flash_attn_func(q, k, v, causal=True)
    k_cache, v_cache = torch.zeros(2, L, 2, 8), torch.zeros(2, L, 2, 8)
    for t in range(L):
        step = slice(t, t + 1)
        out = flash_attn_with_kvcache(q[:, step], k_cache, v_cache, k[:, step], v[:, step], cache_seqlens=t,
                                      causal=True)
        close(out, expected[:, step], 1e-6)


# --- bad input --------------------------------------------------------------------------------------------------------

X, P, CU = torch.ones(2, 6, 4, 8), torch.ones(6, 4, 8), torch.tensor([0, 2, 6], dtype=torch.int32)
BAD = {
    "rank": lambda: flash_attn_func(P, P, P),
    "dtype": lambda: flash_attn_func(X, X.double(), X),
    "ints": lambda: flash_attn_func(X.int(), X.int(), X.int()),
    "heads": lambda: flash_attn_func(X, X[:, :, :3], X[:, :, :3]),
    "batch": lambda: flash_attn_func(X, X[:1], X[:1]),
    "lengths of k and v": lambda: flash_attn_func(X, X, X[:, :5]),
    "slopes": lambda: flash_attn_func(X, X, X, alibi_slopes=torch.ones(3)),
    "dropout": lambda: flash_attn_func(X, X, X, dropout_p=1.0),
    "softcap": lambda: flash_attn_func(X, X, X, softcap=-1.0),
    "window": lambda: flash_attn_func(X, X, X, window_size=(1, 2, 3)),
    "packed": lambda: flash_attn_qkvpacked_func(X),
    "packed list": lambda: flash_attn_kvpacked_func(X, [1]),
    "not a tensor": lambda: flash_attn_func(X.numpy(), X, X),
    "cu is a list": lambda: flash_attn_varlen_func(P, P, P, [0, 6], CU, 6, 6),
    "cu of floats": lambda: flash_attn_varlen_func(P, P, P, CU.float(), CU, 6, 6),
    "cu counts": lambda: flash_attn_varlen_func(P, P, P, CU[:2], CU, 6, 6),
    "cu past the end": lambda: flash_attn_varlen_func(P, P, P, CU + torch.tensor([0, 0, 1]), CU, 6, 6),
    "cu past the end, weights": lambda: flash_attn_varlen_func(P, P, P, CU + torch.tensor([0, 0, 1]), CU, 6, 6,
                                                               return_attn_probs=True),
    "cu falls": lambda: flash_attn_varlen_func(P, P, P, CU.flip(0), CU, 6, 6),
    "cu falls, weights": lambda: flash_attn_varlen_func(P, P, P, torch.tensor([0, 4, 2]), CU, 6, 6,
                                                        return_attn_probs=True),
    "pages missing": lambda: flash_attn_varlen_func(P, X, X, CU, CU, 6, 6, block_table=torch.zeros(2, 0).int()),
    "page outside": lambda: flash_attn_varlen_func(P, X, X, CU, CU, 6, 6, block_table=torch.tensor([[0], [2]])),
}


@pytest.mark.parametrize("case", BAD)
def test_errors(case):
    with pytest.raises((ValueError, TypeError), match="expected"):
        BAD[case]()


def cached(**changes):
    arguments = dict(q=draw(2, 1, 4, 8), k_cache=torch.zeros(2, 10, 2, 8), v_cache=torch.zeros(2, 10, 2, 8),
                     k=draw(2, 1, 2, 8), v=draw(2, 1, 2, 8), cache_seqlens=torch.tensor([3, 5]))
    return arguments | changes


BAD_CACHE = {
    "full": dict(cache_seqlens=torch.tensor([3, 10])),
    "negative": dict(cache_seqlens=torch.tensor([3, -1])),
    "lengths missing": dict(cache_seqlens=None),
    "lengths of floats": dict(cache_seqlens=torch.tensor([3.0, 1.0])),
    "lengths of another batch": dict(cache_seqlens=torch.tensor([3])),
    "v missing": dict(v=None),
    "k heads": dict(k=torch.ones(2, 1, 4, 8)),
    "v length": dict(v=torch.ones(2, 2, 2, 8)),
    "k dtype": dict(k=torch.ones(2, 1, 2, 8, dtype=torch.float64)),
    "q heads": dict(q=torch.ones(2, 1, 3, 8)),
    "q batch": dict(q=torch.ones(3, 1, 4, 8)),
    "softcap": dict(softcap=-2.0),
    "softcap is NaN": dict(softcap=float("nan")),
    "scale": dict(softmax_scale=float("inf")),
    "k is no tensor": dict(k=[1.0]),
    "slopes": dict(alibi_slopes=torch.ones(5)),
    "row outside": dict(cache_batch_idx=torch.tensor([0, 2])),
    "rows and pages": dict(cache_batch_idx=torch.tensor([0, 1]), block_table=torch.tensor([[0], [1]])),
    "pages and leftpad": dict(cache_leftpad=torch.tensor([0, 1]), block_table=torch.tensor([[0], [1]])),
    "page outside": dict(block_table=torch.tensor([[0], [2]])),
    "leftpad": dict(cache_leftpad=torch.tensor([4, 1])),
    "one of cos and sin": dict(rotary_cos=torch.ones(20, 4)),
    "few positions": dict(rotary_cos=torch.ones(5, 4), rotary_sin=torch.ones(5, 4)),
    "rotary dim": dict(rotary_cos=torch.ones(20, 5), rotary_sin=torch.ones(20, 5)),
    "rotary without k": dict(k=None, v=None, rotary_cos=torch.ones(20, 4), rotary_sin=torch.ones(20, 4)),
    "gradient": dict(q=torch.ones(2, 1, 4, 8, requires_grad=True)),
    "scales": dict(k_descale=torch.ones(2)),
}


@pytest.mark.parametrize("case", BAD_CACHE)
def test_cache_errors_change_nothing(case):
    arguments = cached(**BAD_CACHE[case])
    with pytest.raises((ValueError, TypeError)):
        flash_attn_with_kvcache(**arguments)
    assert not arguments["k_cache"].any() and not arguments["v_cache"].any()
    if case == "gradient":
        with torch.no_grad():
            flash_attn_with_kvcache(**arguments)


# --- errors, devices, derivatives -------------------------------------------------------------------------------------


def test_errors_are_what_flash_attention_raises_too():
    q = draw(2, 5, 4, 8)
    for call in (lambda: flash_attn_func(q, q[..., :4], q), lambda: flash_attn_func(q, q, q, dropout_p=2.0),
                 lambda: flash_attn_func(q.int(), q.int(), q.int()), lambda: flash_attn_func(q, q, q.half()),
                 lambda: flash_attn_func(q, q[:, :, :3], q[:, :, :3]),  # the engine says this one
                 lambda: flash_attn_with_kvcache(q, q[:1], q[:1], cache_seqlens=3)):
        with pytest.raises(RuntimeError, match="expected") as raised:
            call()
        assert isinstance(raised.value, (ValueError, TypeError))


def test_windows_are_whole_numbers():
    q = draw(2, 5, 4, 8)
    with pytest.raises(TypeError, match=r"window_size\[0\] is 1.9, expected a whole number"):
        flash_attn_func(q, q, q, window_size=(1.9, 0))


def test_meta_tensors_do_not_mix():
    q, meta = draw(2, 5, 4, 8), torch.empty(2, 5, 4, 8, device="meta")
    cu, meta_cu = cumulative([5, 5]), torch.empty(3, dtype=torch.int32, device="meta")
    packed = q.flatten(0, 1)
    for call in (lambda: flash_attn_func(q, meta, q), lambda: flash_attn_func(meta, q, q),
                 lambda: flash_attn_func(q, q, q, alibi_slopes=torch.empty(4, device="meta")),
                 lambda: flash_attn_varlen_func(packed, packed, packed, meta_cu, cu, 5, 5),
                 lambda: flash_attn_with_kvcache(q, q.clone(), meta, cache_seqlens=3)):
        with pytest.raises(ValueError, match="where .* is"):
            call()


def test_the_default_device_does_not_matter():
    q, k_cache, v_cache, k = draw(2, 3, 4, 8), draw(2, 9, 2, 8), draw(2, 9, 2, 8), draw(2, 3, 2, 8)
    cos, sin = angles(12, 4).cos(), angles(12, 4).sin()
    cu = cumulative([3, 3])

    def run():
        torch.manual_seed(3)
        cached = flash_attn_with_kvcache(q, k_cache.clone(), v_cache, k, k, cos, sin,
                                         cache_seqlens=torch.tensor([2, 5], device="cpu"), causal=True)
        dropped = flash_attn_func(q, k_cache, v_cache, dropout_p=0.5, return_attn_probs=True)
        packed = flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, k)), cu, cu, 3, 3, dropout_p=0.5,
                                        return_attn_probs=True)
        return cached, *dropped, *packed

    expected = run()
    with torch.device("meta"):
        got = run()
    for a, b in zip(got, expected):
        assert torch.equal(a, b)


def test_the_cache_refuses_what_it_cannot_differentiate():
    q, k_cache, v_cache = draw(2, 1, 4, 8), draw(2, 9, 2, 8), draw(2, 9, 2, 8)
    run = lambda x: flash_attn_with_kvcache(x, k_cache, v_cache, cache_seqlens=5)  # noqa: E731
    with pytest.raises(ValueError, match="does not record"):
        torch.func.jvp(run, (q,), (q,))
    with pytest.raises(ValueError, match="does not record"):
        torch.func.grad(lambda x: run(x).sum())(q)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(ValueError, match="does not record"):
        run(torch.autograd.forward_ad.make_dual(q, q))
