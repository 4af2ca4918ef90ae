"""attn_implementation="attend" under torch.func, forward mode, vmap, torch.compile and torch.export, against "eager"."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import attend.hf  # noqa: E402
from attend import masks  # noqa: E402
from attend._hf_attention import Options, attention_backward_op, attention_op  # noqa: E402
from test_hf import CONFIGS, ENCODERS, padded, pair, tokens  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

MODELS = ["llama", "mistral", "gpt_oss", "gemma2", "bert"]


@pytest.fixture(autouse=True)
def registered():
    attend.hf.register()
    torch.manual_seed(0)


def close(ours, theirs, tolerance=1e-4):
    scale = max(1.0, theirs.abs().max().item())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * scale)


def without_cache(model):
    return {} if model.config.model_type in ENCODERS else {"use_cache": False}


def logits(model, parameters, ids, **inputs):
    return torch.func.functional_call(model, parameters, (ids,), {**without_cache(model), **inputs}).logits


def parameters_of(model):
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def projection(model):
    """The name of the weight that makes queries in the first layer."""
    return next(name for name, _ in model.named_parameters() if any(x in name for x in ("q_proj.weight", "query.weight")))


def compare(function, name):
    """function(model, parameters) of both."""
    theirs, ours = pair(name)
    expected, got = (function(model, parameters_of(model)) for model in (theirs, ours))
    torch.utils._pytree.tree_map(close, got, expected)


# ---- torch.func ----


@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_by_torch_func(name, side):
    ids, visible = tokens(3), None if side is None else padded(side).flip(0)
    weight = torch.rand(3, 13, 1) * (1 if visible is None else visible[..., None])

    def function(model, parameters):
        return torch.func.grad(lambda p: (logits(model, p, ids, attention_mask=visible) * weight).sum())(parameters)

    compare(function, name)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_per_sample(name):
    ids = tokens(3)

    def function(model, parameters):
        loss = lambda p, one: logits(model, p, one[None]).square().sum()  # noqa: E731
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, ids)

    compare(function, name)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "bert"])  # its mask reads values under "eager", too
def test_vmap_with_padding(name):
    ids, visible = tokens(3), padded("right")

    def function(model, parameters):
        run = lambda one, mask: logits(model, parameters, one[None], attention_mask=mask[None])[0]  # noqa: E731
        return torch.vmap(run)(ids, visible) * visible[..., None]

    compare(function, name)


def test_vmap_over_an_ensemble():
    theirs, ours = pair("llama")
    others = [copy.deepcopy(ours), copy.deepcopy(ours)]
    for parameter in others[1].parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    stacked, _ = torch.func.stack_module_state(others)
    ids = tokens(2)
    got, expected = (torch.vmap(lambda p, m=m: logits(m, p, ids))(stacked) for m in (ours, theirs))
    close(got, expected)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "gpt_oss"])  # PyTorch's grouped_mm has none
def test_forward_mode(name):
    ids = tokens(2)

    def function(model, parameters):
        torch.manual_seed(3)
        tangents = {name: torch.randn_like(x) for name, x in parameters.items()}
        by_func = torch.func.jvp(lambda p: logits(model, p, ids), (parameters,), (tangents,))
        with forward_ad.dual_level():
            dual = {name: forward_ad.make_dual(x, tangents[name]) for name, x in parameters.items()}
            by_dual = forward_ad.unpack_dual(logits(model, dual, ids)).tangent
        return (*by_func, by_dual)

    compare(function, name)


def test_jacobians():
    ids = tokens(1, 4)

    def function(model, parameters):
        chosen = projection(model)
        f = lambda x: logits(model, {**parameters, chosen: x}, ids)[0, -1]  # noqa: E731
        return torch.func.jacrev(f)(parameters[chosen]), torch.func.jacfwd(f)(parameters[chosen])

    compare(function, "gemma2")


def test_no_second_derivative():
    model = pair("llama")[1]
    parameters, ids = parameters_of(model), tokens(1, 4)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.func.grad(lambda p: sum(x.sum() for x in torch.func.grad(
            lambda p: logits(model, p, ids).sum())(p).values()))(parameters)


# ---- compilers ----


def compiled(model):
    torch._dynamo.reset()
    return torch.compile(model, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("name", [*MODELS, "qwen3", "gpt2", "modernbert"])
def test_compiled_without_graph_break(name, side):
    theirs, ours = pair(name)
    ids, visible = tokens(3), None if side is None else padded(side)
    real = torch.ones(3, 13, 1) if visible is None else visible[..., None]
    results = []
    for model, run in ((theirs, theirs), (ours, compiled(ours))):
        out = run(ids, attention_mask=visible).logits * real
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(results[0]) == len(results[1])
    for got, expected in zip(results[1], results[0]):
        close(got, expected)


def test_compiled_with_weights():
    theirs, ours = pair("gpt_oss")
    ids = tokens(2)
    results = []
    for model in (theirs, ours):
        model(ids, output_attentions=True)  # installs Transformers' hooks, which a graph cannot
    for model, run in ((theirs, theirs), (ours, compiled(ours))):
        result = run(ids, output_attentions=True)
        (sum(w.square().sum() for w in result.attentions) + result.logits.square().sum()).backward()
        results.append([*result.attentions, *(p.grad for p in model.parameters() if p.grad is not None)])
    for got, expected in zip(*results[::-1]):
        close(got, expected)


def test_compiled_dropout_follows_the_seed():
    _, model = pair("llama", attention_dropout=0.5)
    model, ids = model.train(), tokens()
    run = compiled(model)

    def once(f, seed):
        torch.manual_seed(seed)
        return f(ids).logits

    assert torch.equal(once(run, 1), once(run, 1))
    assert not torch.equal(once(run, 1), once(run, 2))
    close(once(run, 1), once(model, 1), 1e-5)


def test_compiled_vmap():
    theirs, ours = pair("llama")
    ids, parameters = tokens(3), parameters_of(ours)
    torch._dynamo.reset()
    f = lambda model: torch.vmap(lambda one: logits(model, parameters, one[None])[0])(ids)  # noqa: E731
    close(torch.compile(f, fullgraph=True, backend="aot_eager")(ours), f(theirs))


def test_compiled_layers_of_a_model():
    """Each layer on its own: masks come from outside of the graph."""
    theirs, ours = pair("llama")
    ids, visible = tokens(3), padded("left")
    torch._dynamo.reset()
    for layer in ours.model.layers:
        layer.compile(backend="aot_eager", fullgraph=True)
    for mask in (None, visible):
        close(*((m(ids, attention_mask=mask).logits * visible[..., None]) for m in (ours, theirs)))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_exported(name, strict):
    theirs, ours = pair(name)
    visible, options = padded("left"), without_cache(ours)
    torch._dynamo.reset()
    with torch.no_grad():
        program = torch.export.export(ours, (tokens(3),), {"attention_mask": visible, **options}, strict=strict)
        called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
        assert called.count("attend.attention_with_weights.default") == ours.config.num_hidden_layers
        ids = tokens(3)
        got, expected = (f(ids, attention_mask=visible, **options).logits for f in (program.module(), theirs))
    close(got * visible[..., None], expected * visible[..., None])


def test_exported_with_any_batch_and_length():
    theirs, ours = pair("llama")
    dims = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad():
        program = torch.export.export(ours, (tokens(3),), {"attention_mask": padded("left"), "use_cache": False},
                                      dynamic_shapes={"input_ids": dims, "attention_mask": dims, "use_cache": None})
        for batch, length in ((3, 13), (5, 21)):
            ids, visible = tokens(batch, length), padded("left", batch, length)
            got, expected = (f(ids, attention_mask=visible, use_cache=False).logits for f in (program.module(), theirs))
            close(got * visible[..., None], expected * visible[..., None])


def test_fake_models():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"](), attn_implementation="attend")
        result = model(torch.ones(2, 5, dtype=torch.long), output_attentions=True)
        assert result.logits.shape[:2] == (2, 5) and result.attentions[0].shape == (2, 4, 5, 5)


# ---- the operators ----


CASES = {
    "plain": {},
    "mask": dict(visible=torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.7),
    "bias and sinks": dict(bias=torch.randn(1, 4, 5, 7, dtype=torch.float64, requires_grad=True),
                           sinks=torch.randn(4, dtype=torch.float64, requires_grad=True), softcap=3.0),
    "dropout": dict(seed=torch.tensor(7), dropout=0.5, left=3, right=0),
}


def operator_inputs(case, requires_grad=True):
    q, k, v = (torch.randn(2, n, h, d, dtype=torch.float64, requires_grad=requires_grad)
               for n, h, d in ((5, 4, 8), (7, 2, 8), (7, 2, 6)))
    return q, k, v, *Options()._replace(**CASES[case])


@pytest.mark.parametrize("want_weights", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_opcheck(case, want_weights):
    torch.library.opcheck(attention_op, (*operator_inputs(case), want_weights))


@pytest.mark.parametrize("case", CASES)
def test_opcheck_of_the_gradients(case):
    q, k, v, *options = (x.detach() if isinstance(x, torch.Tensor) else x for x in operator_inputs(case))
    out, lse, *_ = attention_op(q, k, v, *options, False)
    torch.library.opcheck(attention_backward_op, (torch.randn_like(out), q, k, v, out, lse, *options, options[1] is not None),
                          test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))


@pytest.mark.parametrize("case", CASES)
def test_gradcheck_of_forward_and_reverse_mode(case):
    inputs = operator_inputs(case)
    rule = masks.causal()

    for want_weights in (False, True):
        def run(q, k, v, bias, sinks):
            options = Options(*inputs[3:])._replace(bias=bias, sinks=sinks)
            result = attend.hf.attend(rule if options.visible is None and options.right < 0 else None, q, k, v, options,
                                      want_weights)
            return tuple(x for x in result if x is not None)

        assert torch.autograd.gradcheck(run, (*inputs[:3], inputs[4], inputs[5]), check_forward_ad=True)
