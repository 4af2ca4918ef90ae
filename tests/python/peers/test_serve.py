"""`attend serve` with clients as they are: OpenAI's, LangChain's, LiteLLM's, and schemathesis on the document that it serves.

The model is the one of tests/server (a few thousand parameters): what the clients understand is tested, not what it says."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/server"))
from tiny_model import TEMPLATE, Server, write_encoder, write_model  # noqa: E402

openai = pytest.importorskip("openai")
PROGRAM = os.environ.get("ATTEND_PROGRAM", str(ROOT / "build/bin/attend"))
QUESTION = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"kind": {"type": "string", "enum": ["cat", "dog"]}, "age": {"type": "integer"}},
          "required": ["kind", "age"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look", "description": "look up", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    thinking = TEMPLATE.replace("assistant\\n", "assistant\\n<think>\\n") + "{# reasoning_content #}"
    models = [write_model(folder / "tiny"), write_encoder(folder / "words"),
              write_model(folder / "thinker", template=thinking, special=("</think>", "<|im_end|>"))]
    if os.environ.get("ATTEND_MINILM"):
        models.append(os.environ["ATTEND_MINILM"])
    server = Server(PROGRAM, *models, "--log", "none")
    yield server
    assert server.stop() == 0


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.url + "v1", api_key="none", max_retries=0)


def ask(client, **more):
    return client.chat.completions.create(**{"model": "tiny", "messages": QUESTION, "max_tokens": 20, "temperature": 0, **more})


def test_chat_stream_and_usage(client):
    whole = ask(client)
    stream = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == whole.choices[0].message.content
    assert stream[-1].usage.total_tokens == whole.usage.total_tokens > 0
    assert len({c.id for c in stream}) == 1
    assert [m.id for m in client.models.list()][0] == "tiny" and client.models.retrieve("tiny").id == "tiny"


def test_seed_n_stop_and_logprobs(client):
    first, again = (ask(client, temperature=1.2, seed=5, n=3) for _ in range(2))
    assert [c.message.content for c in first.choices] == [c.message.content for c in again.choices]
    text = ask(client).choices[0].message.content
    assert ask(client, stop=text[5:7]).choices[0].message.content == text[:text.index(text[5:7])]
    logprobs = ask(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert "".join(t.token for t in logprobs) == text and all(len(t.top_logprobs) == 2 for t in logprobs)
    completion = client.completions.create(model="tiny", prompt="abc", max_tokens=5, logprobs=1, temperature=0)
    assert len(completion.choices[0].logprobs.tokens) == 5


def test_json_schema(client):
    pydantic = pytest.importorskip("pydantic")
    from typing import Literal

    class Pet(pydantic.BaseModel):
        kind: Literal["cat", "dog"]
        age: int
        friends: list["Pet"] | None

    parsed = client.chat.completions.parse(model="tiny", messages=QUESTION, response_format=Pet, max_tokens=900, seed=3,
                                           logit_bias={"37": 5})  # of what closes an object
    assert isinstance(parsed.choices[0].message.parsed, Pet)
    answer = ask(client, max_tokens=300, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}})
    assert set(json.loads(answer.choices[0].message.content)) == {"kind", "age"}


def test_tools(client):
    must = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300}
    answer = ask(client, **must).choices[0]
    call = answer.message.tool_calls[0]
    assert answer.finish_reason == "tool_calls" and json.loads(call.function.arguments)["kind"] in ("cat", "dog")
    messages = [*QUESTION, answer.message, {"role": "tool", "tool_call_id": call.id, "content": "found"}]
    assert ask(client, messages=messages, tools=[TOOL]).choices[0].message is not None
    deltas = [d for c in ask(client, **must, stream=True) for d in c.choices[0].delta.tool_calls or []]
    assert deltas[0].id and deltas[0].function.name == "look" and len(deltas) > 2 and not any(d.id or d.function.name for d in deltas[1:])
    assert "".join(d.function.arguments for d in deltas) == call.function.arguments
    with client.chat.completions.stream(model="tiny", messages=QUESTION, temperature=0, **must) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.tool_calls[0].function.arguments == call.function.arguments
    assert ask(client, **{**must, "parallel_tool_calls": True}).choices[0].message.tool_calls[0].function.name == "look"


def test_strict_tools_by_its_helper(client):
    pydantic = pytest.importorskip("pydantic")

    class look(pydantic.BaseModel):
        kind: str

    tool = openai.pydantic_function_tool(look)  # strict
    assert ask(client, tools=[tool]).choices[0].message is not None
    parsed = client.chat.completions.parse(model="tiny", messages=QUESTION, tools=[tool], tool_choice="required", parallel_tool_calls=False,
                                           max_tokens=600, logit_bias={"40": 5})  # of what closes a string
    assert isinstance(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, look)


def test_cached_tokens(client):
    first = ask(client, messages=[{"role": "user", "content": "something nobody said"}]).usage
    again = ask(client, messages=[{"role": "user", "content": "something nobody said"}]).usage
    assert again.prompt_tokens_details.cached_tokens == again.prompt_tokens - 1 > first.prompt_tokens_details.cached_tokens


def test_errors(client, server):
    with pytest.raises(openai.NotFoundError):
        ask(client, model="other")
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, messages=[{"role": "user", "content": "a" * 2000}])
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, extra_body={"guided_regex": "a"})
    assert error.value.param == "guided_regex"


def test_what_clients_send_besides(client):
    """Fields of other servers and of agents: answered, and the header says what had no effect."""
    messages = [{"role": "system", "content": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]},
                {"role": "user", "content": "hello", "name": "bob", "id": "m1"},
                {"role": "assistant", "content": "a", "name": "attend", "reasoning_content": "hm"}, {"role": "user", "content": "more"}]
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=messages, max_tokens=-1, reasoning_effort="medium", store=True, temperature=0,
        extra_body={"session_id": "s", "top_k": -1, "repeat_penalty": 1.1, "chat_template_kwargs": {"enable_thinking": False}})
    assert raw.parse().choices[0].finish_reason in ("stop", "length")
    assert set(raw.headers["attend-ignored"].split(", ")) == {
        "messages[].content[].cache_control", "messages[].name", "messages[].id", "messages[].reasoning_content", "reasoning_effort", "store",
        "session_id", "chat_template_kwargs.enable_thinking"}
    assert "attend-ignored" not in client.chat.completions.with_raw_response.create(model="tiny", messages=QUESTION, max_tokens=2).headers


def test_thoughts(client):
    ask_thinker = {"model": "thinker", "temperature": 1, "seed": 3, "max_tokens": 60, "logit_bias": {"62": 3, "63": -100}}
    answer = ask(client, **ask_thinker, logprobs=True).choices[0]
    message, text = answer.message, "".join(token.token for token in answer.logprobs.content)
    thoughts, mark, content = text.partition("</think>")
    assert mark and (message.reasoning_content, message.content) == (thoughts.strip("\n"), content.lstrip("\n"))
    deltas = [c.choices[0].delta for c in ask(client, **ask_thinker, stream=True)]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == message.reasoning_content
    assert "".join(d.content or "" for d in deltas) == message.content
    ask(client, model="thinker", messages=[*QUESTION, message.to_dict(), *QUESTION])  # and back


def test_token_ids_are_no_text(client):
    """As LangChain's OpenAIEmbeddings sends them unless check_embedding_ctx_length is False."""
    for ids in ([5, 6], [[5, 6], [7]]):
        with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False") as error:
            client.embeddings.create(model="words", input=ids)
        assert error.value.code == "token_ids_not_accepted"


