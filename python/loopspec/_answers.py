"""Answers that `loopspec bench --task ... --records FILE` and `loopspec experiment run` keep, read back for scoring."""

from __future__ import annotations

import json
import pathlib
from dataclasses import dataclass, field
from typing import Any

_SETTINGS = "loopspec_records"  # key of a file's first line
_THOUGHT_END = "</think>"


class AnswersError(Exception):
    """A file of records that cannot be read, in one sentence."""


@dataclass
class Answers:
    """The answers of one task under one sampling, which one or several decoding specs gave word for word."""

    file: pathlib.Path
    task: str
    sampling: str  # as an experiment calls it; "" for bench
    specs: list[str]
    texts: dict[str, str] = field(default_factory=dict)  # by item, such as "gsm8k/0"


def _read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    lines = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                break  # cut off while it was written
            try:
                lines.append(json.loads(line))
            except ValueError as error:
                raise AnswersError(f"{path}, line {number}: not JSON ({error})") from None
            if not isinstance(lines[-1], dict):
                raise AnswersError(f"{path}, line {number}: expected an object")
    if not lines or not isinstance(lines[0].get(_SETTINGS), dict):
        raise AnswersError(f'{path} holds no records of a measurement: its first line has no "{_SETTINGS}"')
    return lines


def _is_chat(settings: dict[str, Any], task: str) -> bool:
    declared = {each["task"]: bool(each.get("chat")) for each in settings.get("experiment", {}).get("tasks", [])}
    return declared.get(task, bool(settings.get("chat")))


def read_answers(path: pathlib.Path) -> list[Answers]:
    """The answers of one file. Of repeats the first counts: the others decode the same again. In chat form, thoughts up to
    "</think>" are no part of an answer."""
    settings, *records = _read_lines(path)
    settings = settings[_SETTINGS]
    if "experiment" not in settings and "task" not in settings:
        raise AnswersError(f"{path}: its prompts are no task's, expected records of `loopspec bench --task` or `loopspec experiment run`")
    by_spec: dict[tuple[str, str, str], dict[str, str]] = {}
    for record in records:
        if "text" not in record:
            continue  # a distance, or the peak of memory
        task, _, sampling = (record["group"] if "experiment" in settings else settings["task"]).partition("/")
        text = record["text"]
        if _is_chat(settings, task):
            text = text.rpartition(_THOUGHT_END)[2]
        by_spec.setdefault((task, sampling, record["way"]), {}).setdefault(record["item"], text)
    found: list[Answers] = []
    for (task, sampling, spec), texts in by_spec.items():
        same = next((one for one in found if (one.task, one.sampling, one.texts) == (task, sampling, texts)), None)
        if same:
            same.specs.append(spec)
        else:
            found.append(Answers(path, task, sampling, [spec], texts))
    return found


def find_answers(results: pathlib.Path) -> list[Answers]:
    """Of a file of records, or of every .jsonl file in a folder."""
    if not results.is_dir():
        if not results.exists():
            raise AnswersError(f"{results}: no such file or folder, expected records of `loopspec bench --task` or `loopspec experiment run`")
        return read_answers(results)
    files = sorted(results.glob("*.jsonl"))
    if not files:
        raise AnswersError(f"{results} holds no .jsonl file, expected a folder that `loopspec experiment run` has written")
    return [answers for file in files for answers in read_answers(file)]
