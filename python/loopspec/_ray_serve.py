"""The Ray Serve deployment of `loopspec.ray`."""

from __future__ import annotations

import asyncio
import collections
import http.client
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import ray

# The server must not outlive its replica, not even one that is killed: the kernel ends it (PR_SET_PDEATHSIG).
_LAUNCH = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])"""
# Those of one connection, and those that the next one makes anew.
_OWN_HEADERS = {"connection", "content-length", "date", "host", "keep-alive", "server", "te", "trailer", "transfer-encoding", "upgrade"}
_LOG_LINES = 20


def find_binary(binary: str | os.PathLike[str] | None) -> str:
    """The command `loopspec`: as named, else $LOOPSPEC_BINARY, else in PATH."""
    name = os.fspath(binary) if binary is not None else os.environ.get("LOOPSPEC_BINARY") or "loopspec"
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"binary is {name!r}, which is no program here: expected the command loopspec, which has the "
                                "server (the Python package has not)")
    return os.path.abspath(found)


class ServerProcess:
    """`loopspec serve` on a free port of 127.0.0.1, as a child; its log goes to this process's stderr."""

    def __init__(self, binary: str, arguments: Sequence[str], start_seconds: float) -> None:
        self._last: collections.deque[str] = collections.deque(maxlen=_LOG_LINES)
        self._said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._started: queue.SimpleQueue[subprocess.Popen[str] | OSError] = queue.SimpleQueue()
        command = [sys.executable, "-S", "-c", _LAUNCH, str(os.getpid()), binary, "serve", "--host", "127.0.0.1", "--port", "0",
                   *arguments]
        # The kernel's signal comes when the starting thread ends, so that thread stays, and reads the log.
        threading.Thread(target=self._run, args=(command,), daemon=True).start()
        started = self._started.get()
        if isinstance(started, OSError):
            raise started
        self.process = started
        try:
            self._wait(time.monotonic() + start_seconds)
        except BaseException:
            self.stop()
            raise

    def _run(self, command: list[str]) -> None:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
        except OSError as error:
            self._started.put(error)
            return
        self._started.put(process)
        assert process.stderr is not None
        for line in process.stderr:
            self._last.append(line)
            sys.stderr.write(line)
            found = re.search(r"listening on (http://[^\s\"]+)", line)
            if found:
                self._said.put(found[1])
        self._said.put(None)

    def _wait(self, until: float) -> None:
        """Until it listens, and until the model is loaded."""
        try:
            url = self._said.get(timeout=max(until - time.monotonic(), 0))
        except queue.Empty:
            url = None
        if url is not None:
            self.url = url
            while self.process.poll() is None and time.monotonic() < until:
                try:
                    with urllib.request.urlopen(url + "/health", timeout=5):
                        return
                except (OSError, http.client.HTTPException, urllib.error.URLError):
                    time.sleep(0.05)
        raise RuntimeError("loopspec serve did not start:\n" + "".join(self._last))

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def log(self) -> str:
        """Its last lines."""
        return "".join(self._last)

    def stop(self) -> None:
        """SIGTERM, which lets running answers end; SIGKILL where that takes too long."""
        if self.running:
            self.process.terminate()
        try:
            self.process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Server:
    """A replica: starts `loopspec serve` and hands every request on to it, so that routes, fields and errors are the server's own.

    `server` makes a deployment of it. Other deployments and `ray.data.llm` call `chat` and `completions` by handle; they are
    generators, as Ray wants it of language models, of one answer.
    """

    def __init__(self, model: str, arguments: Sequence[str] = (), binary: str | None = None, start_seconds: float = 600.0) -> None:
        given = [str(argument) for argument in arguments]
        if not any(re.match(r"(--threads|-t)\b", argument) for argument in given) and ray.is_initialized():
            context: Any = ray.get_runtime_context()
            cpus = int(context.get_assigned_resources().get("CPU", 0))
            if cpus > 0:
                given += ["--threads", str(cpus)]
        self._server = ServerProcess(find_binary(binary), ["--model", model, *given], start_seconds)
        self._client: Any = None

    def _session(self) -> Any:
        import aiohttp

        if self._client is None:  # in the loop that uses it
            self._client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None),
                                                 auto_decompress=False)
        return self._client

    async def __call__(self, request: Any) -> Any:
        """Any request over HTTP."""
        from starlette.responses import JSONResponse, StreamingResponse

        import aiohttp

        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        query = request.scope.get("query_string", b"").decode("latin-1")
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _OWN_HEADERS]
        try:
            answer = await self._session().request(
                request.method, f"{self._server.url}{path or '/'}{'?' if query else ''}{query}", data=await request.body(),
                headers=headers, allow_redirects=False)
        except aiohttp.ClientError as error:
            return JSONResponse({"error": {"message": f"this replica's server does not answer: {error}", "type": "server_error",
                                           "param": None, "code": None}}, status_code=503)

        async def parts() -> AsyncIterator[bytes]:
            try:
                async for part in answer.content.iter_any():
                    yield part
            finally:  # the client may have gone: the server then cancels the answer
                answer.close()

        response = StreamingResponse(parts(), status_code=answer.status)
        response.raw_headers = [(name.lower(), value) for name, value in answer.raw_headers
                                if name.lower().decode("latin-1") not in _OWN_HEADERS]
        return response

    async def _post(self, path: str, request: Any) -> Any:
        body = _plain(request if isinstance(request, Mapping) else request.model_dump(exclude_unset=True))
        for name in ("request_id", "idx_in_batch"):  # of ray.data.llm, about the row
            body.pop(name, None)
        body["stream"] = False
        async with self._session().post(self._server.url + path, json=body) as answer:
            said = await answer.json()
            if answer.status == 200:
                return said
            message = said.get("error", {}).get("message", said)
            raise (ValueError if answer.status in (400, 404, 413, 422) else RuntimeError)(f"{answer.status}: {message}")

    async def chat(self, request: Any) -> AsyncIterator[Any]:
        """The answer of /v1/chat/completions to this body."""
        yield await self._post("/v1/chat/completions", request)

    async def completions(self, request: Any) -> AsyncIterator[Any]:
        """The answer of /v1/completions to this body."""
        yield await self._post("/v1/completions", request)

    async def check_health(self) -> None:
        """Ray asks, and makes a new replica where this raises."""
        if not self._server.running:
            raise RuntimeError(f"loopspec serve ended with code {self._server.process.returncode}:\n{self._server.log()}")
        answer = await asyncio.wait_for(self._session().get(self._server.url + "/health"), 30)
        answer.release()
        if answer.status != 200:
            raise RuntimeError(f"/health says {answer.status}")

    def __del__(self) -> None:
        if hasattr(self, "_server"):
            self._server.stop()


