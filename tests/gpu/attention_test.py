"""attend on CUDA tensors against PyTorch's arithmetic in float64: forward, gradients, same bits, training.

usage: attention_test.py [--plain] [--cover]    definition.py says what they do
"""

import torch
import torch.nn.functional as F
from definition import check, draw, forward_case, mask_of, near, plain, run, truth

import attend
import attend.flash_attn
import attend.torch


def gradient_case(name, B, H, Hk, M, N, D, dtype=torch.bfloat16, **options):
    """Through autograd, where attend.torch has the option, else attention_backward."""
    q, k, v = (draw(B, h, n, D, dtype=dtype) for h, n in ((H, M), (Hk, N), (Hk, N)))
    dout = draw(B, H, M, D, dtype=dtype)
    scores = {x: options[x] for x in ("softcap", "bias", "sinks", "scale") if x in options}
    if "slopes" in options:
        scores["alibi_slopes"] = options["slopes"]
    out, lse = attend.attention(q, k, v, mask=mask_of(**options), return_lse=True, **scores)
    got = attend.attention_backward(dout, q, k, v, out, lse, mask=mask_of(**options), **scores)
    inputs = [x.double().requires_grad_() for x in (q, k, v)]
    wide = dict(options)
    for extra in ("bias", "sinks"):
        if extra in options:
            wide[extra] = options[extra].double().requires_grad_()
            inputs.append(wide[extra])
    if "slopes" in options:
        wide["slopes"] = options["slopes"].double()
    expected = torch.autograd.grad(truth(*inputs[:3], **wide)[0], inputs, dout.double())
    given = [got.dq, got.dk, got.dv] + [x for x in (got.dbias, got.dsinks) if x is not None]
    for what, a, b in zip(("dq", "dk", "dv", "the first extra", "the second extra"), given, expected):
        error = ((a.double().flatten() - b.nan_to_num().flatten()).norm() / b.nan_to_num().norm()).item()
        bound = 1e-2 if dtype == torch.bfloat16 else 2e-3
        if a is got.dsinks:  # a sum over all queries of what was rounded with `out`, in which terms cancel
            bound *= 5
        check(f"{name}: {what}", error < bound, f"relative error {error:.1e}")


def forward_cases():
    for D in (64, 128, 256):
        forward_case(f"D{D} full", 2, 4, 4, 333, 777, D)
        forward_case(f"D{D} f16 causal", 1, 4, 2, 300, 500, D, dtype=torch.float16, causal="last_key")
        forward_case(f"D{D} causal M > N", 1, 2, 2, 500, 200, D, causal="last_key")
        forward_case(f"D{D} first key", 1, 2, 2, 300, 500, D, causal="first_key")
        forward_case(f"D{D} window", 1, 2, 2, 700, 700, D, window=(100, 20))
        forward_case(f"D{D} prefix", 1, 2, 2, 400, 400, D, prefix=133)
        forward_case(f"D{D} padding", 3, 2, 2, 200, 400, D, padding=[400, 0, 130])
        forward_case(f"D{D} documents", 1, 2, 2, 700, 700, D, segments=[0, 100, 103, 103, 650], causal="last_key")
        forward_case(f"D{D} many documents", 1, 2, 2, 3000, 3000, D, segments=list(range(0, 3001, 3)))
        forward_case(f"D{D} packed heads", 2, 12, 2, 40, 300, D, causal="last_key")
        for N in (129, 700, 2048, 5000, 20000):  # one, some and all parts of the keys, and longer ones
            forward_case(f"D{D} one query, {N} keys", 2, 8, 2, 1, N, D)
        forward_case(f"D{D} one query f16", 3, 16, 2, 1, 3000, D, dtype=torch.float16)
        forward_case(f"D{D} one query, padding", 4, 8, 2, 1, 3000, D, padding=[3000, 0, 1, 2222])
        forward_case(f"D{D} one query, window and sinks", 2, 8, 2, 1, 3000, D, window=(300, 0),
                     sinks=torch.randn(8, device="cuda"))
        forward_case(f"D{D} two queries", 2, 8, 2, 2, 5000, D, causal="last_key")
        forward_case(f"D{D} eight queries", 2, 3, 3, 8, 900, D, causal="first_key")
        forward_case(f"D{D} many sequences", 40, 8, 4, 1, 1500, D)
        forward_case(f"D{D} a head for each multiprocessor", 33, 8, 4, 1, 1500, D)  # of an H200: none needs joining
        forward_case(f"D{D} few queries", 2, 8, 2, 5, 3000, D, causal="last_key")
        forward_case(f"D{D} few queries, soft cap", 2, 8, 2, 3, 2000, D, softcap=3.0, sinks=torch.randn(8, device="cuda"))
        forward_case(f"D{D} ALiBi", 1, 4, 4, 300, 300, D, slopes=torch.rand(4, device="cuda"), causal="last_key")
        forward_case(f"D{D} soft cap", 1, 2, 2, 300, 500, D, softcap=3.0, scale=0.5)
        forward_case(f"D{D} bias", 2, 2, 2, 200, 300, D, bias=torch.randn(1, 2, 200, 300, device="cuda"))
        forward_case(f"D{D} sinks", 1, 4, 4, 200, 300, D, sinks=torch.randn(4, device="cuda"), causal="first_key")
    for D, E in ((8, 8), (32, 32), (80, 80), (96, 96), (192, 128), (128, 64), (64, 256)):
        forward_case(f"D{D} E{E}", 2, 4, 2, 300, 400, D, E, causal="last_key")
        forward_case(f"D{D} E{E} one query", 2, 8, 4, 1, 1500, D, E)


