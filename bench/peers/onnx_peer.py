"""ONNX Runtime: its fused MultiHeadAttention and GroupQueryAttention, and the standard's Attention."""

from __future__ import annotations

import numpy as np

from cases import padded, unpadded
from peer import Call, Peer, Unsupported

SCORE_LIMIT = 4 << 30  # its causal kernels keep all scores


def _rows(x):
    """[batch, heads, length, dim] as [batch, length, heads * dim]."""
    B, H, L, D = x.shape
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(B, L, H * D)


class OnnxRuntime(Peer):
    name = "ONNX Runtime"

    def __init__(self, threads):
        super().__init__(threads)
        import onnx
        import onnxruntime

        self.onnx, self.ort = onnx, onnxruntime
        self.version = onnxruntime.__version__
        if "CPUExecutionProvider" not in onnxruntime.get_available_providers():
            raise RuntimeError("this build of onnxruntime has no CPU provider")

    def settings(self):
        return {"onnx": self.onnx.__version__, "intra_op_num_threads": self.threads, "io_binding": True,
                "session.force_spinning_stop": 1}

    def variants(self, case, data):
        if case.direction == "backward":
            raise Unsupported("the wheel of ONNX Runtime runs inference alone")
        if case.dtype != "f32":
            raise Unsupported("its attention kernels on the CPU take no bfloat16")
        flash = case.mask == "full"
        if case.score_bytes > SCORE_LIMIT and not flash:
            raise Unsupported(f"it would keep {case.score_bytes / 2**30:.0f} GiB of scores, the limit here is 4 GiB")
        result = {}
        if case.decode:
            result["GroupQueryAttention over a shared cache"] = lambda: self._decode(case, data)
        elif case.mask != "full":
            result["GroupQueryAttention"] = lambda: self._group_query(case, data)
        if case.mask != "window":
            result["MultiHeadAttention"] = lambda: self._multi_head(case, data)
            result["Attention, opset 23"] = lambda: self._standard(case, data)
        return result

    def _session(self, op, domain, opset, inputs, outputs, node_inputs, **attributes):
        """A model of one node, and a binding with the memory of all inputs and outputs fixed beforehand."""
        helper, ort = self.onnx.helper, self.ort
        type_of = self.onnx.helper.np_dtype_to_tensor_dtype
        describe = lambda name, x: helper.make_tensor_value_info(name, type_of(x.dtype), x.shape)  # noqa: E731
        node = helper.make_node(op, node_inputs, list(outputs), domain=domain, **attributes)
        graph = helper.make_graph([node], op, [describe(*item) for item in inputs.items()],
                                  [describe(*item) for item in outputs.items()])
        opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.add_session_config_entry("session.force_spinning_stop", "1")  # no spinning into the next one's time
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        binding, values = session.io_binding(), {}
        for name, x in [*inputs.items(), *outputs.items()]:
            key = id(x)  # the same array as input and output shares its memory
            values.setdefault(key, ort.OrtValue.ortvalue_from_numpy(x, "cpu", 0))
            (binding.bind_ortvalue_input if name in inputs else binding.bind_ortvalue_output)(name, values[key])
        result = values[id(next(iter(outputs.values())))]

        def run():
            session.run_with_iobinding(binding)
            return result

        return run

    def _tokens(self, case, data):
        """q, k, v as [batch, length, hidden], how to read such an output back, and the lengths of the sequences."""
        arrays, lengths = (data.q, data.k, data.v), np.full(case.B, case.N)
        if case.mask == "packed":
            arrays, lengths = [padded(case, x) for x in arrays], np.array(case.lengths)

        def read(value):
            x = value.numpy()
            x = x.reshape(*x.shape[:2], case.H, case.D).transpose(0, 2, 1, 3)
            return (unpadded(case, x) if case.mask == "packed" else x,)

        return [_rows(x) for x in arrays], read, lengths

    def _multi_head(self, case, data):
        (q, k, v), read, _ = self._tokens(case, data)
        if case.group > 1:  # it has no groups: the copies are made beforehand
            k, v = (_rows(np.repeat(x, case.group, axis=1)) for x in (data.k, data.v))
        run = self._session("MultiHeadAttention", "com.microsoft", 21, {"q": q, "k": k, "v": v},
                            {"out": np.empty_like(q)}, ["q", "k", "v"], num_heads=case.H,
                            unidirectional=int(case.mask != "full"))
        return Call(run, read)

    def _group_query(self, case, data):
        (q, k, v), read, lengths = self._tokens(case, data)
        B, L = q.shape[:2]
        inputs = {"q": q, "k": k, "v": v, "last": (lengths - 1).astype(np.int32), "total": np.array(L, np.int32)}
        present = [np.empty((B, case.Hk, L, case.D), np.float32) for _ in range(2)]
        run = self._session("GroupQueryAttention", "com.microsoft", 21, inputs,
                            {"out": np.empty_like(q), "present_k": present[0], "present_v": present[1]},
                            ["q", "k", "v", "", "", "last", "total"], num_heads=case.H, kv_num_heads=case.Hk,
                            local_window_size=case.window if case.mask == "window" else -1)
        return Call(run, read)

    def _decode(self, case, data):
        q, k, v = (_rows(x) for x in (data.q, data.k[:, :, -1:], data.v[:, :, -1:]))
        cache = [data.k.copy(), data.v.copy()]
        for x in cache:
            x[:, :, -1] = 0  # the step itself writes the last token
        inputs = {"q": q, "k": k, "v": v, "cache_k": cache[0], "cache_v": cache[1],
                  "last": np.full(case.B, case.N - 1, np.int32), "total": np.array(case.N, np.int32)}
        run = self._session("GroupQueryAttention", "com.microsoft", 21, inputs,
                            {"out": np.empty_like(q), "present_k": cache[0], "present_v": cache[1]},
                            ["q", "k", "v", "cache_k", "cache_v", "last", "total"],
                            num_heads=case.H, kv_num_heads=case.Hk)
        return Call(run, self._tokens(case, data)[1])

    def _standard(self, case, data):
        q, k, v = (padded(case, x) if case.mask == "packed" else x for x in (data.q, data.k, data.v))
        run = self._session("Attention", "", 23, {"q": q, "k": k, "v": v}, {"out": np.empty_like(q)},
                            ["q", "k", "v"], is_causal=int(case.mask != "full"))
        return Call(run, lambda value: (unpadded(case, value.numpy()) if case.mask == "packed" else value.numpy(),))
