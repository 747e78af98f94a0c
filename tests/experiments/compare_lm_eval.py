#!/usr/bin/env python3
"""Compares our tasks with lm-evaluation-harness's own task code over the same files: prompts byte for byte, and stop strings.

  compare_lm_eval.py --driver FILE --venv DIR --data DIR

Exits with 77, which ctest reports as skipped, when the package cannot be installed or the benchmark files are not there.
"""

import json
import os
import sys

import peers

PACKAGES = ["lm_eval==0.4.12", "math-verify==0.9.0", "antlr4-python3-runtime==4.11.0", "latex2sympy2_extended==1.11.0"]
CHECK = "import lm_eval, math_verify, sympy; from importlib.metadata import version; assert version('lm_eval') == '0.4.12'"


def patch_datasets(data):
    """The hub's datasets, made from local files."""
    import datasets

    def load(path, name=None, **_):
        if path == "openai/gsm8k":
            entries = peers.read_json_lines(data / "gsm8k" / "test.jsonl")
        elif path == "HuggingFaceH4/MATH-500":
            entries = peers.read_json_lines(data / "math500" / "test.jsonl")
        elif path == "SaylorTwift/bbh":
            entries = json.loads((data / "bbh" / "bbh" / f"{name}.json").read_text(encoding="utf-8"))["examples"]
        elif path == "math-ai/aime25":
            entries = [{"problem": e["question"], "answer": e["answer"]} for e in peers.read_json_lines(data / "aime2025" / "test.jsonl")]
        else:
            raise ValueError(f"no local files for {path}")
        return datasets.DatasetDict({"test": datasets.Dataset.from_list(entries)})

    datasets.load_dataset = load


def compare_prompts(driver, data, name, task, shots, chat):
    ours = driver(task=name, data=str(data), shots=shots, chat=chat)
    docs = list(task.eval_docs)
    assert len(docs) == len(ours["items"]), f"{name}: {len(docs)} items, ours {len(ours['items'])}"
    wrong = 0
    for doc, item in zip(docs, ours["items"]):
        if chat:
            expected = json.loads(task.fewshot_context(
                doc, shots, apply_chat_template=True, fewshot_as_multiturn=True,
                chat_template=lambda messages, add_generation_prompt: json.dumps(messages)))
            expected = [{"role": m["role"], "content": m["content"]} for m in expected]
            got = item["messages"]
        else:
            expected, got = task.fewshot_context(doc, shots), item["prompt"]
        if expected != got:
            wrong += 1
            if wrong <= 3:
                print(f"DIFFERS {name} {item['id']}\n  lm_eval {expected!r}\n  ours    {got!r}")
    stops = task.config.generation_kwargs["until"]
    if stops != ours["stop"]:
        wrong += 1
        print(f"DIFFERS {name}: stop strings {stops}, ours {ours['stop']}")
    return len(docs), wrong


def main():
    arguments = peers.begin(__doc__, PACKAGES, CHECK)
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=str(arguments.venv / "hf"))
    patch_datasets(arguments.data)
    from lm_eval.tasks import TaskManager
    tasks = TaskManager().load(["gsm8k_cot", "minerva_math500", "bbh_cot_fewshot", "aime25"])["tasks"]
    driver, failed = peers.Driver(arguments.driver), False
    settings = {"gsm8k_cot": [(8, False), (3, False), (3, True)], "minerva_math500": [(4, False), (4, True)], "aime25": [(0, False), (0, True)]}
    total = 0
    for name, task in tasks.items():
        for shots, chat in settings.get(name, [(3, False)]):
            count, wrong = compare_prompts(driver, arguments.data, name, task, shots, chat)
            total += count
            failed |= wrong > 0
            if name in settings or wrong:
                print(f"{name}, {shots} shots{', as turns' if chat else ''}: {count} prompts, {wrong} differences")
    print(f"{len(tasks)} tasks, {total} prompts compared")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