def score_cases():
    """Scores that are small beside the cap, and rows that stand behind whole tiles: both have ways of their own."""
    for D in (64, 128, 256):
        for dtype in (torch.bfloat16, torch.float16):
            what = dict(dtype=dtype, slopes=torch.rand(2, device="cuda") * 0.1)
            forward_case(f"D{D} {dtype} soft cap, small scores", 1, 2, 2, 300, 500, D, dtype=dtype, softcap=30.0)
            forward_case(f"D{D} {dtype} long ALiBi", 1, 2, 2, 700, 900, D, causal="last_key", **what)
            forward_case(f"D{D} {dtype} ALiBi and soft cap", 1, 2, 2, 400, 400, D, softcap=20.0, window=(200, 90), **what)
            forward_case(f"D{D} {dtype} ALiBi, soft cap and bias", 1, 2, 2, 400, 400, D, softcap=20.0,
                         bias=torch.randn(1, 2, 400, 400, device="cuda"), **what)


def alibi_documents(name, D, dtype, slopes):
    """Documents of other lengths in queries and keys, whose positions begin anew: as each of them alone."""
    cu_queries, cu_keys = [0, 100, 130, 300], [0, 50, 400, 500]
    q, k, v, dout = (draw(1, h, n, D, dtype=dtype) for h, n in ((4, 300), (2, 500), (2, 500), (4, 300)))

    def gradients(q, k, v, dout, mask=None):
        out, lse = attend.attention(q, k, v, mask=mask, return_lse=True, alibi_slopes=slopes)
        return attend.attention_backward(dout, q, k, v, out, lse, mask=mask, alibi_slopes=slopes)[:3]

    got = gradients(q, k, v, dout, attend.segments(cu_queries, cu_keys))
    alone = [gradients(*(x[:, :, a:b] for x, (a, b) in ((q, i), (k, j), (v, j), (dout, i))))
             for i, j in zip(zip(cu_queries, cu_queries[1:]), zip(cu_keys, cu_keys[1:]))]
    for what, a, parts in zip(("dq", "dk", "dv"), got, zip(*alone)):
        b = torch.cat(parts, 2)
        error = ((a.double() - b.double()).norm() / b.double().norm()).item()
        check(f"{name}: {what}", error < (1e-2 if dtype == torch.bfloat16 else 2e-3), f"relative error {error:.1e}")


