"""Files of training data to the published schemas, with what each row says: written from their descriptions, not from the reader.

A case is (name, write, expected): write(path) makes a file of ROWS rows, and expected is a list of documents, each a list of
(role, text, learned); a document of plain text is [("", text, True)]. Rows that no reader can use are None.
"""

import csv
import json
import random

ROWS = 1000
WORDS = ("attention", "key", "query", "softmax", "é", "naïve", "注意力", "权重", "ключ", "🙂", "<|im_end|>", "<think", "{", "}", "[\"", "\\n",
         "\\", "\"", "'", ",", ";", "\n", "\r\n", "\t", "&amp;", "a,b", "\u2028", "x=1")


def rng_of(name):
    return random.Random(name)


def words(rng, most=12):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most))).strip() or "word"


def lines(rows):
    def write(path):
        with open(path, "w", encoding="utf-8") as file:
            for n, row in enumerate(rows):
                file.write((row if isinstance(row, str) else json.dumps(row, ensure_ascii=n % 2 == 0)) + "\n")
    return write


def array(rows, indent=None):
    def write(path):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(rows, file, ensure_ascii=False, indent=indent)
    return write


def table(names, rows):
    def write(path):
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            writer.writerows(rows)
    return write


def user(text):
    return ("user", text, False)


def answer(text, learned=True):
    return ("assistant", text, learned)


def talk(rng, rounds=3):
    return [(words(rng), words(rng)) for _ in range(rng.randint(1, rounds))]


# --- texts ---

def text_lines():
    rng = rng_of("text")
    rows = [{"text": words(rng, 60), "meta": {"source": "x"}} for _ in range(ROWS)]
    return "text.jsonl", lines(rows), [[("", row["text"], True)] for row in rows]


def text_csv():
    rng = rng_of("csv")
    texts = [words(rng, 40) for _ in range(ROWS)]
    return "text.csv", table(["id", "text"], enumerate(texts)), [[("", text, True)] for text in texts]


# --- chats ---

def alpaca_rows():
    rng = rng_of("alpaca")
    rows, expected = [], []
    for n in range(ROWS):
        row = {"instruction": words(rng), "input": words(rng) if n % 3 else "", "output": words(rng)}
        rows.append(row)
        expected.append([user(row["instruction"] + ("\n" + row["input"] if row["input"] else "")), answer(row["output"])])
    return rows, expected


def alpaca():
    rows, expected = alpaca_rows()
    return "alpaca.json", array(rows, 4), expected


def alpaca_csv():
    rows, expected = alpaca_rows()
    return "alpaca.csv", table(list(rows[0]), [row.values() for row in rows]), expected


def alpaca_with_history():
    rng = rng_of("history")
    rows, expected = [], []
    for _ in range(ROWS):
        history, last, system = talk(rng), (words(rng), words(rng)), words(rng)
        rows.append({"instruction": last[0], "input": "", "output": last[1], "system": system,
                     "history": [list(pair) for pair in history]})
        expected.append([("system", system, False)] + [m for q, a in [*history, last] for m in (user(q), answer(a))])
    return "history.json", array(rows), expected


def prompt_completion():
    rng = rng_of("prompt")
    rows, expected = [], []
    for n in range(ROWS):
        q, a = words(rng), " " + words(rng)
        rows.append({"prompt": q, "completion": a} if n % 2 else
                    {"prompt": [{"role": "user", "content": q}], "completion": [{"role": "assistant", "content": a}]})
        expected.append([user(q), answer(a)])
    return "prompt.jsonl", lines(rows), expected


def tool(rng):
    return {"type": "function", "function": {"name": f"tool_{rng.randint(0, 99)}", "description": words(rng), "parameters": {
        "type": "object", "properties": {"x": {"type": "array", "items": {"type": "object", "properties": {
            "deep": {"type": "string", "description": words(rng)}}}}}, "required": ["x"]}}}


def call_text(name, arguments):
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def openai():
    """Messages with tools, calls and weights; every tenth row has no answer."""
    rng = rng_of("openai")
    rows, expected = [], []
    for n in range(ROWS):
        system, q, a, b = (words(rng) for _ in range(4))
        if n % 10 == 9:
            rows.append({"messages": [{"role": "user", "content": q}]})
            expected.append(None)
            continue
        tools, arguments, weight = [tool(rng), tool(rng)], {"x": [words(rng), n]}, n % 2
        name = tools[0]["function"]["name"]
        call = {"id": f"call_{n}", "type": "function", "function": {
            "name": name, "arguments": json.dumps(arguments) if n % 3 else arguments}}
        rows.append({"messages": [
            {"role": "system", "content": system}, {"role": "user", "content": [{"type": "text", "text": q}] if n % 4 == 0 else q},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": a},
            {"role": "assistant", "content": b, "weight": weight}, {"role": "user", "content": a, "name": "someone"},
            {"role": "assistant", "content": q}], "tools": tools, "parallel_tool_calls": False})
        expected.append([("system", [system, *(json.dumps(t, ensure_ascii=False) for t in tools)], False), user(q),
                         answer(call_text(name, arguments)), ("tool", a, False), answer(b, weight == 1), user(a), answer(q)])
    return "openai.jsonl", lines(rows), expected


