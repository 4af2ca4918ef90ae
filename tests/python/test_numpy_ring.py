"""attend.ring under mpirun, where mpi4py and libattend_ring are (ATTEND_RING_LIBRARY), against plain NumPy and the layer on
one process."""

import ctypes
import ctypes.util
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attend.ring

SCRIPT = """
import numpy as np
from mpi4py import MPI
import attend, attend.ring

comm = MPI.COMM_WORLD
B, H, Hk, L, D = 1, 4, 2, 2 * comm.size * 9, 16
rng = np.random.default_rng(7)
q, dout = (rng.standard_normal((B, H, L, D)).astype(np.float32) for _ in range(2))
k, v = (rng.standard_normal((B, Hk, L, D)).astype(np.float32) for _ in range(2))

def plain(mask):
    kk, vv = (np.repeat(x.astype(np.float64), H // Hk, axis=1) for x in (k, v))
    s = np.where(mask, np.einsum("bhid,bhjd->bhij", q.astype(np.float64), kk) / np.sqrt(D), -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhij,bhjd->bhid", p / p.sum(-1, keepdims=True), vv)

i, j = np.arange(L)[:, None], np.arange(L)[None, :]
for sharding in ("contiguous", "zigzag"):
    mine = attend.ring.positions(comm.size, comm.rank, L, sharding)
    part = lambda x: np.ascontiguousarray(x[:, :, mine])
    for options, mask in ((dict(), j >= 0), (dict(causal=True), j <= i), (dict(causal=True, window=5), (j <= i) & (j >= i - 5)),
                          (dict(window=(3, None)), j >= i - 3)):
        out, lse = attend.ring.attention(comm, part(q), part(k), part(v), sharding=sharding, return_lse=True, **options)
        np.testing.assert_allclose(out, plain(mask)[:, :, mine], rtol=1e-4, atol=1e-5)
        got = attend.ring.attention_backward(comm, part(dout), part(q), part(k), part(v), out, lse, sharding=sharding, **options)
        whole = attend.causal() if options.get("causal") else attend.no_mask()
        if "window" in options:
            whole = attend.window(5, 0) if options.get("causal") else attend.window(3, -1)
        o, l = attend.attention(q, k, v, mask=whole, return_lse=True)
        want = attend.attention_backward(dout, q, k, v, o, l, mask=whole)
        for a, b in zip(got, (want.dq, want.dk, want.dv)):
            np.testing.assert_allclose(a, b[:, :, mine], rtol=1e-3, atol=1e-4)

# The layer: the same output and gradients as the whole layer on one process.
for dtype, close in (("f32", dict(rtol=1e-4, atol=1e-4)), ("bf16", dict(rtol=0.05, atol=0.1))):
    layer = attend.MultiHeadAttention(32, heads=4, kv_heads=2, qk_norm=True, qkv_bias=True, rope="half_split",
                                      dtype=dtype).initialise(5)
    kind = layer.parameters["wq"].dtype
    x, dy = (rng.standard_normal((2, L, 32)).astype(kind) for _ in range(2))
    want, kept = layer(x, mask=attend.causal(), save=True)
    wanted = layer.backward(dy, kept)
    for sharding in ("contiguous", "zigzag"):
        mine = attend.ring.positions(comm.size, comm.rank, L, sharding)
        y, saved = attend.ring.layer(comm, layer, x[:, mine], causal=True, sharding=sharding, save=True)
        got = attend.ring.layer_backward(comm, dy[:, mine], saved)
        floats = lambda a: np.asarray(a, np.float32)
        np.testing.assert_allclose(floats(y), floats(want)[:, mine], **close)
        np.testing.assert_allclose(floats(got.dx), floats(wanted.dx)[:, mine], **close)
        assert got.parameters.keys() == wanted.parameters.keys()
        for name, gradient in wanted.parameters.items():
            largest = np.abs(floats(gradient)).max()
            np.testing.assert_allclose(floats(got.parameters[name]), floats(gradient), rtol=close["rtol"],
                                       atol=close["rtol"] * largest, err_msg=name)
            assert comm.bcast(got.parameters[name].tobytes()) == got.parameters[name].tobytes(), name
try:
    attend.ring.layer(comm, attend.MultiHeadAttention(32, heads=4, inner=attend.inner.linear_attention()), x[:, mine])
except ValueError as error:
    assert "the layer has inner, expected none" in str(error), error
else:
    raise AssertionError("an inner attention was not refused")
try:
    attend.ring.attention(comm, part(q)[:, :, :3], part(k), part(v))
except ValueError as error:
    assert "k length is" in str(error), error
else:
    raise AssertionError("different lengths were not refused")
print("fine", comm.rank)
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_agrees_with_numpy(ranks):
    mpirun = shutil.which("mpirun")
    if mpirun is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("needs mpirun and mpi4py")
    if not (os.environ.get("ATTEND_RING_LIBRARY") or ctypes.util.find_library("attend_ring")):
        pytest.skip("needs libattend_ring: ATTEND_RING_LIBRARY")
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", ATTEND_THREADS="1",
                       OMPI_MCA_btl_vader_single_copy_mechanism="none")  # containers forbid it
    result = subprocess.run([mpirun, "--oversubscribe", "-n", str(ranks), sys.executable, "-m", "mpi4py", "-c", SCRIPT],
                            env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("fine") == ranks


@pytest.mark.parametrize("name", ["Tensor", "AttentionOptions", "RingOptions", "LayerConfig"])
def test_structs_are_those_of_the_headers(name, tmp_path):
    """The mirrors in ring.py have the fields of the C headers, in their order, at their places."""
    mirror = getattr(attend.ring, f"_{name}")
    c_name = "attend_" + "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")
    fields = [field for field, _ in mirror._fields_]
    places = "".join(f'printf("%zu %zu\\n", offsetof({c_name}, {field}), sizeof((({c_name}*)0)->{field}));' for field in fields)
    source = tmp_path / "places.c"
    source.write_text('#include <stdio.h>\n#include "attend/attend_ring.h"\n'
                      f'int main(void) {{ printf("%zu\\n", sizeof({c_name})); {places} return 0; }}')
    include = Path(__file__).parents[2] / "include"
    # Compiled, never linked with the library: _init is left out as nobody calls it.
    subprocess.run([os.environ.get("CC", "cc"), "-std=c99", "-O1", f"-I{include}", str(source), "-o", str(tmp_path / "places")],
                   check=True, timeout=60)
    size, *found = subprocess.run([str(tmp_path / "places")], capture_output=True, text=True, check=True).stdout.splitlines()
    assert int(size) == ctypes.sizeof(mirror)
    for field, line in zip(fields, found):
        assert line == f"{getattr(mirror, field).offset} {getattr(mirror, field).size}", field
