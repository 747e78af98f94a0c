#!/usr/bin/env python3
"""Fetches the files that benchmark tasks are built from, and checks them. Needs the network and nothing but Python.

    scripts/fetch-benchmarks.py DIR             all of them, into DIR; what is there and whole is kept
    scripts/fetch-benchmarks.py DIR gsm8k bbh   some of them
    scripts/fetch-benchmarks.py DIR --check     only looks at what is there
"""
import argparse
import gzip
import json
import pathlib
import re
import sys
import urllib.error
import urllib.request

HUB = "https://huggingface.co/datasets"
ROWS = "https://datasets-server.huggingface.co/rows?dataset={}&config=default&split={}&offset=0&length=100"
RAW = "https://raw.githubusercontent.com"
RELEASES = "https://github.com/evalplus"
BBH = """boolean_expressions causal_judgement date_understanding disambiguation_qa dyck_languages formal_fallacies
geometric_shapes hyperbaton logical_deduction_five_objects logical_deduction_seven_objects logical_deduction_three_objects
movie_recommendation multistep_arithmetic_two navigate object_counting penguins_in_a_table reasoning_about_colored_objects
ruin_names salient_translation_error_detection snarks sports_understanding temporal_sequences
tracking_shuffled_objects_five_objects tracking_shuffled_objects_seven_objects tracking_shuffled_objects_three_objects
web_of_lies word_sorting""".split()

# benchmark -> (file, where it comes from, entries that it must have; 0: not counted)
FILES = {
    "gsm8k": [("gsm8k/test.jsonl", f"{RAW}/openai/grade-school-math/master/grade_school_math/data/test.jsonl", 1319)],
    "math500": [("math500/test.jsonl", f"{HUB}/HuggingFaceH4/MATH-500/resolve/main/test.jsonl", 500)],
    "aime2024": [("aime2024/test.jsonl", ROWS.format("HuggingFaceH4/aime_2024", "train"), 30)],
    "aime2025": [("aime2025/test.jsonl", ROWS.format("math-ai/aime25", "test"), 30)],
    "bbh": [(f"bbh/bbh/{name}.json", f"{RAW}/suzgunmirac/BIG-Bench-Hard/main/bbh/{name}.json", 0) for name in BBH]
    + [(f"bbh/cot-prompts/{name}.txt", f"{RAW}/suzgunmirac/BIG-Bench-Hard/main/cot-prompts/{name}.txt", 0)
       for name in BBH],
    "humaneval": [("humaneval/HumanEval.jsonl.gz", f"{RAW}/openai/human-eval/master/data/HumanEval.jsonl.gz", 164)],
    "humanevalplus": [("humanevalplus/HumanEvalPlus.jsonl.gz",
                       f"{RELEASES}/humanevalplus_release/releases/download/v0.1.10/HumanEvalPlus.jsonl.gz", 164)],
    "mbpp": [("mbpp/mbpp.jsonl", f"{RAW}/google-research/google-research/master/mbpp/mbpp.jsonl", 974)],
    # The wording of EvalPlus's prompts, out of its source: the paper's authors use it.
    "evalplus_prompt": [("evalplus_prompt.json", f"{RAW}/evalplus/evalplus/v0.3.1/evalplus/codegen.py", 0)],
    "mbppplus": [("mbppplus/MbppPlus.jsonl.gz",
                  f"{RELEASES}/mbppplus_release/releases/download/v0.2.0/MbppPlus.jsonl.gz", 378)],
}


def problem_of(name, data, entries):
    """What is wrong with a file's bytes; nothing when they are whole."""
    try:
        text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
        if name == "evalplus_prompt.json":
            wording = json.loads(text)
            return "" if wording["instruction"] and wording["answer_opening"] else "no wording in it"
        if name.endswith(".txt"):
            return "" if "Q:" in text else "no examples in it"
        if name.endswith(".json"):
            return "" if json.loads(text)["examples"] else "no examples in it"
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        return f"damaged ({error})"
    return "" if len(lines) == entries else f"{len(lines)} entries, expected {entries}"


def wording_of(source):
    """How EvalPlus asks for a program and lets the answer begin: two strings in its source."""
    found = {name: re.search(name + r"\s*=\s*\(?\s*\"([^\"]+)\"", source) for name in ("instruction_prefix", "response_prefix")}
    if not all(found.values()):
        raise ValueError("EvalPlus's source has no instruction_prefix or response_prefix")
    return {"instruction": found["instruction_prefix"][1], "answer_opening": found["response_prefix"][1],
            "source": "evalplus (Apache-2.0) as the paper's authors use it"}


def fetch(url):
    with urllib.request.urlopen(urllib.request.Request(url, headers={"User-Agent": "loopspec"}), timeout=60) as answer:
        data = answer.read()
    if "datasets-server" in url:  # rows of a table, as lines
        rows = [row["row"] for row in json.loads(data)["rows"]]
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if url.endswith("codegen.py"):
        data = json.dumps(wording_of(data.decode()), indent=1).encode()
    return data


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="BENCHMARK", help=", ".join(FILES))
    parser.add_argument("--check", action="store_true", help="fetch nothing")
    options = parser.parse_args()
    for name in options.names:
        if name not in FILES:
            sys.exit(f"fetch-benchmarks.py: {name} is unknown, expected {', '.join(FILES)}")
    failed = 0
    for benchmark in options.names or FILES:
        for name, url, entries in FILES[benchmark]:
            path = options.folder / name
            problem = problem_of(name, path.read_bytes(), entries) if path.exists() else "not there"
            if problem and not options.check:
                try:
                    data = fetch(url)
                    problem = problem_of(name, data, entries)
                    if not problem:
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(data)
                except (OSError, ValueError, KeyError, urllib.error.URLError) as error:
                    problem = f"cannot be fetched from {url}: {error}"
            if problem:
                print(f"{name}: {problem}", file=sys.stderr)
                failed += 1
        print(f"{benchmark}: looked at")
    if failed:
        sys.exit(f"fetch-benchmarks.py: {failed} files are missing or not whole")


if __name__ == "__main__":
    main()
