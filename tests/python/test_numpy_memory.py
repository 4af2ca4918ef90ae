"""Arrays of any memory: whatever the strides, nothing is copied, nothing changed, from any number of threads."""

import sys
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

import attend
from numpy_cases import DTYPES, on_grid, qkv, rng


def misaligned(x):
    memory = np.zeros(x.nbytes + 1, np.uint8)
    y = memory[1:1 + x.nbytes].view(x.dtype).reshape(x.shape)
    y[...] = x
    assert not y.flags.aligned or x.dtype.itemsize == 1
    return y


def record_field(x):
    """A field of packed records: its strides are no whole number of elements."""
    y = np.zeros(x.shape, np.dtype([("tag", np.uint8), ("x", x.dtype)]))["x"]
    y[...] = x
    return y


def read_only(x):
    y = x.copy()
    y.flags.writeable = False
    return y


def every_other(x):
    y = np.full(tuple(2 * n for n in x.shape), np.nan, x.dtype)[::2, ::2, ::2, ::2]
    y[...] = x
    return y


MEMORY = {
    "fortran": np.asfortranarray,
    "negative strides": lambda x: x[::-1, ::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1, ::-1],
    "every other": every_other,
    "turned": lambda x: np.ascontiguousarray(x.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0),
    "misaligned": misaligned,
    "field of a record": record_field,
    "read-only": read_only,
}


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_memory(memory, dtype):
    q, k, v = qkv(dtype=dtype)
    out, lse = attend.attention(q, k, v, attend.causal(), return_lse=True)
    dout = on_grid(rng(1), out.shape).astype(dtype)
    wanted = attend.attention_backward(dout, q, k, v, out, lse, attend.causal())
    turned = [MEMORY[memory](x) for x in (q, k, v)]
    before = [x.tobytes() for x in turned]
    got, got_lse = attend.attention(*turned, attend.causal(), return_lse=True)
    assert (got == out).all() and (got_lse == lse).all()
    gradients = attend.attention_backward(MEMORY[memory](dout), *turned, MEMORY[memory](out), lse, attend.causal())
    for a, b in zip(gradients[:3], wanted[:3]):
        assert (a == b).all()
    assert [x.tobytes() for x in turned] == before


def test_field_of_one_record():
    """Contiguous to NumPy, although the stride of its first dimension, of size 1, is no whole number of elements."""
    for x in qkv(1)[:1], on_grid(rng(1), (1, 1, 1, 1)).astype(np.float32)[None]:
        x = x[0]
        y = np.zeros(1, np.dtype([("x", x.dtype, x.shape[1:]), ("tag", np.uint8)]))["x"]
        y[...] = x
        assert y.strides[0] % y.itemsize and y.flags.c_contiguous
        assert (attend.attention(y, y, y) == attend.attention(x, x, x)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_repeated_memory(dtype):
    """Stride 0: one head of one sequence, seen as many."""
    q, k, v = qkv(1, 1, 1, dtype=dtype)
    repeated = [np.broadcast_to(x, (3, 4, *x.shape[2:])) for x in (q, k, v)]
    out, wanted = attend.attention(*repeated), attend.attention(q, k, v)
    assert out.shape[:2] == (3, 4) and (out == wanted).all()


def test_nothing_is_copied():
    """NumPy reports its memory to tracemalloc: a call may take that of its results and no more."""
    g = rng()
    q = g.standard_normal((1, 1, 2, 16), np.float32)
    k, v = (g.standard_normal((1, 2, 40000, 16), np.float32)[:, ::2, ::2] for _ in range(2))
    dout, mask = np.ones_like(q), attend.dense(np.ones((1, 1, 2, 20000), bool)[..., ::-1])
    out, lse = attend.attention(q, k, v, mask, return_lse=True)
    tracemalloc.start()
    try:
        attend.attention(q, k, v, mask)
        peak = tracemalloc.get_traced_memory()[1]
        assert peak < 100_000
        tracemalloc.reset_peak()
        attend.attention_backward(dout, q, k, v, out, lse, mask)
        assert tracemalloc.get_traced_memory()[1] - peak < 2 * k.nbytes + 200_000  # dk and dv
    finally:
        tracemalloc.stop()


def test_rows_gigabytes_apart(tmp_path):
    """Offsets beyond 2**31 elements, in a file that is nearly all hole: a copy would not go unnoticed."""
    rows, apart = 3, 2**30 + 8
    try:
        big = np.memmap(tmp_path / "keys", np.float16, "w+", shape=(2 * apart + 8,))
    except OSError as error:
        pytest.skip(f"no room for a sparse file: {error}")
    g = rng()
    q, k, v = (on_grid(g, (1, 1, n, 8)).astype(np.float16) for n in (2, rows, rows))
    spread = np.lib.stride_tricks.as_strided(big, (1, 1, rows, 8), (0, 0, 2 * apart, 2))
    spread[...] = k
    assert (attend.attention(q, spread, v) == attend.attention(q, k, v)).all()


def test_buffers_without_numpy():
    """Whatever speaks the buffer protocol."""
    q, k, v = qkv(dtype=np.float32)
    assert (attend.attention(memoryview(q), memoryview(k), memoryview(v)) == attend.attention(q, k, v)).all()


class OnlyDlpack:
    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **kwargs):
        return self.x.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


def test_dlpack():
    q, k, v = qkv(dtype=np.float32)
    assert (attend.attention(*map(OnlyDlpack, (q, k, v))) == attend.attention(q, k, v)).all()


