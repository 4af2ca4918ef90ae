"""PyTorch: scaled_dot_product_attention in the ways its users call it, and compiled FlexAttention."""

from __future__ import annotations

import contextlib
import logging
import shutil
import warnings

from cases import offsets, padded, unpadded, visible
from peer import Call, Peer, Unsupported

MATH_LIMIT = 1 << 29  # bytes of scores beyond which the backend that keeps them all is not tried


class TorchPeer(Peer):
    def __init__(self, threads):
        super().__init__(threads)
        import torch

        torch.set_num_threads(threads)
        self.torch, self.version = torch, torch.__version__

    def tensors(self, case, *arrays):
        torch = self.torch
        dtype = torch.float32 if case.dtype == "f32" else torch.bfloat16
        return [torch.from_numpy(x).to(dtype).contiguous() for x in arrays]

    def reader(self, finish=lambda x: x):
        return lambda outs: tuple(finish(x.float().numpy()) for x in outs)

    def call(self, function, read, context=contextlib.nullcontext):
        """`function` is called without recording gradients; `read` gets a tuple."""
        torch = self.torch

        @contextlib.contextmanager
        def surround():
            with torch.no_grad(), context():
                yield

        return Call(function, lambda out: read((out,)), surround)

    def gradient(self, leaves, out, dout, read):
        """Only the backward pass is timed: the forward pass ran once, and its graph is kept."""
        torch = self.torch
        return Call(lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True), read)


class SDPA(TorchPeer):
    name = "PyTorch SDPA"

    def __init__(self, threads):
        super().__init__(threads)
        self.sdpa = self.torch.nn.functional.scaled_dot_product_attention

    def variants(self, case, data):
        if case.mask == "packed":
            return self._packed(case, data)
        ways = {"enable_gqa": "gqa", "K and V expanded beforehand": "expanded"} if case.group > 1 else {"": "plain"}
        if case.group > 1 and case.decode:
            ways["a group's heads folded into queries"] = "folded"
        masks = {"": None}
        if case.mask == "window":
            masks = {"float mask": "float", "bool mask": "bool"}
        result = {}
        for way, how in ways.items():
            for mask_name, mask in masks.items():
                for backend in ("default backend", "math backend"):
                    if backend == "math backend" and (case.score_bytes > MATH_LIMIT or how == "gqa"):
                        continue
                    name = ", ".join(x for x in (way, mask_name, backend) if x)
                    result[name] = self._builder(case, data, how, mask, backend == "math backend")
        return result

    def _attention(self, case, how, mask, math):
        """The function of q, k and v, and what surrounds its calls."""
        torch = self.torch
        options = {"enable_gqa": True} if how == "gqa" else {}
        if mask is not None:
            seen = torch.from_numpy(visible(case))
            if mask == "float":
                dtype = torch.float32 if case.dtype == "f32" else torch.bfloat16
                seen = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))
            options["attn_mask"] = seen
        elif case.mask == "causal":
            options["is_causal"] = True
        context = contextlib.nullcontext
        if math:
            from torch.nn.attention import SDPBackend, sdpa_kernel

            context = lambda: sdpa_kernel(SDPBackend.MATH)  # noqa: E731
        return lambda q, k, v: self.sdpa(q, k, v, **options), context

    def _builder(self, case, data, how, mask, math):
        def shaped(q, k, v):
            if how == "expanded":
                return q, k.repeat_interleave(case.group, 1), v.repeat_interleave(case.group, 1)
            if how == "folded":
                return q.reshape(case.B, case.Hk, case.group, case.D), k, v
            return q, k, v

        def forward():
            attention, context = self._attention(case, how, mask, math)
            q, k, v = shaped(*self.tensors(case, data.q, data.k, data.v))
            read = self.reader(lambda x: x.reshape(case.B, case.H, case.M, case.D))
            return self.call(lambda: attention(q, k, v), read, context)

        def backward():
            attention, context = self._attention(case, how, mask, math)
            leaves = self.tensors(case, data.q, data.k, data.v)
            for leaf in leaves:
                leaf.requires_grad_()
            with context():
                out = attention(*shaped(*leaves))
            return self.gradient(leaves, out, *self.tensors(case, data.dout), self.reader())

        return forward if case.direction == "forward" else backward

    def _packed(self, case, data):
        forward = case.direction == "forward"
        arrays = [data.q, data.k, data.v] + ([] if forward else [data.dout])

        def one(q, k, v):
            return self.sdpa(q, k, v, is_causal=True)

        # Right padding needs no mask under a causal rule: no true query sees it.
        def batch():
            tensors = self.tensors(case, *(padded(case, x) for x in arrays))
            read = self.reader(lambda x: unpadded(case, x))
            if forward:
                return self.call(lambda: one(*tensors), read)
            leaves = [x.requires_grad_() for x in tensors[:3]]
            return self.gradient(leaves, one(*leaves), tensors[3], read)

        def loop():
            torch, starts = self.torch, offsets(case)
            parts = [self.tensors(case, *(x[:, :, a:b].copy() for x in arrays)) for a, b in zip(starts, starts[1:])]
            if forward:
                return self.call(lambda: [one(*part) for part in parts],
                                 lambda outs: (torch.cat(outs[0], 2).float().numpy(),))
            leaves = [x.requires_grad_() for part in parts for x in part[:3]]
            outs = [one(*leaves[i : i + 3]) for i in range(0, len(leaves), 3)]
            return self.gradient(leaves, outs, [part[3] for part in parts],
                                 lambda grads: tuple(torch.cat(grads[i::3], 2).float().numpy() for i in range(3)))

        return {"padded batch": batch, "one call per document": loop}


class Flex(TorchPeer):
    name = "FlexAttention"

    def __init__(self, threads):
        super().__init__(threads)
        from torch.nn.attention import flex_attention

        if not any(shutil.which(compiler) for compiler in ("g++", "clang++", "c++")):
            raise RuntimeError("no C++ compiler, which torch.compile needs")
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it warns of a GPU that is not there
        self.module = flex_attention

    def variants(self, case, data):
        if case.direction == "backward":
            raise Unsupported("FlexAttention has no backward on the CPU")
        return {"compiled": lambda: self._compiled(case, data)}

    def _compiled(self, case, data):
        torch = self.torch
        torch._dynamo.reset()  # each case is compiled for its own sizes, as a user's one shape would be
        q, k, v = self.tensors(case, data.q, data.k, data.v)
        options = {"enable_gqa": case.group > 1}
        rule = self._rule(case)
        if rule is not None:
            options["block_mask"] = self.module.create_block_mask(rule, None, None, case.M, case.N, device="cpu")
        flex = torch.compile(self.module.flex_attention, dynamic=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.no_grad():
                flex(q, k, v, **options)
        return self.call(lambda: flex(q, k, v, **options), self.reader())

    def _rule(self, case):
        torch = self.torch
        if case.mask == "causal":
            return lambda b, h, i, j: i >= j
        if case.mask == "window":
            return lambda b, h, i, j: (i >= j) & (i - j < case.window)
        if case.mask == "packed":
            document = torch.repeat_interleave(torch.arange(len(case.lengths)), torch.tensor(case.lengths))
            return lambda b, h, i, j: (i >= j) & (document[i] == document[j])
        return None
