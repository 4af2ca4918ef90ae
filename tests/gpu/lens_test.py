"""attend.observe on CUDA tensors: maps, received, zoom and statistics against arithmetic in float64; the same bits; areas and
cells of every size; what is refused.

usage: lens_test.py [--plain] [--cover]    definition.py says what they do; the kernels are the same on all cards, the LSE's are not
"""


import torch

import attend
from definition import check, draw, held_weights, mask_of, masked_bias, options_of, plain, quarters, run, weights_of

WHOLE = slice(None)


def pooled(weights, rows, cols):
    """(mass, peak) of [queries, keys]: the definition."""
    queries, keys = weights.shape
    begins = [torch.arange(cells + 1) * length // cells for cells, length in ((rows, queries), (cols, keys))]
    parts = [band.split(begins[1].diff().tolist(), 1) for band in weights.split(begins[0].diff().tolist(), 0)]
    return (torch.stack([torch.stack([x.sum() for x in band]) for band in parts]),
            torch.stack([torch.stack([x.max() for x in band]) for band in parts]))


def near(name, got, expected):
    """A weight holds to a small part of itself, and so do sums of them."""
    off = ((got.double() - expected).abs() / (1e-4 * expected + 1e-7)).max().item() if expected.numel() else 0.0
    check(name, got.shape == expected.shape and got.dtype == torch.float32 and off <= 1, f"{off:.2f} of the bound")


def lens_case(name, B, H, Hk, M, N, D, dtype=torch.bfloat16, maps=((7, 5, WHOLE, WHOLE),), layout="bhld", blocks=None,
              **options):
    q, k = draw(B, H, M, D, dtype=dtype), draw(B, Hk, N, D, dtype=dtype)
    scores, wide = options_of(options)
    mask = mask_of(**options)
    if blocks is not None:
        mask = mask & attend.blocks(blocks, 60, 50)
        wide["dense"] = blocks.repeat_interleave(60, 0).repeat_interleave(50, 1).cuda()
    weights, lse = weights_of(q.double(), k.double(), **wide)
    x, y = (t.transpose(1, 2).contiguous() if layout == "blhd" else t for t in (q, k))
    seen = attend.observe(x, y, mask=mask, layout=layout, **scores)
    for n, (rows, cols, queries, keys) in enumerate(maps):
        head, batch = n % H, n % B
        area = weights[batch, head, queries, keys]
        got = seen.map(head, batch, rows=rows, cols=cols, queries=queries, keys=keys)
        mass, peak = pooled(area, *got.mass.shape)
        near(f"{name}: mass {list(mass.shape)}", got.mass, mass)
        near(f"{name}: peak {list(mass.shape)}", got.peak, peak)
        again = attend.observe(x, y, mask=mask, layout=layout, lse=seen.lse, **scores).map(
            head, batch, rows=rows, cols=cols, queries=queries, keys=keys)
        check(f"{name}: the same bits", torch.equal(got.mass, again.mass) and torch.equal(got.peak, again.peak))
        near(f"{name}: received", seen.received(head, batch, queries=queries, keys=keys), area.sum(0))
        near(f"{name}: zoom", seen.zoom(head, batch, queries=queries, keys=keys), area)
    near(f"{name}: a row", seen.zoom(0, 0, queries=M // 2), weights[0, 0, M // 2 : M // 2 + 1])
    near(f"{name}: a column", seen.zoom(H - 1, B - 1, keys=N // 3), weights[B - 1, H - 1, :, N // 3 : N // 3 + 1])
    finite = torch.isfinite(lse)
    check(f"{name}: lse", bool(((seen.lse.double() - lse)[finite].abs() <= 1e-3).all()))


AREAS = ((7, 5, WHOLE, WHOLE), (3, 64, slice(37, 138), slice(70, 160)), (1, 1, WHOLE, WHOLE), (40, 1, slice(60, 100), WHOLE))


def cases():
    for D in (64, 128, 256, 40):
        for dtype in (torch.bfloat16, torch.float16):
            lens_case(f"D{D} {dtype} full", 2, 4, 2, 300, 500, D, dtype=dtype, maps=AREAS)
            lens_case(f"D{D} {dtype} causal", 2, 4, 4, 500, 500, D, dtype=dtype, maps=AREAS, causal="last_key")
        lens_case(f"D{D} window", 1, 2, 1, 700, 700, D, maps=AREAS, window=(100, 5))
        lens_case(f"D{D} prefix", 1, 2, 1, 300, 500, D, maps=AREAS, prefix=130)
        lens_case(f"D{D} segments", 1, 2, 1, 600, 600, D, maps=AREAS, segments=[0, 33, 290, 600], causal="last_key")
        lens_case(f"D{D} padding", 2, 2, 1, 300, 500, D, maps=AREAS, padding=[222, 0])
        lens_case(f"D{D} soft cap and sinks", 1, 2, 1, 300, 500, D, maps=AREAS, softcap=3.0, sinks=torch.randn(2, device="cuda"),
                  causal="last_key")
        lens_case(f"D{D} bias", 1, 2, 1, 300, 500, D, maps=AREAS, bias=torch.randn(1, 2, 300, 500, device="cuda"))
        lens_case(f"D{D} ALiBi", 1, 2, 1, 300, 500, D, maps=AREAS, slopes=torch.rand(2, device="cuda"), causal="last_key")
        lens_case(f"D{D} blocks", 1, 2, 1, 300, 500, D, maps=AREAS, blocks=torch.rand(5, 10) < 0.5)
        lens_case(f"D{D} blhd", 1, 2, 1, 300, 500, D, maps=AREAS, layout="blhd", causal="last_key")
    for L in (2000, 4099):  # several parts of the queries
        lens_case(f"L{L}", 1, 1, 1, L, L, 64, causal="last_key",
                  maps=((512, 512, WHOLE, WHOLE), (1, L, WHOLE, WHOLE), (L, 3, WHOLE, WHOLE)))
    lens_case("few keys", 1, 2, 1, 3000, 20, 64, maps=((3, 7, WHOLE, WHOLE),))


def large_cases():
    """An LSE that f32 cannot hold beside log(sum): a mask on all keys of a row, a huge scale."""
    for D in (64, 128, 256):
        for mask, on, scale in ((-1e9, "whole rows", 0.125), (torch.finfo(torch.float32).min, "whole rows", 0.125),
                                (-1e4, "the last keys", 0.125), (0.0, None, 1e9)):
            q, k = (quarters(1, 2, n, D, dtype=torch.bfloat16) for n in (300, 500))
            bias = masked_bias(2, 300, 500, mask, on)
            weights = held_weights(q, k, bias, scale)[0][0, 1]
            seen = attend.observe(q, k, scale=scale, **({} if on is None else {"bias": bias}))
            near(f"D{D} {mask:.0e} on {on}: zoom", seen.zoom(1), weights)
            near(f"D{D} {mask:.0e} on {on}: map", seen.map(1, rows=7, cols=5).mass, pooled(weights, 7, 5)[0])


def long_case():
    """A map in bands of cells; halves of it; one of 100,000 tokens, whose rows sum to one."""
    L = 8192
    q, k = draw(1, 1, L, 64), draw(1, 1, L, 64)
    weights = weights_of(q.double(), k.double(), causal="last_key")[0][0, 0]
    seen = attend.observe(q, k, mask=attend.causal())
    near("bands", seen.zoom(), weights)
    levels = seen.pyramid(rows=512, cols=512)
    near("a level of the pyramid", levels[3].mass, seen.map(rows=64, cols=64).mass.double())
    near("its peaks", levels[3].peak, seen.map(rows=64, cols=64).peak.double())
    L = 100_001
    seen = attend.observe(draw(1, 2, L, 128), draw(1, 1, L, 128), mask=attend.causal())
    whole = seen.map(1, rows=500, cols=512)
    queries = torch.as_tensor(whole.queries).diff().cuda().double()
    check("long: rows of cells sum to their queries", bool(((whole.mass.double().sum(1) / queries - 1).abs() < 1e-4).all()))
    check("long: nothing above the diagonal", not whole.mass.triu(16).any())
    check("long: received", abs(seen.received(1).double().sum().item() / L - 1) < 1e-4)
    again = seen.map(1, rows=500, cols=512)
    check("long: the same bits", torch.equal(whole.mass, again.mass) and torch.equal(whole.peak, again.peak))
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        seen.map(1, rows=500, cols=512)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = seen.map(1, rows=500, cols=512)
    graph.replay()
    torch.cuda.synchronize()
    check("long: in a graph", torch.equal(captured.mass, whole.mass))


def statistics_case():
    q, k = draw(1, 2, 300, 64), draw(1, 1, 300, 64)
    weights = weights_of(q.double(), k.double(), causal="last_key")[0]
    rows = attend.observe(q, k, mask=attend.causal()).statistics()
    check("statistics", bool(((rows.maximum.double() - weights.max(-1)[0]).abs() < 1e-2).all()))


def refused():
    q = draw(1, 2, 64, 64)
    seen = attend.observe(q, q)
    for what, call in (("top_k", lambda: seen.top_k(3)), ("histogram", seen.histogram), ("cell", lambda: seen.cell(1, 1)),
                       ("html", lambda: attend.observe(q, q, q).html()),
                       ("progress", lambda: seen.map(progress=lambda *_: True)), ("head", lambda: seen.map(2)),
                       ("batch", lambda: seen.map(0, 1)), ("rows", lambda: seen.map(rows=0)),
                       ("queries", lambda: seen.map(queries=(60, 70))), ("an empty area", lambda: seen.map(queries=(6, 6))),
                       ("k on the CPU", lambda: attend.observe(q, q.cpu()).map()),
                       ("lse on the CPU", lambda: attend.observe(q, q, lse=seen.lse.cpu()).map()),
                       ("float32", lambda: attend.observe(q.float(), q.float()).map()),
                       ("60 dims", lambda: attend.observe(q[..., :60], q[..., :60]).map()),
                       ("3 dimensions", lambda: attend.observe(q[0], q[0]))):
        try:
            call()
            check(f"{what} is refused", False)
        except (ValueError, TypeError) as error:
            says = what not in ("top_k", "histogram", "cell") or "q.cpu()" in str(error)
            check(f"{what} is refused", says, str(error))
    check("an empty zoom", seen.zoom(queries=(6, 6)).shape == (0, 64) and seen.received(keys=(3, 3)).shape == (0,))


def cover():
    for D in (64, 128, 256):
        lens_case(f"cover D{D}", 1, 2, 1, 200, 300, D, maps=AREAS[:2], causal="last_key")
        lens_case(f"cover D{D} terms", 1, 2, 1, 240, 300, D, dtype=torch.float16, maps=AREAS[:2], softcap=3.0,
                  blocks=torch.rand(4, 6) < 0.5)


def tests():
    cases()
    large_cases()
    long_case()
    if not plain:
        statistics_case()
    refused()


if __name__ == "__main__":
    run(tests, cover)
