#!/usr/bin/env python3
"""Compares our tasks with lm-evaluation-harness's own task code over the same files: prompts byte for byte, stop strings, and the
scores of the same answers.

  compare_lm_eval.py --driver FILE --venv DIR --data DIR

Exits with 77, which ctest reports as skipped, when the package cannot be installed or the benchmark files are not there.
"""

import json
import os
import random
import signal
import sys

import peers

PACKAGES = ["lm_eval==0.4.12", "math-verify==0.9.0", "antlr4-python3-runtime==4.11.0", "latex2sympy2_extended==1.11.0"]
CHECK = "import lm_eval, math_verify, sympy; from importlib.metadata import version; assert version('lm_eval') == '0.4.12'"
# Where sympy's parser of LaTeX and ours part: at most this share of minerva_math's exact_match may differ.
MINERVA_DIFFERENCES = 0.01


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


def lm_eval_scores(task, doc, answer):
    """Every metric of the task by filter, as the evaluator computes them."""
    from lm_eval.api.instance import Instance
    scores = {}
    for ensemble in task._filters:
        instance = Instance(request_type="generate_until", doc=doc, arguments=("", {}), idx=0)
        instance.resps = [answer]
        ensemble.apply([instance])
        for metric, value in task.process_results(doc, [instance.filtered_resps[ensemble.name]]).items():
            scores[metric if ensemble.name == "none" else f"{metric},{ensemble.name}"] = bool(value)
    return scores


def gsm8k_answers(rng, reference):
    number = int(reference.replace(",", ""))
    wrong = str(number + rng.choice([-10, -1, 1, 2, 100]))
    forms = [f" So 2 + 3 = 5. The answer is {reference}.", f"The answer is ${reference}.", f"The answer is {number:,}.", f"The answer is {number}.00",
             f"The answer is {wrong}.", f"She has {reference} dollars.", f"{wrong} and then {reference}", f"The answer is {reference}",
             f"The answer is {reference}.\n\nThe answer is {wrong}.", "I do not know.", "", f"the answer is {reference}.", f"#### {reference}",
             f"The answer is {reference} dollars.", f"The answer is -{reference}.", "The answer is , .", f"{reference}$", f"\u00a0{reference}\u2003."]
    return rng.sample(forms, 4)


def bbh_answers(rng, reference, other):
    forms = [f"We think. So the answer is {reference}.", f"So the answer is {reference}", f"So the answer is {other}.", "So the answer is",
             f"the answer is {reference}.\nthe answer is {other}.", f"So the answer is {reference}..", f"The answer is {reference}.",
             f"so the answer is  {reference} .", "no idea", f"the answer is {reference}. the answer is {other}.", "the answer is ."]
    return rng.sample(forms, 3)


def math_answers(rng, gold, other):
    end = "I hope it is correct."
    forms = [f"Work.\nFinal Answer: The final answer is ${gold}$. {end}", f"Final Answer: The final answer is {gold}. {end}",
             f"Final Answer: The final answer is ${other}$. {end}", f"We get $\\boxed{{{gold}}}$.", f"Final Answer: The final answer is ${gold}$",
             f"Final Answer: The final answer is $x = {gold}$. {end}", "No idea.",
             f"So $\\boxed{{{other}}}$.\nFinal Answer: The final answer is ${gold}$. {end}"]
    return rng.sample(forms, 2)


def make_answers(name, docs, rng):
    from lm_eval.tasks.minerva_math import utils
    answers = []
    for number, doc in enumerate(docs):
        other = docs[(number * 7 + 3) % len(docs)]
        if name == "gsm8k_cot":
            texts = gsm8k_answers(rng, doc["answer"].split("####")[-1].strip())
        elif name == "minerva_math500":
            boxed = [utils.remove_boxed(utils.last_boxed_only_string(d["solution"])) for d in (doc, other)]
            texts = math_answers(rng, *boxed)
        else:
            texts = bbh_answers(rng, doc["target"], other["target"])
        answers += [(number, text) for text in texts]
    return answers


class ComputingTime:
    """minerva_math gives sympy 5 s by the clock, its first import included: on a busy machine every answer is then wrong. The same
    limit by the time that this process has computed."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        def stop(*_):
            raise TimeoutError

        signal.signal(signal.SIGVTALRM, stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, self.seconds)

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def compare_scores(driver, data, name, task, rng):
    docs = list(task.eval_docs)
    answers = make_answers(name, docs, rng)
    ours = driver(task=name, data=str(data), answers=answers)["scores"]
    counts, wrong = {}, {}
    for (number, text), score in zip(answers, ours):
        for metric, value in lm_eval_scores(task, docs[number], text).items():
            counts[metric] = counts.get(metric, 0) + 1
            if score["metrics"].get(metric) != value:
                wrong[metric] = wrong.get(metric, 0) + 1
                print(f"DIFFERS {name} {number} {metric}: lm_eval {value}, ours {score['metrics'].get(metric)} for {text!r}")
    return counts, wrong


def main():
    arguments = peers.begin(__doc__, PACKAGES, CHECK)
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=str(arguments.venv / "hf"))
    patch_datasets(arguments.data)
    from lm_eval.tasks import TaskManager
    tasks = TaskManager().load(["gsm8k_cot", "minerva_math500", "bbh_cot_fewshot", "aime25"])["tasks"]
    driver, rng, failed = peers.Driver(arguments.driver), random.Random(1234), False
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
    sums = {}
    for name, task in tasks.items():
        if name == "aime25":
            continue
        if name == "minerva_math500":
            task.config.process_results.__globals__["timeout"] = ComputingTime
        counts, wrong = compare_scores(driver, arguments.data, name, task, rng)
        for metric, count in counts.items():
            key = ("bbh_cot_fewshot" if name.startswith("bbh") else name, metric)
            before = sums.get(key, (0, 0))
            sums[key] = (before[0] + count, before[1] + wrong.get(metric, 0))
    for (name, metric), (count, wrong) in sums.items():
        allowed = MINERVA_DIFFERENCES * count if name == "minerva_math500" else 0
        failed |= wrong > allowed
        print(f"{name} {metric}: {count} answers, {wrong} differences")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
