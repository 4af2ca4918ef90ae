"""Attention from Python over NumPy arrays: forward, backward, a packed batch of two documents.

python3 -m venv venv && venv/bin/pip install <this repository> && venv/bin/python examples/python/attention.py
"""

import numpy as np

import attend

rng = np.random.default_rng(0)
q = rng.standard_normal((1, 8, 1024, 64), dtype=np.float32)
k, v = (rng.standard_normal((1, 2, 1024, 64), dtype=np.float32) for _ in range(2))  # 4 query heads share a KV head

mask = attend.window(255, 0)
out, lse = attend.attention(q, k, v, mask=mask, return_lse=True)
dq, dk, dv, _, _ = attend.attention_backward(out, q, k, v, out, lse, mask=mask)
print(f"{attend.kernel_name()}: out {out.shape}, |dq| {np.abs(dq).max():.3f}")

# Two documents in one row of tokens do not see each other: the second is what it is alone.
documents = attend.segments([0, 512, 1024]) & attend.causal()
packed = attend.attention(q, k, v, mask=documents)
alone = attend.attention(q[:, :, 512:], k[:, :, 512:], v[:, :, 512:], mask=attend.causal())
print(f"a packed document differs from the document alone by {np.abs(packed[:, :, 512:] - alone).max():.1e}")
assert np.allclose(packed[:, :, 512:], alone, atol=1e-5)
