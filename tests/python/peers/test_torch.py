"""attend.torch against PyTorch: values, gradients, compiler, patching, bad input."""

import contextlib
import io
import threading
from typing import Optional

import attend
import attend.torch
import pytest
import torch
import torch.nn.functional as F
from attend._torch_ops import attention_backward_op, attention_op
from attend.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from attend.torch import patched, scaled_dot_product_attention

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
# Against PyTorch in double: what one rounding of the output, or the sums of a gradient, may cost.
FORWARD = {torch.float32: 3e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float64: 1e-13}
BACKWARD = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3, torch.float64: 1e-12}


def close(ours, theirs, tolerance):
    torch.testing.assert_close(ours.double(), theirs.double(), atol=tolerance, rtol=tolerance)


def draw(*shape, dtype=torch.float32):
    # On bfloat16's grid, so that every dtype starts from the same numbers.
    return torch.randn(shape).bfloat16().to(dtype)


def compare(q, k, v, mask=None, **options):
    """Output and all gradients, ours in the dtype of the arguments and PyTorch's in double."""
    inputs = [q, k, v] + ([mask] if mask is not None and mask.is_floating_point() else [])
    ours = [x.detach().requires_grad_() for x in inputs]
    theirs = [x.detach().double().requires_grad_() for x in inputs]
    out = scaled_dot_product_attention(*ours[:3], ours[3] if len(ours) > 3 else mask, **options)
    expected = F.scaled_dot_product_attention(*theirs[:3], theirs[3] if len(theirs) > 3 else mask, **options)
    assert out.dtype == q.dtype and out.shape == expected.shape
    close(out, expected, FORWARD[q.dtype])
    dout = draw(*out.shape, dtype=q.dtype)
    gradients = torch.autograd.grad(out, ours, dout)
    expected_gradients = torch.autograd.grad(expected, theirs, dout.double())
    for x, gradient, expected_gradient in zip(ours, gradients, expected_gradients):
        assert gradient.dtype == x.dtype and gradient.shape == x.shape
        largest = float(expected_gradient.abs().max()) if gradient.numel() else 0.0
        close(gradient, expected_gradient, max(BACKWARD[q.dtype], BACKWARD[x.dtype]) * max(1.0, largest))


def boolean(*shape):
    mask = torch.rand(shape) < 0.7
    mask[..., 0] = True
    return mask


