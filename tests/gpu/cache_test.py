"""flash_attn_with_kvcache on CUDA tensors: pages, int8 and fp8, against arithmetic in float64 and against the kernels
without a cache; the same bits; graphs that are replayed with other lengths; what lies outside.

usage: cache_test.py [--plain] [--cover]    definition.py says what they do; the plain kernels have none of it, and refuse it
"""

import copy
import gc

import torch

import attend
from attend.flash_attn import flash_attn_with_kvcache
from definition import check, draw, near, plain, run, truth

INT8, FP8 = torch.int8, torch.float8_e4m3fn
NAMES = {INT8: " int8", FP8: " fp8"}


def filled(shape, dtype):
    """Memory in which every place that is read by mistake shows: NaN, or -1."""
    return torch.full((torch.Size(shape).numel() * dtype.itemsize,), 0xFF, dtype=torch.uint8,
                      device="cuda").view(dtype).view(shape)


class Cache:
    """Pages in any order, or a row for each sequence where `page` is 0; filled by the engine itself, in two steps."""

    def __init__(self, k, v, lengths, page, stored, room=0, by_head=False, growing=False):
        B, longest, Hk, D = k.shape
        self.capacity = longest + room
        self.page = page or self.capacity
        width = -(-self.capacity // self.page)
        pages = B * width + 3 if page else B
        self.k, self.v = (filled((pages, self.page, Hk, x.shape[3]), stored) for x in (k, v))
        self.scales = [None, None]
        if stored in NAMES:
            self.scales = [torch.full((pages, self.page, Hk), float("nan"), device="cuda") for _ in range(2)]
            if by_head:
                self.scales = [torch.linspace(0.005, 0.01, Hk, device="cuda") for _ in range(2)]
        self.table = torch.randperm(pages, device="cuda", dtype=torch.int32)[: B * width].view(B, width) if page else None
        if page and not growing:  # what is not in use lies far outside
            self.spare = next(n for n in range(pages) if n not in self.table.flatten().tolist())
            used = torch.arange(width, device="cuda") * page < torch.tensor(lengths, device="cuda")[:, None]
            self.table = torch.where(used, self.table, 1 << 30).int()
        for b, n in enumerate(lengths):
            for first, last in ((0, max(n - 3, 0)), (max(n - 3, 0), n)):
                if last > first:
                    at = torch.tensor([first], dtype=torch.int32, device="cuda")
                    self.call(k[b : b + 1, :1], at, b, k=k[b : b + 1, first:last], v=v[b : b + 1, first:last])

    def clone(self):
        other = copy.copy(self)
        other.k, other.v = self.k.clone(), self.v.clone()
        other.scales = [None if x is None else x.clone() for x in self.scales]
        return other

    def call(self, q, lengths, b=None, **options):
        """Of all sequences, or of b alone."""
        part = slice(None) if b is None else slice(b, b + 1)
        where = {"block_table": self.table[part]} if self.table is not None else {}
        if self.table is None and b is not None:
            where = {"cache_batch_idx": torch.tensor([b], dtype=torch.int32, device="cuda")}
        return flash_attn_with_kvcache(q, self.k, self.v, cache_seqlens=lengths, k_descale=self.scales[0],
                                       v_descale=self.scales[1], return_softmax_lse=True, **where, **options)

    def read(self, side, b, n):
        """The first n tokens of sequence b as numbers, [n, heads, dim]."""
        at = torch.arange(n, device="cuda")
        page = self.table[b].long()[at // self.page] if self.table is not None else torch.full_like(at, b)
        x = (self.k, self.v)[side][page, at % self.page].double()
        scales = self.scales[side]
        if scales is None:
            return x
        return x * (scales[:, None] if scales.dim() == 1 else scales[page, at % self.page][..., None]).double()


def cache_case(name, H, Hk, M, D, lengths, E=None, dtype=torch.bfloat16, stored=None, page=64, window=(-1, -1),
               causal=False, softcap=0.0, slopes=None, room=0, by_head=False, far=None, scale=None):
    name, B, stored = f"D{D} {name}{NAMES.get(stored, '')}", len(lengths), stored or dtype
    q, k, v = draw(B, M, H, D, dtype=dtype), draw(B, max(lengths), Hk, D, dtype=dtype), draw(B, max(lengths), Hk, E or D, dtype=dtype)
    cache = Cache(k, v, lengths, page, stored, room, by_head)
    if far is not None:  # the values' scales lie far apart, around 2^far, and are of both signs
        cache.scales[1] *= torch.exp2(far + torch.randint(-8, 9, cache.scales[1].shape, device="cuda"))
        cache.scales[1][:, ::7] *= -1
    options = dict(window_size=window, causal=causal, softcap=softcap, alibi_slopes=slopes, softmax_scale=scale)
    at = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    out, lse = cache.call(q, at, **options)
    right = 0 if causal else window[1]
    rules = {"window": (window[0] if window[0] >= 0 else 1 << 40, right if right >= 0 else 1 << 40)}
    for b, n in enumerate(lengths):
        keys, values = (cache.read(side, b, n).transpose(0, 1)[None] for side in (0, 1))
        wide = truth(q[b : b + 1].double().transpose(1, 2), keys, values, softcap=softcap, scale=scale,
                          slopes=slopes.double() if slopes is not None else None, **rules)
        near(f"{name}: sequence {b}", out[b : b + 1].transpose(1, 2), wide[0], wide[2], dtype)
        finite = torch.isfinite(wide[1])
        check(f"{name}: lse {b}", torch.equal(finite, torch.isfinite(lse[b : b + 1]))
              and bool(((lse[b : b + 1].double() - wide[1])[finite].abs() <= 1e-3 + 1e-6 * wide[1][finite].abs()).all()))
        alone, _ = cache.call(q[b : b + 1], at[b : b + 1], b, **options)
        check(f"{name}: the same bits alone", torch.equal(alone[0], out[b]))
        if stored is dtype and M * H // Hk <= 8 and n > 128 and not softcap and slopes is None and scale is None:
            mask = attend.window(*window) if window[0] >= 0 else attend.causal() if causal else None
            plain = attend.attention(q[b : b + 1].transpose(1, 2).contiguous(), keys.to(dtype), values.to(dtype), mask=mask)
            check(f"{name}: the bits without a cache", torch.equal(plain[0], out[b].transpose(0, 1)))
    other = q.clone()
    other[:, :, 0] *= -30
    check(f"{name}: the same bits beside another head", torch.equal(cache.call(other, at, **options)[0][:, :, 1:], out[:, :, 1:]))
    if window[0] >= 0 and page:  # what became of pages before the window
        ends = (torch.arange(cache.table.shape[1], device="cuda") + 1) * page
        cache.table = torch.where(ends <= (at - M - window[0])[:, None], cache.spare, cache.table).int()
        check(f"{name}: pages before the window are not read", torch.equal(cache.call(q, at, **options)[0], out))


def cases():
    for D in (64, 128, 256):
        for stored in (None, INT8, FP8):
            for dtype in (torch.bfloat16, torch.float16):
                cache_case(f"{dtype} pages", 8, 2, 1, D, [3000, 700, 129, 1], dtype=dtype, stored=stored)
            cache_case("pages of 16, window", 8, 2, 1, D, [3000, 20], stored=stored, page=16, window=(300, 0), room=5000)
            cache_case("rows of a cache", 8, 2, 1, D, [1111, 60], stored=stored, page=0)
            cache_case("a long one", 4, 1, 1, D, [150000, 10], stored=stored, page=256)
            cache_case("many sequences", 8, 4, 1, D, [(37 * n) % 900 for n in range(70)], stored=stored, page=48)
            cache_case("causal, two queries", 8, 2, 2, D, [5000, 1], stored=stored, causal=True)
            cache_case("rows in groups", 24, 2, 5, D, [900, 3], stored=stored, causal=True)
            cache_case("soft cap and ALiBi", 8, 2, 1, D, [900, 0], stored=stored, softcap=3.0,
                       slopes=torch.rand(8, device="cuda"))
            cache_case("a negative scale", 8, 2, 1, D, [900, 77], stored=stored, scale=-0.2)
            cache_case("a huge scale", 8, 2, 1, D, [900, 77], stored=stored, scale=1e12)
        for far in (-80, 0, 70):
            for stored in (INT8, FP8):
                cache_case("scales far apart", 8, 2, 1, D, [3000, 77], stored=stored, far=far)
        cache_case("a scale for each head", 8, 2, 1, D, [900, 77], stored=FP8, by_head=True)
    for D, E in ((40, 72), (192, 128), (64, 256), (8, 8)):
        for stored in (None, INT8, FP8):
            if stored is None or (D % 16 == 0 and E % 16 == 0):
                cache_case(f"E{E}", 8, 2, 1, D, [500, 44], E=E, stored=stored)


def expanded_table():
    """Of one row for all sequences, which an expanded tensor says."""
    q, pages, at = draw(2, 1, 8, 64), draw(4, 64, 2, 64), torch.tensor([250, 100], dtype=torch.int32, device="cuda")
    table = torch.arange(4, dtype=torch.int32, device="cuda")[None].expand(2, -1)
    out = flash_attn_with_kvcache(q, pages, pages, cache_seqlens=at, block_table=table)
    right = flash_attn_with_kvcache(q, pages, pages, cache_seqlens=at, block_table=table.contiguous())
    check("an expanded table", torch.equal(out, right))


def rotary_case():
    """As the CPU turns them."""
    B, M, H, Hk, D = 2, 1, 4, 2, 64
    cos, sin = torch.rand(300, 16, device="cuda").bfloat16(), torch.rand(300, 16, device="cuda").bfloat16()
    q, k, v = draw(B, M, H, D), draw(B, 1, Hk, D), draw(B, 1, Hk, D)
    k_cache, v_cache = draw(B, 256, Hk, D), draw(B, 256, Hk, D)
    lengths = torch.tensor([100, 7], dtype=torch.int32, device="cuda")
    theirs = [x.cpu() for x in (q, k_cache, v_cache, k, v, cos, sin, lengths)]
    expected = flash_attn_with_kvcache(*theirs[:5], rotary_cos=theirs[5], rotary_sin=theirs[6], cache_seqlens=theirs[7], causal=True)
    out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, rotary_cos=cos, rotary_sin=sin, cache_seqlens=lengths, causal=True)
    check("rotary: the cache", torch.equal(k_cache.cpu(), theirs[1]) and torch.equal(v_cache.cpu(), theirs[2]))
    check("rotary", ((out.cpu().float() - expected.float()).norm() / expected.float().norm()).item() < 5e-3)


def graph_case(stored):
    """A step of decoding, captured once: new tokens, lengths that move."""
    B, H, Hk, D, dtype = 3, 8, 2, 128, torch.bfloat16
    lengths = [900, 130, 5]
    k, v = draw(B, 1000, Hk, D), draw(B, 1000, Hk, D)
    captured = Cache(k, v, lengths, 64, stored or dtype, room=200, growing=True)
    eager = captured.clone()
    at = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    q, new_k, new_v = draw(B, 1, H, D), draw(B, 1, Hk, D), draw(B, 1, Hk, D)
    warm = at.clone()
    captured.call(q, warm)  # kernels are loaded outside
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = captured.call(q, at, k=new_k, v=new_v, causal=True)
        at.add_(1)
    moved = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    for step in range(40):
        for x in (q, new_k, new_v):
            x.copy_(draw(*x.shape))
        if step == 20:  # one ends, another begins
            at[1], moved[1] = 0, 0
        graph.replay()
        expected, _ = eager.call(q, moved, k=new_k, v=new_v, causal=True)
        moved += 1
        check(f"graph{NAMES.get(stored, '')}, step {step}", torch.equal(out, expected) and torch.equal(at, moved))


def many_graphs():
    """More launches captured, and given back, than there are counters at once."""
    q = draw(1, 1, 128, 64)
    attend.attention(q, q, q)
    for _ in range(60):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(50):
                out = attend.attention(q, q, q)
        graph.replay()
        del graph
        gc.collect()
    torch.cuda.synchronize()
    check("3,000 captured launches", torch.equal(out, attend.attention(q, q, q)))


def hostile():
    for stored in (None, INT8, FP8):
        name = f"hostile{NAMES.get(stored, '')}"
        k, v, q = draw(2, 200, 2, 64), draw(2, 200, 2, 64), draw(2, 1, 8, 64)
        cache = Cache(k, v, [200, 100], 16, stored or torch.bfloat16)
        at = torch.tensor([200, 100], dtype=torch.int32, device="cuda")
        right, _ = cache.call(q, at)
        _, lse = cache.call(q, torch.tensor([2**31 - 1, -5], dtype=torch.int32, device="cuda"))
        check(f"{name}: a negative length is none", bool((lse[1] == -torch.inf).all()))
        cache.table[0, ::2], cache.table[0, 1::2] = -(2**31), 2**31 - 1
        other, _ = cache.call(q, at)
        check(f"{name}: pages that do not exist", torch.equal(other[1], right[1]))
        kept = [x.clone() for x in (cache.k.view(torch.uint8), cache.v.view(torch.uint8))]
        cache.call(q[:1], at[:1], 0, k=k[:1], v=v[:1])
        cache.call(q[1:], torch.tensor([2**31 - 1], dtype=torch.int32, device="cuda"), 1, k=k[1:], v=v[1:])
        check(f"{name}: nor written", all(torch.equal(a, b.view(torch.uint8)) for a, b in zip(kept, (cache.k, cache.v))))
    cache = Cache(k, v, [200, 100], 16, torch.bfloat16)
    for what, call in (("lengths on the CPU", lambda: cache.call(q, at.cpu())),
                       ("pages of 8", lambda: flash_attn_with_kvcache(q, k.view(50, 8, 2, 64), v.view(50, 8, 2, 64),
                                                                     cache_seqlens=at, block_table=cache.table)),
                       ("int8 without scales", lambda: flash_attn_with_kvcache(q, k.to(INT8), v.to(INT8), cache_seqlens=at)),
                       ("leftpad", lambda: cache.call(q, at, cache_leftpad=at)),
                       ("a float32 cache", lambda: flash_attn_with_kvcache(q, k.float(), v.float(), cache_seqlens=at)),
                       ("rows of 40 bytes", lambda: flash_attn_with_kvcache(
                           q[..., :40], *(x[..., :40].contiguous().to(FP8) for x in (k, v)), cache_seqlens=at)),
                       ("another dim", lambda: cache.call(q[..., :32], at)),
                       ("k alone", lambda: cache.call(q, at, k=k[:, :1]))):
        try:
            call()
            check(f"{what} is refused", False)
        except (ValueError, TypeError):
            check(f"{what} is refused", True)


def refused_by_plain():
    x = draw(1, 16, 1, 64)
    try:
        flash_attn_with_kvcache(x[:, :1], x, x, cache_seqlens=torch.tensor([5], dtype=torch.int32, device="cuda"))
        check("caches are refused by the plain kernels", False)
    except ValueError as error:
        check("caches are refused by the plain kernels", "caches are not supported by the plain kernels" in str(error))


def cover():
    for stored in (None, INT8, FP8):
        for D in (64, 128, 256):
            cache_case("cover", 8, 2, 1, D, [1100, 130, 0], stored=stored, page=16, window=(800, 0), room=300)
        cache_case("cover, rows of a cache", 4, 1, 3, 64, [300], stored=stored, page=0, dtype=torch.float16, causal=True)
    hostile()


def tests():
    if plain:
        return refused_by_plain()
    cases()
    expanded_table()
    rotary_case()
    for stored in (None, INT8, FP8):
        graph_case(stored)
    many_graphs()
    hostile()


if __name__ == "__main__":
    run(tests, refused_by_plain if plain else cover)
