"""Pages of named sites (CORS), and TLS by nginx as docs/guide/serve.md configures it. Usage: site_test.py PROGRAM"""

import contextlib
import http.client
import json
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from tiny_model import Server, write_model

PROGRAM = ""
CHAT = "/v1/chat/completions"
GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs/guide/serve.md"
SITE = "https://chat.example"


def chat(**more):
    return {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20, "temperature": 0, **more}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class SiteTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = write_model(pathlib.Path(cls.folder.name, "tiny"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_pages_of_a_named_site(self):
        server = Server(PROGRAM, self.model, "--log", "none", "--allow-origin", SITE, env={"ATTEND_TOKEN": "open-sesame"})
        page = {"Origin": SITE}
        status, headers, body = server.ask("OPTIONS", CHAT, headers={**page, "Access-Control-Request-Method": "POST",
                                                                     "Access-Control-Request-Headers": "authorization, content-type"})
        self.assertEqual((status, body, headers["Access-Control-Allow-Origin"], headers["Access-Control-Allow-Methods"],
                          headers["Access-Control-Allow-Headers"]), (200, "", SITE, "POST", "authorization, content-type"))
        for more, expected in (({"Authorization": "Bearer open-sesame"}, 200), ({"x-api-key": "open-sesame"}, 200), ({}, 401)):
            for stream in (False, True):
                status, headers, _ = server.ask("POST", CHAT, chat(stream=stream), headers={**page, **more})
                self.assertEqual((status, headers["Access-Control-Allow-Origin"], headers["Vary"]), (expected, SITE, "Origin"))
        status, headers, _ = server.ask("POST", CHAT, chat(), headers={"Origin": "https://evil.example", "x-api-key": "open-sesame"})
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (403, None))
        self.assertEqual(server.stop(), 0)

    def test_tls_by_nginx(self):
        server = Server(PROGRAM, self.model, "--log", "none", "--allow-host", "models.example", env={"ATTEND_TOKEN": "open-sesame"})
        headers = {"Content-Type": "application/json", "Authorization": "Bearer open-sesame"}
        with self.proxy(server.port) as connect:
            with connect() as connection:
                for _ in range(3):  # on one connection
                    connection.request("POST", CHAT, json.dumps(chat()), headers)
                    response = connection.getresponse()
                    whole = json.load(response)
                    self.assertEqual(response.status, 200, whole)
                connection.request("GET", "/nothing", headers=headers)
                response = connection.getresponse()
                self.assertEqual((response.status, json.load(response)["error"]["code"]), (404, "not_found"))
            with connect() as connection:
                connection.request("POST", CHAT, json.dumps(chat(stream=True)), headers)
                response = connection.getresponse()
                self.assertEqual((response.status, response.getheader("Content-Type")), (200, "text/event-stream"))
                events = [line[6:] for line in response.read().decode().split("\n\n") if line]
            text = "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-1])
            self.assertEqual((events[-1], text), ("[DONE]", whole["choices"][0]["message"]["content"]))
        self.assertEqual(server.stop(), 0)

    def test_nginx_passes_events_on_as_they_come(self):
        """The upstream server writes its second event once the client has read the first."""
        first_is_read = threading.Event()

        def answer(listener):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n")
                first_is_read.wait(60)
                connection.sendall(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")

        with socket.create_server(("127.0.0.1", 0)) as listener:
            with self.proxy(listener.getsockname()[1]) as connect, connect() as connection:
                thread = threading.Thread(target=answer, args=(listener,))
                thread.start()
                connection.request("POST", CHAT, "{}", {"Content-Type": "application/json"})
                response = connection.getresponse()
                self.assertEqual(response.readline(), b"data: 1\n")
                first_is_read.set()
                self.assertEqual(response.read(), b"\ndata: 2\n\n")
                thread.join()

    @contextlib.contextmanager
    def proxy(self, upstream):
        """nginx with the guide's server block, in front of this port; gives what connects to it."""
        with tempfile.TemporaryDirectory() as name:
            folder, port = pathlib.Path(name), free_port()
            certificate, key, log = folder / "cert.pem", folder / "key.pem", folder / "error.log"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=models.example", "-addext",
                            "subjectAltName=DNS:models.example", "-keyout", key, "-out", certificate], check=True, capture_output=True)
            block = re.search(r"```nginx\n(.*?)```", GUIDE.read_text(), re.S)[1]
            for old, new in (("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"), ("http://127.0.0.1:8080", f"http://127.0.0.1:{upstream}"),
                             ("/etc/ssl/models.example.pem", str(certificate)), ("/etc/ssl/private/models.example.key", str(key))):
                self.assertEqual(block.count(old), 1, old)
                block = block.replace(old, new)
            paths = "".join(f"{kind}_temp_path {folder}/{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
            config = folder / "nginx.conf"
            config.write_text(f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {log};\n"
                              f"events {{}}\nhttp {{ access_log off; {paths}\n{block}}}\n")
            nginx = subprocess.Popen([shutil.which("nginx") or "/usr/sbin/nginx", "-e", log, "-c", config, "-p", folder], stderr=subprocess.DEVNULL)
            try:
                while True:  # until it listens
                    self.assertIsNone(nginx.poll(), log.read_text() if log.exists() else "")
                    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=60):
                        break
                    time.sleep(0.02)

                def connect():
                    connection = http.client.HTTPSConnection("models.example", port, timeout=60)
                    plain = socket.create_connection(("127.0.0.1", port), timeout=60)
                    connection.sock = ssl.create_default_context(cafile=certificate).wrap_socket(plain, server_hostname="models.example")
                    return contextlib.closing(connection)

                yield connect
            finally:
                nginx.terminate()
                nginx.wait()


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
