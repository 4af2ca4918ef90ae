"""attend.llm on models of a few thousand parameters: what it answers is what the program and the golden files say."""

import copy
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import attend
import llm_models
from attend import llm
from llm_models import GOLDEN, encoder, folder, model, program  # noqa: F401 (fixtures)

PROMPTS = ["once upon", "a", "the quick brown fox jumps over the lazy dog", "b", "zebras and xylophones", "once more",
           "the quick brown fox", "ABC", "0123456789", "a river"]
# What the program answered when this was written: attend generate model PROMPT -n 12 -q
ANSWERS = {"once upon": "SZHA 6yu4HIF", "a": "H444 tHHHIZZ", "the quick brown fox jumps over the lazy dog": "uwHHU"}


def everything(answer):
    return answer.text, answer.tokens, answer.finish, answer.prompt_tokens, answer.logprobs


# --- what it is ---

def test_says_what_it_is(folder, model):
    info = model.info
    assert (info.family, info.generates, info.layers, info.hidden) == ("llama", True, 2, 32)
    assert (info.heads, info.kv_heads, info.head_dim, info.vocabulary, info.context) == (4, 2, 8, 64, 128)
    assert info == llm.model_info(folder) == llm.model_info(str(folder)) and info.path == str(folder)
    assert info.parameters * 4 == info.file_bytes
    assert model.memory == llm.plan_memory(folder) and model.memory.total == sum(vars(model.memory).values())
    assert llm.plan_memory(folder, context=64).cache < model.memory.cache
    assert llm.plan_memory(folder, cache="int8").cache < llm.plan_memory(folder, cache="f16").cache
    assert model.context == 128 and llm.Model(folder, context=64).context == 64
    assert "llama" in repr(model) and f"{info.parameters:,} parameters" in repr(model) and "context 128" in repr(model)
    assert llm.free_memory() > 0


def test_compute_f32_is_the_converted_file(folder, tmp_path):
    plain, q8, f32 = (tmp_path / f"{name}.gguf" for name in ("plain", "q8", "f32"))
    program("convert", folder, plain)
    program("convert", plain, q8, "--type", "q8_0")
    program("convert", q8, f32, "--type", "f32")
    expected, rounded, exact = llm.Model(f32), llm.Model(q8), llm.Model(q8, compute="f32")
    assert [(m.info.quantised, m.info.compute, m.info.rounds_rows) for m in (expected, rounded, exact)] == [
        (False, "file", False), (True, "file", True), (True, "f32", False)]
    assert np.array_equal(exact.logits("abcabc"), expected.logits("abcabc"))
    assert not np.array_equal(rounded.logits("abcabc"), expected.logits("abcabc"))
    assert exact.memory == llm.plan_memory(q8, compute="f32") and exact.memory.cache == expected.memory.cache
    assert exact.memory.weights > rounded.memory.weights == llm.plan_memory(q8).weights
    weights = attend.look(expected, "abcabc").weights(1, 2)
    for seen in (attend.look(exact, "abcabc"), attend.look(q8, "abcabc", compute="f32"), attend.look(exact, "abcabc", compute="f32")):
        assert np.array_equal(seen.weights(1, 2), weights)
    assert not np.array_equal(attend.look(q8, "abcabc").weights(1, 2), weights)
    for call in (lambda: llm.Model(q8, compute="f16"), lambda: llm.plan_memory(q8, compute="f16"),
                 lambda: attend.look(q8, "abc", compute="f16")):
        with pytest.raises(attend.InvalidArgument, match="compute is 'f16', expected file .* or f32"):
            call()
    with pytest.raises(attend.InvalidArgument, match="the model was opened with 'file'"):
        attend.look(rounded, "abc", compute="f32")


def test_is_imported_when_asked_for():
    script = "import sys, attend; print('attend.llm' in sys.modules, attend.llm.Model.__name__, 'attend.llm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "Model", "True"]


def test_paths_are_bytes(folder, tmp_path):
    path = tmp_path / os.fsdecode(b"not utf-8: \xff")
    os.symlink(folder, path)
    assert llm.Model(path).info.path == str(path) and llm.Tokenizer(path).vocab_size == 64


# --- texts ---

def test_generates_what_it_always_did(model):
    assert {prompt: str(model.generate(prompt, max_tokens=12)) for prompt in ANSWERS} == ANSWERS


