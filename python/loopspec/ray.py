"""loopspec in Ray: rows of Ray Data, and the OpenAI routes in Ray Serve.

Rows, finished ones kept on disk::

    from loopspec.ray import run

    rows = [{"prompt": f"{index} cats and"} for index in range(1000)]
    for row in run(rows, "answers", model="models/ouro-demo", params={"max_tokens": 16, "temperature": 1.0}, workers=2):
        print(row["row"], row["text"])

Every finished row is on disk at once. A worker that dies costs the rows that it had under way; a job that is started
again, with the same folder, answers what is missing. Draws are keyed by the row, not by the batch or the worker, so a
row that is done again comes out the same, token for token. `Predictor` is the worker alone, for pipelines of your own.

Requests::

    from ray import serve
    from loopspec.ray import server

    serve.run(server("models/ouro-demo", num_replicas=2))   # http://127.0.0.1:8000/v1/completions
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ray

from ._engine import Engine
from ._outputs import RequestOutput, output_of
from ._params import SamplingParams, integer
from ._ray_serve import Server, _plain, server

__all__ = ["Predictor", "Results", "Server", "read_results", "run", "server"]

_JOB = "job.json"


class Results:
    """Finished rows in a folder, by key: an iterable of rows, each once.

    Any number of processes add and read; each writes a file of its own, a line of JSON for a row. Memory holds where a
    row stands, not the row.

    folder: is made where job is given. job: what the rows are answers to; a folder that holds another job's rows is a
        ValueError.
    """

    def __init__(self, folder: str | os.PathLike[str], job: Mapping[str, Any] | None = None) -> None:
        self._folder = os.fspath(folder)
        self._places: dict[str, tuple[str, int, int]] = {}  # by key: file, offset, length
        self._read: dict[str, int] = {}  # by file: where its whole lines end
        self._file: int | None = None
        self._name, self._end = "", 0  # of the own file
        if job is not None:
            os.makedirs(self._folder, exist_ok=True)
            self._claim(json.dumps(job, sort_keys=True, default=str))

    def _claim(self, job: str) -> None:
        path = os.path.join(self._folder, _JOB)
        new = f"{path}.{uuid.uuid4().hex}"
        with open(new, "w", encoding="utf-8") as file:
            file.write(job)
        try:
            os.link(new, path)  # the first one is it
        except FileExistsError:
            pass
        finally:
            os.unlink(new)
        with open(path, encoding="utf-8") as file:
            found = file.read()
        if found != job:
            raise ValueError(f"{self._folder} holds answers of another job, {found}, expected {job}: name another folder")

    def refresh(self) -> None:
        """Takes in what others have written since."""
        for name in sorted(os.listdir(self._folder)):
            path = os.path.join(self._folder, name)
            start = self._read.get(name, 0)
            if not name.endswith(".jsonl") or os.path.getsize(path) == start:
                continue
            with open(path, "rb") as file:
                file.seek(start)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # half a line: its worker was killed, or is about to write the rest
                    self._places.setdefault(json.loads(line)["key"], (name, start, len(line)))
                    start += len(line)
            self._read[name] = start

    def get(self, key: str) -> dict[str, Any] | None:
        """The row, if it is finished."""
        place = self._places.get(key)
        if place is None:
            return None
        name, start, length = place
        with open(os.path.join(self._folder, name), "rb") as file:
            return self._row(file, start, length)

    @staticmethod
    def _row(file: Any, start: int, length: int) -> dict[str, Any]:
        file.seek(start)
        row: dict[str, Any] = json.loads(file.read(length))["row"]
        return row

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Writes a finished row: in one go, to a file that nobody else writes to."""
        if self._file is None:
            self._name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}.jsonl"
            self._file = os.open(os.path.join(self._folder, self._name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        data = (json.dumps({"key": key, "row": row}) + "\n").encode()
        if os.write(self._file, data) != len(data):
            raise OSError(f"{self._folder}: an answer could not be written whole: is the disk full?")
        self._places.setdefault(key, (self._name, self._end, len(data)))
        self._end += len(data)
        self._read[self._name] = self._end

    def sync(self) -> None:
        """To the disk itself, for machines that may lose power."""
        if self._file is not None:
            os.fsync(self._file)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[dict[str, Any]]:
        by_file: dict[str, list[tuple[int, int]]] = {}
        for name, start, length in self._places.values():
            by_file.setdefault(name, []).append((start, length))
        for name, spans in by_file.items():
            with open(os.path.join(self._folder, name), "rb") as file:
                for start, length in sorted(spans):
                    yield self._row(file, start, length)

    def __len__(self) -> int:
        return len(self._places)

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            os.close(file)


def read_results(folder: str | os.PathLike[str]) -> Results:
    """The finished rows in the folder of `run` or of a `Predictor`, each once, in no particular order."""
    results = Results(folder)
    results.refresh()
    return results


def _same_prompt(key: str, before: Any, now: Any) -> None:
    if before != now:
        raise ValueError(f"row {key} was answered for the prompt {before!r}, and now it has {now!r}: name another folder")


class Predictor:
    """A class for `ray.data.Dataset.map_batches`: every actor loads the model once and answers batches with it.

    model: folder of a checkpoint, or ORG/NAME in the Hugging Face cache; on every node.
    params: fields of `loopspec.SamplingParams` for all rows, as a dict.
    prompt: column with the prompts: text, lists of ids, or lists of messages.
    output: column for the answers' text. Further columns: finish_reason, and error, which says why a row could not be
        answered (it is then empty) instead of failing the job.
    key: column that names a row; without one its prompt does. The draws of a row are keyed by it.
    results: folder for finished rows (see `read_results`); None: they are not kept.
    engine: arguments of `loopspec.Engine`, as a dict. Unless it names threads, there are as many as the actor has CPUs.

    ::

        rows = ray.data.read_json("prompts.jsonl")       # columns: id, prompt
        done = rows.map_batches(Predictor, batch_size=64, num_cpus=2, concurrency=4, fn_constructor_kwargs={
            "model": "/models/ouro", "key": "id", "params": {"max_tokens": 64}})

    The whole batch goes through one engine at once; a batch_size of a few times the answers that are decoded at once
    (64) keeps it busy.
    """

    def __init__(self, model: str, *, params: Mapping[str, Any] | None = None, prompt: str = "prompt", output: str = "text",
                 key: str | None = None, results: str | os.PathLike[str] | None = None,
                 engine: Mapping[str, Any] | None = None) -> None:
        arguments = dict(engine or {})
        if "threads" not in arguments and ray.is_initialized():
            context: Any = ray.get_runtime_context()
            arguments["threads"] = int(context.get_assigned_resources().get("CPU", 0))
        self._params = SamplingParams().replace(**dict(params or {}))
        self._prompt, self._output, self._key = prompt, output, key
        self._results = None
        if results is not None:
            job = {"model": model, "params": dict(params or {}), "prompt": prompt, "output": output, "key": key}
            self._results = Results(results, job)
        self._engine = Engine(model, **arguments)

    def _row_params(self, key: str) -> SamplingParams:
        """The same for a row wherever and whenever it is answered."""
        digest = hashlib.sha256(f"{self._params.seed or 0}\0{key}".encode()).digest()
        return dataclasses.replace(self._params, seed=int.from_bytes(digest[:8], "little"))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import numpy

        columns = {name: [_plain(value) for value in values] for name, values in batch.items()}
        if self._prompt not in columns:
            raise ValueError(f"the rows have columns {', '.join(columns)}, expected {self._prompt} among them")
        prompts = columns[self._prompt]
        names = columns[self._key] if self._key else prompts
        keys = [_key(name) for name in names]
        answers = self._answer(columns, prompts, keys)
        for name in (self._output, "finish_reason", "error"):
            array = numpy.empty(len(keys), dtype=object)
            array[:] = [answer[name] for answer in answers]
            batch[name] = array
        return batch

    def _answer(self, columns: dict[str, list[Any]], prompts: list[Any], keys: list[str]) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        if self._results is not None:
            self._results.refresh()
            for key, prompt in zip(keys, prompts):
                row = self._results.get(key)
                if row is not None:
                    _same_prompt(key, row.get(self._prompt), prompt)
                    found[key] = row
        missing = [index for index, key in enumerate(keys) if key not in found and keys.index(key) == index]
        requests, rows = [], []
        for index in missing:
            try:
                requests += self._engine._requests([prompts[index]], self._row_params(keys[index]), {}, True)
                rows.append(index)
            except (TypeError, ValueError) as error:
                found[keys[index]] = self._keep(columns, index, keys[index], None, str(error))

        def finished(number: int, answer: Any) -> None:
            index = rows[number]
            output = None if answer.error else output_of(answer, None, False)
            # What the row is not to blame for is no answer to keep: another try may have one.
            if output is None and not answer.refused:
                broken.append(f"row {keys[index]}: {answer.error}")
            elif output is not None and output.finish_reason == "cancelled":
                broken.append("the engine was closed before the answers were there")
            else:
                found[keys[index]] = self._keep(columns, index, keys[index], output, answer.error)

        broken: list[str] = []
        self._engine._answers(requests, False, finished)
        if self._results is not None:
            self._results.sync()
        if broken:
            raise RuntimeError(broken[0])
        return [found[key] for key in keys]

    def _keep(self, columns: dict[str, list[Any]], index: int, key: str, output: RequestOutput | None, error: str) -> dict[str, Any]:
        row = {name: values[index] for name, values in columns.items()}
        row[self._output] = output.text if output else ""
        row["finish_reason"] = output.finish_reason if output else "error"
        row["error"] = error
        if self._results is not None:
            self._results.add(key, row)
        return row


def _key(value: Any) -> str:
    """A row's name as text."""
    return json.dumps(_plain(value), sort_keys=True)


def _named(rows: Iterable[Mapping[str, Any]], column: str | None) -> tuple[dict[str, dict[str, Any]], str]:
    """Rows by what names them, a column or else their number, and where that stands."""
    found: dict[str, dict[str, Any]] = {}
    for index, given in enumerate(rows):
        row = dict(given)
        if column is None:
            if "row" in row:
                raise ValueError(f"rows[{index}] has a column 'row', where its number would go: name the column that tells rows "
                                 "apart with key=")
            row["row"] = index
        elif column not in row:
            raise ValueError(f"rows[{index}] has columns {', '.join(row)}, expected {column} among them, which names it")
        name = _key(row[column or "row"])
        if name in found:
            raise ValueError(f"rows[{index}] has {column} {name}, as one before: expected one that no other row has")
        found[name] = row
    return found, column or "row"


def run(rows: Any, folder: str | os.PathLike[str], *, model: str | os.PathLike[str], params: Mapping[str, Any] | None = None,
        key: str | None = None, prompt: str = "prompt", output: str = "text", workers: int = 1, num_cpus: float = 1,
        num_gpus: float = 0, batch_size: int = 64, engine: Mapping[str, Any] | None = None, **options: Any) -> Results:
    """Answers every row with `workers` engines and keeps the answers in a folder, from which a killed job goes on.

    rows: dicts, or a `ray.data.Dataset`.
    folder: for the answers; every node must see it. The same call again, after whatever stopped the first one, answers
        the rows that are missing and no other. A folder that holds another job's answers is a ValueError.
    key: column that names a row, one no other row has. Without it rows are named by their number, in a column "row"; a
        Dataset has no numbers and needs a key.
    workers, num_cpus, num_gpus: how many engines, and what each takes of the cluster; its threads are num_cpus.
    batch_size: rows that a worker takes at a time.
    model, params, prompt, output, engine: as for `Predictor`; a row that cannot be answered says why in its column error.
    **options: of `ray.data.Dataset.map_batches`.

    Returns the `Results`: all rows, each once.
    """
    integer("workers", workers, 1)
    integer("batch_size", batch_size, 1)
    place, column = os.path.abspath(folder), key
    wanted: dict[str, dict[str, Any]] = {}
    listed = not isinstance(rows, ray.data.Dataset)
    if listed:
        wanted, column = _named(rows, key)
    elif key is None:
        raise ValueError("key is None, expected the column that names a row: a Dataset's rows have no numbers")
    arguments = {"model": os.path.abspath(model) if os.path.isdir(model) else os.fspath(model), "params": dict(params or {}),
                 "prompt": prompt, "output": output, "key": column}
    results = Results(place, arguments)
    results.refresh()
    if listed:
        for name, row in wanted.items():
            found = results.get(name)
            if found is not None:
                _same_prompt(name, found.get(prompt), _plain(row.get(prompt)))
        missing = [row for name, row in wanted.items() if name not in results]
        if not missing:
            return results
        rows = ray.data.from_items(missing, override_num_blocks=-(-len(missing) // batch_size))
    done = rows.map_batches(
        Predictor, batch_size=batch_size, num_cpus=num_cpus, num_gpus=num_gpus, compute=ray.data.ActorPoolStrategy(size=workers),
        fn_constructor_kwargs={**arguments, "results": place, "engine": dict(engine or {})}, **options)
    for _ in done.iter_batches(batch_size=None):
        pass  # they are on disk
    results.refresh()
    lost = [name for name in wanted if name not in results]
    if lost:
        raise RuntimeError(f"{place} has no answer to {len(lost)} rows, the first being {lost[0]}")
    return results