MASKS = {
    "none": lambda B, H, L, S, dtype: (None, {}),
    "causal": lambda B, H, L, S, dtype: (None, {"is_causal": True}),
    "bool_2d": lambda B, H, L, S, dtype: (boolean(L, S), {}),
    "bool_keys": lambda B, H, L, S, dtype: (boolean(B, 1, 1, S), {}),
    "bool_full": lambda B, H, L, S, dtype: (boolean(B, H, L, S), {}),
    "bool_expanded": lambda B, H, L, S, dtype: (boolean(B, 1, 1, S).expand(B, H, L, S), {}),
    "bool_transposed": lambda B, H, L, S, dtype: (boolean(B, H, S, L).transpose(2, 3), {}),
    "bool_closed_row": lambda B, H, L, S, dtype: (boolean(L, S) & (torch.arange(L) != 1)[:, None], {}),
    "float_2d": lambda B, H, L, S, dtype: (draw(L, S, dtype=dtype), {}),
    "float_heads": lambda B, H, L, S, dtype: (draw(H, 1, S, dtype=dtype), {}),
    "float_full": lambda B, H, L, S, dtype: (draw(B, H, L, S, dtype=dtype), {}),
    "float32": lambda B, H, L, S, dtype: (draw(B, 1, L, S), {}),
    "float_inf": lambda B, H, L, S, dtype: (
        torch.zeros(L, S, dtype=dtype).masked_fill(~boolean(L, S), float("-inf")), {}),
    "scale": lambda B, H, L, S, dtype: (None, {"scale": 0.3}),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("L, S, E, Ev", [(33, 33, 32, 32), (5, 70, 24, 40), (70, 9, 64, 16), (1, 131, 64, 64)])
def test_parity(mask, dtype, L, S, E, Ev):
    B, H = 2, 3
    attn_mask, options = MASKS[mask](B, H, L, S, dtype)
    compare(draw(B, H, L, E, dtype=dtype), draw(B, H, S, E, dtype=dtype), draw(B, H, S, Ev, dtype=dtype), attn_mask,
            **options)


def test_long():
    compare(draw(1, 2, 700, 64), draw(1, 2, 1500, 64), draw(1, 2, 1500, 64), boolean(700, 1500))
    compare(draw(1, 2, 1500, 64), draw(1, 2, 1500, 64), draw(1, 2, 1500, 64), is_causal=True)


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_grouped_heads(kv_heads, dtype):
    q, k, v = draw(2, 6, 19, 32, dtype=dtype), draw(2, kv_heads, 45, 32, dtype=dtype), draw(2, kv_heads, 45, 16,
                                                                                          dtype=dtype)
    compare(q, k, v, enable_gqa=True, is_causal=True)
    compare(q, k, v, boolean(2, 6, 19, 45), enable_gqa=True)


def test_grouped_heads_of_other_shapes():
    compare(draw(6, 5, 8), draw(3, 7, 8), draw(3, 7, 8), enable_gqa=True)
    compare(draw(2, 6, 5, 8), draw(2, 3, 7, 8), draw(2, 2, 7, 8), enable_gqa=True)
    compare(draw(2, 6, 5, 8), draw(1, 3, 7, 8), draw(1, 3, 7, 8), enable_gqa=True)
    compare(draw(2, 2, 6, 5, 8), draw(2, 2, 3, 7, 8), draw(2, 2, 3, 7, 8), enable_gqa=True)


LAYOUTS = {
    "blhd": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "expanded_batch": lambda x: x[:1].expand(*x.shape),
    "expanded_length": lambda x: x[:, :, :1].expand(*x.shape),
    "strided": lambda x: torch.randn(*x.shape[:3], 2 * x.shape[3]).to(x.dtype)[..., ::2].copy_(x),
    "dim_first": lambda x: x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
    "offset": lambda x: torch.randn(x.numel() + 1).to(x.dtype)[1:].view(x.shape).copy_(x),
    "flipped": lambda x: x.flip(2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts(layout, dtype):
    q, k, v = (LAYOUTS[layout](draw(2, 3, n, 16, dtype=dtype)) for n in (21, 37, 37))
    compare(q, k, v, is_causal=True)
    compare(q, draw(2, 3, 37, 16, dtype=dtype), v, draw(21, 37, dtype=dtype))


def test_output_is_laid_out_as_query():
    x = draw(2, 9, 3, 8).transpose(1, 2)
    assert scaled_dot_product_attention(x, x, x).stride() == x.stride()
    assert scaled_dot_product_attention(x.contiguous(), x, x).is_contiguous()


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (2, 2, 2, 2)])
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float", "lead"])
def test_any_number_of_leading_dimensions(lead, mask):
    L, S = 6, 10
    attn_mask = {"bool": boolean(L, S), "float": draw(L, S), "lead": boolean(*lead, L, S)}.get(mask)
    compare(draw(*lead, L, 8), draw(*lead, S, 8), draw(*lead, S, 4), attn_mask, is_causal=mask == "causal")


def test_leading_dimensions_broadcast():
    compare(draw(2, 3, 5, 8), draw(1, 3, 7, 8), draw(2, 1, 7, 8))
    compare(draw(1, 3, 5, 8), draw(2, 3, 7, 8), draw(2, 3, 7, 8))
    compare(draw(2, 3, 5, 8), draw(7, 8), draw(3, 7, 8), draw(2, 1, 5, 7))
    compare(draw(2, 1, 3, 5, 8), draw(2, 2, 3, 7, 8), draw(1, 2, 1, 7, 8), draw(2, 1, 1, 5, 7))
    compare(draw(2, 2, 3, 5, 8), draw(2, 2, 3, 7, 8), draw(2, 2, 3, 7, 8), boolean(1, 2, 3, 1, 7))


@pytest.mark.parametrize("shape", [(0, 3, 5, 7, 8), (2, 0, 5, 7, 8), (2, 3, 0, 7, 8), (2, 3, 5, 0, 8), (2, 3, 5, 7, 0)])
def test_empty(shape):
    B, H, L, S, Ev = shape
    q, k, v = (x.requires_grad_() for x in (draw(B, H, L, 8), draw(B, H, S, 8), draw(B, H, S, Ev)))
    for options in ({}, {"is_causal": True}, {"attn_mask": torch.zeros(L, S)}):
        out = scaled_dot_product_attention(q, k, v, **options)
        assert torch.equal(out, F.scaled_dot_product_attention(q, k, v, **options))
        assert all(not g.any() for g in torch.autograd.grad(out, (q, k, v), torch.ones_like(out)))


def test_closed_rows_are_zero_and_pass_no_gradient():
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[2] = False
    for attn_mask in (mask, torch.zeros(4, 6).masked_fill(~mask, float("-inf"))):
        q, k, v = (draw(1, 1, n, 8).requires_grad_() for n in (4, 6, 6))
        out = scaled_dot_product_attention(q, k, v, attn_mask)
        assert not out[0, 0, 2].any() and out[0, 0, 1].any()
        dq, dk, dv = torch.autograd.grad(out[0, 0, 2].sum(), (q, k, v))
        assert not dq.any() and not dk.any() and not dv.any()


def test_gradient_reaches_only_what_needs_it():
    q, k, v = draw(1, 2, 5, 8), draw(1, 2, 7, 8).requires_grad_(), draw(1, 2, 7, 8)
    bias = draw(5, 7)
    (scaled_dot_product_attention(q, k, v, bias) ** 2).sum().backward()
    assert k.grad is not None and q.grad is None and v.grad is None and bias.grad is None
    with torch.no_grad():
        assert not scaled_dot_product_attention(q, k, v).requires_grad
    bias.requires_grad_()
    (gradient,) = torch.autograd.grad(scaled_dot_product_attention(q, k.detach(), v, bias).square().sum(), bias)
    (expected,) = torch.autograd.grad(F.scaled_dot_product_attention(q, k.detach(), v, bias).square().sum(), bias)
    close(gradient, expected, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(2, 4, 70, 190), (1, 4, 1, 190), (1, 1, 70, 190)])
