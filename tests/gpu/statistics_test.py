"""Statistics of rows out of the forward pass, against their definition in float64; the plain kernels refuse them.

usage: statistics_test.py [--plain] [--cover]    definition.py says what they do
"""

import torch
from definition import check, draw, mask_of, near, options_of, plain, run, truth, weights_of

import attend


def statistics_of(w, tokens, sink_tokens=1, sinks_apart=False, local_width=8, recent_width=64, align="last_key"):
    """The definition: {name: [B, H, M]}."""
    M, N = w.shape[-2:]
    p, j = torch.arange(M, device="cuda")[:, None] + (N - M if align == "last_key" else 0), torch.arange(N, device="cuda")
    mass, away = w.sum(-1), p - j
    mean = (w * away).sum(-1) / mass.clamp(min=1e-300)
    counted = w * (j >= sink_tokens) if sinks_apart else w
    at = lambda chosen: (counted * chosen).sum(-1)  # noqa: E731
    rows = {"mass": mass, "entropy": -torch.xlogy(w, w).sum(-1), "distance_mean": mean,
            "distance_variance": (w * (away - mean[..., None])**2).sum(-1) / mass.clamp(min=1e-300),
            "sink_tokens": w[..., :sink_tokens].sum(-1), "self": at(away == 0), "previous": at(away == 1),
            "local": at(away.abs() <= local_width), "recent": at(away.abs() <= recent_width), "maximum": w.amax(-1)}
    if tokens is not None:
        own = tokens[:, p[:, 0].clamp(0, N - 1)][:, None, :, None]
        known = (p >= 0) & (p < N)
        behind = torch.cat([torch.full_like(tokens[:, :1], -1), tokens[:, :-1]], 1)
        rows["duplicate"] = at((tokens[:, None, None] == own) & (away != 0) & known)
        rows["induction"] = at((behind[:, None, None] == own) & known)
    return rows


def statistics_case(name, B, H, Hk, M, N, D, dtype=torch.bfloat16, sharp=1.0, vocabulary=0, asked=None, **options):
    """Of weights as they meet the values: rounded. Entropy and maximum are of those before."""
    q, k, v = (draw(B, h, n, D, dtype=dtype) for h, n in ((H, M), (Hk, N), (Hk, N)))
    q, asked = (q * sharp).to(dtype), dict(asked or {})
    tokens = torch.randint(vocabulary, (B, N), device="cuda") if vocabulary else None
    scores, wide = options_of(options)
    out, rows = attend.attention(q, k, v, mask=mask_of(**options), return_statistics={**asked, "tokens": tokens}, **scores)
    expected, _, spread = truth(q.double(), k.double(), v.double(), **wide)
    near(f"{name}: out", out, expected, spread, dtype)
    w = weights_of(q.double(), k.double(), **wide)[0]
    unit = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    truths = statistics_of(w, tokens, **asked)
    deviation = truths["distance_variance"].sqrt()
    bounds = {"entropy": 2e-5 * (1 + truths["entropy"]), "maximum": 2e-5 * truths["maximum"], "mass": 2e-5,
              "distance_mean": 2e-3 + 2 * unit * deviation + 2e-5 * truths["distance_mean"].abs(),
              "distance_variance": 2e-2 + 8 * unit * (deviation**2 + deviation)}
    for what, right in truths.items():
        worst = ((getattr(rows, what).double() - right).abs() / (bounds.get(what, 1.3 * unit * right) + 3e-6)).max().item()
        check(f"{name}: {what}", worst <= 1, f"{worst:.2f} of the bound")
    seen, largest = truths["mass"] > 0, truths["maximum"]
    found = w.gather(-1, rows.argmax.clamp(min=0)[..., None])[..., 0]
    check(f"{name}: argmax", torch.equal(rows.argmax == -1, ~seen) and bool((found >= largest * (1 - 2.2 * unit)).all()))


