"""attend.torch under torch.func, forward mode, torch.vmap and the FLOP counter; CausalBias; devices."""

import attend
import attend.torch
import pytest
import torch
import torch.nn.functional as F
from attend.flash_attn import flash_attn_func, flash_attn_varlen_func
from attend.torch import patched, scaled_dot_product_attention
from torch.autograd import forward_ad
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.utils.flop_counter import FlopCounterMode


def draw(*shape, dtype=torch.float64):
    return torch.randn(shape).bfloat16().to(dtype)


def close(ours, theirs, tolerance=1e-11):
    torch.testing.assert_close(ours.double(), theirs.double(), atol=tolerance, rtol=tolerance)


def inputs(dtype=torch.float64, Hk=4):
    return draw(2, 4, 5, 8, dtype=dtype), draw(2, Hk, 7, 8, dtype=dtype), draw(2, Hk, 7, 6, dtype=dtype)


MASK = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.7
CASES = {
    "full": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "boolean mask": {"attn_mask": MASK},
    "grouped heads": {"enable_gqa": True},
}


@pytest.fixture(params=CASES)
def case(request):
    options = CASES[request.param]
    tensors = inputs(Hk=2 if "enable_gqa" in options else 4)
    ours = lambda *x: scaled_dot_product_attention(*x, **options)  # noqa: E731
    theirs = lambda *x: F.scaled_dot_product_attention(*x, **options)  # noqa: E731
    return tensors, ours, theirs


# --- reverse mode -----------------------------------------------------------------------------------------------------


def test_grad_and_vjp(case):
    tensors, ours, theirs = case
    weight = draw(2, 4, 5, 6)
    for a, b in zip(*(torch.func.grad(lambda *x: (f(*x) * weight).sum(), argnums=(0, 1, 2))(*tensors)
                      for f in (ours, theirs))):
        close(a, b)
    (out, pull), (expected, expected_pull) = torch.func.vjp(ours, *tensors), torch.func.vjp(theirs, *tensors)
    close(out, expected)
    for a, b in zip(pull(weight), expected_pull(weight)):
        close(a, b)


def test_jacrev(case):
    tensors, ours, theirs = case
    for a, b in zip(*(torch.func.jacrev(f, argnums=(0, 1, 2))(*tensors) for f in (ours, theirs))):
        close(a, b)


def test_gradient_of_an_additive_mask():
    q, k, v = inputs()
    bias = draw(1, 4, 5, 7)
    f = lambda attend: torch.func.grad(lambda b: attend(q, k, v, b).square().sum())(bias)  # noqa: E731
    close(f(scaled_dot_product_attention), f(F.scaled_dot_product_attention))


def test_dropout_under_jacrev_drops_what_forward_dropped():
    q, k, v = inputs()

    def run(x):
        torch.manual_seed(5)
        return scaled_dot_product_attention(q, k, x, dropout_p=0.5)

    jacobian = torch.func.jacrev(run)(v)  # the output is linear in v
    close(torch.einsum("bhmexynf,xynf->bhme", jacobian, v), run(v))


def test_no_second_derivative():
    q, k, v = inputs()
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.func.hessian(lambda x: scaled_dot_product_attention(x, k, v).sum())(q)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.func.grad(lambda x: torch.func.grad(lambda y: scaled_dot_product_attention(y, k, v).sum())(x).sum())(q)


# --- forward mode -----------------------------------------------------------------------------------------------------


def test_jvp(case):
    tensors, ours, theirs = case
    tangents = tuple(draw(*x.shape) for x in tensors)
    (out, dout), (expected, expected_dout) = (torch.func.jvp(f, tensors, tangents) for f in (ours, theirs))
    close(out, expected)
    close(dout, expected_dout)
    for n in range(3):  # one alone
        f = lambda attend, x: attend(*tensors[:n], x, *tensors[n + 1:])  # noqa: E731
        close(*(torch.func.jvp(lambda x, g=g: f(g, x), (tensors[n],), (tangents[n],))[1] for g in (ours, theirs)))


def test_jacfwd(case):
    tensors, ours, theirs = case
    for a, b in zip(*(torch.func.jacfwd(f, argnums=(0, 1, 2))(*tensors) for f in (ours, theirs))):
        close(a, b)


def test_dual_numbers(case):
    tensors, ours, theirs = case
    tangents = tuple(draw(*x.shape) for x in tensors)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(tensors, tangents)]
        tangent = forward_ad.unpack_dual(ours(*duals)).tangent
    close(tangent, torch.func.jvp(theirs, tensors, tangents)[1])