def test_generates_what_the_program_generates(folder, model):
    for prompt in PROMPTS[:4]:
        for flags, options in ((), {}), (("-t", 1, "--seed", 5, "--top-k", 20), dict(temperature=1, seed=5, top_k=20)), (
                ("-t", 2, "--top-p", 0.9, "--min-p", 0.01, "--repetition-penalty", 1.3, "--presence-penalty", 0.5),
                dict(temperature=2.0, top_p=0.9, min_p=0.01, repetition_penalty=1.3, presence_penalty=0.5)):
            expected = program("generate", folder, prompt, "-n", 30, "-q", *flags)
            assert model.generate(prompt, max_tokens=30, **options) + "\n" == expected, (prompt, flags)


def test_an_answer_is_a_text_that_knows_how_it_came(model):
    answer = model.generate("once upon", max_tokens=9)
    assert isinstance(answer, str) and type(answer.text) is str and answer == answer.text
    assert answer.finish == "length" and len(answer.tokens) == 9 and answer.prompt_tokens == 9
    assert model.tokenizer.decode(answer.tokens, skip_special=True) == answer
    for same in (pickle.loads(pickle.dumps(answer)), copy.deepcopy(answer)):
        assert everything(same) == everything(answer)
    assert json.loads(json.dumps({"answer": answer})) == {"answer": answer.text}


def test_tokens_are_a_prompt_too(model):
    ids = model.tokenizer.encode("once upon")
    expected = everything(model.generate("once upon", max_tokens=9))
    for prompt in (ids, tuple(ids), np.array(ids), np.array(ids, np.int32), np.array(ids, np.uint8)[::1]):
        assert everything(model.generate(prompt, max_tokens=9)) == expected
    marked = "once<|im_end|>upon"  # a token in a prompt, plain text in a message
    assert 63 in model.tokenizer.encode(marked)
    assert model.generate(marked, max_tokens=9) == model.generate(model.tokenizer.encode(marked), max_tokens=9)
    assert model.generate(marked, max_tokens=9).prompt_tokens == 9


@pytest.mark.parametrize("options", [{}, dict(temperature=1.5, seed=3, logprobs=4)], ids=["greedy", "sampled"])
def test_a_batch_has_the_answers_of_each_alone(folder, model, options):
    alone = [everything(llm.Model(folder).generate(prompt, max_tokens=20, **options)) for prompt in PROMPTS]
    assert [everything(a) for a in model.generate(PROMPTS, max_tokens=20, **options)] == alone
    # With room for two at a time, the others wait.
    assert [everything(a) for a in llm.Model(folder, context=65).generate(PROMPTS, max_tokens=20, **options)] == alone
    ids = [model.tokenizer.encode(prompt) for prompt in PROMPTS]
    assert [everything(a) for a in model.generate(tuple(ids), max_tokens=20, **options)] == alone
    rows = np.array([ids[0][:8], ids[2][:8]])
    assert model.generate(rows, max_tokens=5) == [model.generate(row, max_tokens=5) for row in rows]
    assert model.generate(["once upon"], max_tokens=5) == [model.generate("once upon", max_tokens=5)]


def test_stops_where_it_is_told(model):
    whole = model.generate("once upon", max_tokens=40)
    stop = whole[3:5]
    for stops in (stop, [stop], ("nowhere", stop)):
        answer = model.generate("once upon", max_tokens=40, stop=stops)
        assert (answer.finish, answer.text) == ("stop text", whole[:whole.index(stop)])
    answer = model.generate("once upon", max_tokens=40, stop_tokens=[whole.tokens[3]])
    assert answer.finish == "stop token" and answer.tokens == whole.tokens[:whole.tokens.index(whole.tokens[3])]


def test_ends_at_the_context_unless_it_forgets(folder):
    open_end = llm.Model(folder, context=32).generate("once upon", max_tokens=500)
    assert open_end.finish in ("context", "stop token") and len(open_end.tokens) <= 23
    if open_end.finish == "context":
        assert len(open_end.tokens) == 23
    answer = llm.Model(folder, keep_last=32).generate("once upon", max_tokens=500)
    assert answer.finish == "length" and len(answer.tokens) == 500 or answer.finish == "stop token"


