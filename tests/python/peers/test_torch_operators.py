"""attend's operators under PyTorch's dispatcher: kernels in C++, graphs of fake CUDA tensors, errors. No GPU is needed.

PyTorch's own attention is traced first: a control that fake tensors on cuda:0 work in this PyTorch.
"""

import contextlib
import subprocess
import sys

import attend.torch
import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition
from torch._subclasses.fake_tensor import FakeTensorMode

FORWARD, BACKWARD = "attend.attention.default", "attend.attention_backward.default"


def theirs(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def ours(q, k, v):
    return attend.torch.scaled_dot_product_attention(q, k, v, is_causal=True)


def patched_inside(q, k, v):
    with attend.torch.patched():
        return theirs(q, k, v)


# {case: (function, scope around it, attention operators of attend's in its graph)}
CASES = {"control": (theirs, contextlib.nullcontext, 0), "attend": (ours, contextlib.nullcontext, 1),
         "patched outside": (theirs, attend.torch.patched, 1), "patched inside": (patched_inside, contextlib.nullcontext, 1)}


def operators_of(graph):
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


def arguments(device, dtype=torch.bfloat16, requires_grad=False):
    return [torch.empty(2, 4, n, 64, device=device, dtype=dtype, requires_grad=requires_grad) for n in (16, 24, 24)]


def joint_operators(function, device):
    """The operators of forward and backward, as one graph before it is partitioned."""
    graphs = []

    def partition(module, joint_inputs, **options):
        graphs.append(operators_of(module.graph))
        return default_partition(module, joint_inputs, **options)

    torch._dynamo.reset()
    compiler = lambda module, inputs: make_boxed_func(module.forward)  # noqa: E731
    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition)
    with FakeTensorMode():
        inputs = arguments(device, requires_grad=True)
        out = torch.compile(function, fullgraph=True, backend=backend)(*inputs)
        out.sum().backward()
        assert out.shape == inputs[0].shape and str(out.device) == device
        assert all(x.grad.shape == x.shape for x in inputs)
    (operators,) = graphs
    return operators


def joint_device():
    """cuda:0, but for builds of PyTorch with CUDA where there is no GPU: their autograd asks the driver about the device
    of a fake tensor, whatever the operator. There the joint graph is of CPU tensors."""
    return "cuda:0" if torch.version.cuda is None or torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("case", CASES)
def test_compiled_graph_of_fake_gpu_tensors(case):
    function, scope, count = CASES[case]
    graphs = []

    def compiler(module, inputs):
        graphs.append(operators_of(module.graph))
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    with FakeTensorMode(), torch.no_grad(), scope():
        out = torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=compiler))(*arguments("cuda:0"))
    assert str(out.device) == "cuda:0" and out.shape == (2, 4, 16, 64)
    (operators,) = graphs
    assert operators.count(FORWARD) == count


@pytest.mark.parametrize("case", CASES)
def test_aot_eager_without_graph_break(case):
    function, scope, _ = CASES[case]
    torch._dynamo.reset()
    with FakeTensorMode(), torch.no_grad(), scope():
        out = torch.compile(function, fullgraph=True, backend="aot_eager")(*arguments("cuda:0"))
    assert str(out.device) == "cuda:0"


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_export_of_fake_gpu_tensors(case, strict):
    function, scope, count = CASES[case]

    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return function(q * 2, k, v)

    torch._dynamo.reset()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), scope():
        exported = torch.export.export(Model(), tuple(arguments("cuda:0")), strict=strict)
    assert operators_of(exported.graph).count(FORWARD) == count


@pytest.mark.parametrize("case", CASES)
def test_joint_graph_has_one_forward_and_one_backward(case):
    function, scope, count = CASES[case]
    with scope():
        operators = joint_operators(function, joint_device())
    assert operators.count(FORWARD) == operators.count(BACKWARD) == count


def test_fake_backward_kernel_on_gpu():
    q, k, v = arguments("meta")
    for q_like in (q, q.transpose(1, 2).contiguous().transpose(1, 2)):
        with FakeTensorMode() as mode:
            inputs = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0") for x in (q_like, k, v)]
            out, lse = torch.ops.attend.attention(*inputs, *[None] * 7, 0.0, -1, 0, True, 0.0)
            gradients = torch.ops.attend.attention_backward(out, *inputs, out, lse, *[None] * 7, 0.0, -1, 0, True, 0.0, False)
        assert mode and out.stride() == inputs[0].stride() and lse.dtype == torch.float32
        assert [g.stride() for g in gradients[:3]] == [x.stride() for x in inputs]
        assert all(str(g.device) == "cuda:0" for g in gradients)


