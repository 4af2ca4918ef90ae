"""attend._key_log: what successive calls of a layer hold, by the caches that Transformers has."""

import random

import pytest
import torch
from attend._key_log import KeyLog


def rows(batch, count, heads=2):
    return torch.randn(batch, heads, count, 4), torch.randn(batch, heads, count, 3)


def joined(a, b):
    return tuple(torch.cat(pair, 2) for pair in zip(a, b))


# Each step makes (k, v, queries) of a call from the cache before it.


def growing(cache, queries):
    return joined(cache, rows(len(cache[0]), queries)), queries


def sliding(cache, queries, window=6):
    kept = tuple(x[:, :, max(0, x.shape[2] - window + queries):] for x in cache)
    return growing(kept, queries)


def in_place(cache, queries):
    """A static cache: zeros until they are written."""
    empty = [n for n in range(cache[0].shape[2]) if not cache[0][:, :, n].any()]
    new, queries = tuple(x.clone() for x in cache), min(queries, len(empty))
    for x, fresh in zip(new, rows(len(cache[0]), queries)):
        x[:, :, empty[:queries]] = fresh
    return new, max(queries, 1)


def reordered(cache, queries):
    order = [random.randrange(len(cache[0])) for _ in cache[0]]
    return growing(tuple(x[order] for x in cache), queries)


def cropped(cache, queries):
    return growing(tuple(x[:, :, :-1] for x in cache), queries)


def the_same(cache, queries):
    return cache, 1


STEPS = {"growing": [growing], "sliding": [sliding], "in place": [in_place], "reordered": [reordered], "cropped": [cropped],
         "the same": [the_same], "mixed": [growing, reordered, cropped, the_same], "reordered in place": [in_place, reordered]}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("batch", [1, 3])
def test_calls_are_read_back_and_rows_are_stored_once(steps, batch):
    random.seed(batch)
    cache = rows(batch, 9)
    if steps.startswith("in place"):
        cache = tuple(torch.cat((x, torch.zeros_like(x), torch.zeros_like(x)), 2) for x in cache)
    log, calls, queries = KeyLog(*cache), [], cache[0].shape[2]
    stored = 0
    for n in range(12):
        calls.append((tuple(x.clone() for x in cache), log.add(*cache, queries)))
        stored += queries
        assert log._used <= stored
        cache, queries = random.choice(STEPS[steps])(cache, random.choice([1, 1, 1, 2]))
        if steps == "in place":
            assert all(p.sequences is None for p in calls[-1][1]) and len(calls[-1][1]) <= 3
    for given, pieces in calls:
        for x, y in zip(given, log.read(pieces)):
            assert torch.equal(x, y)


def test_what_is_shared_takes_no_memory():
    cache = rows(2, 512)
    log = KeyLog(*cache)
    log.add(*cache, 512)
    for _ in range(64):
        cache, queries = growing(cache, 1)
        pieces = log.add(*cache, queries)
    assert len(pieces) == 1 and log.read(pieces)[0].untyped_storage().data_ptr() == log._k.untyped_storage().data_ptr()
    assert log._k.shape[2] <= 576 * 1.125


def test_nan_equals_itself():
    cache = rows(1, 5)
    cache[0][:, :, 2] = float("nan")
    log = KeyLog(*cache)
    log.add(*cache, 5)
    log.add(*growing(cache, 1)[0], 1)
    assert log._used == 6


def test_unrelated_calls_are_stored_whole():
    log = KeyLog(*rows(2, 1))
    for length in (7, 5, 1, 7):
        given = rows(2, length)
        pieces = log.add(*given, 1)
        assert all(torch.equal(x, y) for x, y in zip(given, log.read(pieces)))
    assert log._used == 20


def test_other_shapes_are_not_accepted():
    log = KeyLog(*rows(2, 5))
    assert log.accepts(*rows(2, 9)) and not log.accepts(*rows(3, 5)) and not log.accepts(*rows(2, 5, heads=1))
    assert not log.accepts(*(x.half() for x in rows(2, 5)))
