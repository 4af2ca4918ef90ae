"""attend.linear_attention on NumPy arrays, against its recurrence in plain NumPy."""

import numpy as np
import pytest

import attend
from numpy_cases import DTYPES, close, on_grid, rng


def phi(x, name):
    if name == "elu+1":
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
    return np.maximum(x, 0) if name == "relu" else x


def recurrence(q, k, v, feature_map="elu+1", causal=True, normalise=True, scale=1.0, log_decay=None, beta=None,
               lengths=None, initial_state=None):
    """float64, a token at a time; one state for each query head."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    B, H, M, D = q.shape
    N, E, group = k.shape[2], v.shape[3], H // k.shape[1]
    k, v, q = (phi(np.repeat(k, group, 1), feature_map), np.repeat(v, group, 1), phi(q, feature_map))
    if normalise:
        v = np.concatenate([v, np.ones((B, H, N, 1))], -1)

    def spread(x):
        x = np.asarray(x, np.float64)
        x = x.reshape((1,) * (x.ndim == 1) + x.shape + (1,) * (3 - max(2, x.ndim)))
        return np.broadcast_to(np.repeat(x, H // x.shape[1], 1), (B, H, N))

    decay = np.exp(spread(log_decay)) if log_decay is not None else np.ones((B, H, N))
    state = np.zeros((B, H, D, v.shape[3])) if initial_state is None else \
        np.repeat(np.asarray(initial_state, np.float64), H // initial_state.shape[1], 1)
    out = np.zeros((B, H, M, v.shape[3]))
    for t in range(N):
        seen = np.ones(B, bool) if lengths is None else t < np.asarray(lengths)
        old, state = state, state * decay[:, :, t, None, None]
        u = v[:, :, t]
        if beta is not None:
            u = spread(beta)[:, :, t, None] * (u - np.einsum("bhde,bhd->bhe", state, k[:, :, t]))
        state = np.where(seen[:, None, None, None], state + k[:, :, t, :, None] * u[:, :, None, :], old)
        if causal:
            out[:, :, t] = np.einsum("bhde,bhd->bhe", state, q[:, :, t])
    if not causal:
        out = np.einsum("bhde,bhmd->bhme", state, q)
    if normalise:
        den = out[..., -1:]
        out = np.divide(out[..., :-1], den, out=np.zeros_like(out[..., :-1]), where=den != 0)
    return scale * out, state[:, ::group]


B, H, HK, N, D, E = 2, 4, 2, 70, 8, 6
DECAYS = -np.abs(on_grid(rng(3), (B, HK, N))) / 4
BETAS = np.abs(on_grid(rng(4), (B, HK, N))) / 2
PLAIN = {"feature_map": "identity", "normalise": False}
CASES = {
    "causal": {},
    "relu": {"feature_map": "relu"},
    "full": {"causal": False},
    "full padding": {"causal": False, "lengths": [70, 10]},
    "padding": {"lengths": [3, 70]},
    "scale": {"scale": 0.5},
    "retention": {**PLAIN, "log_decay": np.log([0.9, 0.99])},
    "retention by query head": {**PLAIN, "log_decay": np.log([0.9, 0.99, 0.5, 1.0])},
    "by batch": {"log_decay": DECAYS[:, :, 0]},
    "gated": {"log_decay": DECAYS},
    "delta": {**PLAIN, "beta": BETAS},
    "gated delta": {**PLAIN, "beta": BETAS, "log_decay": DECAYS},
}


def arrays(name, dtype=np.float64):
    g = rng(1)
    small = 8.0 if "delta" in name else 1.0  # keys shorter than 1
    shapes = ((B, H, N, D), (B, HK, N, D), (B, HK, N, E), (B, H, N, E))
    # None is 0, where ReLU has no gradient.
    return tuple(((on_grid(g, shape) + 1 / 64) / size).astype(dtype) for shape, size in zip(shapes, (1, small, 1, 1)))


def as_dtype(options, dtype):
    return {name: x.astype(dtype) if isinstance(x, np.ndarray) else x for name, x in options.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_forward(name, dtype):
    q, k, v, _ = arrays(name, dtype)
    options = as_dtype(CASES[name], dtype)
    got = attend.linear_attention(q, k, v, **options)
    wanted, _ = recurrence(q, k, v, **options)
    assert got.dtype == q.dtype
    close(got, wanted)
    other = attend.linear_attention(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)), layout="blhd", **options)
    assert (other.transpose(0, 2, 1, 3) == got).all()


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    q, k, v, dout = arrays(name)
    options = CASES[name]
    g = attend.linear_attention_backward(dout, q, k, v, **options)
    given = {"q": q, "k": k, "v": v, **{n: options[n] for n in ("log_decay", "beta") if n in options}}
    for key in ("log_decay", "beta"):
        assert (getattr(g, "d" + key) is None) == (key not in options)

    def loss(**changed):
        values = {**options, **given, **changed}
        return (recurrence(**values)[0] * dout).sum()

    step = 1e-5
    for key, x in given.items():
        direction = rng(9).standard_normal(x.shape)
        if key == "log_decay":
            direction = -np.abs(direction)
        numeric = (loss(**{key: x + step * direction}) - loss(**{key: x - step * direction})) / (2 * step)
        got = (getattr(g, "d" + key) * direction).sum()
        assert abs(got - numeric) <= 1e-5 * max(1.0, abs(numeric)), key
        single = as_dtype({n: np.asarray(y) for n, y in {**given, "dout": dout}.items()}, np.float32)
        rest = {n: y for n, y in options.items() if n not in single}
        close(getattr(attend.linear_attention_backward(**single, **rest), "d" + key), getattr(g, "d" + key), factor=4)


@pytest.mark.parametrize("name", [n for n in CASES if "full" not in n and n != "padding"])
def test_pieces_and_steps(name):
    q, k, v, _ = arrays(name, np.float32)
    options = as_dtype(CASES[name], np.float32)
    cut = lambda x, a, b: x[:, :, a:b]  # noqa: E731

    def at(a, b):
        return {n: cut(x, a, b) if isinstance(x, np.ndarray) and x.ndim == 3 else x for n, x in options.items()}

    whole, last = attend.linear_attention(q, k, v, return_state=True, **options)
    first, state = attend.linear_attention(*(cut(x, 0, 64) for x in (q, k, v)), return_state=True, **at(0, 64))
    assert (first == whole[:, :, :64]).all()
    kept = state.copy()
    rest, end = attend.linear_attention(*(cut(x, 64, N) for x in (q, k, v)), initial_state=state, return_state=True,
                                        **at(64, N))
    assert (rest == whole[:, :, 64:]).all() and (end == last).all() and (state == kept).all()
    for t in range(64, N):
        out = attend.linear_attention_step(*(cut(x, t, t + 1) for x in (q, k, v)), state, **at(t, t + 1))
        close(out[:, :, 0], whole[:, :, t])
    close(state, last)
    close(last, recurrence(q, k, v, **options)[1] if last.shape[1] == HK else last)


def test_gradient_of_the_states():
    q, k, v, dout = arrays("gated delta")
    options = {**PLAIN, "beta": BETAS, "log_decay": DECAYS}
    state, dlast = (rng(n).standard_normal((B, HK, D, E)) for n in (5, 6))
    g = attend.linear_attention_backward(dout, q, k, v, initial_state=state, dfinal_state=dlast, **options)
    direction = rng(7).standard_normal(state.shape)

    def loss(x):
        out, last = recurrence(q, k, v, initial_state=x, **options)
        return (out * dout).sum() + (last * dlast).sum()

    numeric = loss(state + direction) - loss(state)  # linear in the state
    np.testing.assert_allclose((g.dinitial_state * direction).sum(), numeric, rtol=1e-9)


def test_the_state_kept_for_backward():
    q, k, v, dout = arrays("full", np.float32)
    _, state = attend.linear_attention(q, k, v, causal=False, return_state=True)
    kept = attend.linear_attention_backward(dout, q, k, v, causal=False, final_state=state)
    for got, wanted in zip(kept[:3], attend.linear_attention_backward(dout, q, k, v, causal=False)[:3]):
        assert (got == wanted).all()


def test_bad_arguments():
    q, k, v, _ = arrays("causal", np.float32)
    with pytest.raises(ValueError, match='feature_map is softmax, expected "elu\\+1"'):
        attend.linear_attention(q, k, v, feature_map="softmax")
    with pytest.raises(ValueError, match="k length is 60, expected 70"):
        attend.linear_attention(q, k[:, :, :60], v[:, :, :60])
    with pytest.raises(ValueError, match="log_decay holds 0.5"):
        attend.linear_attention(q, k, v, log_decay=np.full(4, 0.5))
    with pytest.raises(ValueError, match="log_decay has 4 dimensions"):
        attend.linear_attention(q, k, v, log_decay=np.zeros((1, 1, 1, 1)))
    with pytest.raises(ValueError, match="normalise is on with beta"):
        attend.linear_attention(q, k, v, beta=BETAS)
    state = np.zeros((B, HK, D, E + 1), np.float32)
    state.flags.writeable = False
    with pytest.raises(ValueError, match="state is read-only"):
        attend.linear_attention_step(q, k, v, state)
