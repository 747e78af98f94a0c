"""A small Hugging Face Hub on loopback: what `loopspec pull` and huggingface_hub ask for, and faults on request.

    with FakeHub() as hub:
        hub.add("org/model", {"config.json": b"..."})
        hub.fail("model.safetensors", "break", 1000, times=2)    # the connection ends after 1000 bytes, twice
        ... HF_ENDPOINT=hub.url ...
        hub.requests

Large files (LFS) are answered by a redirect to a second server with another address, as the real Hub does.
"""

import dataclasses
import hashlib
import http.server
import json
import ssl
import threading
import time
import urllib.parse

HUB_HOST, STORE_HOST = "127.0.0.1", "127.0.0.2"


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclasses.dataclass
class Request:
    host: str
    method: str
    path: str
    range: str
    authorization: str
    sent: int = 0  # bytes of the body


@dataclasses.dataclass
class Fault:
    kind: str
    value: object
    times: int


class Repository:
    def __init__(self, name, files, lfs):
        self.name, self.files = name, files
        self.is_lfs = lfs
        self.commit = hashlib.sha1(repr((name, sorted((k, hashlib.sha1(v).hexdigest()) for k, v in files.items()))).encode()).hexdigest()
        self.listing = None  # to be sent instead of the true one

    def etag(self, path):
        data = self.files[path]
        return hashlib.sha256(data).hexdigest() if self.is_lfs(path) else git_sha1(data)

    def info(self):
        if self.listing is not None:
            return self.listing
        siblings = []
        for path, data in self.files.items():
            entry = {"rfilename": path, "size": len(data), "blobId": git_sha1(data)}
            if self.is_lfs(path):
                entry["blobId"] = git_sha1(b"pointer to " + self.etag(path).encode())
                entry["lfs"] = {"sha256": self.etag(path), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        return {"_id": "1", "id": self.name, "modelId": self.name, "sha": self.commit, "private": False, "gated": False, "disabled": False,
                "downloads": 0, "likes": 0, "tags": [], "siblings": siblings, "lastModified": "2026-11-17T00:00:00.000Z",
                "createdAt": "2026-11-17T00:00:00.000Z"}

    def tree(self):
        entries = []
        for path, data in self.files.items():
            entry = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
            if self.is_lfs(path):
                entry["oid"] = git_sha1(b"pointer to " + self.etag(path).encode())
                entry["lfs"] = {"oid": self.etag(path), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        return entries


class FakeHub:
    def __init__(self, certificate=None):
        self.repositories, self.revisions, self.faults, self.requests = {}, {}, {}, []
        self.token = None  # required where set
        self.chunk, self.delay = 1 << 16, 0.0  # bytes at a time, and the seconds between
        self.redirect_small = False  # as the real Hub answers for files of git: a redirect on the same host
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.hub, self.store = self._serve(HUB_HOST, certificate), self._serve(STORE_HOST, certificate)
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://{HUB_HOST}:{self.hub.server_address[1]}"
        self.store_url = f"{scheme}://{STORE_HOST}:{self.store.server_address[1]}"

    def _serve(self, host, certificate):
        server = http.server.ThreadingHTTPServer((host, 0), Handler)
        server.daemon_threads = True
        server.fake = self
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return server

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closing.set()
        for server in (self.hub, self.store):
            server.shutdown()
            server.server_close()

    def add(self, name, files, revisions=("main",), lfs=lambda path: path.endswith((".safetensors", ".bin"))):
        repository = Repository(name, files, lfs)
        self.repositories[(name, repository.commit)] = repository
        for revision in (*revisions, repository.commit):
            self.revisions[(name, revision)] = repository
        return repository

    def fail(self, path, kind, value=None, times=1):
        self.faults.setdefault(path, []).append(Fault(kind, value, times))

    def take_fault(self, path):
        with self.lock:
            for fault in self.faults.get(path, []):
                if fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def bodies(self, path=""):
        """GETs of files whose path ends so, redirects not counted."""
        with self.lock:
            return [r for r in self.requests if r.method == "GET" and r.path.endswith(path) and ("/resolve/" in r.path or "/store/" in r.path) and r.sent > 0]

    def sent(self, path=""):
        return sum(request.sent for request in self.bodies(path))

    def forget(self):
        with self.lock:
            self.requests.clear()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError, ssl.SSLError, OSError):
            self.close_connection = True

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        fake = self.server.fake
        parts = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(parts.path)
        self.record = Request(self.server.server_address[0], self.command, path, self.headers.get("Range", ""), self.headers.get("Authorization", ""))
        with fake.lock:
            fake.requests.append(self.record)
        words = path.strip("/").split("/")
        if fake.token and self.server is fake.hub and self.record.authorization != f"Bearer {fake.token}":
            return self.plain(401, {"X-Error-Code": "RepoNotFound"})
        if words[:2] == ["api", "models"] and len(words) >= 5:
            name, kind = "/".join(words[2:4]), words[4]
            revision = urllib.parse.unquote(parts.path.strip("/").split("/", 5)[5]) if len(words) > 5 else "main"
            fault = fake.take_fault(f"api:{name}")
            if fault:
                return self.endless() if fault.kind == "endless" else self.plain(*fault.value)
            repository = fake.revisions.get((name, revision))
            if repository is None:
                known = any(key[0] == name for key in fake.revisions)
                return self.plain(404, {"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"})
            return self.json(repository.tree() if kind == "tree" else repository.info())
        if len(words) >= 5 and words[2] == "resolve":
            name, revision, file = "/".join(words[:2]), words[3], "/".join(words[4:])
            repository = fake.revisions.get((name, revision))
            if repository is None or file not in repository.files:
                return self.plain(404, {"X-Error-Code": "EntryNotFound", **({"X-Repo-Commit": repository.commit} if repository else {})})
            return self.resolve(repository, file)
        if words[0] == "store" and len(words) >= 4:
            repository = fake.repositories.get(("/".join(words[1:3]), words[3]))
            return self.body(repository, "/".join(words[4:]))
        return self.plain(404, {})

    def resolve(self, repository, file):
        fake = self.server.fake
        headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{repository.etag(file)}"'}
        target = f"/store/{repository.name}/{repository.commit}/{urllib.parse.quote(file)}"
        if repository.is_lfs(file):
            return self.plain(302, {**headers, "Location": fake.store_url + target + "?signature=secret", "X-Linked-Size": str(len(repository.files[file])),
                                    "X-Linked-Etag": f'"{repository.etag(file)}"'})
        if fake.redirect_small:
            return self.plain(307, {**headers, "Location": target})
        return self.body(repository, file)

    def plain(self, status, headers, text=b""):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    def json(self, value):
        self.plain(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def endless(self):
        """An answer of 200 that goes on until nobody reads it."""
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while not self.server.fake.closing.is_set():
            self.wfile.write(b"x" * self.server.fake.chunk)
            self.record.sent += self.server.fake.chunk

    def body(self, repository, file):
        fake = self.server.fake
        data = repository.files[file]
        fault = fake.take_fault(file) if self.command == "GET" else None
        kind = fault.kind if fault else ""
        if kind == "status":
            return self.plain(*fault.value)
        if kind == "endless":
            return self.endless()
        if kind == "changed":  # another file of the same size
            data = bytes(byte ^ 0xFF for byte in data)
        if kind == "redirect":
            return self.plain(302, {"Location": fault.value})
        if kind == "corrupt":
            data = data[:fault.value] + bytes([data[fault.value] ^ 1]) + data[fault.value + 1:]
        if kind in ("long", "long, length not said"):
            data = data + b"x" * fault.value
        if kind in ("short", "short, length not said"):
            data = data[:fault.value]
        begin, total = 0, len(data)
        if self.record.range.startswith("bytes=") and "ignore range" not in kind:
            begin = int(self.record.range[6:].split("-")[0])
            if begin >= total:
                return self.plain(416, {"Content-Range": f"bytes */{total}"})
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{total - 1}/{'*' if kind.endswith('length not said') else total}")
        self.send_header("X-Repo-Commit", repository.commit)
        self.send_header("ETag", f'"{repository.etag(file)}"')
        if kind.endswith("length not said"):
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(total - begin))
        self.end_headers()
        if self.command == "HEAD":
            return None
        broken = kind.startswith(("break", "stall"))
        end = min(total, begin + fault.value) if broken else total
        while begin < end:
            piece = data[begin:min(end, begin + fake.chunk)]
            self.wfile.write(piece)
            begin += len(piece)
            self.record.sent += len(piece)
            if fake.delay:
                time.sleep(fake.delay)
        if kind == "stall":
            fake.closing.wait(30)
        if broken:
            self.close_connection = True
            self.wfile.flush()
            self.connection.close()
        return None
