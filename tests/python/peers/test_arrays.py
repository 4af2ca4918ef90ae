"""Tensors and arrays as attend.attention reads them: of every library, whatever their memory, or refused with a reason."""

import gc
import subprocess
import sys

import numpy as np
import pytest
import torch

import attend

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def qkv(dtype=torch.float32):
    return [torch.randn(*shape).to(dtype) for shape in ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))]


class Tagged(torch.Tensor):
    """A subclass that adds nothing."""


class Watched(torch.Tensor):
    """A subclass that sees every call that is made on it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Watched.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})


MEMORY = {
    "turned": lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    "every other": lambda x: torch.stack([x, x * 0], -1).flatten(-2)[..., ::2],
    "with an offset": lambda x: torch.cat([x[:1] * 0, x])[1:],
    "a parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "a subclass": lambda x: x.as_subclass(Tagged),
    "a subclass that watches": lambda x: x.as_subclass(Watched),
    "with the sign put off": lambda x: torch._neg_view(-x),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_tensor(memory, dtype):
    plain = qkv(dtype)
    wanted = attend.attention(*plain, attend.causal(), return_lse=True, return_weights=True)
    gradients = attend.attention_backward(wanted[0], *plain, *wanted[:2], attend.causal())
    changed = [MEMORY[memory](x) for x in plain]
    got = attend.attention(*changed, attend.causal(), return_lse=True, return_weights=True)
    again = attend.attention_backward(MEMORY[memory](wanted[0]), *changed, *got[:2], attend.causal())
    for a, b in zip((*got, *again[:3]), (*wanted, *gradients[:3])):
        assert type(a) is torch.Tensor and a.dtype == b.dtype and a.is_contiguous() and torch.equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_ordinary_tensors(dtype):
    out, lse, weights = attend.attention(*qkv(dtype), return_lse=True, return_weights=True)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert (out.dtype, lse.dtype, weights.dtype) == (dtype, wide, wide)
    assert (out.shape, lse.shape, weights.shape) == ((2, 4, 5, 6), (2, 4, 5), (2, 4, 5, 7))
    for x in (out, lse, weights):
        assert not x.requires_grad and x.is_leaf and x.untyped_storage().resizable()
    assert attend.attention(*(x.transpose(1, 2) for x in qkv(dtype)), layout="blhd").shape == (2, 5, 4, 6)


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_results_are_where_the_inputs_are(device):
    """Whatever device PyTorch makes new tensors on by default."""
    q, k, v = qkv()
    out, lse = attend.attention(q, k, v, return_lse=True)
    with torch.device(device):
        assert torch.equal(attend.attention(q, k, v), out)
        assert attend.attention_backward(out, q, k, v, out, lse).dq.device.type == "cpu"


def test_a_first_call_that_is_refused():
    """What is learnt of PyTorch at the first tensor holds for later ones, whatever mode the first came in."""
    program = """if True:
        import torch, attend
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode(), torch.inference_mode():
            x = torch.ones(1, 1, 1, 4)
            try:
                attend.attention(x, x, x)
            except ValueError as error:
                assert "has no memory" in str(error)
            else:
                assert False
        x = torch.ones(1, 1, 1, 4)
        out = attend.attention(x, x, x)
        assert type(out) is torch.Tensor and torch.equal(out, x) and not out.is_inference()
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=120)


def test_gradients_of_options():
    """dbias has bias's shape, dsinks is flat, both in float32, of q's library."""
    q, k, v = qkv(torch.bfloat16)
    for shape in [(), (7,), (5, 7), (4, 1, 1), (2, 4, 5, 7)]:
        given = dict(bias=torch.randn(shape), sinks=torch.randn(4))
        out, lse = attend.attention(q, k, v, return_lse=True, **given)
        got = attend.attention_backward(out, q, k, v, out, lse, **given)
        assert got.dbias.shape == shape and got.dsinks.shape == (4,)
        assert got.dbias.dtype == got.dsinks.dtype == torch.float32
    for shape in [(11,), (4, 11)]:
        by_distance = dict(distance_bias=torch.randn(shape))
        out, lse = attend.attention(q, k, v, return_lse=True, **by_distance)
        got = attend.attention_backward(out, q, k, v, out, lse, **by_distance)
        assert got.dbias.shape == shape and got.dsinks is None


def test_a_gradient_is_refused_or_not_wanted():
    q, k, v = qkv()
    wanted = attend.attention(q, k, v)
    for at, name in enumerate("qkv"):
        given = [x.clone().requires_grad_(n == at) for n, x in enumerate((q, k, v))]
        with pytest.raises(ValueError, match=f"^{name} needs a gradient, which this function does not record: use "
                                             r"attend.torch, or call it under torch.no_grad\(\) or on .detach\(\)$"):
            attend.attention(*given)
        with torch.no_grad():
            assert torch.equal(attend.attention(*given), wanted)
        with torch.inference_mode():
            assert torch.equal(attend.attention(*given), wanted)
    with pytest.raises(ValueError, match="^q needs a gradient"):  # a tensor without memory, whose type is Tensor
        torch.func.grad(lambda x: attend.attention(x, k, v).sum())(q)
    with pytest.raises(ValueError, match="^sinks needs a gradient"):
        attend.attention(q, k, v, sinks=torch.zeros(4, requires_grad=True))


def fake(x):
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(x)


