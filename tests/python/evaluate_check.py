#!/usr/bin/env python3
"""`python -m loopspec.evaluate` with lm-evaluation-harness, math-verify and evalplus from PyPI, over small answers whose verdicts are
known. The benchmark files are made here; nothing is downloaded.

  evaluate_check.py --venv FOLDER
"""

import argparse
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "serve"))

from client_support import inside_venv  # noqa: E402
from evaluate_test import record, write  # noqa: E402

ONE = {"task_id": "HumanEval/0", "prompt": 'def triple(x):\n    """Three times x."""\n', "entry_point": "triple", "contract": "",
       "canonical_solution": "    return 3 * x\n", "test": "", "base_input": [[1], [2]], "plus_input": [[-7], [100]], "atol": 0}
TWO = {**ONE, "task_id": "HumanEval/1", "prompt": 'def half(x):\n    """Half of x, rounded down."""\n', "entry_point": "half",
       "canonical_solution": "    return x // 2\n", "plus_input": [[-7], [9]]}
THREE = {"task_id": "Mbpp/4", "prompt": '"""\nWrite a function to add one.\n"""\n', "entry_point": "add_one", "contract": "", "atol": 0,
         "canonical_solution": "def add_one(x):\n    return x + 1\n", "base_input": [[1]], "plus_input": [[5]], "assertion": ""}


def lines(path, entries):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def make_benchmarks(folder):
    lines(folder / "gsm8k/test.jsonl", [{"question": "Two and two?", "answer": "2 + 2 = 4\n#### 4"},
                                        {"question": "How many?", "answer": "Many.\n#### 1,000"}])
    lines(folder / "math500/test.jsonl", [{"problem": "Halve $1$.", "solution": "It is $\\boxed{\\frac{1}{2}}$.", "answer": "\\frac{1}{2}"},
                                          {"problem": "Add.", "solution": "So $\\boxed{7}$.", "answer": "7"}])
    lines(folder / "aime2024/test.jsonl", [{"problem": "Find it.", "answer": "025"}])
    lines(folder / "aime2025/test.jsonl", [{"question": "Find $n$.", "answer": "336"}, {"question": "Find $m$.", "answer": "12"}])
    for part, target in (("navigate", "Yes"), ("word_sorting", "a b")):
        (folder / "bbh/bbh").mkdir(parents=True, exist_ok=True)
        (folder / f"bbh/bbh/{part}.json").write_text(json.dumps({"examples": [{"input": "x", "target": target}] * 2}), encoding="utf-8")
    lines(folder / "humanevalplus/HumanEvalPlus.jsonl.gz", [ONE, TWO])
    lines(folder / "mbppplus/MbppPlus.jsonl.gz", [THREE])


def make_answers(path, escape):
    final = "Final Answer: The final answer is ${}$. I hope it is correct."
    texts = {
        "gsm8k_cot": {"gsm8k/0": " The answer is 4.", "gsm8k/1": "It is 1000"},
        "minerva_math500": {"math500/0": "So far.</think>" + final.format("\\frac{1}{2}"), "math500/1": final.format("8")},
        "aime24": {"aime24/0": "So $\\boxed{25}$."}, "aime25": {"aime25/0": "It is $\\boxed{336}$.", "aime25/1": "It is 11."},
        "bbh_cot_fewshot": {"bbh/navigate/0": "So the answer is Yes.", "bbh/navigate/1": "So the answer is No.",
                            "bbh/word_sorting/1": "So the answer is a b."},
        "humaneval_plus": {"HumanEval/0": "def triple(x):\n    return 3 * x\n", "HumanEval/1": "def half(x):\n    return int(x / 2)\n"},
        "humaneval": {"HumanEval/0": "    return 4 * x\n", "HumanEval/1": "    return x // 2\n"},
        "mbpp_plus": {"Mbpp/4": f"def add_one(x):\n    open({escape!r}, 'w').close()\n    return x + 1\n"},
        "mbpp": {"Mbpp/4": "def add_one(x):\n    return 1 + x\n", "Mbpp/11": "def f(): pass\n"},
        "stories": {"stories/0": "Once upon a time"},
    }
    write(path, {"experiment": {"tasks": [{"task": task, "chat": task == "minerva_math500"} for task in texts]}},
          [record(f"{task}/greedy", spec, item, text) for task, items in texts.items() for item, text in items.items()
           for spec in ("ar", "loopspec:1,2")])


EXPECTED = {
    "gsm8k_cot": {"exact_match,strict-match": 0.5, "exact_match,flexible-extract": 1.0},
    "minerva_math500": {"exact_match": 0.5, "math_verify": 0.5},
    "aime24": {"exact_match": 0.0, "math_verify": 1.0},  # 25 and 025 are equal as numbers only
    "aime25": {"exact_match": 0.5, "math_verify": 0.5},
    "bbh_cot_fewshot": {"exact_match,get-answer": 2 / 3},
    "humaneval_plus": {"pass@1, humaneval (base tests)": 1.0, "pass@1, humaneval+ (base + extra tests)": 0.5},
    "humaneval": {"pass@1, humaneval (base tests)": 0.5, "pass@1, humaneval+ (base + extra tests)": 0.5},
    "mbpp": {"pass@1, mbpp (base tests)": 1.0, "pass@1, mbpp+ (base + extra tests)": 1.0},
    "stories": {},
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--venv", required=True)
    options = parser.parse_args()
    inside_venv(options.venv, ["lm_eval[math]>=0.4.9", "evalplus>=0.3.1", "nanobind-backend>=1,<2", "numpy"],
                "lm_eval, math_verify, evalplus, nanobind_backend, numpy")
    from loopspec._score_programs import sandbox

    with tempfile.TemporaryDirectory(prefix="loopspec-test-") as temporary:
        folder = pathlib.Path(temporary)
        make_benchmarks(folder / "benchmarks")
        escape = folder / "escaped"
        make_answers(folder / "answers.jsonl", str(escape))
        command = [sys.executable, "-m", "loopspec.evaluate", folder / "answers.jsonl", "--benchmarks", folder / "benchmarks", "--json"]
        done = subprocess.run([*command, "--run-programs"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found = {line["task"]: line for line in map(json.loads, done.stdout.splitlines())}
        for task, expected in EXPECTED.items():
            got = found[task]["scores"]
            assert got.keys() == expected.keys() and all(abs(got[name] - value) < 1e-12 for name, value in expected.items()), (task, got)
            assert found[task]["decode"] == ["ar", "loopspec:1,2"], found[task]
        assert "1 answers are to problems that evalplus does not have" in found["mbpp"]["note"]
        place = "inside bubblewrap" if sandbox() else "WITHOUT a sandbox"
        assert "WARNING: evalplus executes programs" in done.stderr and place in done.stderr, done.stderr
        if sandbox():  # the program could not make its file, so it failed
            assert not escape.exists()
            assert set(found["mbpp_plus"]["scores"].values()) == {0.0}, found["mbpp_plus"]
        again = subprocess.run(command, capture_output=True, text=True, check=False)
        programs = [line for line in map(json.loads, again.stdout.splitlines()) if line["task"] in ("humaneval", "humaneval_plus", "mbpp_plus")]
        assert again.returncode == 0 and [line["scores"] for line in programs] == [{}, {}, {}], again
    print(f"{len(EXPECTED)} tasks scored as expected, programs {place}")


if __name__ == "__main__":
    main()