def server(model: str | os.PathLike[str], *, arguments: Sequence[str] = (), binary: str | os.PathLike[str] | None = None,
           start_seconds: float = 600.0, **options: Any) -> Any:
    """A Ray Serve application with the routes of `loopspec serve`: /v1/models, /v1/completions, /v1/chat/completions ...

    ::

        from ray import serve
        serve.run(loopspec.ray.server("/models/ouro", num_replicas=2, ray_actor_options={"num_cpus": 8}))

    Each replica runs `loopspec serve` of its own and hands requests on to it, streams included: what the server can do
    (docs/serving.md), the application can.

    model: folder of a checkpoint, or ORG/NAME in the Hugging Face cache; on every node.
    arguments: more ones for `loopspec serve`: ["--served-model-name", "demo"]. Unless they name --threads, there are as
        many as the replica has CPUs.
    binary: the command loopspec on the nodes; None: $LOOPSPEC_BINARY there, else the one in PATH. The Python package
        does not bring it.
    start_seconds: for loading the model; a replica that takes longer is an error.
    **options: of the deployment (`ray.serve.deployment`): num_replicas, autoscaling_config, ray_actor_options, name ...
        Unless told, it is named "loopspec" and a replica takes 64 requests at once, as many as it decodes together.
    """
    from ray import serve

    settings: dict[str, Any] = {"name": "loopspec", "max_ongoing_requests": 64, **options}
    return serve.deployment(Server).options(**settings).bind(
        os.fspath(model), list(arguments), None if binary is None else os.fspath(binary), start_seconds)


def _plain(value: Any) -> Any:
    """A value of a batch as JSON has it."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value