def statistics_cases():
    for D in (64, 128, 256):
        statistics_case(f"D{D} statistics", 2, 4, 4, 333, 777, D)
        statistics_case(f"D{D} causal statistics", 2, 4, 2, 700, 700, D, vocabulary=50, causal="last_key")
        statistics_case(f"D{D} f16 statistics", 1, 2, 2, 300, 500, D, dtype=torch.float16, vocabulary=8, causal="last_key")
        statistics_case(f"D{D} sharp statistics", 1, 1, 1, 130, 20000, D, sharp=6.0)
        statistics_case(f"D{D} statistics, M > N", 1, 2, 2, 500, 200, D, vocabulary=5, causal="last_key")
        statistics_case(f"D{D} statistics, sinks apart", 1, 2, 2, 500, 500, D, vocabulary=3, causal="last_key",
                        asked={"sink_tokens": 4, "sinks_apart": True, "local_width": 0, "recent_width": 300})
        statistics_case(f"D{D} statistics, wide", 1, 2, 2, 300, 900, D, vocabulary=4,
                        asked={"sink_tokens": 200, "local_width": 2**40, "recent_width": 0, "align": "first_key"})
        statistics_case(f"D{D} window statistics", 1, 2, 2, 700, 700, D, vocabulary=9, window=(100, 20))
        statistics_case(f"D{D} padding statistics", 3, 2, 2, 200, 400, D, vocabulary=9, padding=[400, 0, 130])
        statistics_case(f"D{D} documents statistics", 1, 2, 2, 700, 700, D, vocabulary=9, segments=[0, 100, 103, 700],
                        causal="last_key")
        statistics_case(f"D{D} sinks statistics", 1, 4, 4, 200, 300, D, sinks=torch.randn(4, device="cuda") * 3)
        statistics_case(f"D{D} soft cap statistics", 1, 2, 2, 300, 500, D, softcap=3.0, scale=0.5)
        statistics_case(f"D{D} ALiBi statistics", 1, 4, 4, 300, 300, D, slopes=torch.rand(4, device="cuda"), causal="last_key")
        statistics_case(f"D{D} packed heads statistics", 2, 12, 2, 40, 300, D, vocabulary=7, causal="last_key")
        statistics_case(f"D{D} one query statistics", 2, 8, 2, 1, 5000, D, vocabulary=50)
        statistics_case(f"D{D} few queries statistics", 2, 8, 2, 3, 3000, D, vocabulary=7, causal="last_key",
                        sinks=torch.randn(8, device="cuda"))
        statistics_case(f"D{D} few queries padding statistics", 2, 8, 2, 2, 3000, D, padding=[3000, 700])
    q, k, v = draw(1, 2, 300, 64), draw(1, 2, 500, 64), draw(1, 2, 500, 64)
    shown = torch.rand(5, 10) < 0.5
    dense = shown.repeat_interleave(60, 0).repeat_interleave(50, 1).to("cuda")
    _, rows = attend.attention(q, k, v, mask=attend.blocks(shown.numpy(), 60, 50), return_statistics=True)
    w = weights_of(q.double(), k.double(), dense=dense)[0]
    check("statistics with holes", torch.allclose(rows.entropy.double(), statistics_of(w, None)["entropy"], atol=1e-4)
          and torch.allclose(rows.recent.double(), statistics_of(w, None)["recent"], rtol=6e-3, atol=1e-5))


def same_bits_of_statistics(D, repeats):
    for M, N in ((700, 700), (2, 3000)):
        q, k, v = draw(3, 4, M, D), draw(3, 2, N, D), draw(3, 2, N, D)
        run = lambda *qkv: attend.attention(*qkv, mask=attend.causal(), return_statistics=True)[1]  # noqa: E731
        first = run(q, k, v)
        differ = sum(not all(map(torch.equal, first, run(q, k, v))) for _ in range(repeats))
        check(f"D{D} {M} queries' statistics: {repeats} repeats", differ == 0, f"{differ} differ")
        alone = run(q[1:2].clone(), k[1:2].clone(), v[1:2].clone())
        check(f"D{D} {M} queries' statistics: the same bits alone", all(torch.equal(a[0], b[1]) for a, b in zip(alone, first)))


def refused_by_plain():
    q = draw(1, 2, 100, 64)
    try:
        attend.attention(q, q, q, return_statistics=True)
        check("statistics by the plain kernels are refused", False)
    except ValueError as error:
        check("statistics by the plain kernels are refused", "statistics" in str(error), str(error))


def tests():
    if plain:
        return refused_by_plain()
    statistics_cases()
    for D, repeats in ((128, 100), (64, 20), (256, 20)):
        same_bits_of_statistics(D, repeats)


def cover():
    if plain:
        return refused_by_plain()
    for D in (64, 128, 256):
        statistics_case(f"D{D} statistics", 1, 2, 1, 200, 300, D, vocabulary=5, causal="last_key")
    statistics_case("few queries statistics", 1, 8, 2, 3, 1100, 128, vocabulary=5)
    statistics_case("soft cap statistics", 1, 1, 1, 130, 140, 128, softcap=3.0)


if __name__ == "__main__":
    run(tests, cover)
