"""Scores of kept answers, by the field's own scorers: lm-evaluation-harness, math-verify and evalplus.

    loopspec bench -m MODEL --task gsm8k_cot --benchmarks DIR --records answers.jsonl
    python -m loopspec.evaluate answers.jsonl --benchmarks DIR

Answers are read from the records of `loopspec bench --task ... --records FILE` or from a folder of `loopspec experiment run`.
Benchmark data are local files, as scripts/fetch-benchmarks.py gets them; nothing is downloaded. Greedy LoopSpec gives the answers
of autoregressive decoding word for word, so such decoding specs are scored once and stand in one line.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from importlib.util import find_spec
from typing import Any

from ._answers import Answers, AnswersError, find_answers
from ._score_programs import WARNING, is_program_task, sandbox, score_with_evalplus
from ._score_texts import is_text_task, score_with_lm_eval, score_with_math_verify

# module -> what it is called, and the extra of this package that brings it
_SCORERS = {"lm_eval": ("lm-evaluation-harness", "evaluate"), "math_verify": ("math-verify", "evaluate"),
            "evalplus": ("evalplus", "evaluate-programs")}


def _need(module: str, task: str) -> None:
    name, extra = _SCORERS[module]
    if find_spec(module) is None:
        raise AnswersError(f"{task}: {name} is not installed, expected it from pip install 'loopspec[{extra}]'")


def score(answers: Answers, benchmarks: pathlib.Path, run_programs: bool) -> tuple[dict[str, float], str]:
    """Scores by name, and what has to be said about them; no scores where there can be none."""
    if is_text_task(answers.task):
        _need("lm_eval", answers.task)
        _need("math_verify", answers.task)
        scores = score_with_lm_eval(answers, benchmarks)
        if answers.task.startswith("aime"):
            scores["math_verify"] = score_with_math_verify(answers, benchmarks)
        return scores, ""
    if not is_program_task(answers.task):
        return {}, "has no score"
    if not run_programs:
        return {}, "answers are programs, which --run-programs runs"
    _need("evalplus", answers.task)
    scores, left_out = score_with_evalplus(answers, benchmarks)
    return scores, f"{left_out} answers are to problems that evalplus does not have" if left_out else ""


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loopspec.evaluate", description="Scores kept answers with lm-evaluation-harness, "
                                     "math-verify and evalplus.")
    parser.add_argument("results", type=pathlib.Path, metavar="RESULTS",
                        help="records of `loopspec bench --task ... --records FILE`, or a folder of `loopspec experiment run`")
    parser.add_argument("--benchmarks", type=pathlib.Path, required=True, metavar="DIR",
                        help="folder of benchmark files, as scripts/fetch-benchmarks.py makes it")
    parser.add_argument("--task", action="append", metavar="NAME", help="only this task; may be given several times")
    parser.add_argument("--run-programs", action="store_true",
                        help="let evalplus execute the programs that the model wrote, inside bubblewrap where that is installed")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each set of answers")
    return parser.parse_args(given)


def _show(answers: Answers, scores: dict[str, float], note: str, as_json: bool) -> None:
    if as_json:
        line: dict[str, Any] = {"file": str(answers.file), "task": answers.task, "sampling": answers.sampling, "decode": answers.specs,
                                "answers": len(answers.texts), "scores": scores}
        print(json.dumps({**line, **({"note": note} if note else {})}))
        return
    sampling = f" ({answers.sampling})" if answers.sampling else ""
    print(f"{answers.task}{sampling}, {len(answers.texts)} answers of {', '.join(answers.specs)}")
    for name, value in scores.items():
        print(f"  {name:<44}{value:.4f}")
    if note:
        print(f"  {note}")


def main(given: list[str] | None = None) -> int:
    options = _arguments(given)
    try:
        found = [answers for answers in find_answers(options.results) if not options.task or answers.task in options.task]
        if not found:
            raise AnswersError(f"{options.results} holds no answers{' of ' + ', '.join(options.task) if options.task else ''}")
        if options.run_programs and any(is_program_task(answers.task) for answers in found):
            place = "inside bubblewrap" if sandbox() else "WITHOUT a sandbox, since bubblewrap is not installed"
            print(f"WARNING: {WARNING}. They run {place}.", file=sys.stderr)
        for answers in found:
            scores, note = score(answers, options.benchmarks, options.run_programs)
            _show(answers, scores, note, options.json)
    except AnswersError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