def score_gradient_cases():
    """ALiBi and soft-caps alone, which have kernels of their own: positions that begin anew, small angles and large ones,
    sums beyond what an LSE holds; and a query's bits, whatever its neighbours are."""
    for D in (64, 80, 128):
        for dtype in (torch.bfloat16, torch.float16):
            slopes = torch.rand(4, device="cuda") * 0.1
            gradient_case(f"D{D} {dtype} long ALiBi gradients", 2, 4, 2, 700, 900, D, dtype=dtype, slopes=slopes, causal="last_key")
            gradient_case(f"D{D} {dtype} ALiBi gradients both ways", 1, 4, 4, 333, 500, D, dtype=dtype, slopes=slopes,
                          window=(200, 90))
            alibi_documents(f"D{D} {dtype} ALiBi documents gradients", D, dtype, slopes)
            for cap in (0.5, 3.0, 30.0):
                gradient_case(f"D{D} {dtype} soft cap {cap} gradients", 2, 4, 2, 333, 500, D, dtype=dtype, softcap=cap, scale=0.3,
                              causal="last_key")
            gradient_case(f"D{D} {dtype} ALiBi and soft cap gradients", 1, 4, 2, 300, 300, D, dtype=dtype, slopes=slopes,
                          softcap=5.0, causal="last_key")
        q, k, v, dout = draw(1, 4, 300, D), draw(1, 2, 500, D), draw(1, 2, 500, D), draw(1, 4, 300, D)
        for what, scores in (("ALiBi", {"alibi_slopes": torch.rand(4, device="cuda")}), ("soft cap", {"softcap": 20.0})):
            def run(q):
                out, lse = attend.attention(q, k, v, mask=attend.causal(), return_lse=True, **scores)
                return attend.attention_backward(dout, q, k, v, out, lse, mask=attend.causal(), **scores).dq

            first, other = run(q), q.clone()
            other[:, :, 1::2] *= 400  # their LSE exceeds 1024
            got = run(other)
            check(f"D{D} {what} gradients: the same bits beside other rows", torch.equal(got[:, :, ::2], first[:, :, ::2]))
            check(f"D{D} {what} gradients: finite", bool(torch.isfinite(got).all()))


def gradient_cases():
    for D in (32, 64, 96, 128, 192, 256):
        gradient_case(f"D{D} full gradients", 2, 2, 2, 333, 500, D)
        gradient_case(f"D{D} causal gradients", 1, 4, 2, 500, 500, D, causal="last_key")
        gradient_case(f"D{D} f16 gradients", 1, 2, 2, 200, 300, D, dtype=torch.float16, causal="last_key")
        gradient_case(f"D{D} window gradients", 1, 2, 2, 600, 600, D, window=(100, 0))
        gradient_case(f"D{D} documents gradients", 1, 2, 2, 500, 500, D, segments=[0, 100, 420], causal="last_key")
        gradient_case(f"D{D} ALiBi gradients", 1, 2, 2, 300, 300, D, slopes=torch.rand(2, device="cuda"), causal="last_key")
        gradient_case(f"D{D} soft cap gradients", 1, 2, 2, 200, 300, D, softcap=3.0, scale=0.5)
        gradient_case(f"D{D} bias gradients", 1, 2, 2, 200, 300, D, bias=torch.randn(1, 2, 200, 300, device="cuda"))
        gradient_case(f"D{D} sinks gradients", 1, 2, 2, 200, 300, D, sinks=torch.randn(2, device="cuda"))
        gradient_case(f"D{D} one key block", 1, 2, 1, 3, 40, D)
        gradient_case(f"D{D} unseen keys gradients", 1, 2, 2, 100, 900, D, causal="first_key")
    holes()
    boolean_gradients()
    score_gradient_cases()


def holes():
    """What is hidden inside intervals: forward and gradients."""
    for D in (64, 128, 256):
        q, k, v, dout = draw(1, 4, 300, D), draw(1, 2, 500, D), draw(1, 2, 500, D), draw(1, 4, 300, D)
        shown = torch.rand(5, 10) < 0.5
        shown[:, 0] = True
        dense = shown.repeat_interleave(60, 0).repeat_interleave(50, 1).to("cuda")
        mask = attend.blocks(shown.numpy(), 60, 50)
        for what, extra in (("", {}), (" with a soft cap", {"softcap": 3.0})):
            out, lse = attend.attention(q, k, v, mask=mask, return_lse=True, **extra)
            got = attend.attention_backward(dout, q, k, v, out, lse, mask=mask, **extra)[:3]
            inputs = [x.double().requires_grad_() for x in (q, k, v)]
            expected, _, spread = truth(*inputs, dense=dense, **extra)
            near(f"D{D} blocks{what}", out, expected.detach(), spread.detach(), q.dtype)
            for name, a, b in zip(("dq", "dk", "dv"), got, torch.autograd.grad(expected, inputs, dout.double())):
                error = ((a.double() - b).norm() / b.norm()).item()
                check(f"D{D} blocks{what}: {name}", error < 1e-2, f"relative error {error:.1e}")


