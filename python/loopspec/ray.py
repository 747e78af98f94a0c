"""loopspec in Ray: batches of rows in Ray Data.

Rows with `ray.data`, finished ones kept on disk::

    import ray
    from loopspec.ray import Predictor, read_results

    rows = ray.data.read_json("prompts.jsonl")       # columns: id, prompt
    done = rows.map_batches(Predictor, batch_size=64, num_cpus=2, concurrency=4, fn_constructor_kwargs={
        "model": "models/ouro-demo", "key": "id", "results": "answers", "params": {"max_tokens": 64, "temperature": 1.0}})
    done.materialize()
    for row in read_results("answers"):
        print(row["id"], row["text"])

Every finished row is on disk at once, in the folder that `results` names. A worker that dies costs the rows that were
not finished; a job that is started again answers what is missing. Draws are keyed by the row, not by the batch or the
worker, so a row that is done again comes out the same, token for token.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import ray

from ._engine import Engine
from ._outputs import RequestOutput, output_of
from ._params import SamplingParams

__all__ = ["Predictor", "Results", "read_results"]

_JOB = "job.json"


def _lines(path: str, start: int) -> tuple[list[dict[str, Any]], int]:
    """The whole lines from there on, and where they end. A worker that was killed may have left half a line."""
    with open(path, "rb") as file:
        file.seek(start)
        data = file.read()
    end = data.rfind(b"\n") + 1
    return [json.loads(line) for line in data[:end].splitlines()], start + end


class Results:
    """Finished rows in a folder, by key. Any number of processes add and read; each writes a file of its own.

    folder: is made. job: what the rows are answers to; a folder that holds another job's rows is a ValueError.
    """

    def __init__(self, folder: str | os.PathLike[str], job: Mapping[str, Any] | None = None) -> None:
        self._folder = os.fspath(folder)
        self._rows: dict[str, dict[str, Any]] = {}
        self._read: dict[str, int] = {}
        self._file: int | None = None
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
            if not name.endswith(".jsonl"):
                continue
            path = os.path.join(self._folder, name)
            if os.path.getsize(path) == self._read.get(name, 0):
                continue
            rows, self._read[name] = _lines(path, self._read.get(name, 0))
            for row in rows:
                self._rows.setdefault(row["key"], row)

    def get(self, key: str) -> dict[str, Any] | None:
        """The row's answer, if it has one."""
        return self._rows.get(key)

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Writes an answer: in one go, to a file that nobody else writes to."""
        if self._file is None:
            name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}.jsonl"
            self._file = os.open(os.path.join(self._folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._rows[key] = {"key": key, **row}
        data = (json.dumps(self._rows[key]) + "\n").encode()
        if os.write(self._file, data) != len(data):
            raise OSError(f"{self._folder}: an answer could not be written whole: is the disk full?")

    def sync(self) -> None:
        """To the disk itself, for machines that may lose power."""
        if self._file is not None:
            os.fsync(self._file)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)


def read_results(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The finished rows of a `Predictor`'s folder, each once."""
    results = Results(folder)
    results.refresh()
    return [row["row"] for row in results]


def _plain(value: Any) -> Any:
    """A value of a batch as JSON has it."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


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
        keys = [json.dumps(name, sort_keys=True) for name in names]
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
            for key in keys:
                row = self._results.get(key)
                if row is not None:
                    found[key] = row["row"]
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
            if output is not None and output.finish_reason == "cancelled":
                return  # the engine is closed: somebody else will do it
            found[keys[index]] = self._keep(columns, index, keys[index], output, answer.error)

        self._engine._answers(requests, False, finished)
        if self._results is not None:
            self._results.sync()
        return [found[key] for key in keys]

    def _keep(self, columns: dict[str, list[Any]], index: int, key: str, output: RequestOutput | None, error: str) -> dict[str, Any]:
        row = {name: values[index] for name, values in columns.items()}
        row[self._output] = output.text if output else ""
        row["finish_reason"] = output.finish_reason if output else "error"
        row["error"] = error
        if self._results is not None:
            self._results.add(key, {"row": row})
        return row
