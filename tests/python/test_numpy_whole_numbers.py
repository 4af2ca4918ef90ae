"""Whole numbers as arguments: a fraction is refused by name, never cut off."""

import numpy as np
import pytest

import attend
from numpy_cases import qkv

Q, K, V = qkv(dtype=np.float32)
X = np.ones((1, 1, 4, 8), np.float32)
TABLE = np.ones((32, 4), np.float32)
LATENT = dict(kv_rank=8, nope_dim=8, rope_dim=4, value_dim=8)
BAD = {
    "window": ("left", lambda n: attend.window(n, -1)),
    "window, right": ("right", lambda n: attend.window(1, n)),
    "padding": ("lengths", lambda n: attend.padding([n])),
    "blocks": ("block_queries", lambda n: attend.blocks(np.ones((2, 2)), n, 2)),
    "offsets": ("offsets", lambda n: attend.causal(offsets=n)),
    "chunks": ("size", lambda n: attend.chunks(n)),
    "dilated": ("step", lambda n: attend.dilated(n)),
    "columns": ("count", lambda n: attend.columns(4, 1, n)),
    "strided": ("stride", lambda n: attend.strided(n)),
    "fixed": ("columns", lambda n: attend.fixed(4, n)),
    "longformer": ("window", lambda n: attend.longformer(n)),
    "streaming": ("sinks", lambda n: attend.streaming(n, 4)),
    "bigbird": ("seed", lambda n: attend.bigbird(256, seed=n)),
    "block_permutation": ("blocks", lambda n: attend.block_permutation(8, blocks=n)),
    "seed": ("seed", lambda n: attend.attention(Q, K, V, dropout=0.5, seed=n)),
    "seed of backward": ("seed", lambda n: attend.attention_backward(Q[..., :6], Q, K, V, Q[..., :6], Q[..., 0], dropout=0.5,
                                                                     seed=n)),
    "layer": ("heads", lambda n: attend.MultiHeadAttention(64, n)),
    "layer, value_rank": ("value_rank", lambda n: attend.MultiHeadAttention(64, 4, value_rank=n)),
    "initialise": ("seed", lambda n: attend.MultiHeadAttention(64, 4).initialise(n)),
    "cache": ("capacity", lambda n: attend.MultiHeadAttention(64, 4).cache(1, n)),
    "block": ("hidden", lambda n: attend.TransformerBlock(64, 4, hidden=n)),
    "block at once": ("block", lambda n: attend.TransformerBlock(8, 1)(X[0], block=n)),
    "latent": ("width", lambda n: attend.LatentAttention(n, 2, **LATENT)),
    "rope": ("first_position", lambda n: attend.rope(X, first_position=n)),
    "rope, rotary_dim": ("rotary_dim", lambda n: attend.rope(X, rotary_dim=n)),
    "rope, positions": ("positions", lambda n: attend.rope(X, [n] * 4)),
    "rope_frequencies": ("rotary_dim", lambda n: attend.rope_frequencies(n)),
    "scaling": ("original_length", lambda n: attend.RopeScaling("yarn", 4, n)),
    "sinusoidal": ("dim", lambda n: attend.sinusoidal(4, n)),
    "add_positions": ("first_position", lambda n: attend.add_positions(X, TABLE[:, :4].repeat(2, 1), first_position=n)),
    "alibi_slopes": ("heads", lambda n: attend.alibi_slopes(n)),
    "t5_bucket": ("distance", lambda n: attend.t5_bucket(n)),
    "t5_bias": ("queries", lambda n: attend.t5_bias(TABLE, n, 4)),
    "reformer": ("rounds", lambda n: attend.reformer(X, X, rounds=n)),
    "reformer, buckets": ("buckets", lambda n: attend.reformer(X, X, buckets=[n])),
    "linear_attention": ("lengths", lambda n: attend.linear_attention(X, X, X, lengths=[n])),
    "inner": ("rank", lambda n: attend.inner.linformer(length=16, rank=n)),
}


@pytest.mark.parametrize("number", [1.5, 2.0, np.float32(1.9), "2", float("nan")])
@pytest.mark.parametrize("case", BAD)
def test_fractions_are_refused_by_name(case, number):
    name, call = BAD[case]
    with pytest.raises(TypeError, match=name):
        call(number)


@pytest.mark.parametrize("number", [2, np.int32(2), np.uint8(2), np.array(2)])
def test_whole_numbers_of_any_kind(number):
    out = attend.attention(Q, K, V, attend.window(number, -1), dropout=0.5, seed=number)
    assert np.array_equal(out, attend.attention(Q, K, V, attend.window(2, -1), dropout=0.5, seed=2))


def test_what_takes_memory_has_a_bound():
    for rotary_dim in (2**62, 2**21, 2**40):
        with pytest.raises(ValueError, match="rotary_dim is .*, expected an even number from 0 to 1048576"):
            attend.rope_frequencies(rotary_dim)
    assert len(attend.rope_frequencies(2**20)[0]) == 2**19