def test_gradient_of_an_f32_bias_beside_half_precision(dtype, shape):
    inputs = [draw(2, 4, 70, 64), draw(2, 4, 190, 64), draw(2, 4, 190, 40)]
    bias, dout = torch.randn(shape), draw(2, 4, 70, 40)

    def dbias(attention, inner, outer):
        to = bias.to(outer).requires_grad_()
        out = attention(*(x.to(inner) for x in inputs), to)
        return torch.autograd.grad(out, to, dout.to(out.dtype))[0].double()

    expected = dbias(F.scaled_dot_product_attention, torch.float64, torch.float64)
    theirs = dbias(F.scaled_dot_product_attention, torch.float32, torch.float32)
    ours = dbias(scaled_dot_product_attention, dtype, torch.float32)
    assert (ours - expected).abs().max() <= 3 * (theirs - expected).abs().max()


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("case", ["full", "causal", "grouped", "bool", "additive", "per_head", "dropout", "three"])
def test_gradcheck(case):
    q, k, v, options = double(2, 2, 4, 3), double(2, 2, 5, 3), double(2, 2, 5, 2), {}
    inputs = [q, k, v]
    if case == "causal":
        options = {"is_causal": True}
    elif case == "grouped":
        inputs = [double(1, 4, 4, 3), double(1, 2, 5, 3), double(1, 2, 5, 2)]
        options = {"enable_gqa": True, "scale": 0.7}
    elif case == "bool":
        options = {"attn_mask": boolean(2, 1, 4, 5)}
    elif case == "additive":
        inputs.append(double(4, 5))
    elif case == "per_head":
        inputs.append(double(2, 1, 5))
    elif case == "three":
        inputs = [double(2, 4, 3), double(2, 5, 3), double(2, 5, 2), double(1, 4, 5)]
    elif case == "dropout":
        options = {"dropout_p": 0.4}

    def function(*arguments):
        torch.manual_seed(5)  # the same weights dropped at every step of the differences
        return scaled_dot_product_attention(*arguments, **options)

    assert torch.autograd.gradcheck(function, inputs)