def boolean_gradients(L=700):
    """Boolean tensors that hide whole tiles, whole rows and whole columns: through autograd, and twice the same bits."""
    i = torch.arange(L, device="cuda")
    document = (i // 170)[:, None] == i // 170
    by_head = torch.rand(2, 4, L, L, device="cuda") < 0.7
    by_head[:, 1:, 128:400] = False    # queries that see nothing
    by_head[:, :, :, 250:420] = False  # keys that nobody sees
    by_head[1, 2] = False
    for D in (64, 128, 256):
        for what, dense in (("documents", (document & (i[:, None] >= i))[None, None]), ("by head", by_head)):
            q, k, v, dout = draw(2, 4, L, D), draw(2, 2, L, D), draw(2, 2, L, D), draw(2, 4, L, D)
            name, leaves = f"D{D} boolean {what}", [x.clone().requires_grad_() for x in (q, k, v)]
            out = attend.torch.scaled_dot_product_attention(*leaves, dense, enable_gqa=True)
            got = torch.autograd.grad(out, leaves, dout, retain_graph=True)
            inputs = [x.double().requires_grad_() for x in (q, k, v)]
            expected, _, spread = truth(*inputs, dense=dense)
            near(name, out.detach(), expected.detach(), spread.detach(), q.dtype)
            for which, a, b in zip(("dq", "dk", "dv"), got, torch.autograd.grad(expected, inputs, dout.double())):
                b = b.nan_to_num()
                error = ((a.double() - b).norm() / b.norm()).item()
                check(f"{name}: {which}", error < 1e-2, f"relative error {error:.1e}")
            again = torch.autograd.grad(out, leaves, dout, retain_graph=True)
            check(f"{name}: the same bits", all(map(torch.equal, got, again)))


def drop_in_cases():
    q, k, v = draw(2, 8, 200, 64), draw(2, 2, 300, 64), draw(2, 2, 300, 64)
    for keys in (300, 288):  # rows that lie anywhere, and rows of whole words
        some = [x[:, :, :keys] for x in (k, v)]
        for what, shape in (("a boolean mask", (2, 8)), ("one boolean mask for all", (1, 1))):
            dense = torch.rand(*shape, 200, keys, device="cuda") < 0.5
            dense[..., :100, 128:256] = False  # tiles that hide all, and
            dense[..., 64:, :64] = True        # some that hide nothing
            expected, _, spread = truth(q.double(), *(x.double() for x in some), dense=dense)
            near(f"{what}, {keys} keys", attend.torch.scaled_dot_product_attention(q, *some, dense, enable_gqa=True), expected,
                 spread, q.dtype)
    expected, _, spread = truth(q.double(), k.double(), v.double(), causal="last_key")
    near("flash_attn_func", attend.flash_attn.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)),
                                                              causal=True).transpose(1, 2), expected, spread, q.dtype)
    # Dropout keeps the same weights as on the CPU.
    on_cpu = attend.attention(q.cpu().float(), k.cpu().float(), v.cpu().float(), dropout=0.3, seed=5)
    on_gpu = attend.attention(q, k, v, dropout=0.3, seed=5)
    check("dropout", ((on_gpu.cpu().float() - on_cpu).norm() / on_cpu.norm()).item() < 5e-3)
    for what, call in [("memory of two devices", lambda: attend.attention(q, k.cpu(), v)),
                       ("float32", lambda: attend.attention(q.float(), k.float(), v.float())),
                       ("weights", lambda: attend.attention(q, k, v, return_weights=True)),
                       ("statistics with dropout", lambda: attend.attention(q, k, v, dropout=0.5, return_statistics=True)),
                       ("a union of masks", lambda: attend.attention(q, k, v, mask=attend.window(3, 0) | attend.prefix([2])))]:
        try:
            call()
            check(f"{what} is refused", False)
        except ValueError:
            check(f"{what} is refused", True)


def same_bits(D, repeats):
    q, k, v, dout = (draw(2, 4, 1000, D) for _ in range(4))
    mask = attend.causal()

    def run(q, k, v, dout):
        out, lse = attend.attention(q, k, v, mask=mask, return_lse=True)
        return (out, lse, *attend.attention_backward(dout, q, k, v, out, lse, mask=mask)[:3])

    first = run(q, k, v, dout)
    differ = sum(not all(torch.equal(a, b) for a, b in zip(first, run(q, k, v, dout))) for _ in range(repeats))
    check(f"D{D}: {repeats} repeats", differ == 0, f"{differ} differ")
    alone = run(*(x[1:].clone() for x in (q, k, v, dout)))
    check(f"D{D}: the same bits alone as in a batch", all(torch.equal(a[0], b[1]) for a, b in zip(alone, first)))


