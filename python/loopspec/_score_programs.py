"""Scores of programs that a model wrote: evalplus runs them against the tests of HumanEval(+) and MBPP(+), in a process of its own
and inside bubblewrap where that is installed."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from ._answers import Answers, AnswersError

# task -> evalplus's data set, its file in the folder of benchmarks, whether an answer continues the prompt
_TASKS = {"humaneval": ("humaneval", "humanevalplus/HumanEvalPlus.jsonl.gz", True),
          "humaneval_plus": ("humaneval", "humanevalplus/HumanEvalPlus.jsonl.gz", False),
          "mbpp": ("mbpp", "mbppplus/MbppPlus.jsonl.gz", False),
          "mbpp_plus": ("mbpp", "mbppplus/MbppPlus.jsonl.gz", False)}
WARNING = ("evalplus executes programs that a model wrote; nobody has read them, and its authors strongly recommend to run them in a "
           "sandbox only")


def is_program_task(task: str) -> bool:
    return task in _TASKS


def sandbox() -> str | None:
    """The program that isolates evalplus; None where bubblewrap is not installed."""
    return shutil.which("bwrap")


def _inside(bwrap: str, folder: pathlib.Path) -> list[str]:
    """No network, no other processes, nothing to write but `folder`; files of the machine can be read."""
    command = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
               "--tmpfs", "/tmp"]
    for place in dict.fromkeys([sys.prefix, sys.base_prefix, *sys.path]):
        if place.startswith("/tmp/") and os.path.isdir(place):
            command += ["--ro-bind", place, place]
    return [*command, "--bind", str(folder), str(folder), "--chdir", str(folder)]


def _read_problems(path: pathlib.Path) -> dict[str, dict[str, Any]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return {problem["task_id"]: problem for problem in map(json.loads, file)}
    except OSError as error:
        raise AnswersError(f"{path} cannot be read: {error}, expected benchmark files as scripts/fetch-benchmarks.py gets them") from None


def score_with_evalplus(answers: Answers, benchmarks: pathlib.Path) -> tuple[dict[str, float], int]:
    """pass@1 under the benchmark's own tests and, in evalplus's words, base + extra tests; and the number of answers that evalplus
    has no problem for: of MBPP's 500 it has 378."""
    from evalplus.sanitize import sanitize

    dataset, file, continues = _TASKS[answers.task]
    problems = _read_problems(benchmarks / file)
    known = {item: text for item, text in answers.texts.items() if item in problems}
    if not known:
        raise AnswersError(f"{benchmarks / file} has none of the {len(answers.texts)} problems of {answers.task}")
    bwrap = sandbox()
    with tempfile.TemporaryDirectory(prefix="loopspec-evaluate-") as temporary:
        folder = pathlib.Path(temporary)
        with open(folder / "problems.jsonl", "w", encoding="utf-8") as out:
            out.writelines(json.dumps(problems[item]) + "\n" for item in known)
        with open(folder / "samples.jsonl", "w", encoding="utf-8") as out:
            for item, text in known.items():
                program = problems[item]["prompt"] + text if continues else text
                out.write(json.dumps({"task_id": item, "solution": sanitize(program, problems[item]["entry_point"])}) + "\n")
        command = [sys.executable, "-m", "evalplus.evaluate", "--dataset", dataset, "--samples", str(folder / "samples.jsonl")]
        environment = {**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1",
                       "HUMANEVAL_OVERRIDE_PATH": str(folder / "problems.jsonl"), "MBPP_OVERRIDE_PATH": str(folder / "problems.jsonl")}
        done = subprocess.run([*(_inside(bwrap, folder) if bwrap else []), *command], env=environment, cwd=folder, capture_output=True,
                              text=True, check=False)
        results = folder / "samples_eval_results.json"
        if done.returncode != 0 or not results.exists():
            last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
            raise AnswersError(f"evalplus ended with {done.returncode}{' inside bubblewrap' if bwrap else ''}: {last[0]}")
        verdicts = [runs[0] for runs in json.loads(results.read_text(encoding="utf-8"))["eval"].values()]
    base = sum(verdict["base_status"] == "pass" for verdict in verdicts) / len(verdicts)
    plus = sum(verdict["base_status"] == verdict["plus_status"] == "pass" for verdict in verdicts) / len(verdicts)
    return {f"pass@1, {dataset} (base tests)": base, f"pass@1, {dataset}+ (base + extra tests)": plus}, len(answers.texts) - len(known)