def test_log_sum_exp_has_no_gradient():
    q, k, v = double(1, 4, 3, 3), double(1, 2, 5, 3), double(1, 2, 5, 2)
    out, lse = attention_op(q, k, v, None, None, None, None, None, None, None, 0.0, -1, -1, False, 0.0)
    close(lse, torch.logsumexp(q @ k.repeat_interleave(2, 1).mT / 3**0.5, -1), 1e-13)
    assert out.requires_grad and not lse.requires_grad


def test_no_second_derivative():
    q = draw(1, 1, 3, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(scaled_dot_product_attention(q, q, q).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        gradient.sum().backward()


OPCHECKS = {
    "full": dict(),
    "visible": dict(visible=boolean(2, 1, 5, 7)),
    "bias": dict(bias=torch.randn(1, 4, 5, 7, requires_grad=True)),
    "slopes": dict(slopes=torch.rand(4), right=0),
    "segments": dict(cu_queries=torch.tensor([0, 2, 5]), cu_keys=torch.tensor([0, 3, 7]), left=2, right=1),
    "dropout": dict(seed=torch.tensor(7), dropout=0.5, softcap=3.0),
}


@pytest.mark.parametrize("case", OPCHECKS)
def test_opcheck(case):
    options = dict(visible=None, bias=None, slopes=None, cu_queries=None, cu_keys=None, seed=None, scale=None,
                   softcap=0.0, left=-1, right=-1, first_key=True, dropout=0.0) | OPCHECKS[case]
    batch = 1 if case == "segments" else 2
    for blhd in (False, True):
        q, k, v = draw(batch, 4, 5, 8), draw(batch, 2, 7, 8), draw(batch, 2, 7, 6)
        if blhd:
            q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
        torch.library.opcheck(attention_op, [x.requires_grad_() for x in (q, k, v)] + list(options.values()))
    out, lse = attention_op(q.detach(), k.detach(), v.detach(), *options.values())
    torch.library.opcheck(attention_backward_op,
                          [draw(*out.shape), q.detach(), k.detach(), v.detach(), out, lse, *options.values(),
                           options["bias"] is not None],
                          test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))


# --- the compiler -----------------------------------------------------------------------------------------------------


def model(q, k, v, mask=None, **options):
    return scaled_dot_product_attention(q * 1.5, k.tanh(), v, mask, **options).relu() + 1


@pytest.mark.parametrize("case", ["causal", "bool", "float", "grouped"])
def test_compile(case):
    options = {"is_causal": True} if case == "causal" else {}
    mask = {"bool": boolean(2, 1, 9, 11), "float": draw(9, 11).requires_grad_()}.get(case)
    kv_heads = 2 if case == "grouped" else 4
    if case == "grouped":
        options = {"enable_gqa": True}
    inputs = [draw(2, 4, 9, 16).requires_grad_(), draw(2, kv_heads, 11, 16).requires_grad_(),
              draw(2, kv_heads, 11, 16).requires_grad_()] + ([mask] if case == "float" else [])
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    eager, ours = model(*inputs[:3], mask, **options), compiled(*inputs[:3], mask, **options)
    close(ours, eager, 1e-6)
    dout = draw(*eager.shape)
    for ours, eager in zip(torch.autograd.grad(ours, inputs, dout), torch.autograd.grad(eager, inputs, dout)):
        close(ours, eager, 1e-6)


def test_compile_with_dynamic_lengths_and_strides():
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for n in (5, 8, 13):
        x = draw(2, n, 4, 16).transpose(1, 2)
        close(compiled(x, x, x, is_causal=True), model(x, x, x, is_causal=True), 1e-6)


def test_compile_draws_dropout_when_it_runs():
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: scaled_dot_product_attention(q, k, v, dropout_p=0.5), fullgraph=True)
    q, k, v = draw(1, 2, 20, 8), draw(1, 2, 20, 8), draw(1, 2, 20, 8).requires_grad_()
    outs = [compiled(q, k, v) for _ in range(2)]
    assert not torch.equal(*outs)
    for out in outs:  # out is linear in v: so it is if backward drops the same weights as forward
        dout = draw(*out.shape)
        (dv,) = torch.autograd.grad(out, v, dout)
        close((dv * v).sum(), (dout * out).sum(), 1e-4)


