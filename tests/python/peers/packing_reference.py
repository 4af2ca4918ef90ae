"""The rows that attend trains on, read from prepared data in plain Python: for running the same steps elsewhere."""

import json
from pathlib import Path

import numpy as np

M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def philox(counter, key):
    """Philox4x32-10 (Salmon et al. 2011)."""
    c, k = list(counter), [key & M32, key >> 32 & M32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b >> 32 ^ c[1] ^ k[0], b & M32, a >> 32 ^ c[3] ^ k[1], a & M32]
        k = [k[0] + 0x9E3779B9 & M32, k[1] + 0xBB67AE85 & M32]
    return c


def shuffled(n, count, key):
    bits = max(1, (max(1, count - 1).bit_length() + 1) // 2)
    mask, x = (1 << bits) - 1, n
    while True:
        left, right = x >> bits, x & mask
        for r in range(4):
            words = philox((right & M32, right >> 32, r, 1), key)
            left, right = right, left ^ ((words[0] << 32 | words[1]) & mask)
        x = left << bits | right
        if x < count:
            return x


def documents(folder):
    info = json.loads((Path(folder) / "data.json").read_text())
    tokens = np.fromfile(Path(folder) / "tokens.bin", "<i4")
    starts = np.fromfile(Path(folder) / "documents.bin", "<i8")
    assert len(tokens) == info["tokens"] and len(starts) == info["documents"] + 1
    return [tokens[a:b] for a, b in zip(starts, starts[1:])]


def rows(folder, length, seed):
    """One row after the other, without an end: (tokens, targets, number of the segment, place in it)."""
    all_documents = documents(folder)
    count, epoch, row = len(all_documents), 0, []
    while True:
        key = seed ^ (epoch + 1) * 0x9E3779B97F4A7C15 & M64
        for n in range(count):
            stored = all_documents[shuffled(shuffled(n, count, key), count, seed ^ 0xA5A5F00D)]
            tokens, segment, place = np.where(stored < 0, ~stored, stored), n, 0
            for token, target in zip(tokens[:-1], stored[1:]):
                row.append((token, target if target >= 0 else -100, segment, place))
                place += 1
                if len(row) == length:
                    yield np.array(row).T
                    row, segment, place = [], segment + count, 0
        epoch += 1