def same_bits_of_one_query(D, repeats):
    """Whatever is around it: other sequences, other heads."""
    q, k, v = draw(5, 8, 1, D), draw(5, 2, 3000, D), draw(5, 2, 3000, D)
    first = attend.attention(q, k, v)
    differ = sum(not torch.equal(first, attend.attention(q, k, v)) for _ in range(repeats))
    check(f"D{D} one query: {repeats} repeats", differ == 0, f"{differ} differ")
    alone = attend.attention(q[3:4, 4:].clone(), k[3:4, 1:].clone(), v[3:4, 1:].clone())
    check(f"D{D} one query: the same bits alone as in a batch", torch.equal(alone[0], first[3, 4:]))
    other = q.clone()
    other[:, ::4] *= -30
    kept = torch.arange(8, device="cuda") % 4 != 0
    check(f"D{D} one query: the same bits beside another head", torch.equal(attend.attention(other, k, v)[:, kept], first[:, kept]))


class Block(torch.nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.norm, self.norm2 = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)
        self.qkv = torch.nn.Linear(width, (heads + 2 * kv_heads) * self.dim, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        B, L, width = x.shape
        q, k, v = (y.view(B, L, -1, self.dim).transpose(1, 2) for y in self.qkv(self.norm(x)).split(
            [self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim], -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, L, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def losses(steps=20):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Embedding(256, 512), *(Block(512, 8, 2) for _ in range(8)),
                                torch.nn.Linear(512, 256)).to("cuda", torch.bfloat16)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4)
    result = []
    for _ in range(steps):
        tokens = torch.randint(256, (4, 513), device="cuda") // 8 * 8  # something to learn
        loss = F.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        result.append(loss.item())
    return result


def training():
    theirs = losses()
    with attend.torch.patched():
        ours = losses()
    print("losses of PyTorch", " ".join(f"{x:.3f}" for x in theirs[::4]), " of attend", " ".join(f"{x:.3f}" for x in ours[::4]))
    check("20 steps of training", all(abs(a - b) < 0.02 * a for a, b in zip(theirs, ours)) and ours[-1] < ours[0])


def cover():
    forward_case("full", 1, 2, 2, 200, 200, 128)
    forward_case("D64 causal", 1, 4, 2, 130, 330, 64, causal="last_key")
    forward_case("D256 window", 1, 1, 1, 150, 150, 256, window=(40, 0))
    forward_case("few queries", 1, 8, 2, 3, 1100, 128)
    for D in (64, 128, 256):
        forward_case(f"D{D} one query", 1, 8, 2, 1, 1100, D, window=(800, 0))
    forward_case("soft cap", 1, 1, 1, 130, 140, 64, softcap=3.0)
    gradient_case("gradients", 1, 2, 1, 130, 130, 128, causal="last_key")
    gradient_case("gradients of terms", 1, 1, 1, 100, 150, 64, softcap=3.0)
    gradient_case("D64 gradients", 1, 1, 1, 150, 130, 64)
    gradient_case("D256 gradients", 1, 1, 1, 100, 150, 256)
    gradient_case("ALiBi gradients", 1, 2, 1, 130, 130, 128, slopes=torch.rand(2, device="cuda"), causal="last_key")
    gradient_case("soft cap gradients", 1, 2, 1, 130, 130, 128, softcap=3.0, causal="last_key")
    boolean_gradients(L=300)
    if plain:
        for D in (64, 128, 256):
            forward_case(f"D{D} terms", 1, 2, 1, 130, 140, D, softcap=3.0, slopes=torch.rand(2, device="cuda"), causal="last_key")
            gradient_case(f"D{D} gradients of terms", 1, 2, 1, 100, 150, D, softcap=3.0,
                          bias=torch.randn(1, 2, 100, 150, device="cuda"))


def tests():
    forward_cases()
    gradient_cases()
    drop_in_cases()
    for D, repeats in ((128, 1000), (64, 200), (256, 200)):
        same_bits(D, repeats)
        same_bits_of_one_query(D, repeats)
    training()
    score_cases()


if __name__ == "__main__":
    run(tests, cover)