# --- dropout ----------------------------------------------------------------------------------------------------------


def test_dropout_follows_the_seed():
    q, k, v = draw(2, 3, 40, 8), draw(2, 3, 50, 8), draw(2, 3, 50, 8)

    def run(seed, p=0.3):
        torch.manual_seed(seed)
        return scaled_dot_product_attention(q, k, v, dropout_p=p)

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    assert torch.equal(run(1, 0.0), scaled_dot_product_attention(q, k, v))
    assert not run(1, 1.0).any()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    scaled_dot_product_attention(q, k, v)
    assert torch.equal(state, torch.get_rng_state())


def test_dropout_keeps_the_right_share_and_the_mean():
    q = k = torch.zeros(2, 4, 200, 8)
    weights = scaled_dot_product_attention(q, k, torch.eye(200).expand(2, 4, 200, 200), dropout_p=0.25)
    assert abs((weights == 0).double().mean() - 0.25) < 0.005
    close(weights[weights > 0], torch.full((), 1 / 200 / 0.75).expand(int((weights > 0).sum())), 1e-7)


def test_dropout_backward_drops_what_forward_dropped():
    q, k, v = (draw(1, 2, 30, 8, dtype=torch.float64).requires_grad_() for _ in range(3))
    torch.manual_seed(3)
    out = scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    torch.manual_seed(3)
    with torch.no_grad():
        kept = scaled_dot_product_attention(q, k, torch.eye(30, dtype=torch.float64).expand(1, 2, 30, 30),
                                            dropout_p=0.5) > 0
    expected = (torch.softmax(q @ k.mT / 8**0.5, -1) * kept / 0.5) @ v
    close(out, expected, 1e-13)
    dout = draw(*out.shape, dtype=torch.float64)
    for ours, theirs in zip(torch.autograd.grad(out, (q, k, v), dout), torch.autograd.grad(expected, (q, k, v), dout)):
        close(ours, theirs, 1e-12)


# --- a whole model ----------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

    def forward(self, x, mask=None, causal=False):
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Counter:
    """Counts the calls that reach the engine's operator."""

    def __init__(self, monkeypatch):
        self.calls = 0

        def counting(*arguments):
            self.calls += 1
            return attention_op(*arguments)

        monkeypatch.setattr(attend.torch, "attention", counting)


def test_patched_model(monkeypatch):
    counter = Counter(monkeypatch)
    block, x = Block(), torch.randn(2, 11, 32)
    for arguments in ({}, {"causal": True}, {"mask": boolean(2, 1, 11, 11)}, {"mask": torch.randn(11, 11)}):
        results = []
        for use in (False, True):
            block.zero_grad()
            before = counter.calls
            if use:
                with patched():
                    y = block(x, **arguments)
            else:
                y = block(x, **arguments)
            assert counter.calls == before + use
            y.square().sum().backward()
            results.append([y.detach()] + [p.grad.clone() for p in block.parameters()])
        for theirs, ours in zip(*results):
            close(ours, theirs, 2e-5)


