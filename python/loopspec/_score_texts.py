"""Scores of texts: lm-evaluation-harness's own task code, and math-verify. Benchmark data come from local files."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import tempfile
from typing import Any

from ._answers import Answers, AnswersError

BBH = "bbh_cot_fewshot"
# Where the documents of a task lie in the folder of benchmarks.
_FILES = {"gsm8k_cot": "gsm8k/test.jsonl", "minerva_math500": "math500/test.jsonl", "aime24": "aime2024/test.jsonl",
          "aime25": "aime2025/test.jsonl"}


def is_text_task(task: str) -> bool:
    return task in _FILES or task.startswith(BBH)


def _documents(task: str, item: str, benchmarks: pathlib.Path, read: dict[pathlib.Path, list[dict[str, Any]]]) -> dict[str, Any]:
    """The document of an item: "gsm8k/3" is the fourth of gsm8k, "bbh/navigate/0" the first of that part."""
    name, _, number = item.rpartition("/")
    path = benchmarks / (f"bbh/bbh/{name.partition('/')[2]}.json" if task.startswith(BBH) else _FILES[task])
    if path not in read:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise AnswersError(f"{path} cannot be read: {error.strerror}, expected benchmark files as scripts/fetch-benchmarks.py gets them") from None
        read[path] = json.loads(text)["examples"] if path.suffix == ".json" else [json.loads(line) for line in text.splitlines() if line.strip()]
    if not number.isdigit() or int(number) >= len(read[path]):
        raise AnswersError(f"{path} has no document for {item}")
    document = read[path][int(number)]
    if task.startswith("aime"):  # the harness's two data sets have different names for the same fields
        problem, answer = document.get("problem", document.get("question")), str(document["answer"])
        return {"Problem": problem, "Answer": answer} if task == "aime24" else {"problem": problem, "answer": answer}
    return document


def _by_harness_task(answers: Answers) -> dict[str, dict[str, str]]:
    """Items and texts by the harness's task: a group such as bbh_cot_fewshot has one for each part."""
    tasks: dict[str, dict[str, str]] = {}
    for item, text in answers.texts.items():
        name = f"{BBH}_{item.split('/')[1]}" if answers.task.startswith(BBH) else answers.task
        tasks.setdefault(name, {})[item] = text
    return tasks


def _local_task(name: str, documents: list[dict[str, Any]], folder: pathlib.Path) -> dict[str, Any]:
    """The harness's own task over a file of ours in place of its data set on the Hub."""
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    splits = {split: str(file) for split in ("train", "test")}
    return {"task": name, "dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": splits}}


def _warm_sympy() -> None:
    """minerva_math gives sympy 5 s by the clock for an answer; its import shall not count."""
    from sympy.parsing.latex import parse_latex

    parse_latex("1")


def score_with_lm_eval(answers: Answers, benchmarks: pathlib.Path) -> dict[str, float]:
    """Every metric of the task by name, "exact_match,strict-match", as the harness computes it from these answers. The parts of
    bbh_cot_fewshot are averaged as the harness does it, weighted by their size."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TQDM_DISABLE="1", TRANSFORMERS_VERBOSITY="error")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    import datasets
    import lm_eval
    from lm_eval.api.model import LM

    class KeptAnswers(LM):  # type: ignore[misc]  # the harness has no types
        def __init__(self, texts: dict[str, list[str]]) -> None:
            super().__init__()
            self.texts = texts

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            return [self.texts[request.task_name][request.doc_id] for request in requests]

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
            raise NotImplementedError("kept answers have no likelihoods")

        loglikelihood_rolling = loglikelihood

    if answers.task == "minerva_math500":
        _warm_sympy()
    datasets.disable_progress_bars()
    read: dict[pathlib.Path, list[dict[str, Any]]] = {}
    tasks = _by_harness_task(answers)
    with tempfile.TemporaryDirectory(prefix="loopspec-evaluate-") as temporary:
        folder = pathlib.Path(temporary)
        datasets.config.HF_DATASETS_CACHE = folder / "cache"
        local = [_local_task(name, [_documents(answers.task, item, benchmarks, read) for item in items], folder)
                 for name, items in tasks.items()]
        result = lm_eval.simple_evaluate(model=KeptAnswers({name: list(items.values()) for name, items in tasks.items()}),
                                         tasks=[{"group": "loopspec_answers", "task": local}],  # members of a group may override
                                         num_fewshot=0, bootstrap_iters=0, log_samples=False, verbosity="ERROR")
    sums: dict[str, float] = {}
    for name, items in tasks.items():
        for metric, value in result["results"][name].items():
            if isinstance(value, (int, float)) and "," in metric and "_stderr" not in metric:
                key = metric.removesuffix(",none")
                sums[key] = sums.get(key, 0.0) + float(value) * len(items) / len(answers.texts)
    return sums


def score_with_math_verify(answers: Answers, benchmarks: pathlib.Path) -> float:
    """The share of answers that math-verify finds equivalent to the reference."""
    from math_verify import parse, verify

    read: dict[pathlib.Path, list[dict[str, Any]]] = {}
    right = 0
    for item, text in answers.texts.items():
        document = _documents(answers.task, item, benchmarks, read)
        gold = document.get("answer", document.get("Answer"))
        right += bool(verify(parse(f"$\\boxed{{{gold}}}$"), parse(text)))
    return right / len(answers.texts)
