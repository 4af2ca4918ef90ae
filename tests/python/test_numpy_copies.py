"""Pickle, copy and deepcopy of masks, options and layers."""

import copy
import pickle

import numpy as np
import pytest

import attend
from numpy_cases import needs_bfloat16, on_grid, qkv, rng

WAYS = {"pickle": lambda x: pickle.loads(pickle.dumps(x)), "deepcopy": copy.deepcopy, "copy": copy.copy,
        **{f"pickle protocol {n}": lambda x, n=n: pickle.loads(pickle.dumps(x, n)) for n in range(2, 6)}}

MASKS = {
    "none": attend.no_mask(),
    "causal": attend.causal(),
    "first key": attend.causal("first_key"),
    "offsets": attend.causal(offsets=[1, 2]),
    "window": attend.window(2, 1),
    "padding": attend.padding([3, 5]),
    "left padding": attend.left_padding([1, 2]),
    "prefix": attend.prefix([2, 3]),
    "segments": attend.segments([0, 2, 5], [0, 3, 7]),
    "blocks": attend.blocks(np.eye(3, 4) > 0, 2, 2),
    "dense": attend.dense(np.arange(35).reshape(5, 7) % 3 > 0),
    "chunks": attend.chunks(3),
    "dilated": attend.dilated(2),
    "columns": attend.columns(3, 1),
    "tokens": attend.tokens([0, 4]),
    "global": attend.global_tokens([1]),
    "strided": attend.strided(2),
    "fixed": attend.fixed(3, 1),
    "longformer": attend.longformer(1, global_positions=[0]),
    "streaming": attend.streaming(1, 2),
    "bigbird": attend.bigbird(5, 7, block=2, seed=3, random_blocks=1),
    "permutation": attend.block_permutation(5, 7, permutations=[[1, 2, 0]]),
    "random permutation": attend.block_permutation(5, 7, blocks=3, heads=4, seed=2),
    "composed": ~(attend.causal() & attend.dense(np.arange(7) % 2 > 0)) | attend.window(1, 1),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MASKS)
def test_masks(name, way):
    q, k, v = qkv(dtype=np.float32)
    mask = WAYS[way](MASKS[name])
    assert type(mask) is attend.Mask
    assert np.array_equal(attend.attention(q, k, v, mask), attend.attention(q, k, v, MASKS[name]))
    assert np.array_equal(attend.attention(q, k, v, mask & attend.padding(6)),
                          attend.attention(q, k, v, MASKS[name] & attend.padding(6)))


def test_a_deep_copy_of_a_dense_mask_has_an_array_of_its_own():
    visible = np.ones((5, 7), bool)
    mask = attend.dense(visible)
    twin = copy.deepcopy(mask)
    visible[:, 3:] = False
    q, k, v = qkv(dtype=np.float32)
    assert np.array_equal(attend.attention(q, k, v, twin), attend.attention(q, k, v))
    assert np.array_equal(attend.attention(q, k, v, mask), attend.attention(q, k, v, attend.padding(3)))


def test_masks_do_not_keep_themselves_alive():
    import gc
    import weakref

    class Watched(np.ndarray):
        pass

    visible = np.ones((5, 7), bool).view(Watched)
    watch = weakref.ref(visible)
    mask = attend.dense(visible) & attend.causal()
    attend.attention(*qkv(dtype=np.float32), mask)  # the mask keeps the options of this call
    del visible, mask
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scaling", [
    attend.RopeScaling("linear", 4), attend.RopeScaling("llama3", 8, 8192, low_frequency=2, high_frequency=6),
    attend.RopeScaling("yarn", 4, 4096, beta_fast=16, truncate=False, mscale=0.7, mscale_all_dim=1.2),
    attend.RopeScaling("yarn", 4, 4096, attention_factor=1.5)])
def test_rope_scaling(scaling, way):
    twin = WAYS[way](scaling)
    assert type(twin) is attend.RopeScaling
    for a, b in zip(attend.rope_frequencies(64, scaling=twin), attend.rope_frequencies(64, scaling=scaling)):
        assert np.array_equal(a, b)


INNER = {
    "none": lambda: None,
    "linear": lambda: attend.inner.linear_attention(log_decay=np.full(4, -0.1, np.float32)),
    "linformer": lambda: attend.inner.linformer(length=16, rank=4, seed=3),
    "reformer": lambda: attend.inner.reformer(chunk=4, seed=1),
    "adaptive span": lambda: attend.inner.adaptive_span(heads=4, initial_span=3),
    "additive": lambda: attend.inner.additive_attention(4, 8, mask=attend.dense(np.tri(9, dtype=bool))),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("inner", INNER)
def test_layers(inner, way):
    layer = attend.MultiHeadAttention(32, heads=4, qkv_bias=True, qk_norm=inner == "none", inner=INNER[inner](),
                                      rope="half_split", rope_scaling=attend.RopeScaling("linear", 2)).initialise(7)
    if layer.inner is not None:
        for array in layer.inner.parameters.values():
            array += 0.25
    x = on_grid(rng(), (2, 9, 32)).astype(np.float32)
    before = layer(x)
    twin = WAYS[way](layer)
    assert np.array_equal(twin(x), before)
    assert twin.parameters.keys() == layer.parameters.keys()
    for name, array in layer.parameters.items():  # and memory of its own
        array[...] = 0
    if layer.inner is not None:
        for array in layer.inner.parameters.values():
            array[...] = 0
    assert np.array_equal(twin(x), before) or (way == "copy" and inner != "none")  # a shallow copy shares what is inside


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "f64", pytest.param("bf16", marks=needs_bfloat16)])
def test_layers_of_any_dtype(dtype, way):
    for layer in (attend.MultiHeadAttention(32, heads=4, dtype=dtype).initialise(1),
                  attend.TransformerBlock(32, heads=4, kv_heads=2, feed_forward="gelu", dtype=dtype).initialise(2),
                  attend.LatentAttention(32, heads=4, kv_rank=8, nope_dim=8, rope_dim=4, value_dim=8,
                                         dtype=dtype).initialise(3)):
        twin = WAYS[way](layer)
        assert type(twin) is type(layer) and twin.dtype == dtype
        for name, array in layer.parameters.items():
            assert np.array_equal(twin.parameters[name], array)
            array[...] = 0
            assert twin.parameters[name].any()


class Named(attend.MultiHeadAttention):
    def __init__(self, name):
        super().__init__(16, heads=2)
        self.name = name


def test_a_layer_of_ones_own_class():
    twin = pickle.loads(pickle.dumps(Named("mine").initialise(3)))
    assert type(twin) is Named and twin.name == "mine" and twin.parameters["wq"].any()