@pytest.mark.parametrize("train", [False, True])
def test_patched_transformer_encoder(monkeypatch, train):
    counter = Counter(monkeypatch)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(train)
    x, padding = torch.randn(3, 10, 32), torch.arange(10)[None] >= torch.tensor([10, 7, 4])[:, None]
    causal = torch.nn.Transformer.generate_square_subsequent_mask(10)
    for arguments in ({}, {"src_key_padding_mask": padding}, {"mask": causal, "is_causal": True}):
        expected = encoder(x, **arguments)
        before = counter.calls
        with patched():
            ours = encoder(x, **arguments)
        assert counter.calls == before + 2
        close(ours, expected, 1e-5)


def test_patched_restores():
    original = F.scaled_dot_product_attention
    with pytest.raises(KeyError):
        with patched():
            assert F.scaled_dot_product_attention is not original
            with patched():
                pass
            assert F.scaled_dot_product_attention is not original
            raise KeyError
    assert F.scaled_dot_product_attention is original


def in_threads(work):
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_patched_from_threads():
    original = F.scaled_dot_product_attention
    q = draw(1, 2, 9, 8)
    expected = scaled_dot_product_attention(q, q, q)
    wrong = []

    def work():
        for _ in range(50):
            with patched():
                if not torch.equal(F.scaled_dot_product_attention(q, q, q), expected):
                    wrong.append(1)

    in_threads(work)
    assert not wrong and F.scaled_dot_product_attention is original


def test_patched_leaves_the_rest_to_pytorch(monkeypatch):
    counter = Counter(monkeypatch)
    nested = torch.nested.nested_tensor([torch.randn(2, 4, 8), torch.randn(2, 6, 8)])
    meta = torch.randn(1, 2, 5, 8, device="meta")
    with patched():
        assert F.scaled_dot_product_attention(meta, meta, meta).shape == meta.shape
        assert F.scaled_dot_product_attention(nested, nested, nested).is_nested
        with pytest.raises(RuntimeError):  # PyTorch's own error
            F.scaled_dot_product_attention(*(torch.ones(1, 2, 5, 8, dtype=torch.int32),) * 3)
    assert counter.calls == 0


def test_patched_leaves_what_is_no_tensor_to_pytorch():
    x = draw(1, 2, 5, 8)
    for arguments in (([1.0], x, x), (x, None, x), (x, x, "value"), (x, x, x, [[True]])):
        messages = []
        for scope in (contextlib.nullcontext(), patched()):
            with scope, pytest.raises(TypeError) as raised:
                F.scaled_dot_product_attention(*arguments)
            messages.append(str(raised.value))
        assert messages[0] == messages[1]
    with patched():  # torch.fx traces with proxies
        traced = torch.fx.symbolic_trace(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    close(traced(x, x, x), F.scaled_dot_product_attention(x, x, x, is_causal=True), 1e-6)


class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(8, 24)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None, causal: bool = False) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=0.3)


