"""The C ABI for GPUs on a card: the bits that attend.torch and attend.flash_attn give, forward, backward, maps, caches.

usage: c_abi.py ./libattend.so    a shared library that was built with CUDA
"""

import ctypes
import sys
from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_size_t, c_void_p

import torch

import attend
import attend.torch
from attend.flash_attn import flash_attn_with_kvcache
from definition import check, draw, finish

library = ctypes.CDLL(sys.argv[1])
library.attend_last_error.restype = library.attend_cuda_why_not.restype = ctypes.c_char_p
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class Tensor(Structure):
    _fields_ = [("dtype", c_int32), ("data", c_void_p), ("shape", c_int64 * 4), ("strides", c_int64 * 4)]


class Options(Structure):  # an old program's: what it does not know of has its default
    _fields_ = [("struct_size", c_size_t), ("mask", c_void_p)]


class Gradients(Structure):
    _fields_ = [("struct_size", c_size_t)] + [(name, POINTER(Tensor)) for name in ("dq", "dk", "dv")]


class Pages(Structure):
    _fields_ = [("data", c_void_p), ("shape", c_int64 * 4), ("strides", c_int64 * 4), ("scales", c_void_p)]


class Cache(Structure):
    _fields_ = [("struct_size", c_size_t), ("format", c_int32), ("k", Pages), ("v", Pages), ("lengths", c_void_p),
                ("table", c_void_p), ("table_pages", c_int64), ("table_stride", c_int64)]


def view(t):
    return Tensor(DTYPES[t.dtype], t.data_ptr(), (c_int64 * 4)(*t.shape), (c_int64 * 4)(*t.stride()))


def call(name, *arguments):
    status = getattr(library, name)(*(byref(a) if isinstance(a, Structure) else a for a in arguments))
    check(name, status == 0, "" if status == 0 else library.attend_last_error().decode())


def init(struct, name):
    getattr(library, f"attend_{name}_init_sized")(byref(struct), c_size_t(ctypes.sizeof(struct)))
    return struct


def whole_calls(q, k, v, dout):
    options, mask = init(Options(), "attention_options"), c_void_p()
    call("attend_mask_causal", 1, byref(mask))
    options.mask = mask
    out, lse = torch.empty_like(q), torch.empty(*q.shape[:3], 1, device="cuda")
    stream = c_void_p(torch.cuda.current_stream().cuda_stream)
    call("attend_cuda_attention", view(q), view(k), view(v), view(out), options, view(lse), None, stream)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    right = attend.torch.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
    check("forward: the same bits", torch.equal(out, right))

    grads = [torch.empty_like(t) for t in (q, k, v)]
    views = [view(t) for t in grads]
    gradients = init(Gradients(), "attention_gradients")
    gradients.dq, gradients.dk, gradients.dv = (ctypes.pointer(t) for t in views)
    call("attend_cuda_attention_backward", view(dout), view(q), view(k), view(v), view(out), view(lse), gradients,
         options, 0, stream)
    right.backward(dout)
    check("backward: the same bits", all(torch.equal(a, b.grad) for a, b in zip(grads, leaves)))

    mass, peak = torch.empty(1, 1, 9, 7, device="cuda"), torch.empty(1, 1, 9, 7, device="cuda")
    call("attend_cuda_map", view(q), view(k), view(lse), c_int64(0), c_int64(1), None, view(mass), view(peak), options,
         stream)
    seen = attend.observe(q, k, mask=attend.causal(), lse=lse[..., 0]).map(1, 0, rows=9, cols=7)
    check("map: the same bits", torch.equal(mass[0, 0], seen.mass) and torch.equal(peak[0, 0], seen.peak))
    library.attend_mask_free(mask)


def caches():
    pages = [draw(40, 256, 2, 64, dtype=torch.bfloat16) for _ in range(2)]
    q = draw(2, 1, 8, 64, dtype=torch.bfloat16)
    lengths = torch.tensor([4000, 1700], dtype=torch.int32, device="cuda")
    table = torch.randperm(40, device="cuda").to(torch.int32).view(2, 20)
    cache = init(Cache(), "cuda_cache")
    for side, t in zip((cache.k, cache.v), pages):
        turned = t.transpose(1, 2)
        side.data, side.shape, side.strides = t.data_ptr(), (c_int64 * 4)(*turned.shape), (c_int64 * 4)(*turned.stride())
    cache.lengths, cache.table, cache.table_pages, cache.table_stride = lengths.data_ptr(), table.data_ptr(), 20, 20
    turned, out = q.transpose(1, 2), torch.empty_like(q)
    call("attend_cuda_cached_attention", view(turned), cache, view(out.transpose(1, 2)), None, None, None, c_int64(0),
         c_void_p(torch.cuda.current_stream().cuda_stream))
    right = flash_attn_with_kvcache(q, *pages, cache_seqlens=lengths, block_table=table)
    check("cache: the same bits", torch.equal(out, right))


check("available", library.attend_cuda_available() == 1, library.attend_cuda_why_not().decode())
for dtype, L, D in ((torch.bfloat16, 1000, 128), (torch.float16, 513, 64), (torch.bfloat16, 300, 192)):
    whole_calls(draw(2, 4, L, D, dtype=dtype), draw(2, 2, L, D, dtype=dtype), draw(2, 2, L, D, dtype=dtype),
                draw(2, 4, L, D, dtype=dtype))
if torch.cuda.get_device_capability() == (9, 0):
    caches()
finish()
