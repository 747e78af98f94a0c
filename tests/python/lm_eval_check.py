#!/usr/bin/env python3
"""The model `loopspec` of the lm-evaluation-harness from PyPI against `loopspec serve` through local-completions: every sample and
every score of generate_until, loglikelihood, multiple choice and loglikelihood_rolling must be equal, with ==.

  lm_eval_check.py --venv FOLDER [--limit N]       LOOPSPEC_BINARY: the server
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "serve"))

from client_support import inside_venv  # noqa: E402
from lm_eval_client import check, problem_task, write_task  # noqa: E402
from real_server import RealServer  # noqa: E402

ACCURACY = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
PERPLEXITY = [{"metric": name, "aggregation": "weighted_perplexity", "higher_is_better": False}
              for name in ("word_perplexity", "byte_perplexity")]


def make_tasks(folder, limit):
    problems = [json.loads(line) for line in (ROOT / "models" / "heldout_problems.jsonl").read_text().splitlines()[:limit]]
    problem_task(folder, "problems", problems)
    rows = [{"prompt": problem["question"], "said": " " + problem["answer"].splitlines()[0]} for problem in problems]
    write_task(folder, "said", rows, output_type="loglikelihood", doc_to_text="{{prompt}}", doc_to_target="{{said}}",
               target_delimiter="", metric_list=ACCURACY)
    choices = [{"text": f"Tom has {index} cats. He buys 1 more. Now he has", "right": index % 3} for index in range(limit)]
    write_task(folder, "choice", choices, output_type="multiple_choice", doc_to_text="{{text}}",
               doc_to_choice=["one", "two", "three"], doc_to_target="{{right}}", metric_list=ACCURACY)
    # Longer than the window, too.
    texts = [{"page": " ".join(problem["question"] for problem in problems[:length])} for length in (1, 2, len(problems))]
    write_task(folder, "rolling", texts, output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="{{page}}",
               metric_list=PERPLEXITY)
    return ["problems", "said", "choice", "rolling"]


def evaluate(folder, tasks, model, arguments, **more):
    import lm_eval
    import lm_eval.tasks

    manager = lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False)
    result = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=tasks, task_manager=manager, log_samples=True,
                                     bootstrap_iters=0, random_seed=0, **more)
    samples = {name: [sample["resps"] for sample in sorted(rows, key=lambda row: row["doc_id"])]
               for name, rows in result["samples"].items()}
    scores = {name: {key: value for key, value in values.items() if isinstance(value, float)}
              for name, values in result["results"].items()}
    return json.loads(json.dumps([scores, samples]))


def compare(name, limit):
    model = ROOT / "models" / name
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        tasks = make_tasks(folder, limit)
        # Texts begin with the begin-of-text token, which the harness would ask the server for; but it takes token 0, raven-demo's,
        # for none (`bos_token_id or eos_token_id`), so it is told.
        prefix = {"custom_prefix_token_id": 0} if name == "raven-demo" else {}
        length = 256
        with RealServer(os.environ["LOOPSPEC_BINARY"], model) as server:
            theirs = evaluate(folder, tasks, "local-completions", {
                "model": "demo", "base_url": server.url + "/v1/completions", "num_concurrent": 4, "max_retries": 1,
                "max_length": length, "tokenizer_backend": "remote", "tokenized_requests": True, **prefix})
        # It keeps one position back for a token that must be generated.
        ours = evaluate(folder, tasks, "loopspec", {"pretrained": str(model), "max_length": length - 1})
        for task in tasks:
            check(ours[1][task] == theirs[1][task], f"{name}, {task}: samples differ\n{ours[1][task]}\n{theirs[1][task]}")
        check(ours[0] == theirs[0], f"{name}: {ours[0]} and {theirs[0]}")
        again = evaluate(folder, tasks, "loopspec", {"pretrained": str(model), "max_length": length - 1, "decoding": "ar"})
        check(again == ours, f"{name}: autoregressive decoding scores otherwise")
        chat = evaluate(folder, ["problems"], "loopspec", {"pretrained": str(model)}, apply_chat_template=True)
        count = sum(map(len, ours[1].values()))
        print(f"{name}: {count} samples equal to the server's, scores {json.dumps(ours[0])}; as a chat {json.dumps(chat[0])}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--venv", required=True)
    parser.add_argument("--limit", type=int, default=16)
    options = parser.parse_args()
    os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", OPENAI_API_KEY="none", TOKENIZERS_PARALLELISM="false")
    os.environ.setdefault("HF_HOME", str(pathlib.Path(options.venv) / "huggingface"))
    inside_venv(options.venv, ["lm_eval[api]", "nanobind-backend>=1,<2", "numpy"], "lm_eval, aiohttp, nanobind_backend, numpy")
    import lm_eval

    import loopspec.lm_eval

    check(lm_eval.api.registry.get_model("loopspec") is loopspec.lm_eval.LoopspecLM, "it is not registered")
    for name in ("ouro-demo", "raven-demo"):
        compare(name, options.limit)
    print(f"lm_eval {lm_eval.__version__}: all checks passed")


if __name__ == "__main__":
    main()