def test_logprobs_are_those_of_the_logits(model):
    answer = model.generate("once upon", max_tokens=6, logprobs=3)
    ids = model.tokenizer.encode("once upon") + answer.tokens
    rows = model.logits(ids).astype(np.float64)[8:-1]
    expected = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    assert [p.token for p in answer.logprobs] == answer.tokens
    for row, p in zip(expected, answer.logprobs):
        assert p.logprob == pytest.approx(row[p.token], abs=1e-6)
        assert [token for token, _ in p.likeliest] == np.argsort(-row, kind="stable")[:3].tolist()
        assert p.likeliest[0] == (p.token, p.logprob)
    assert model.generate("once upon", max_tokens=6).logprobs == []


# --- streams ---

def test_pieces_join_to_the_answer(model):
    for options in ({}, dict(temperature=1.0, seed=2), dict(stop=["e"])):
        stream = model.stream("once upon", max_tokens=30, **options)
        pieces = list(stream)
        answer = model.generate("once upon", max_tokens=30, **options)
        assert len(pieces) > 1 and all(pieces) and "".join(pieces) == answer.text
        assert everything(stream.completion) == everything(answer)
        assert list(stream) == []


def test_pieces_are_whole_characters(tmp_path):
    halves = llm.Model(llm_models.write_decoder(tmp_path / "halves", tokenizer=llm_models.half_characters_tokenizer()))
    ids = halves.tokenizer.encode("\u00e9\u0121")
    assert len(ids) == 4 and halves.tokenizer.decode(ids) == "\u00e9\u0121"
    stream = halves.stream(ids, max_tokens=100, temperature=3.0, seed=1)
    text = "".join(stream)
    assert text == halves.tokenizer.decode(stream.completion.tokens, skip_special=True)
    assert sum(0x80 <= ord(c) < 0x800 for c in text) > 5


def test_leaving_the_loop_ends_the_answer(folder):
    model = llm.Model(folder, context=65)  # room for few: what was not freed would be missed
    expected = model.generate("once upon", max_tokens=50)
    for _ in range(50):
        for _ in model.stream("once upon", max_tokens=50):
            break
    with model.stream("once upon", max_tokens=50) as stream:
        next(stream)
    assert stream.completion.finish == "cancelled" and list(stream) == []
    assert expected.startswith(stream.completion)
    assert everything(model.generate("once upon", max_tokens=50)) == everything(expected)


def test_a_stream_that_has_ended_stays_as_it_ended(model):
    """Closing it later, leaving its with block and dropping it change nothing of the answer."""
    for options in (dict(max_tokens=7), dict(max_tokens=40, stop=[str(model.generate("once upon", max_tokens=40))[3:5]])):
        answer = model.generate("once upon", **options)
        assert answer.finish in ("length", "stop text")
        with model.stream("once upon", **options) as stream:
            pieces = list(stream)
            assert everything(stream.completion) == everything(answer)
        stream.close()
        stream.close()
        assert everything(stream.completion) == everything(answer) and "".join(pieces) == answer
        with pytest.raises(StopIteration):
            next(stream)
    # Read to its last piece, and no further.
    answer = model.generate("once upon", max_tokens=7)
    stream = model.stream("once upon", max_tokens=7)
    while len(stream.completion) < len(answer):
        next(stream)
    stream.close()
    assert everything(stream.completion) == everything(answer)
    closed = model.stream("once upon", max_tokens=7)
    assert closed.completion.finish == "running"
    closed.close()
    assert (closed.completion, closed.completion.finish, closed.completion.tokens) == ("", "cancelled", [])
    assert list(closed) == []


def test_a_completion_is_the_callers(model):
    stream = model.stream("once upon", max_tokens=7, logprobs=1)
    next(stream)
    part = stream.completion
    count = len(part.tokens)
    part.tokens.append(99), part.logprobs.clear()
    list(stream)
    assert len(stream.completion.tokens) == 7 == len(stream.completion.logprobs) and 99 not in stream.completion.tokens
    assert len(part.tokens) == count + 1
    empty = llm.Completion()
    empty.tokens.append(1)
    assert llm.Completion().tokens == [] and (empty.text, empty.finish, empty.prompt_tokens, empty.logprobs) == ("", "running", 0, [])


