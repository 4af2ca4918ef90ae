"""ggml, llama.cpp's engine: ggml_flash_attn_ext in the libraries that llama-cpp-python ships."""

from __future__ import annotations

import ctypes
import pathlib
import subprocess
import sys

import numpy as np

from cases import offsets, visible
from peer import Call, Peer, Unsupported

F32, F16, BF16 = 0, 1, 30
MASK_LIMIT = 1 << 30


class _InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def _signatures():
    pointer, i64, size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t
    return {
        "ggml_init": (pointer, [_InitParams]),
        "ggml_free": (None, [pointer]),
        "ggml_new_tensor_4d": (pointer, [pointer, ctypes.c_int, i64, i64, i64, i64]),
        "ggml_get_data": (pointer, [pointer]),
        "ggml_nbytes": (size, [pointer]),
        "ggml_flash_attn_ext": (pointer, [pointer] * 5 + [ctypes.c_float] * 3),
        "ggml_new_graph": (pointer, [pointer]),
        "ggml_build_forward_expand": (None, [pointer, pointer]),
        "ggml_tensor_overhead": (size, []),
        "ggml_graph_overhead": (size, []),
        "ggml_backend_cpu_init": (pointer, []),
        "ggml_backend_cpu_set_n_threads": (None, [pointer, ctypes.c_int]),
        "ggml_backend_graph_compute": (ctypes.c_int, [pointer, pointer]),
    }


class _Library:
    """The functions needed, each from whichever of ggml's libraries has it."""

    def __init__(self, folder):
        libraries = []
        for stem in ("ggml-base", "ggml-cpu", "ggml"):
            for suffix in (".so", ".dylib"):
                path = folder / f"lib{stem}{suffix}"
                if path.exists():
                    libraries.append(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))
        for name, (result, arguments) in _signatures().items():
            found = next((library for library in libraries if hasattr(library, name)), None)
            if found is None:
                raise RuntimeError(f"llama-cpp-python's libraries do not export {name}")
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name[len("ggml_") :], function)


class _Graph:
    """One flash_attn_ext per document (or one in all), its memory, and the way to run it."""

    def __init__(self, ggml, backend, tensors, scale):
        """`tensors`: for each document (q, k, v, mask or None), each a pair of ggml type and array."""
        self.ggml, self.backend = ggml, backend
        size = ggml.graph_overhead() + (1 << 20)
        for group in tensors:
            arrays = [x for x in group if x is not None]
            size += sum(x.nbytes + ggml.tensor_overhead() + 64 for _, x in arrays)
            size += group[0][1].size * 4 + ggml.tensor_overhead() + 64
        self.context = ggml.init(_InitParams(size, None, False))
        if not self.context:
            raise MemoryError(f"ggml could not allocate {size} bytes")
        self.graph = ggml.new_graph(self.context)
        self.outputs = []
        for group in tensors:
            q, k, v, mask = (None if x is None else self._tensor(*x) for x in group)
            out = ggml.flash_attn_ext(self.context, q, k, v, mask, scale, 0.0, 0.0)
            ggml.build_forward_expand(self.graph, out)
            B, H, M, D = group[0][1].shape
            memory = (ctypes.c_float * (B * H * M * D)).from_address(ggml.get_data(out))
            self.outputs.append(np.frombuffer(memory, np.float32).reshape(B, M, H, D))

    def _tensor(self, kind, x):
        x = np.ascontiguousarray(x)
        shape = (1,) * (4 - x.ndim) + x.shape
        tensor = self.ggml.new_tensor_4d(self.context, kind, *reversed(shape))
        if self.ggml.nbytes(tensor) != x.nbytes:
            raise RuntimeError("this build of ggml sizes its tensors differently")
        ctypes.memmove(self.ggml.get_data(tensor), x.ctypes.data, x.nbytes)
        return tensor

    def run(self):
        status = self.ggml.backend_graph_compute(self.backend, self.graph)
        if status != 0:
            raise RuntimeError(f"ggml_backend_graph_compute returned {status}")
        return self

    def read(self, _):
        return (np.concatenate([x.transpose(0, 2, 1, 3) for x in self.outputs], axis=2),)

    def __del__(self):
        if getattr(self, "context", None):
            self.ggml.free(self.context)


def _half_bits(x, kind):
    """float32 values as the bits of `kind`; bf16 cases hold bf16 values, so nothing is rounded there."""
    if kind == F32:
        return x
    if kind == F16:
        return x.astype(np.float16)
    return (np.ascontiguousarray(x).view(np.uint32) >> 16).astype(np.uint16)


class Ggml(Peer):
    name = "ggml"

    def __init__(self, threads, probing=False):
        super().__init__(threads)
        import llama_cpp

        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        if not probing:
            _probe()
        self.ggml = _Library(pathlib.Path(llama_cpp.__file__).parent / "lib")
        self.backend = self.ggml.backend_cpu_init()
        if not self.backend:
            raise RuntimeError("ggml_backend_cpu_init failed")
        self.ggml.backend_cpu_set_n_threads(self.backend, threads)

    def variants(self, case, data):
        if case.direction == "backward":
            raise Unsupported("ggml has no backward of flash attention")
        if case.mask != "packed" and case.mask != "full" and case.M * case.N * 2 > MASK_LIMIT:
            raise Unsupported("its dense mask would take more than 1 GiB")
        # Its queries are always f32. In a bf16 case either 16-bit format of the cache will do.
        kinds = {"f32 K and V": F32} if case.dtype == "f32" else {"bf16 K and V": BF16, "f16 K and V": F16}
        return {name: (lambda kind=kind: self._build(case, data, kind)) for name, kind in kinds.items()}

    def _build(self, case, data, kind):
        def group(q, k, v, seen):
            mask = None if seen is None else (F16, np.where(seen, np.float16(0), np.float16(-np.inf)))
            return (F32, q), (kind, _half_bits(k, kind)), (kind, _half_bits(v, kind)), mask

        if case.mask == "packed":
            starts = offsets(case)
            groups = [group(*(x[:, :, a:b] for x in (data.q, data.k, data.v)), np.tri(b - a, dtype=bool))
                      for a, b in zip(starts, starts[1:])]
        else:
            groups = [group(data.q, data.k, data.v, None if case.mask == "full" else visible(case))]
        graph = _Graph(self.ggml, self.backend, groups, 1 / np.sqrt(case.D))
        return Call(graph.run, graph.read)


def _probe():
    """Runs a small case of every kind in a process of its own first: ggml aborts where another library would raise."""
    done = subprocess.run([sys.executable, __file__], text=True, capture_output=True, timeout=120)
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"its trial run ended with code {done.returncode}: {words[:200]}")


if __name__ == "__main__":
    from cases import Case, Data

    peer = Ggml(1, probing=True)
    for trial in [Case("trial", 1, 4, 2, m, 96, d, mask, dtype, window=16, lengths=lengths)
                  for dtype in ("f32", "bf16")
                  for d in (64, 96, 128)
                  for m, mask, lengths in ((1, "full", ()), (96, "full", ()), (96, "causal", ()), (96, "window", ()),
                                           (96, "packed", (40, 56)))]:
        for build in peer.variants(trial, Data(trial)).values():
            call = build()
            call.read(call.run())