def self_attention(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_under_patched(monkeypatch):
    model, x = Scripted(), torch.randn(2, 3, 7, 8)
    with patched():
        scripted = torch.jit.script(model)
    assert "attend::scaled_dot_product_attention" in str(scripted.inlined_graph)
    counter = Counter(monkeypatch)
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    for f in (scripted, torch.jit.load(file)):
        for arguments in ((), (boolean(7, 7),), (draw(2, 3, 7, 7),), (None, True)):
            before = counter.calls
            results = [(y, *torch.autograd.grad(y.square().sum(), list(m.parameters())))
                       for m in (f, model) for y in [m(x, *arguments)]]
            assert counter.calls == before + 1
            for ours, theirs in zip(*results):
                close(ours, theirs, 2e-5)
    outside = torch.jit.script(self_attention)
    assert "aten::scaled_dot_product_attention" in str(outside.graph)


def test_autocast():
    q, k, v = draw(1, 2, 9, 16), draw(1, 2, 9, 16).bfloat16(), draw(1, 2, 9, 16)
    bias = draw(9, 9)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = (f(q, k, v, bias) for f in (scaled_dot_product_attention, F.scaled_dot_product_attention))
        wide = scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert ours.dtype == theirs.dtype == torch.bfloat16 and wide.dtype == torch.float64
    close(ours, theirs, 2e-2)


# --- bad input --------------------------------------------------------------------------------------------------------

X = torch.ones(2, 3, 5, 8)
BAD = {
    "both masks": (X, X, X, torch.ones(5, 5, dtype=torch.bool), 0.0, True),
    "mask shape": (X, X, X, torch.zeros(5, 6)),
    "mask of one dimension": (X, X, X, torch.zeros(5)),
    "mask of five dimensions": (X, X, X, torch.zeros(1, 2, 3, 5, 5)),
    "mask larger than the batch": (X[:1], X[:1], X[:1], torch.zeros(2, 3, 5, 5)),
    "mask of ints": (X, X, X, torch.zeros(5, 5, dtype=torch.int32)),
    "mask of doubles": (X, X, X, torch.zeros(5, 5, dtype=torch.float64)),
    "one dimension": (X[0, 0, 0], X[0, 0, 0], X[0, 0, 0]),
    "dims": (X, X[..., :7], X),
    "dtypes": (X, X.double(), X),
    "heads": (X, X[:, :2], X[:, :2]),
    "grouped heads": (X, X[:, :2], X[:, :2], None, 0.0, False, None, True),
    "grouped two dimensions": (X[0, 0], X[0, 0], X[0, 0], None, 0.0, False, None, True),
    "batch": (X, X.repeat(2, 1, 1, 1)[:3], X),
    "dropout": (X, X, X, None, 1.5),
    "negative dropout": (X, X, X, None, -0.1),
    "ints": (X.int(), X.int(), X.int()),
    "complex": (X.to(torch.complex64),) * 3,
    "float8": (X.to(torch.float8_e4m3fn),) * 3,
    "a list": (X.tolist(), X, X),
    "a mask that is no tensor": (X, X, X, [[True]]),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_where_pytorch_errs(case):
    query, key, value, *rest = BAD[case]
    names = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    with pytest.raises(Exception):
        F.scaled_dot_product_attention(query, key, value, **dict(zip(names, rest)))
    with pytest.raises((ValueError, TypeError), match="expected") as raised:
        scaled_dot_product_attention(*BAD[case])
    assert isinstance(raised.value, RuntimeError)  # which PyTorch raises


def test_more_errors():
    with pytest.raises(ValueError, match="expected"):  # PyTorch reads past the end of value
        scaled_dot_product_attention(X, X, X[:, :, :4])
    with pytest.raises(TypeError, match="dense"):
        scaled_dot_product_attention(X.to_sparse(), X, X)
    with pytest.raises(ValueError, match=r"expected \[..., L, E\]"):
        scaled_dot_product_attention(X[..., :0], X, X)
    with pytest.raises(ValueError, match="scale"):
        scaled_dot_product_attention(X, X, X, scale=float("nan"))
    if torch.cuda.is_available():
        with pytest.raises(ValueError, match="CPU"):
            scaled_dot_product_attention(X.cuda(), X, X)


@pytest.mark.parametrize("name", ["is_causal", "enable_gqa"])
@pytest.mark.parametrize("value", ["no", "", None, 2, 0.5, [], [True], torch.ones(2)], ids=repr)
def test_flags_are_true_or_false(name, value):
    for x in (X, X[0]):
        with pytest.raises(TypeError):
            scaled_dot_product_attention(x, x, x, **{name: value})
        with patched(), pytest.raises(TypeError):
            F.scaled_dot_product_attention(x, x, x, **{name: value})


def test_flags_of_other_functions():
    x = X.transpose(1, 2)
    cu = torch.tensor([0, 5])
    for name in ("causal", "return_attn_probs"):
        with pytest.raises(TypeError, match=f"{name} is 'no', expected True or False"):
            flash_attn_func(x, x, x, **{name: "no"})
        with pytest.raises(TypeError, match=f"{name} is 'no', expected True or False"):
            flash_attn_varlen_func(x[0], x[0], x[0], cu, cu, 5, 5, **{name: "no"})
    for name in ("causal", "rotary_interleaved", "return_softmax_lse"):
        with pytest.raises(TypeError, match=f"{name} is 'no', expected True or False"):
            flash_attn_with_kvcache(x, x, x, **{name: "no"})
    for name in ("return_lse", "return_weights"):
        with pytest.raises(TypeError, match=f"{name} is 'no', expected True or False"):
            attend.attention(X, X, X, **{name: "no"})


@pytest.mark.parametrize("case", ["full", "causal", "bool", "additive", "grouped", "scale", "autocast", "patched"])
def test_head_dim_0(case):
    """All scores are 0, so that the keys in sight have equal weights."""
    q, k, v = (x.requires_grad_() for x in (draw(2, 4, 5, 0), draw(2, 2 if case == "grouped" else 4, 7, 0),
                                            draw(2, 2 if case == "grouped" else 4, 7, 6)))
    options = {"causal": {"is_causal": True}, "bool": {"attn_mask": boolean(5, 7)}, "grouped": {"enable_gqa": True},
               "additive": {"attn_mask": draw(5, 7)}, "scale": {"scale": 2.0}}.get(case, {})
    results = []
    for f, scope in ((F.scaled_dot_product_attention, contextlib.nullcontext()),
                     (scaled_dot_product_attention, contextlib.nullcontext()) if case != "patched" else (
                         lambda *x, **o: F.scaled_dot_product_attention(*x, **o), patched())):
        with scope, torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
            out = f(q, k, v, **options)
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for theirs, ours in zip(*results):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        close(ours, theirs, 2e-2 if case == "autocast" else 1e-5)


class UnknownMask(torch.nn.Module):
    """The batch of its mask is known only when the program runs."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, visible, batch):
        n = batch.item()
        mask = visible[:1].expand(n, 1, *visible.shape[-2:]) if visible.dim() == 4 else visible.new_ones(n, 1, 5, 5)
        return self.function(x, x, x, attn_mask=mask)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("floating", [False, True])
def test_exported_with_an_unknown_mask_batch(strict, floating):
    x = draw(2, 3, 5, 8)
    mask = boolean(1, 1, 5, 5)
    mask = torch.where(mask, 0.0, -1.0) if floating else mask
    torch._dynamo.reset()
    program = torch.export.export(UnknownMask(scaled_dot_product_attention), (x, mask, torch.tensor(2)), strict=strict)
    for batch in (1, 2):
        close(program.module()(x, mask, torch.tensor(batch)), F.scaled_dot_product_attention(x, x, x, mask), 1e-5)
    with pytest.raises((RuntimeError, ValueError)):
        program.module()(x, mask, torch.tensor(3))


def test_meta_tensors_have_shapes():
    x = torch.empty(2, 3, 5, 8, device="meta")
    assert scaled_dot_product_attention(x, x, x[..., :4]).shape == (2, 3, 5, 4)


def test_many_threads_at_once():
    q, k, v = draw(2, 4, 60, 32), draw(2, 4, 90, 32), draw(2, 4, 90, 32)
    expected = scaled_dot_product_attention(q, k, v, is_causal=True)
    wrong = []

    def work():
        for _ in range(20):
            if not torch.equal(scaled_dot_product_attention(q, k, v, is_causal=True), expected):
                wrong.append(1)

    in_threads(work)
    assert not wrong