def test_what_is_dropped_is_freed(folder):
    model = llm.Model(folder)
    stream = model.stream("once upon", max_tokens=50)
    next(stream)
    core, held = weakref.ref(model), weakref.ref(stream)
    del model
    gc.collect()
    assert core() is None
    assert next(stream)  # it needs its model, and has it
    del stream
    assert held() is None


def test_other_calls_inside_a_loop_run_beside_it(model):
    expected = model.generate("once upon", max_tokens=20, temperature=1.0)
    other = model.generate("a river", max_tokens=10)
    pieces = []
    for piece in model.stream("once upon", max_tokens=20, temperature=1.0):
        pieces.append(piece)
        assert model.generate("a river", max_tokens=10) == other
        model.logits("once")
    assert "".join(pieces) == expected
    first, second = model.stream("once upon", max_tokens=20, temperature=1.0), model.stream("a river", max_tokens=10)
    pairs = list(zip(first, second))
    assert "".join(b for _, b in pairs) == other or "".join(a for a, _ in pairs) == expected


def test_threads_share_a_model(model):
    expected = [model.generate(prompt, max_tokens=25, temperature=1.0) for prompt in PROMPTS]
    rows = model.logits("once upon")
    right = []

    def work(n):
        for _ in range(5):
            assert model.generate(PROMPTS[n], max_tokens=25, temperature=1.0) == expected[n]
            assert "".join(model.stream(PROMPTS[n], max_tokens=25, temperature=1.0)) == expected[n]
            assert np.array_equal(model.logits("once upon"), rows)
        right.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(right) == list(range(6))


# --- chats ---

QUESTION = [{"role": "user", "content": "hello"}]


def test_chats_by_the_models_template(folder, model):
    answer = model.chat(QUESTION, max_tokens=12)
    assert answer + "\n" == program("generate", folder, "hello", "--chat", "-n", 12, "-q")
    assert "".join(model.stream_chat(QUESTION, max_tokens=12)) == answer
    assert everything(model.chat(QUESTION, template="chatml", max_tokens=12)) == everything(answer)
    others = [QUESTION, [{"role": "system", "content": "be brief"}, *QUESTION], QUESTION * 1]
    assert model.chat(others, max_tokens=12) == [model.chat(one, max_tokens=12) for one in others]


def test_a_chat_ends_where_its_template_says(folder, tmp_path):
    for tokens, ends in (llm_models.letters_tokenizer("<|im_end|>"), True), (llm_models.letters_tokenizer("<|no|>"), False):
        model = llm.Model(llm_models.write_decoder(tmp_path / f"{ends}", chat=True, tokenizer=tokens, eos=None))
        answers = model.chat([[{"role": "user", "content": letter}] for letter in "abcdefghij"], max_tokens=80, temperature=3)
        assert any(answer.finish == "stop token" for answer in answers) == ends
        streamed = model.stream_chat([{"role": "user", "content": "a"}], max_tokens=80, temperature=3)
        assert "".join(streamed) == answers[0] and streamed.completion.finish == answers[0].finish


def test_a_chat_remembers(folder):
    with pytest.warns(UserWarning, match="made for 128 tokens"):
        model = llm.Model(folder, context=512)
    chat = llm.Chat(model, system="be brief", max_tokens=8)
    first = chat.ask("hello")
    said = [{"role": "system", "content": "be brief"}, *QUESTION]
    assert first == model.chat(said, max_tokens=8)
    said += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "more"}]
    assert chat.messages == said[:3]
    second = chat.stream("more")
    assert "".join(second) == model.chat(said, max_tokens=8)
    said.append({"role": "assistant", "content": second.completion.text})
    assert chat.messages == said
    for _ in chat.stream("again"):
        break
    assert chat.messages[:-2] == said and len(chat.messages[-1]["content"]) < len(second.completion)
    held = chat.stream("once")
    piece = next(held)
    said = [*chat.messages, {"role": "user", "content": "once"}, {"role": "assistant", "content": piece}]
    chat.ask("again")  # ends the stream before it
    assert chat.messages[:-2] == said and list(held) == []
    count = len(chat.messages)
    chat.stream("never read")
    with pytest.raises(attend.InvalidArgument):
        chat.ask("hello", temperature=-1)
    assert len(chat.messages) == count and "messages" in repr(chat)


