"""A server in front of a real one that lets everything through but the answers: those are as the test wrote them.

What no demo model would write (Markdown, formulas, thinking, hostile text) reaches the page this way through the real page, the
real headers and the real routes.
"""

import http.server
import json
import pathlib
import re
import threading
import time
import urllib.error
import urllib.request

KEPT_HEADERS = ("Content-Type", "Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy", "Retry-After")
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


def tokens_of(text):
    """Made-up tokens: a word with the white space before it, long ones in pieces."""
    return [piece for word in re.findall(r"\s*\S+|\s+", text) for piece in re.findall(r"(?s).{1,12}", word)]


class ScriptedServer:
    """`answer`: the text of the next answers, or a function of the request's body. `tokenizer`: what /tokenizer_info says besides.
    `events`: the whole stream, instead of one made from `answer`. `folder`: the page's files from there instead of the binary's."""

    def __init__(self, upstream, folder=None):
        self.upstream = upstream
        self.folder = folder and pathlib.Path(folder)
        self.answer = ""
        self.events = None
        self.tokenizer = {}
        self.prompt_end = None  # tokens that /tokenize shows at the end of a prompt
        self.pause = 0  # seconds between tokens
        self.hold_after = None  # events after which the stream waits for `go_on`
        self.go_on = threading.Event()
        self.bodies = []  # of the requests for answers
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def _handler(self):
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                self.forward(None)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/chat/completions":
                    owner.bodies.append(json.loads(body))
                    self.stream(owner.events or owner.make_events(json.loads(body)))
                else:
                    self.forward(body)

            def forward(self, body):
                headers = {name: self.headers[name] for name in ("Content-Type", "Authorization") if self.headers[name]}
                request = urllib.request.Request(owner.upstream + self.path, body, headers)
                try:
                    answer = urllib.request.urlopen(request, timeout=60)
                except urllib.error.HTTPError as error:
                    answer = error
                content = answer.read()
                sent = {name: answer.headers[name] for name in KEPT_HEADERS if answer.headers[name]}
                status = answer.status
                local = owner.local(self.path)
                if local:
                    status, content, sent["Content-Type"] = 200, local.read_bytes(), TYPES[local.suffix]
                    sent["Content-Security-Policy"] = owner.policy()
                elif self.path == "/tokenizer_info" and owner.tokenizer:
                    content = json.dumps({**json.loads(content), **owner.tokenizer}).encode()
                elif self.path == "/tokenize" and owner.prompt_end:
                    content = json.dumps({**json.loads(content), "token_strs": owner.prompt_end}).encode()
                self.send_response(status)
                for name, value in {**sent, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def stream(self, events):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream; charset=utf-8")
                self.end_headers()
                for number, event in enumerate(events):
                    if number == owner.hold_after:
                        owner.go_on.wait(120)
                    data = event if isinstance(event, str) else json.dumps(event)
                    try:
                        self.wfile.write(f"data: {data}\n\n".encode())
                        self.wfile.flush()
                    except OSError:
                        return
                    time.sleep(owner.pause)

        return Handler

    def local(self, path):
        if not self.folder or (path != "/" and not path.startswith("/page/")):
            return None
        file = self.folder / ("index.html" if path == "/" else path.removeprefix("/page/"))
        return file if file.is_file() else None

    def policy(self):
        with urllib.request.urlopen(self.upstream + "/", timeout=60) as answer:
            return answer.headers["Content-Security-Policy"]

    def make_events(self, body):
        text = self.answer(body) if callable(self.answer) else self.answer
        pieces = tokens_of(text)[: body.get("max_tokens", 1 << 30)]
        for i, piece in enumerate(pieces):
            source = (1, 1, 1, 2, 1, 1, 0, 1)[i % 8]
            choice = {"index": 0, "delta": {"content": piece}, "finish_reason": None,
                      "tokens": [{"id": i, "text": piece, "source": source, "early": i % 11 == 5}]}
            if body.get("logprobs"):
                top = [{"token": piece, "logprob": -0.105}, {"token": " other", "logprob": -2.9}, {"token": "<b>", "logprob": -4.6}]
                choice["logprobs"] = {"content": [{"token": piece, "logprob": -0.105, "top_logprobs": top}]}
            yield {"choices": [choice]}
        summary = {"accepted": [1, 1], "fallback": 1, "early": 1, "gamma": 2.5, "tokens_per_pass": 2.0, "tokens_per_second": 100.0, "cached_tokens": 0, "seed": 1}
        reason = "stop" if len(pieces) == len(tokens_of(text)) else "length"
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": reason, "tokens": []}], "loopspec": summary}
        yield "[DONE]"