REFUSED = {
    "meta": (lambda x: x.to("meta"), ValueError, r"is on meta, expected a CPU tensor: move it with .cpu\(\)"),
    "fake": (fake, ValueError, r"has no memory \(a fake or meta tensor\), expected a CPU tensor with values"),
    "sparse": (lambda x: x.to_sparse(), TypeError, r"is a torch.sparse_coo tensor, expected a dense one: .to_dense\(\)"),
    "integers": (lambda x: x.int(), TypeError, "dtype is torch.int32, expected float32, float16, bfloat16 or float64"),
    "booleans": (lambda x: x > 0, TypeError, "dtype is torch.bool, expected float32, float16, bfloat16 or float64"),
    "complex": (lambda x: x + 0j, TypeError, "dtype is torch.complex64, expected float32"),
    "rank 3": (lambda x: x[0], ValueError, "has 3 dimensions, expected 4: batch, heads, length and dim"),
    "rank 5": (lambda x: x[None], ValueError, "has 5 dimensions, expected 4: batch, heads, length and dim"),
    "rank 64": (lambda x: x[(None,) * 60], ValueError, "has 64 dimensions, expected 4"),
    "rank 0": (lambda x: x.sum(), ValueError, "has 0 dimensions, expected 4"),
    "a list of tensors": (lambda x: list(x), TypeError, "is a list, expected an array: NumPy"),
    "a masked array": (lambda x: np.ma.masked_array(x.numpy()), TypeError,
                       "is a masked array, whose mask would be lost: give x.data and a mask of attend's"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    change, error, text = REFUSED[name]
    q, k, v = qkv()
    for at, argument in enumerate("qkv"):
        with pytest.raises(error, match=f"^{argument} {text}"):
            attend.attention(*(change(x) if n == at else x for n, x in enumerate((q, k, v))))
    out, lse = attend.attention(q, k, v, return_lse=True)
    with pytest.raises(error, match=f"^dout {text}"):
        attend.attention_backward(change(out), q, k, v, out, lse)
    if "rank" not in name:
        with pytest.raises(error, match=f"^x {text}"):
            attend.softmax(change(q))
        with pytest.raises(error, match=f"^bias {text}"):
            attend.attention(q, k, v, bias=change(q))


def test_mixed_libraries():
    """The result is of q's library."""
    q, k, v = qkv()
    wanted = attend.attention(q, k, v)
    assert torch.equal(attend.attention(q, k.numpy(), v.numpy()), wanted)
    got = attend.attention(q.numpy(), k, v)
    assert type(got) is np.ndarray and (got == wanted.numpy()).all()
    assert type(attend.attention(memoryview(q.numpy()), k, v)) is np.ndarray


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jax(dtype):
    jax = pytest.importorskip("jax")
    q, k, v = (jax.numpy.asarray(x.numpy(), dtype) for x in qkv())
    plain = [torch.from_numpy(np.asarray(x, np.float32)).to(getattr(torch, dtype)) for x in (q, k, v)]
    wanted = attend.attention(*plain, attend.causal(), return_lse=True)
    got = attend.attention(q, k, v, attend.causal(), return_lse=True)
    gradients = attend.attention_backward(got[0], q, k, v, *got, attend.causal())
    for a, b in zip((*got, *gradients[:3]),
                    (*wanted, *attend.attention_backward(wanted[0], *plain, *wanted, attend.causal())[:3])):
        assert isinstance(a, jax.Array) and str(a.dtype) == str(b.dtype).removeprefix("torch.")
        assert (np.asarray(a, np.float32) == b.float().numpy()).all()


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_nothing_is_held(library):
    """After a call, and after one that was refused, an array has the references it had before."""
    q, k, v = qkv() if library == "torch" else (x.numpy() for x in qkv())
    out, lse = attend.attention(q, k, v, return_lse=True)
    bias, sinks, mask = q[0, :, :, :7], q[0, :, 0, 0], attend.causal()

    def calls():
        attend.attention(q, k, v, mask, bias=bias, sinks=sinks, return_lse=True, return_weights=True)
        attend.attention_backward(out, q, k, v, out, lse, mask, bias=bias, sinks=sinks)
        with pytest.raises(ValueError):
            attend.attention(q, k, v[0], mask, bias=bias)
        with pytest.raises(ValueError):
            attend.attention_backward(out, q, k, v, out, lse[0], mask, sinks=sinks)
        gc.collect()

    held = lambda: [sys.getrefcount(x) for x in (q, k, v, out, lse, bias, sinks, mask, type(q), None)][:8]  # noqa: E731
    calls()
    before = held()
    for _ in range(3):
        calls()
    assert held() == before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_observed_tensors(dtype):
    """attend.observe over tensors, in any memory, shows the weights that PyTorch computes."""
    torch.manual_seed(0)
    q, k, v = qkv(dtype)
    scores = q.double() @ k.double().repeat_interleave(2, 1).transpose(-1, -2) / 8**0.5
    future = torch.arange(7) > torch.arange(5)[:, None] + 2
    weights = scores.masked_fill(future, -torch.inf).softmax(-1).numpy()
    for change in (lambda x: x, MEMORY["turned"], MEMORY["every other"], MEMORY["with an offset"]):
        seen = attend.observe(change(q), change(k), change(v), attend.causal())
        for b, h in ((0, 0), (1, 1), (1, 3)):
            zoom = seen.zoom(h, b)
            assert type(zoom) is np.ndarray
            np.testing.assert_allclose(zoom, weights[b, h], rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(seen.statistics().maximum, weights.max(-1), rtol=1e-4)
        assert seen.cell(3, 4, 1, 1).weight == pytest.approx(weights[1, 1, 3, 4], rel=1e-4)