def said(chat):
    return [(message["role"], message["content"]) for message in chat.messages]


def test_a_stream_that_ended_is_remembered_once(model):
    """What is done with it after its end, and after later questions, drops nothing."""
    chat = llm.Chat(model, max_tokens=6)
    first = chat.stream("one")
    answer = "".join(first)
    assert said(chat) == [("user", "one"), ("assistant", answer)]
    second = chat.ask("two")
    expected = [("user", "one"), ("assistant", answer), ("user", "two"), ("assistant", second.text)]
    assert said(chat) == expected
    first.close()
    assert list(first) == [] and said(chat) == expected
    with first:
        pass
    del first
    gc.collect()
    assert said(chat) == expected
    # Read to its last piece and no further: complete, although the end was never requested.
    pieces = len(list(model.stream_chat([{"role": "user", "content": "hello"}], max_tokens=6)))
    chat = llm.Chat(model, max_tokens=6)
    stream = chat.stream("hello")
    read = [next(stream) for _ in range(pieces)]
    third = chat.ask("three")
    assert said(chat) == [("user", "hello"), ("assistant", "".join(read)), ("user", "three"), ("assistant", third.text)]
    assert stream.completion.finish == "length"
    # A list that the caller took is not changed later.
    mine = chat.messages
    before = list(mine)
    chat.ask("four")
    assert mine == before and len(chat.messages) == len(before) + 2


def test_an_answer_without_words_is_remembered(folder):
    """One that ended by itself is an answer, be it empty; one that was stopped before it began is none."""
    model = llm.Model(folder)
    chat = llm.Chat(model, max_tokens=30)
    letters = [chr(ord("a") + n) for n in range(26)]
    first = chat.model.chat([{"role": "user", "content": "hello"}], max_tokens=1).tokens[0]
    answer = chat.ask("hello", stop_tokens=[first])
    assert (answer.text, answer.tokens, answer.finish) == ("", [], "stop token")
    assert said(chat) == [("user", "hello"), ("assistant", "")]
    chat.stream("never read").close()
    assert said(chat) == [("user", "hello"), ("assistant", "")]
    empty = chat.stream("hello", stop_tokens=list(range(63)))
    assert list(empty) == [] and said(chat)[2:] == [("user", "hello"), ("assistant", "")] and letters


def test_token_ids_have_their_range(model):
    for token in (2**31, 2**40, -1):
        with pytest.raises(attend.InvalidArgument, match=f"holds token {token}, expected 0 or more, and less than"):
            model.generate([1, token, 2])
    with pytest.raises(attend.InvalidArgument, match="64"):  # as large as the vocabulary
        model.generate([1, 64], max_tokens=1)
    assert model.generate([1, 63], max_tokens=1).prompt_tokens == 2
    assert model.tokenizer.decode([2**31 - 1]) == ""


def test_options_of_one_question_are_not_those_of_the_next(model):
    chat = llm.Chat(model, max_tokens=5, temperature=0)
    assert len(chat.ask("one", max_tokens=2).tokens) == 2
    for question in ("one", "two"):
        stream = chat.stream(question, max_tokens=3)
        list(stream)
        assert len(stream.completion.tokens) == 3
        chat.messages = []  # room for the next
    assert len(chat.ask("two").tokens) == 5
    chat.messages = []  # may be changed between questions
    assert chat.ask("hello") == model.chat(QUESTION, max_tokens=5)


def test_the_example_answers(folder, model):
    example = llm_models.TESTS.parent / "examples/python/language_model.py"
    done = subprocess.run([sys.executable, example, folder, "hello"], capture_output=True, text=True, check=True)
    assert done.stdout == model.chat(QUESTION, max_tokens=64) + "\n"


# --- numbers ---

@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/model.safetensors")))
def test_logits_are_transformers(tmp_path, name):
    """expected.bin has what Transformers (or MiniMind) computed."""
    if name == "bert":
        return
    config = json.loads((GOLDEN / name / "config.json").read_text())
    model = llm.Model(llm_models.write_decoder(tmp_path / name, name))
    ids = [(37 * i + 11) % config["vocab_size"] for i in range(24)]
    got, expected = model.logits(ids), np.fromfile(GOLDEN / name / "expected.bin", np.float32)
    assert got.shape == (24, config["vocab_size"]) and got.dtype == np.float32
    assert np.abs(got.ravel() - expected).max() <= 1e-4 * np.abs(expected).max()