def test_patched_leaves_refused_gpus_to_pytorch(monkeypatch):
    monkeypatch.setattr(attend.torch, "_refusals", {0: "this library was built without CUDA"})
    graphs = []

    def compiler(module, inputs):
        graphs.append(operators_of(module.graph))
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    with FakeTensorMode(), torch.no_grad(), attend.torch.patched():
        torch.compile(theirs, fullgraph=True, backend=aot_autograd(fw_compiler=compiler))(*arguments("cuda:0"))
    assert [operators.count(FORWARD) for operators in graphs] == [0]


def test_a_gpu_is_asked_about_once(monkeypatch):
    asked = []

    def why_not():
        asked.append(1)
        return "this library was built without CUDA"

    monkeypatch.setattr(attend.torch, "_refusals", {})
    monkeypatch.setattr(attend.torch._core, "gpu_why_not", why_not)
    assert torch.cuda.is_available() or attend.torch._gpu_refusal(1) == ""  # fake tensors: nothing to ask
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    assert [attend.torch._gpu_refusal(index) for index in (0, 0, 1, 0)] == [why_not()] * 4 and len(asked) == 3


def test_kernels_are_in_cpp():
    for op in ("attention", "attention_backward"):
        registrations = torch._C._dispatch_dump(f"attend::{op}")
        for key in ("CPU", "CUDA"):
            assert any(line.startswith(f"{key}: registered at") and "torch_operators.cpp" in line
                       for line in registrations.splitlines()), registrations


PYTHON_KERNELS = """
import attend._core
attend._core.register_torch_operators = lambda: False  # as with PyTorch before 2.10
import attend.torch, torch
import torch.nn.functional as F
assert "torch_operators.cpp" not in torch._C._dispatch_dump("attend::attention")
torch.manual_seed(0)
results = []
inputs = [torch.randn(2, 3, 9, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
for function in (F.scaled_dot_product_attention, attend.torch.scaled_dot_product_attention):
    out = function(*inputs, is_causal=True)
    results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
for theirs, ours in zip(*results):
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)
"""


# Forward mode requires of a view that its tangent has its layout: an output in the memory order of q must not be a view.
DUAL_NUMBERS = """
from attend.flash_attn import flash_attn_func, flash_attn_varlen_func
from torch.autograd import forward_ad
inputs, tangents = ([torch.randn(1, 9, 3, 8, dtype=torch.float64) for _ in range(3)] for _ in range(2))
swap = lambda tensors: [x.transpose(1, 2) for x in tensors]
attention = lambda q, k, v: (q @ k.mT / 8**0.5).softmax(-1) @ v
expected = torch.func.jvp(attention, tuple(swap(inputs)), tuple(swap(tangents)))[1].transpose(1, 2)
cu = torch.tensor([0, 9])
for ours in (lambda *x: attend.torch.scaled_dot_product_attention(*swap(x)).transpose(1, 2), flash_attn_func,
             lambda *x: flash_attn_varlen_func(*(y[0] for y in x), cu, cu, 9, 9)[None]):
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(ours(*map(forward_ad.make_dual, inputs, tangents))).tangent
    torch.testing.assert_close(tangent, expected, atol=1e-12, rtol=1e-12)
"""


@pytest.mark.parametrize("more", ["", DUAL_NUMBERS], ids=["reverse mode", "forward mode"])
def test_kernels_in_python_for_older_pytorch(more):
    subprocess.run([sys.executable, "-c", PYTHON_KERNELS + more], check=True)


def test_errors_of_kernels_keep_their_class():
    q = torch.randn(1, 3, 4, 8)
    k = torch.randn(1, 2, 4, 8)
    for inputs in ((q, k, k), (q.requires_grad_(), k, k)):
        with pytest.raises(attend.torch.Invalid, match="heads"):
            torch.ops.attend.attention(*inputs, *[None] * 7, 0.0, -1, -1, True, 0.0)
    with pytest.raises(RuntimeError, match="attend"):  # nothing of an earlier error is left
        torch.ops.attend.attention(k, k, k, *[None] * 7, 0.0, -1, -1, True)


def test_wrong_tensors_are_rejected_by_the_kernels():
    q = torch.randn(1, 2, 4, 8)
    call = lambda *x, visible=None, cu=None, seed=None: torch.ops.attend.attention(  # noqa: E731
        *x, visible, None, None, cu, cu, seed, None, 0.0, -1, -1, True, 0.0)
    for message, function in (("q has 3 dimensions", lambda: call(q[0], q, q)),
                              ("expected float32", lambda: call(q.int(), q.int(), q.int())),
                              ("boolean", lambda: call(q, q, q, visible=torch.ones(1, 1, 4, 4))),
                              ("int32 or int64", lambda: call(q, q, q, cu=torch.zeros(2))),
                              ("int64 number", lambda: call(q, q, q, seed=torch.zeros(2)))):
        with pytest.raises(ValueError, match=message):
            function()