def test_masks_keep_their_array():
    """A dense mask reads the caller's array, and keeps it alive."""
    q, k, v = qkv(1, 1, 1, 2, 3)
    bits = np.ones((2, 3), bool)
    mask = attend.dense(bits)
    bits[:, 0] = False
    assert (attend.attention(q, k, v, mask, return_weights=True)[1][..., 0] == 0).all()
    composed = attend.causal() & attend.dense(np.tril(np.ones((2, 3), bool))) & attend.no_mask()
    del bits, mask
    junk = [np.zeros((2, 3), bool) for _ in range(1000)]
    weights = attend.attention(q, k, v, composed, return_weights=True)[1]
    assert (weights[0, 0] > 0).tolist() == [[True, False, False], [True, True, False]] and junk


def test_a_mask_is_used_again_and_again():
    """Alone, with options and alone again: what one call made of the mask is not what another one sees."""
    q, k, v = qkv(1, 2, 2, 4, 4, dtype=np.float64)
    mask = attend.causal()
    alone = attend.attention(q, k, v, mask)
    for options in (dict(scale=0.5), dict(softcap=2.0), dict(dropout=0.5), dict(dropout=0.5, seed=3), dict(seed=3),
                    dict(bias=np.eye(4)), dict(sinks=np.ones(2)), dict(alibi_slopes=np.ones(2)),
                    dict(distance_bias=np.arange(7.0))):
        got = attend.attention(q, k, v, mask, **options)
        assert (got == attend.attention(q, k, v, attend.causal(), **options)).all()
        assert (got == alone).all() == (options == dict(seed=3))
        assert (attend.attention(q, k, v, mask) == alone).all()
    with pytest.raises(ValueError, match="align is 'x'"):
        attend.attention(q, k, v, mask, alibi_align="x")
    with pytest.raises(ValueError):  # of two calls without a mask, too, the second is its own
        attend.attention(q, k, v, softcap=-1.0)
    assert (attend.attention(q, k, v) == attend.attention(q, k, v, attend.no_mask())).all()


def test_a_mask_that_was_used_is_freed():
    """And the array that it reads with it."""
    q, k, v = qkv(1, 1, 1, 2, 3)
    bits = np.ones((2, 3), bool)
    freed = weakref.ref(bits)
    attend.attention(q, k, v, attend.dense(bits))
    mask = attend.causal() & attend.dense(bits)
    attend.attention(q, k, v, mask, scale=1.0)
    attend.attention(q, k, v, mask)
    del bits
    assert freed() is not None
    del mask
    assert freed() is None


# ---- Threads ----


def test_many_python_threads():
    """Sixteen threads at once, each with its own inputs, get the bits that one alone gets."""
    work = []
    for seed in range(16):
        q, k, v = qkv(2, 4, 2, 65, 65, 16, 16, seed=seed, dtype=np.float32)
        out, lse = attend.attention(q, k, v, attend.causal(), return_lse=True)
        work.append((q, k, v, out, lse, attend.attention_backward(out, q, k, v, out, lse, attend.causal())))
    failures, start = [], threading.Barrier(16)

    def run(q, k, v, out, lse, gradients):
        try:
            start.wait()
            for _ in range(20):
                got, got_lse = attend.attention(q, k, v, attend.causal(), return_lse=True)
                again = attend.attention_backward(out, q, k, v, out, lse, attend.causal())
                assert (got == out).all() and (got_lse == lse).all()
                assert all((a == b).all() for a, b in zip(again[:3], gradients[:3]))
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=item) for item in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_any_number_of_threads():
    q, k, v = qkv(2, 4, 2, 130, 1100, 32, 32, dtype=np.float32)
    before = attend.threads()
    results = []
    try:
        for count in (1, 2, 3, 7):
            attend.set_threads(count)
            assert attend.threads() == count
            out, lse = attend.attention(q, k, v, attend.causal(), return_lse=True)
            results.append((out, lse, *attend.attention_backward(out, q, k, v, out, lse, attend.causal())[:3]))
    finally:
        attend.set_threads(before)
    for other in results[1:]:
        assert all((a == b).all() for a, b in zip(results[0], other))
    for bad in (0, -1, 2**40, 1.5):
        with pytest.raises((TypeError, ValueError)):
            attend.set_threads(bad)
    assert attend.threads() == before


@pytest.mark.parametrize("operation", ["forward", "backward", "softmax", "rope"])
def test_gil_is_released(operation):
    """While one thread is inside a long call, this one goes on: it sees the call under way from Python."""
    q = on_grid(rng(), (1, 4, 1536, 64)).astype(np.float64 if operation == "forward" else np.float32)
    if operation == "forward":
        q = q[:, :, :400]
    wide = np.zeros((1, 1, 2000, 8000), np.float32)
    out, lse = attend.attention(q, q, q, return_lse=True)
    call = {"forward": lambda: attend.attention(q, q, q), "softmax": lambda: attend.softmax(wide),
            "backward": lambda: attend.attention_backward(out, q, q, q, out, lse),
            "rope": lambda: attend.rope(wide)}[operation]

    def steps_meanwhile():
        inside, done = threading.Event(), threading.Event()

        def run():
            inside.set()
            call()
            done.set()

        thread = threading.Thread(target=run)
        thread.start()
        inside.wait()
        steps = 0
        while not done.is_set():
            steps += 1
            done.wait(0.0005)
        thread.join()
        return steps

    previous = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # no thread is forced to give up the GIL: only a release lets the other thread run
    try:
        # On a loaded machine this thread may not run during one call. Without a release it runs during none.
        assert any(steps_meanwhile() > 3 for _ in range(100))
    finally:
        sys.setswitchinterval(previous)
