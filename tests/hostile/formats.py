"""Model files written and read with nothing but the standard library, so that any field of them can be a lie."""

import io
import json
import struct
import zipfile

WORD = 4  # every seed is f32: a word is a number


class Tensor:
    def __init__(self, name, shape, data, dtype="F32"):
        self.name, self.shape, self.data, self.dtype = name, list(shape), data, dtype

    def copy(self):
        return Tensor(self.name, self.shape, self.data, self.dtype)


# Safetensors.

def safetensors_parts(tensors):
    """The header as a dict, and the bytes behind it."""
    header, at = {}, 0
    for t in tensors:
        header[t.name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, at + len(t.data)]}
        at += len(t.data)
    return header, b"".join(t.data for t in tensors)


def safetensors(header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def read_safetensors(raw):
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8:8 + length])
    data = raw[8 + length:]
    return [Tensor(name, t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]], t["dtype"])
            for name, t in header.items() if name != "__metadata__"]


# GGUF.

GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64 = 4, 5, 6, 7, 8, 9, 10


class Recorder:
    """Bytes that remember where each number of them stands: (offset, struct format, what it is)."""

    def __init__(self):
        self.raw, self.fields = bytearray(), []

    def number(self, form, value, what):
        self.fields.append((len(self.raw), form, what))
        self.raw += struct.pack("<" + form, value)

    def text(self, value, what):
        value = value.encode() if isinstance(value, str) else value
        self.number("Q", len(value), what + " length")
        self.raw += value


def gguf_value(out, kind, value, key):
    if kind == GGUF_STRING:
        out.text(value, key)
    else:
        out.number({GGUF_U32: "I", GGUF_I32: "i", GGUF_F32: "f", GGUF_BOOL: "B", GGUF_U64: "Q"}[kind], value, key)


def gguf(settings, tensors, align=32):
    """settings: (key, kind, value), or (key, kind, [values]). Gives a Recorder."""
    out = Recorder()
    out.raw += b"GGUF"
    out.number("I", 3, "version")
    out.number("Q", len(tensors), "tensor count")
    out.number("Q", len(settings), "setting count")
    for key, kind, value in settings:
        out.text(key, "key")
        if isinstance(value, list):
            out.number("I", GGUF_ARRAY, "type of " + key)
            out.number("I", kind, "element type of " + key)
            out.number("Q", len(value), "length of " + key)
            for one in value:
                gguf_value(out, kind, one, key)
        else:
            out.number("I", kind, "type of " + key)
            gguf_value(out, kind, value, key)
    at = 0
    for t in tensors:
        out.text(t.name, "tensor name")
        out.number("I", len(t.shape), f"dims of {t.name}")
        for size in reversed(t.shape):
            out.number("Q", size % (1 << 64), f"shape of {t.name}")
        out.number("I", {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "BF16": 30}.get(t.dtype, 99),
                   f"type of {t.name}")
        out.number("Q", at, f"offset of {t.name}")
        at += len(t.data) + -len(t.data) % align
    out.raw += bytes(-len(out.raw) % align)
    for t in tensors:
        out.raw += t.data + bytes(-len(t.data) % align)
    return out


def read_gguf(raw):
    """The tensors of a file that the program wrote."""
    at = 8

    def take(form):
        nonlocal at
        (value,) = struct.unpack_from("<" + form, raw, at)
        at += struct.calcsize("<" + form)
        return value

    def take_text():
        nonlocal at
        length = take("Q")
        at += length
        return raw[at - length:at].decode()

    def skip(kind):
        if kind == GGUF_STRING:
            take_text()
        elif kind == GGUF_ARRAY:
            inner, count = take("I"), take("Q")
            for _ in range(count):
                skip(inner)
        else:
            take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}[kind])

    count, settings = take("Q"), take("Q")
    for _ in range(settings):
        take_text()
        skip(take("I"))
    found = []
    for _ in range(count):
        name, dims = take_text(), take("I")
        shape = [take("Q") for _ in range(dims)][::-1]
        found.append((name, shape, take("I"), take("Q")))
    start = at + -at % 32
    tensors = []
    for n, (name, shape, kind, offset) in enumerate(found):
        size = WORD
        for dim in shape:
            size *= dim
        tensors.append(Tensor(name, shape, raw[start + offset:start + offset + size], "F32" if kind == 0 else str(kind)))
    return tensors


# PyTorch's .pth.

def pickle_text(text):
    raw = text.encode() if isinstance(text, str) else text
    return b"X" + struct.pack("<I", len(raw)) + raw


def pickle_number(value):
    if -2**31 <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def pickle_tuple(values):
    return b"(" + b"".join(map(pickle_number, values)) + b"t"


def strides_of(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(1, size)
    return strides


STORAGES = {"F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage", "I64": "LongStorage"}


def pth_pickle(tensors):
    out = b"\x80\x02}("
    for n, t in enumerate(tensors):
        size = {"F32": 4, "I64": 8}.get(t.dtype, 2)
        out += pickle_text(t.name) + b"ctorch._utils\n_rebuild_tensor_v2\n("
        out += b"(" + pickle_text("storage") + b"ctorch\n" + STORAGES.get(t.dtype, "FloatStorage").encode() + b"\n"
        out += pickle_text(str(n)) + pickle_text("cpu") + pickle_number(len(t.data) // size) + b"tQ"
        out += pickle_number(0) + pickle_tuple(t.shape) + pickle_tuple(strides_of(t.shape)) + b"\x89"
        out += b"ccollections\nOrderedDict\n)RtR"
    return out + b"u."


def pth(pickled, tensors, method=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("m/data.pkl", pickled, method)
        archive.writestr("m/byteorder", b"little")
        for n, t in enumerate(tensors):
            archive.writestr(f"m/data/{n}", t.data)
    return buffer.getvalue()