def test_embeddings(client):
    if not os.environ.get("ATTEND_MINILM"):
        pytest.skip("ATTEND_MINILM names no model that embeds")
    name = [m.id for m in client.models.list()][-1]
    rows = client.embeddings.create(model=name, input=["a river", "a stream", "a tax form"]).data
    near, far = (sum(x * y for x, y in zip(rows[0].embedding, rows[n].embedding)) for n in (1, 2))
    assert near > far and abs(sum(x * x for x in rows[0].embedding) - 1) < 1e-4


def test_langchain(server):
    langchain = pytest.importorskip("langchain_openai")
    pydantic = pytest.importorskip("pydantic")

    class pet(pydantic.BaseModel):
        """a pet: its vocabulary has no capital letters"""
        kind: str = pydantic.Field(json_schema_extra={"enum": ["cat", "dog"]})

    model = langchain.ChatOpenAI(base_url=server.url + "v1", api_key="none", model="tiny", temperature=0, max_tokens=300, max_retries=0)
    whole = model.invoke("hello").content
    assert "".join(chunk.content for chunk in model.stream("hello")) == whole
    assert len(model.batch(["a", "b", "c"])) == 3
    assert model.with_structured_output(pet, method="function_calling").invoke("a pet").kind in ("cat", "dog")
    assert model.with_structured_output(pet, method="json_schema").invoke("a pet").kind in ("cat", "dog")


def test_langchain_embeds(server, client):
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.OpenAIEmbeddings(base_url=server.url + "v1", api_key="none", model="words", check_embedding_ctx_length=False)
    texts = ["a b", "c"]
    rows = [row.embedding for row in client.embeddings.create(model="words", input=texts, encoding_format="float").data]
    for got, row in zip(model.embed_documents(texts), rows):
        assert got == pytest.approx(row, abs=1e-7)


def test_litellm(server, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no network
    litellm = pytest.importorskip("litellm")
    to = {"api_base": server.url + "v1", "api_key": "none", "num_retries": 0}
    messages = [{"role": "system", "content": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]}, *QUESTION]
    chat = {**to, "model": "openai/tiny", "messages": messages, "temperature": 0, "max_tokens": 20, "metadata": {"session_id": "s"}}
    whole = litellm.completion(**chat, allowed_openai_params=["reasoning_effort"], reasoning_effort="low", store=True).choices[0].message.content
    assert whole == "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**chat, stream=True))
    must = {**chat, "max_tokens": 300, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    call = litellm.completion(**must).choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments)["kind"] in ("cat", "dog")
    schema = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}
    assert set(json.loads(litellm.completion(**{**chat, "max_tokens": 300}, response_format=schema).choices[0].message.content)) == {"kind", "age"}
    thought = litellm.completion(**{**chat, "model": "openai/thinker", "temperature": 1, "seed": 3, "max_tokens": 60},
                                 logit_bias={"62": 3, "63": -100}).choices[0].message
    assert thought.reasoning_content and thought.content
    assert len(litellm.embedding(**to, model="openai/words", input=["a b", "c"]).data) == 2
    with pytest.raises(litellm.BadRequestError, match="check_embedding_ctx_length=False"):
        litellm.embedding(**to, model="openai/words", input=[[5, 6]])
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**chat, "messages": [{"role": "user", "content": "a" * 2000}]})


def test_schemathesis(server, tmp_path):
    pytest.importorskip("schemathesis")
    result = subprocess.run([sys.executable, "-m", "schemathesis.cli", "run", server.url + "openapi.json", "--max-examples", "25", "--seed", "1",
                             "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"],
                            capture_output=True, text=True, timeout=900, cwd=tmp_path)  # it leaves a cache there
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