def test_the_largest_logit_is_the_greedy_token(model):
    for prompt in PROMPTS:
        answer = model.generate(prompt, max_tokens=30)
        ids = model.tokenizer.encode(prompt)
        rows = model.logits(ids + answer.tokens)
        count = len(answer.tokens)
        assert rows.argmax(axis=1)[len(ids) - 1:len(ids) - 1 + count].tolist() == answer.tokens
        assert model.logits(ids, last=True).argmax() == answer.tokens[0] if count else True


def test_logits_of_one_and_of_many(model):
    ids = model.tokenizer.encode("once upon")
    whole = model.logits("once upon")
    assert np.array_equal(model.logits(ids), whole) and np.array_equal(model.logits(np.array(ids)), whole)
    assert np.array_equal(model.logits("once upon", last=True), whole[-1])
    assert np.array_equal(model.logits("once"), whole[:4])  # what comes after does not count
    many = model.logits(["once upon", "a"])
    assert [m.shape for m in many] == [(9, 64), (1, 64)] and np.array_equal(many[0], whole)
    assert [m.shape for m in model.logits(["once upon", "a"], last=True)] == [(64,), (64,)]
    whole[:] = 0  # it is the caller's
    assert model.logits("once upon").any()


def test_embeds_what_the_program_embeds(encoder):
    texts = ["a b c", "z", "hello world"]
    vectors = encoder.embed(texts)
    assert vectors.shape == (3, 24) and vectors.dtype == np.float32
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-6
    for n, text in enumerate(texts):
        assert np.array_equal(encoder.embed(text), vectors[n])
    assert encoder.embed([]).shape == (0, 24)
    lines = program("embed", encoder.info.path, *texts, "-q").splitlines()
    assert np.array_equal(np.array([json.loads(line) for line in lines], np.float32), vectors)


def test_perplexity_is_that_of_the_logits(model):
    text = "the quick brown fox"
    ids, rows = model.tokenizer.encode(text), model.logits(text).astype(np.float64)
    losses = [np.log(np.exp(row).sum()) - row[token] for row, token in zip(rows, ids[1:])]
    found = model.perplexity(text)
    assert found.loss == pytest.approx(np.mean(losses), abs=1e-6) and found.predicted == len(losses)
    assert found.perplexity == pytest.approx(np.exp(found.loss))
    assert model.perplexity(ids, window=4).loss != found.loss


# --- tokenizers ---

def test_tokenizers(folder, model, encoder):
    tok = model.tokenizer
    assert tok.encode("abc Z") == [0, 1, 2, 62, 51] and tok.decode([0, 1, 2, 62, 51]) == "abc Z"
    assert tok.encode(["ab", "c"]) == [[0, 1], [2]] and tok.decode(np.array([0, 1], np.int64)) == "ab"
    assert tok.encode("a<|im_end|>") == [0, 63] != tok.encode("a<|im_end|>", parse_special=False)
    assert tok.decode([0, 63]) == "a<|im_end|>" and tok.decode([0, 63], skip_special=True) == "a"
    assert tok.vocab_size == len(tok) == 64 and "64" in repr(tok)
    assert (tok.find("<|im_end|>"), tok.find("b"), tok.find(b"b"), tok.find("nowhere")) == (63, 1, 1, None)
    assert tok.piece(1) == b"b" and tok.piece(4000) == b"" and tok.is_special(63) and not tok.is_special(1)
    assert tok.chat_template == llm_models.CHATML and tok.decode([4000]) == ""
    alone = llm.Tokenizer(folder)
    assert alone.encode("once upon") == tok.encode("once upon") and alone.special_tokens == tok.special_tokens
    words = encoder.tokenizer
    assert words.special_tokens == {"unknown": 1, "cls": 2, "sep": 3}
    assert words.encode("a b") == [2, 5, 6, 3] and words.encode("a b", add_special=False) == [5, 6]


def test_a_tokenizer_outlives_its_model(folder):
    tok = llm.Model(folder).tokenizer
    gc.collect()
    assert tok.decode(tok.encode("once upon")) == "once upon"