LAYOUTS = {  # of [batch, heads, length, dim]
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "strided": lambda x: torch.stack((x, x), -1)[..., 0],
    "lengths last": lambda x: x.mT.contiguous().mT,
    "one head": lambda x: x[:, :1].transpose(1, 2).contiguous().transpose(1, 2),
}


def tangent_of(f, tensors, tangents):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(*map(forward_ad.make_dual, tensors, tangents))).tangent


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dual_numbers_of_views(layout):
    """Forward mode requires a view and its tangent to have one layout: neither output nor tangent may be in another."""
    tensors = tuple(LAYOUTS[layout](x) for x in inputs())
    tangents = tuple(draw(*x.shape) for x in tensors)
    expected = torch.func.jvp(F.scaled_dot_product_attention, tensors, tangents)[1]
    close(tangent_of(scaled_dot_product_attention, tensors, tangents), expected)
    # Views of dual numbers, and a view of the result.
    swapped = lambda *x: scaled_dot_product_attention(*(y.transpose(1, 2) for y in x)).transpose(1, 2)  # noqa: E731
    turned = tuple(tuple(y.transpose(1, 2) for y in x) for x in (tensors, tangents))
    close(tangent_of(swapped, *turned), expected.transpose(1, 2))
    close(torch.func.jvp(swapped, *turned)[1], expected.transpose(1, 2))


@pytest.mark.parametrize("contiguous", [False, True])
def test_dual_numbers_of_flash_attention(contiguous):
    tensors = tuple(x.transpose(1, 2).contiguous() if contiguous else x.transpose(1, 2) for x in inputs())
    tangents = tuple(draw(*x.shape) for x in tensors)
    reference = lambda *x: F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in x)).transpose(1, 2)  # noqa: E731
    close(tangent_of(flash_attn_func, tensors, tangents), torch.func.jvp(reference, tensors, tangents)[1])
    cu = torch.tensor([0, 5]), torch.tensor([0, 7])
    packed = lambda *x: flash_attn_varlen_func(*(y[0] for y in x), *cu, 5, 7)[None]  # noqa: E731
    one = tuple(x[:1] for x in tensors), tuple(x[:1] for x in tangents)
    close(tangent_of(packed, *one), torch.func.jvp(reference, *one)[1])


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 5e-6), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_jvp_of_narrow_types(dtype, tolerance):
    tensors = inputs(dtype)
    tangents = tuple(draw(*x.shape, dtype=dtype) for x in tensors)
    _, dout = torch.func.jvp(lambda *x: scaled_dot_product_attention(*x, is_causal=True), tensors, tangents)
    _, expected = torch.func.jvp(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True),
                                 tuple(x.double() for x in tensors), tuple(x.double() for x in tangents))
    assert dout.dtype == dtype
    close(dout, expected, tolerance)


def test_jvp_with_a_mask_soft_cap_and_dropout():
    q, k, v = inputs()
    bias, dbias = draw(1, 4, 5, 7), draw(1, 4, 5, 7)
    both = (torch.func.jvp(lambda b, f=f: f(q, k, v, b), (bias,), (dbias,))[1]
            for f in (scaled_dot_product_attention, F.scaled_dot_product_attention))
    close(*both)

    def numeric(f, x, t, eps=1e-6):
        return (f(x + eps * t) - f(x - eps * t)) / (2 * eps)

    def flash(x, **options):
        torch.manual_seed(11)
        return flash_attn_func(x, *(y.transpose(1, 2) for y in (k, v)), **options)

    x = q.transpose(1, 2)
    t = draw(*x.shape)
    for options in ({"softcap": 3.0, "causal": True}, {"dropout_p": 0.5}, {"window_size": (2, 1)},
                    {"alibi_slopes": torch.rand(4, dtype=torch.float64)}):
        f = lambda x: flash(x, **options)  # noqa: E731
        close(torch.func.jvp(f, (x,), (t,))[1], numeric(f, x, t), 1e-7)
    cu_q, cu_k = torch.tensor([0, 2, 5]), torch.tensor([0, 3, 7])
    f = lambda x: flash_attn_varlen_func(x[0], k[0].transpose(0, 1), v[0].transpose(0, 1), cu_q, cu_k, 3, 4,  # noqa: E731
                                         causal=True)
    close(torch.func.jvp(f, (x,), (t,))[1], numeric(f, x, t), 1e-7)


