#!/usr/bin/env python3
"""Compares our sandboxed runs of HumanEval+ and MBPP+ with evalplus's own evaluator: every reference solution, and solutions with one
mistake each.

  compare_evalplus.py --driver FILE --venv DIR --data DIR

Exits with 77, which ctest reports as skipped, when the package cannot be installed or the benchmark files are not there.
"""

import ast
import collections
import gzip
import json
import os
import random
import subprocess
import sys
import types

import peers

# evalplus itself asks for clients of many model services, which its evaluator does not need.
PACKAGES = ["numpy", "psutil", "appdirs", "multipledispatch", "tempdir", "wget", "termcolor", "tqdm"]
CHECK = "import numpy, psutil, appdirs, multipledispatch, tempdir, wget, termcolor, tqdm"
EVALPLUS = "evalplus==0.3.1"
# evalplus 0.3.1 counts no test of find_zero (HumanEval/32) as done, so that every solution of it fails there.
AGREEMENT = 0.99


def install_evalplus():
    """The package alone, without what it depends on."""
    if subprocess.run([sys.executable, "-c", "import evalplus.eval"], capture_output=True).returncode == 0:
        return
    try:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", EVALPLUS], check=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"SKIPPED: {EVALPLUS} cannot be installed ({error})")
        sys.exit(77)


class Mistake(ast.NodeTransformer):
    """Changes one place of a program: the chosen one of those that can be changed."""

    def __init__(self, chosen):
        self.chosen, self.count = chosen, 0

    def here(self):
        self.count += 1
        return self.count - 1 == self.chosen

    def visit_Compare(self, node):
        self.generic_visit(node)
        swaps = {ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.LtE: ast.Gt, ast.GtE: ast.Lt, ast.In: ast.NotIn}
        if type(node.ops[0]) in swaps and self.here():
            node.ops[0] = swaps[type(node.ops[0])]()
        return node

    def visit_BinOp(self, node):
        self.generic_visit(node)
        swaps = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.Mult, ast.FloorDiv: ast.Mult}
        if type(node.op) in swaps and self.here():
            node.op = swaps[type(node.op)]()
        return node

    def visit_Constant(self, node):
        if type(node.value) is int and self.here():
            return ast.Constant(node.value + 1)
        return node

    def visit_Return(self, node):
        self.generic_visit(node)
        if node.value is not None and self.here():
            node.value = ast.Constant(None)
        return node


def mutate(code, rng):
    counter = Mistake(-1)
    counter.visit(ast.parse(code))
    if counter.count == 0:
        return None
    return ast.unparse(ast.fix_missing_locations(Mistake(rng.randrange(counter.count)).visit(ast.parse(code))))


def read_gzip(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def evalplus_passes(dataset, problem, code):
    from evalplus.data.mbpp import mbpp_deserialize_inputs
    from evalplus.eval import PASS, untrusted_check
    from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS
    from evalplus.gen.util import trusted_exec
    inputs = problem["base_input"] + (problem["plus_input"] or [])
    if dataset == "mbpp":
        inputs = mbpp_deserialize_inputs(problem["task_id"], inputs)
    entry = problem["entry_point"]
    if "expected" not in problem:
        reference = (problem["prompt"] if dataset == "humaneval" else "") + problem["canonical_solution"]
        problem["expected"], problem["times"] = trusted_exec(
            reference, inputs, entry, record_time=True, output_not_none=dataset == "mbpp" and entry in MBPP_OUTPUT_NOT_NONE_TASKS)
    # Its limit is wall-clock time for each input: 1 s would make the result depend on how busy the machine is.
    result, _ = untrusted_check(
        dataset, code, inputs, entry, problem["expected"], problem["atol"], problem["times"], fast_check=True, min_time_limit=10)
    return result == PASS


def main():
    arguments = peers.begin(__doc__, PACKAGES, CHECK)
    install_evalplus()
    # evalplus.data loads problems from the hub; ours come from files.
    sys.modules["datasets"] = types.ModuleType("datasets")
    sys.modules["datasets"].load_dataset = None
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    driver, rng = peers.Driver(arguments.driver), random.Random(1234)
    counts, wrong = collections.Counter(), collections.Counter()
    broken = 0
    sources = {"humaneval_plus": ("humaneval", "humanevalplus/HumanEvalPlus.jsonl.gz"), "mbpp_plus": ("mbpp", "mbppplus/MbppPlus.jsonl.gz")}
    for task, (dataset, path) in sources.items():
        problems = read_gzip(arguments.data / path)
        items = driver(task=task, data=str(arguments.data))["items"]
        answers, kinds = [], []
        for number, (problem, item) in enumerate(zip(problems, items)):
            assert problem["task_id"] == item["id"]
            answers.append((number, item["reference"]))
            kinds.append("reference")
            mistaken = mutate(item["reference"], rng)
            if mistaken:
                answers.append((number, mistaken))
                kinds.append("one mistake")
        scores = driver(task=task, data=str(arguments.data), answers=answers)["scores"]
        for (number, code), kind, score in zip(answers, kinds, scores):
            expected = evalplus_passes(dataset, problems[number], code)
            counts[task, kind, expected] += 1
            if score["correct"] != expected:
                wrong[task, kind, expected] += 1
                print(f"DIFFERS {problems[number]['task_id']} {kind}: evalplus {expected}, ours {score['correct']} ({score['reason'][:100]})")
            if kind == "reference" and not score["correct"]:
                broken += 1
    for key, count in sorted(counts.items()):
        print(f"{key[0]}, {key[1]}, evalplus {'passes' if key[2] else 'fails'}: {count} programs, {wrong[key]} differences")
    total, differences = sum(counts.values()), sum(wrong.values())
    print(f"{total} programs, {differences} differences; {broken} reference solutions fail here")
    sys.exit(0 if differences <= (1 - AGREEMENT) * total and broken == 0 else 1)


if __name__ == "__main__":
    main()