def sharegpt():
    rng = rng_of("sharegpt")
    rows, expected = [], []
    for n in range(ROWS):
        rounds, system = talk(rng), words(rng)
        chat = [{"from": who, "value": said} for pair in rounds for who, said in zip(("human", "gpt"), pair)]
        messages = [("system", system, False)] + [m for q, a in rounds for m in (user(q), answer(a))]
        row = {"id": f"identity_{n}", "conversations": chat}
        if n % 2:
            row["system"] = system
        else:
            row["conversations"] = [{"from": "system", "value": system}, *chat]
        if n % 5 == 0:
            chat += [{"from": "human", "value": "call"}, {"from": "function_call", "value": json.dumps({"name": "f", "arguments": {"n": n}})},
                     {"from": "observation", "value": system}, {"from": "gpt", "value": "done"}]
            row["conversations"] = [{"from": "system", "value": system}, *chat] if "system" not in row else chat
            messages += [user("call"), answer(call_text("f", {"n": n})), ("tool", system, False), answer("done")]
        rows.append(row)
        expected.append(messages)
    return "sharegpt.json", array(rows, 2), expected


# --- MiniMind ---

def minimind_2024():
    """history, q, a: pandas writes the history as Python prints it."""
    rng = rng_of("minimind1")
    rows, expected = [], []
    for _ in range(ROWS):
        history, last = talk(rng), (words(rng), words(rng))
        rows.append([[list(pair) for pair in history], *last])
        expected.append([m for q, a in [*history, last] for m in (user(q), answer(a))])
    return "sft_data.csv", table(["history", "q", "a"], rows), expected


def minimind2():
    rng = rng_of("minimind2")
    rows, expected = [], []
    for n in range(ROWS):
        rounds = talk(rng)
        rows.append("{broken" if n % 50 == 7 else {"conversations": [
            {"role": role, "content": said} for pair in rounds for role, said in zip(("user", "assistant"), pair)]})
        expected.append(None if n % 50 == 7 else [m for q, a in rounds for m in (user(q), answer(a))])
    return "sft_mini_512.jsonl", lines(rows), expected


def minimind3():
    """Every message has every field, as the features of its loader ask for; tools and calls are JSON in texts."""
    rng = rng_of("minimind3")
    rows, expected = [], []

    def message(role, content, **more):
        return {"role": role, "content": content, "reasoning_content": "", "tools": "", "tool_calls": "", **more}
    for n in range(ROWS):
        system, q, thought, a, tools = words(rng), words(rng), words(rng), words(rng), [tool(rng)]
        name, arguments = tools[0]["function"]["name"], {"n": n}
        rows.append({"conversations": [
            message("system", system, tools=json.dumps(tools, ensure_ascii=False)), message("user", q),
            message("assistant", "", tool_calls=json.dumps([{"name": name, "arguments": arguments}])), message("tool", a),
            message("assistant", a, reasoning_content=thought)]})
        expected.append([("system", [system, json.dumps(tools[0], ensure_ascii=False)], False), user(q),
                         answer(call_text(name, arguments)), ("tool", a, False),
                         answer(f"<think>\n{thought}\n</think>\n\n{a}")])
    return "sft_t2t.jsonl", lines(rows), expected


# --- pairs: a document each, the better one first ---

def pairs(form):
    """TRL's preference types; every twentieth row's prompts differ, where both sides have one."""
    rng = rng_of(form)
    rows, expected = [], []
    for n in range(ROWS):
        q, good, bad = words(rng), " good " + words(rng), " bad " + words(rng)
        said = {"role": "user", "content": q}
        better, worse = ({"role": "assistant", "content": text} for text in (good, bad))
        differs = form == "implicit" and n % 20 == 3
        rows.append({
            "implicit": {"chosen": [said, better], "rejected": [{"role": "user", "content": q + "?"} if differs else said, worse]},
            "explicit": {"prompt": [said], "chosen": [better], "rejected": [worse]},
            "explicit_text": {"prompt": q, "chosen": good, "rejected": bad},
            "implicit_text": {"chosen": q + good, "rejected": q + bad},
        }[form])
        expected.append(None if differs else ([user(q), answer(good)], [user(q), answer(bad)]))
    return f"pairs_{form}.jsonl", lines(rows), expected


CASES = [text_lines, text_csv, alpaca, alpaca_csv, alpaca_with_history, prompt_completion, openai, sharegpt, minimind_2024,
         minimind2, minimind3]
PAIRS = ["implicit", "explicit", "explicit_text", "implicit_text"]