def test_jvp_does_not_leak_what_is_hidden():
    q, k, v = inputs()
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[:, 5:] = False
    for x in (k, v):
        x[:, :, 5:] = float("nan")
    _, dout = torch.func.jvp(lambda *x: scaled_dot_product_attention(*x, attn_mask=mask), (q, k, v), (q, k, v))
    _, expected = torch.func.jvp(F.scaled_dot_product_attention, *[(q, k[:, :, :5], v[:, :, :5])] * 2)
    close(dout, expected)


def test_slopes_have_no_tangent():
    q, k, v = (x.transpose(1, 2) for x in inputs())
    slopes = torch.rand(4)
    with pytest.raises(NotImplementedError, match="slopes"):
        torch.func.jvp(lambda s: flash_attn_func(q, k, v, alibi_slopes=s), (slopes,), (slopes,))


# --- vmap -------------------------------------------------------------------------------------------------------------


def test_vmap():
    q, k, v = draw(3, 2, 4, 5, 8), draw(2, 4, 7, 8), draw(2, 4, 3, 7, 6)

    def results(attention):
        summed = torch.func.grad(lambda *x: attention(*x).square().sum())
        for f in (lambda *x: attention(*x, is_causal=True), summed):
            yield torch.vmap(f, in_dims=(0, None, 2))(q, k, v)

    for ours, theirs in zip(results(scaled_dot_product_attention), results(F.scaled_dot_product_attention), strict=True):
        close(ours, theirs)


@pytest.mark.filterwarnings("error:There is a performance drop")
def test_vmap_inside_a_compiled_function():
    inputs = [draw(3, 2, 4, 5, 8, dtype=torch.float32) for _ in range(3)]
    f = lambda *x: torch.vmap(lambda *y: scaled_dot_product_attention(*y, is_causal=True))(*x)  # noqa: E731
    torch._dynamo.reset()
    close(torch.compile(f, fullgraph=True, backend="aot_eager")(*inputs), f(*inputs), 1e-6)


def test_arrays_say_that_they_are_not_differentiated():
    q, k, v = inputs()
    for call in (lambda: torch.func.grad(lambda x: attend.attention(x, k, v).sum())(q),
                 lambda: torch.func.jvp(lambda x: attend.attention(x, k, v), (q,), (q,)),
                 lambda: torch.vmap(lambda x: attend.attention(x, k, v))(q[None])):
        with pytest.raises(ValueError, match="attend.torch"):
            call()
    with forward_ad.dual_level(), pytest.raises(ValueError, match="attend.torch"):
        attend.attention(forward_ad.make_dual(q, q), k, v)


# --- the FLOP counter -------------------------------------------------------------------------------------------------


def flops(f):
    with FlopCounterMode(display=False) as counter:
        f()
    return counter.get_total_flops()


def test_flops_are_those_of_pytorch():
    q, k, v = (x.float().requires_grad_() for x in (draw(2, 4, 32, 16), draw(2, 4, 64, 16), draw(2, 4, 64, 16)))
    products = 2 * 2 * 4 * 32 * 64 * 16
    assert flops(lambda: scaled_dot_product_attention(q, k, v)) == 2 * products
    assert flops(lambda: scaled_dot_product_attention(q, k, v).sum().backward()) == 7 * products
    assert flops(lambda: scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)) == 2 * products
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert flops(lambda: F.scaled_dot_product_attention(q, k, v)) == 2 * products


def test_flops_of_packed_documents_count_the_documents():
    q, cu = draw(12, 4, 16, dtype=torch.float32), torch.tensor([0, 4, 12], dtype=torch.int32)
    assert flops(lambda: flash_attn_varlen_func(q, q, q, cu, cu, 8, 8)) == 4 * 4 * 16 * (4 * 4 + 8 * 8)


