"""The protocol of the explorer over real sockets: /explore/v1 and /labs/v1, right and wrong. Usage: explore_test.py PROGRAM"""

import http.client
import json
import math
import os
import pathlib
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from tiny_model import Server, write_encoder, write_model, write_quantised

PROGRAM = ""
TEXT = "the cat sat on the mat"


def frames(data):
    """[(head, numbers)] as apps/explorer/frames.js reads them."""
    out, at = [], 0
    while at < len(data):
        assert data[at:at + 4] == b"AEX1", data[at:at + 4]
        size, = struct.unpack_from("<I", data, at + 4)
        head = json.loads(data[at + 8:at + 8 + size])
        count, code = math.prod(head["shape"]), {"f32": "f", "u8": "B"}[head["dtype"]]
        values = struct.unpack_from(f"<{count}{code}", data, at + 8 + size)
        out.append((head, values))
        at += 8 + size + (struct.calcsize(f"<{count}{code}") + 3) // 4 * 4
    return out


class ExploreTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = write_model(pathlib.Path(cls.folder.name, "tiny"), context=256)
        cls.env = {"XDG_STATE_HOME": cls.folder.name + "/state"}
        cls.server = cls.start(cls.model)

    @classmethod
    def start(cls, *arguments):
        server = Server(PROGRAM, *arguments, "--no-open", command="explore", env=cls.env)
        said = server.process.stdout.readline() + server.process.stdout.readline()
        server.key = said.decode().split()[-1]
        return server

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        cls.folder.cleanup()
        assert code == 0, cls.server.errors

    def get(self, path):
        status, _, answer = self.server.ask("GET", path)
        self.assertEqual(status, 200, answer)
        return answer

    def post(self, path, body):
        status, _, answer = self.server.ask("POST", path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def bad(self, status, words, method, path, body=None, server=None, **more):
        """Refused with this status, and a sentence that holds these words."""
        got, _, answer = (server or self.server).ask(method, path, body, **more)
        self.assertEqual(got, status, (path, body, answer))
        self.assertEqual(set(answer["error"]), {"message", "type", "param", "code"})
        self.assertIn(words, answer["error"]["message"])
        return answer["error"]

    def run_of(self, text=TEXT, **more):
        return self.post("/explore/v1/runs", {"text": text, **more})

    def test_a_run_and_all_that_can_be_asked_of_it(self):
        about = self.get("/explore/v1/about")
        self.assertEqual(about["protocol"], 1)
        layers, heads = about["model"]["layers"], about["model"]["heads"]
        run = self.run_of()
        n, path = len(run["tokens"]), f"/explore/v1/runs/{run['run']}"
        self.assertEqual("".join(token["text"] for token in run["tokens"]), TEXT)
        self.assertEqual(len(run["heads"]), layers * heads)
        [(head, weights)] = frames(self.get(f"{path}/map?layer=0&head=0&queries=0:{n}&keys=0:{n}&cells={n}x{n}"))
        self.assertEqual(head["shape"], [1, n, n])
        for i in range(n):
            row = weights[i * n:(i + 1) * n]
            self.assertTrue(all(math.isnan(w) == (j > i) for j, w in enumerate(row)))
            self.assertAlmostEqual(sum(row[:i + 1]), 1, places=5)
        cell = self.get(f"{path}/cell?layer=0&head=0&query={n - 1}&key=1")
        self.assertAlmostEqual(cell["weight"], weights[(n - 1) * n + 1], places=6)
        self.assertNotEqual(cell["q_before"], cell["q"])  # turned by RoPE, which keeps lengths
        for turned in ("q", "k"):
            self.assertAlmostEqual(math.hypot(*cell[f"{turned}_before"]), math.hypot(*cell[turned]), places=5)
        [(head, thumbs)] = frames(self.get(f"{path}/thumbs?layers=0:{layers}&cells=8"))
        self.assertEqual(head["shape"], [layers, heads, 8, 8])
        [(head, norms)] = frames(self.get(f"{path}/values?layer=0&head=0"))
        self.assertEqual(len(norms), n)
        self.assertEqual([head["name"] for head, _ in frames(self.get(f"{path}/tensors?layer=0"))], ["q", "k", "v"])
        grown = self.post(f"{path}/step", {"generated": []})
        self.assertEqual(grown["step"]["token"], run["next"][0]["token"])
        self.assertEqual(len(grown["tokens"]), n + 1)

    def test_quiet_prints_only_the_link(self):
        quiet = subprocess.Popen([PROGRAM, "explore", self.model, "--no-open", "--quiet"], env={**os.environ, **self.env},
                                 text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        link = quiet.stdout.readline()
        quiet.terminate()
        rest, errors = quiet.communicate(timeout=60)
        self.assertRegex(link, r"^http://127\.0\.0\.1:\d+/\n$")
        self.assertEqual((quiet.returncode, rest, errors), (0, "", ""))

    def test_wrong_requests_have_a_sentence(self):
        run = self.run_of("wrong requests")
        n, path = len(run["tokens"]), f"/explore/v1/runs/{run['run']}"
        runs = "/explore/v1/runs"
        whole = f"queries=0:{n}&keys=0:{n}"
        for status, words, method, where, body in (
                (400, "text is missing", "POST", runs, {}),
                (400, "text is 5, expected a string", "POST", runs, {"text": 5}),
                (400, "colour is not a field", "POST", runs, {"text": "a", "colour": 1}),
                (400, "text is empty", "POST", runs, {"text": ""}),
                (400, "text is empty", "POST", runs, {"text": " \n\t"}),
                (413, "at most 524288", "POST", runs, {"text": "a" * 600_000}),
                (400, "list of at most 512", "POST", runs, {"text": "a", "switches": "scale=off"}),
                (400, "list of at most 512", "POST", runs, {"text": "a", "switches": ["scale=off"] * 513}),
                (400, "no text", "POST", runs, {"text": "a", "switches": [7]}),
                (400, "scal", "POST", runs, {"text": "a", "switches": ["scal=off"]}),
                (400, "scale", "POST", runs, {"text": "a", "switches": ["scale=perhaps"]}),
                (400, "99", "POST", runs, {"text": "a", "switches": ["knock=zero@99.0"]}),
                (400, "list of at most 4096", "POST", runs, {"text": "a", "generated": 3}),
                (400, "whole numbers", "POST", runs, {"text": "a", "generated": [-1]}),
                (400, "whole numbers", "POST", runs, {"text": "a", "generated": [0.5]}),
                (400, "not one of the model's", "POST", runs, {"text": "a", "generated": [1 << 29]}),
                (400, "layer is 1000, expected", "POST", runs, {"text": "a", "layer": 1000}),
                (400, "expected a whole number", "POST", runs, {"text": "a", "layer": "first"}),
                (404, "was not kept", "POST", runs, {"text": "a", "step": 5}),
                (400, "step is -5, expected", "POST", runs, {"text": "a", "step": -5}),
                (400, "temperature is -1, expected", "POST", f"{path}/step", {"temperature": -1}),
                (400, "token is -7, expected", "POST", f"{path}/step", {"token": -7}),
                (400, "not one of the model's", "POST", f"{path}/step", {"token": 1 << 29}),
                (404, "no run", "GET", f"{runs}/r999/cell?layer=0&head=0&query=0&key=0", None),
                (404, "no run", "GET", f"{runs}/%00%ff/cell", None),
                (404, "there is nothing called", "GET", f"{path}/colour?layer=0&head=0", None),
                (400, "layer is missing", "GET", f"{path}/cell", None),
                (400, "whole number", "GET", f"{path}/cell?layer=99&head=0&query=0&key=0", None),
                (400, "whole number", "GET", f"{path}/cell?layer=0&head=-1&query=0&key=0", None),
                (400, "whole number", "GET", f"{path}/cell?layer=0x0&head=0&query=0&key=0", None),
                (404, "beyond the run", "GET", f"{path}/cell?layer=0&head=0&query={n}&key=0", None),
                (400, "two numbers", "GET", f"{path}/map?layer=0&head=0&queries=0&keys=0:1&cells=1x1", None),
                (400, "empty", "GET", f"{path}/map?layer=0&head=0&queries=1:1&keys=0:1&cells=1x1", None),
                (404, "beyond the run", "GET", f"{path}/map?layer=0&head=0&queries=0:{n + 1}&keys=0:1&cells=1x1", None),
                (400, "whole number", "GET", f"{path}/map?layer=0&head=0&{whole}&cells=0x4", None),
                (400, "whole number", "GET", f"{path}/map?layer=0&head=0&{whole}&cells=99999x4", None),
                (400, "first:end", "GET", f"{path}/thumbs?layers=1:1&cells=8", None),
                (400, "whole number", "GET", f"{path}/thumbs?layers=0:1&cells=1000", None)):
            with self.subTest(where=where, body=str(body)[:60]):
                self.bad(status, words, method, where, body)
        self.run_of("still there")

    def test_what_is_no_request_at_all(self):
        for status, words, method, path, more in (
                (404, "", "GET", "/explore/v1/nothing", {}),
                (405, "", "DELETE", "/explore/v1/runs", {}),
                (415, "application/json", "POST", "/explore/v1/runs", {"raw": "{}", "headers": {"Content-Type": "text/plain"}}),
                (400, "", "POST", "/explore/v1/runs", {"raw": "{\"text\": "}),
                (400, "", "POST", "/explore/v1/runs", {"raw": "[" * 1000}),
                (400, "expected a JSON object", "POST", "/explore/v1/runs", {"raw": "[1, 2]"}),
                (421, "not a name", "GET", "/explore/v1/about", {"headers": {"Host": "evil.example"}}),
                (403, "other sites", "GET", "/explore/v1/about", {"headers": {"Origin": "http://evil.example"}})):
            with self.subTest(path=path, more=str(more)[:60]):
                self.bad(status, words, method, path, **more)

    def test_a_text_beyond_the_context_is_cut_and_says_so(self):
        run = self.run_of("abc " * 200)
        self.assertEqual(len(run["tokens"]), 256)
        self.assertEqual(run["cut"], {"tokens": 800, "context": 256})

    def test_random_bytes_never_end_it(self):
        """Bodies and queries with parts changed at random: an answer below 500 each, and the server lives."""
        draw = random.Random(5)
        run = self.run_of("random")["run"]
        body = json.dumps({"text": "random", "generated": [1, 2], "switches": ["mask=window:2"], "layer": 0})
        query = "layer=0&head=0&queries=0:3&keys=0:3&cells=3x3"
        for _ in range(200):
            text, asked = list(body), list(query)
            for _ in range(draw.randint(1, 4)):
                text[draw.randrange(len(text))] = draw.choice('{}[]",:0-9e.\\x\u00e9')
                asked[draw.randrange(len(asked))] = draw.choice("0123456789:x=&-%azQ")
            status, _, answer = self.server.ask("POST", "/explore/v1/runs", raw="".join(text).encode())
            self.assertLess(status, 500, (text, answer))
            status, _, answer = self.server.ask("GET", f"/explore/v1/runs/{run}/map?{''.join(asked)}")
            self.assertLess(status, 500, (asked, answer))
        self.get("/explore/v1/about")

    def test_says_how_the_weights_are_computed(self):
        quantised = write_quantised(PROGRAM, self.model, pathlib.Path(self.folder.name, "q8.gguf"))
        cells = {}
        for arguments, expected in (((self.model,), ("file", False)), ((quantised,), ("file", True)),
                                    ((quantised, "--compute", "f32"), ("f32", False))):
            server = self.start(*arguments)
            about = server.ask("GET", "/explore/v1/about")[2]["model"]
            self.assertEqual((about["compute"], about["rounds_rows"]), expected)
            run = server.ask("POST", "/explore/v1/runs", {"text": TEXT})[2]
            cell = server.ask("GET", f"/explore/v1/runs/{run['run']}/cell?layer=1&head=0&query=9&key=1")[2]
            cells[expected] = cell["weight"]
            self.assertEqual(server.stop(), 0)
        self.assertNotEqual(cells["file", True], cells["f32", False])

    def test_a_model_that_embeds_sees_both_ways_and_expects_nothing(self):
        server = self.start(write_encoder(pathlib.Path(self.folder.name, "encoder")))
        self.assertFalse(server.ask("GET", "/explore/v1/about")[2]["model"]["causal"])
        for switches in ([], ["mask=causal"]):
            status, _, run = server.ask("POST", "/explore/v1/runs", {"text": "a b c", "switches": switches})
            self.assertEqual((status, run["next"]), (200, []), run)
            self.assertTrue(all("induction" not in head for head in run["heads"]), "its own successor is no induction")
            n = len(run["tokens"])
            [(_, weights)] = frames(server.ask("GET", f"/explore/v1/runs/{run['run']}/map?layer=0&head=0&queries=0:{n}&keys=0:{n}&cells={n}x{n}")[2])
            self.assertEqual(sum(map(math.isnan, weights)), n * (n - 1) // 2 if switches else 0)
        self.bad(400, "embeds texts", "POST", f"/explore/v1/runs/{run['run']}/step", {"generated": []}, server=server)
        server.stop()

    # --- labs ---

    def events(self, path, body):
        text = self.post(path, body)
        return [(part.split("\n")[0][len("event: "):], json.loads(part.split("data: ", 1)[1])) for part in text.strip().split("\n\n")]

    def test_a_lab_tells_its_progress_then_its_report(self):
        listed = self.get("/labs/v1/labs")
        self.assertEqual(listed["labs"][1]["name"], "by-hand")
        self.assertTrue(all(lab["title"]["en"] and lab["title"]["zh"] for lab in listed["labs"]))
        *progress, (kind, report) = self.events("/labs/v1/labs/by-hand", {"parameters": {"dim": 8, "words": "a b c"}})
        self.assertTrue(all(name == "progress" and 0 <= share <= 1 for name, share in progress))
        self.assertEqual(kind, "report")
        self.assertEqual({p["name"]: p["value"] for p in report["parameters"]}["dim"], "8")
        self.assertTrue(all(c["text"]["zh"] for c in report["conclusions"]))

    def test_wrong_requests_to_the_labs(self):
        for status, words, path, body in (
                (404, "no lab called", "/labs/v1/labs/nothing", {}),
                (400, "expected a whole number from 1 to 64", "/labs/v1/labs/by-hand", {"parameters": {"dim": 5000}}),
                (400, "there is no parameter 'dimm'", "/labs/v1/labs/by-hand", {"parameters": {"dimm": 5}}),
                (400, "expected a whole number or a text", "/labs/v1/labs/by-hand", {"parameters": {"dim": [1]}}),
                (400, "expected an object", "/labs/v1/labs/by-hand", {"parameters": 5}),
                (400, "not a field", "/labs/v1/labs/by-hand", {"parametres": {}}),
                (400, "true or false", "/labs/v1/labs/by-hand", {"quick": 1}),
                (404, "no question", "/labs/v1/quiz", {"question": "nothing", "answer": "a"}),
                (403, "the key that it printed", "/labs/v1/check", {"code": "print(1)"}),
                (403, "the key that it printed", "/labs/v1/check", {"key": "abcd-efgh-ijkl", "code": "print(1)"}),
                (400, "expected \"py\" or \"cpp\"", "/labs/v1/check", {"key": self.server.key, "code": "x", "language": "sh"}),
                (400, "has 0 bytes", "/labs/v1/check", {"key": self.server.key, "code": ""})):
            with self.subTest(path=path, body=body):
                self.bad(status, words, "POST", path, body)
        question = next(q for q in self.get("/labs/v1/quiz")["questions"] if q["kind"] == "choice")
        self.bad(400, "expected the letter of a choice", "POST", "/labs/v1/quiz", {"question": question["name"], "answer": "perhaps"})
        answer = self.post("/labs/v1/quiz", {"question": question["name"], "answer": chr(97 + question["right"])})
        self.assertTrue(answer["right"])

    def test_an_exercise_sees_nothing_of_the_server(self):
        """Its process has no descriptor but the usual ones and what it opened: no socket above all."""
        code = ("import os, stat\n\ndef is_socket(n):\n    try:\n        return stat.S_ISSOCK(os.fstat(n).st_mode)\n    except OSError:\n"
                "        return False\n\ndef causal_mask(*sizes):\n    raise ValueError('sockets: %d' % sum(map(is_socket, range(256))))\n")
        status, _, answer = self.server.ask("POST", "/labs/v1/check", {"key": self.server.key, "code": code})
        self.assertEqual(status, 200, answer)
        self.assertIsNone(answer.get("failure"), "exercises need NumPy, which every environment of the tests has")
        self.assertIn("sockets: 0", answer["verdicts"][0]["text"]["en"])

    def test_an_exercise_that_leaves_its_group_does_not_hold_the_server(self):
        code = ("import os\n\ndef softmax(x):\n    try:\n        os.setpgid(0, os.getpgid(os.getppid()))\n    except OSError:\n        pass\n"
                "    while True:\n        pass\n")
        server = self.start(self.model)
        asked = threading.Thread(target=lambda: self.ask_and_lose(server, {"key": server.key, "code": code}))
        asked.start()
        while asked.is_alive() and not self.exercises():
            time.sleep(0.05)
        self.assertEqual(server.stop(), 0)
        asked.join()
        self.assertEqual(self.exercises(), [])

    @staticmethod
    def ask_and_lose(server, body):
        try:
            server.ask("POST", "/labs/v1/check", body)
        except (OSError, http.client.HTTPException):
            pass  # the server ends meanwhile

    @staticmethod
    def exercises():
        """The processes that run one; /proc changes while it is read."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found += [path] if b"learner/exercise.py" in path.read_bytes() else []
            except OSError:
                continue
        return found

    def test_serve_runs_no_labs(self):
        """Models that are served to others do not share their processor with experiments, or run code."""
        server = Server(PROGRAM, self.model)
        self.bad(404, "", "GET", "/labs/v1/labs", server=server)
        self.bad(404, "", "POST", "/labs/v1/check", {"code": "x"}, server=server)
        self.assertFalse(server.ask("GET", "/explore/v1/about")[2]["labs"])
        server.stop()

    # --- memory ---

    def test_a_switch_where_memory_holds_one_run(self):
        """The run that is described is not forgotten for the one without switches that it is compared with."""
        server = self.start("storyteller", "--memory", "64")
        text = "The cat sat on the mat. " * 230
        for switches in ([], ["scale=off"], ["mask=window:8", "knock=zero@1.1"]):
            status, _, run = server.ask("POST", "/explore/v1/runs", {"text": text, "switches": switches})
            self.assertEqual(status, 200, str(run)[:500])
            self.assertEqual("kl" in run, bool(switches))
            self.assertEqual(server.ask("GET", f"/explore/v1/runs/{run['run']}/values?layer={run['kept'][0]}&head=0")[0], 200)
        self.assertEqual(server.stop(), 0, server.errors)

    def test_models_that_are_closed_while_their_maps_are_sent(self):
        """A long map in bands, and runs on more steps than models may be open, at the same time."""
        run = pathlib.Path(self.folder.name, "steps")
        write_model(run / "model", context=16384)
        (run / "run.json").write_text("{}")
        (run / "metrics.jsonl").write_text("")
        for step in range(1, 8):
            write_model(run / "watch" / str(step), context=16384)
        server = self.start(run)
        seen = []

        def map_of(id):
            status, _, answer = server.ask("GET", f"/explore/v1/runs/{id}/map?layer=0&head=0&queries=0:12000&keys=0:12000&cells=512x512")
            seen.append((status, len(frames(answer)) if status == 200 else answer))  # whole frames, however many

        for _ in range(2):
            id = server.ask("POST", "/explore/v1/runs", {"text": "word " * 2400, "step": 1})[2]["run"]
            asking = [threading.Thread(target=map_of, args=(id,))]
            asking += [threading.Thread(target=server.ask, args=("POST", "/explore/v1/runs", {"text": "abc", "step": step})) for step in range(2, 8)]
            for thread in asking:
                thread.start()
            for thread in asking:
                thread.join()
        self.assertEqual(len(seen), 2)
        self.assertTrue({status for status, _ in seen} <= {200, 404}, seen)
        self.assertEqual(server.ask("GET", "/explore/v1/about")[0], 200)
        self.assertEqual(server.stop(), 0, server.errors)

    def test_a_model_that_was_closed_is_opened_again(self):
        """The newest model of a run that keeps none is closed for kept ones, and asked for again when those are gone."""
        run = pathlib.Path(self.folder.name, "reopened")
        write_model(run / "model")
        (run / "run.json").write_text("{}")
        (run / "metrics.jsonl").write_text("")
        server = self.start(run)
        self.assertEqual(server.ask("POST", "/explore/v1/runs", {"text": "abc"})[0], 200)
        for step in range(1, 4):
            write_model(run / "watch" / str(step))
            self.assertEqual(server.ask("POST", "/explore/v1/runs", {"text": "abc", "step": step})[0], 200)
        shutil.rmtree(run / "watch")
        self.assertEqual(server.ask("POST", "/explore/v1/runs", {"text": "abc"})[0], 200)
        self.assertEqual(server.stop(), 0, server.errors)

    def test_clients_that_never_read_hold_little(self):
        """30 of them ask for 128 MiB each: the server holds the pieces under way and answers others."""
        server = self.start(write_model(pathlib.Path(self.folder.name, "maps"), context=16384))
        run = server.ask("POST", "/explore/v1/runs", {"text": "word " * 1638})[2]
        n = len(run["tokens"])
        before, held = server.memory(), []
        for _ in range(30):
            client = socket.create_connection(("127.0.0.1", server.port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(f"GET /explore/v1/runs/{run['run']}/map?layer=0&head=0&queries=0:{n}&keys=0:{n}&cells=4096x4096 HTTP/1.1\r\n"
                           "Host: localhost\r\n\r\n".encode())
            held.append(client)
        for client in held:
            self.assertTrue(client.recv(16).startswith(b"HTTP/1.1 200"))
        self.assertEqual(server.ask("GET", f"/explore/v1/runs/{run['run']}/values?layer=0&head=0")[0], 200)
        self.assertLess(server.memory() - before, 96 << 20)
        for client in held:
            client.close()
        self.assertEqual(server.stop(), 0, server.errors)

    # --- a training run's folder ---

    def test_a_run_whose_files_are_broken(self):
        run = pathlib.Path(self.folder.name, "run")
        run.mkdir()
        write_model(run / "model")
        (run / "run.json").write_text("{}")
        good = [json.dumps({"kind": "step", "step": n, "loss": 5.0 - n}) for n in (1, 2)]
        (run / "metrics.jsonl").write_text("\n".join([good[0], "no JSON", "[1]", "{\"kind\": 1e999}", "\xff\x00", good[1], '{"kind": "st']))
        (run / "watch").mkdir()
        (run / "watch/about.json").write_text("{broken")
        for name in ("-1", "007", "x", "99999999999999999999", "3"):  # the last is a folder without a model
            (run / "watch" / name).mkdir()
        os.mkfifo(run / "watch/samples.jsonl")  # reading one blocks for ever
        server = self.start(run)
        status, _, told = server.ask("GET", "/explore/v1/training")
        self.assertEqual(status, 200, told)
        self.assertEqual([line["loss"] for line in told["metrics"]["lines"] if "loss" in line], [4.0, 3.0])
        self.assertEqual((told["about"], told["kept"], told["running"]), (None, [], False))
        whole = len((run / "metrics.jsonl").read_bytes())
        self.assertLess(told["metrics"]["next"], whole, "a line that is not whole comes with the next answer")
        self.assertEqual(server.ask("GET", f"/explore/v1/training?metrics={whole + 50}")[2]["metrics"]["from"], 0)
        for value in ("-1", "x", "1e3", "99999999999999999999"):
            self.bad(400, "whole number", "GET", f"/explore/v1/training?metrics={value}", server=server)
        self.assertTrue(server.ask("GET", "/explore/v1/about")[2]["training"])
        self.bad(404, "was not kept", "POST", "/explore/v1/runs", {"text": "a", "step": 3}, server=server)
        self.assertEqual(server.ask("POST", "/explore/v1/runs", {"text": "abc"})[0], 200)
        server.stop()


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