# --- CausalBias -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize("L, S", [(5, 5), (5, 7), (1, 7), (7, 5)])
def test_causal_bias(make, L, S):
    q, k, v = draw(2, 4, L, 8), draw(2, 4, S, 8), draw(2, 4, S, 8)
    bias = make(L, S)
    expected = F.scaled_dot_product_attention(q, k, v, bias._materialize()).nan_to_num(0.0)
    close(scaled_dot_product_attention(q, k, v, bias), expected)
    with patched():
        close(F.scaled_dot_product_attention(q, k, v, bias), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(scaled_dot_product_attention(q.float(), k.float(), v.float(), bias), expected, 3e-2)


def test_causal_bias_of_other_lengths():
    x = draw(2, 4, 5, 8)
    with pytest.raises(ValueError, match="CausalBias of 5 queries and 6 keys, expected 5 and 5"):
        scaled_dot_product_attention(x, x, x, causal_lower_right(5, 6))
    with pytest.raises(ValueError, match="is_causal"):
        scaled_dot_product_attention(x, x, x, causal_lower_right(5, 5), is_causal=True)


class Odd(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


class Plain(torch.Tensor):
    pass


def test_other_subclasses_are_refused_by_name():
    x = draw(2, 4, 5, 8)
    for arguments in ((x, x, x, torch.zeros(5, 5).as_subclass(Odd)), (x.as_subclass(Odd), x, x),
                      (x, x, causal_upper_left(5, 5))):
        with pytest.raises(TypeError, match="is a (Odd|CausalBias), expected a plain tensor"):
            scaled_dot_product_attention(*arguments)
    with pytest.raises(TypeError, match="is a MaskedTensor, expected a plain tensor"):
        scaled_dot_product_attention(x, x, x, torch.masked.masked_tensor(torch.zeros(5, 5), torch.ones(5, 5) > 0))
    with pytest.raises(TypeError, match="bias is a CausalBias, expected an array"):
        attend.attention(x, x, x, bias=causal_upper_left(5, 5))
    expected = scaled_dot_product_attention(x, x, x)
    close(attend.attention(torch.nn.Parameter(x, requires_grad=False), x.as_subclass(Plain), x), expected)
    close(scaled_dot_product_attention(x.as_subclass(Plain), x, x), expected)  # it says nothing of its own
    close(scaled_dot_product_attention(torch.nn.Parameter(x), x, x), expected)


def test_patched_leaves_other_subclasses_to_pytorch():
    x = draw(2, 4, 5, 8).as_subclass(Odd)
    with patched():
        assert type(F.scaled_dot_product_attention(x, x, x)) is Odd
        assert type(F.scaled_dot_product_attention(*[x.as_subclass(torch.Tensor)] * 3, x.new_zeros(5, 5))) is Odd


# --- devices ----------------------------------------------------------------------------------------------------------


def test_meta_tensors_do_not_mix():
    x, meta = draw(2, 4, 5, 8), torch.empty(2, 4, 5, 8, device="meta", dtype=torch.float64)
    mask = torch.empty(5, 5, device="meta", dtype=torch.bool)
    for arguments in ((x, meta, x), (x, x, meta), (meta, x, x), (x, x, x, mask), (meta, meta, meta, mask.new_ones(5, 5, device="cpu"))):
        with pytest.raises(ValueError, match="where .* is"):
            scaled_dot_product_attention(*arguments)


def test_the_default_device_does_not_matter_to_dropout():
    x = draw(2, 4, 5, 8)
    torch.manual_seed(2)
    expected = scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    torch.manual_seed(2)
    with torch.device("meta"):
        assert torch.equal(scaled_dot_product_attention(x, x, x, dropout_p=0.5), expected)


# --- patched() inside a compiled function -----------------------------------------------------------------------------


def test_patched_inside_a_compiled_function():
    before = F.scaled_dot_product_attention
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    @torch.compile(backend=backend, fullgraph=True)
    def f(q, k, v):
        with patched():
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y + F.scaled_dot_product_attention(q, k, v)

    q, k, v = (draw(2, 4, 6, 8, dtype=torch.float32).requires_grad_() for _ in range(3))
    expected = scaled_dot_product_attention(q, k, v, is_causal=True) + F.scaled_dot_product_attention(q, k, v)
    for _ in range(2):
        out = f(q, k, v)
        close(out, expected, 1e-5)
        assert F.scaled_dot_product_attention is before
    close(torch.autograd.grad(out.square().sum(), q)[0], torch.autograd.grad(expected.square().sum(), q)[0], 1e-4)
    called = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert len(graphs) == 1 and sum("attend" in name for name in called) == 1


def test_patched_around_and_inside():
    @torch.compile(backend="eager", fullgraph=True)
    def f(x):
        with patched(), patched():
            return F.scaled_dot_product_attention(x, x, x)

    x, before = draw(2, 4, 6, 8, dtype=torch.float32), F.scaled_dot_product_attention
    with patched():
        inside = F.scaled_dot_product_attention
        assert torch.equal(f(x), scaled_dot_product_attention(x, x, x))
        assert F.scaled_dot_product_attention is inside
    assert torch.equal(f(x), scaled_dot_product_attention(x, x, x))
    assert F.scaled_dot_product_attention is before
