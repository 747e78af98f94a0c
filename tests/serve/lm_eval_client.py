#!/usr/bin/env python3
"""lm-evaluation-harness from PyPI against `loopspec serve` on demo models, on local task files: `local-completions` (token ids in,
generate_until and loglikelihood) and `local-chat-completions`. Autoregressive and LoopSpec answers must be the same, and so the
scores; texts that the model wrote greedily must be greedy in the harness's eyes, which compares floats for equality.

  lm_eval_client.py --server BINARY --models FOLDER --venv FOLDER [--data BENCHMARKS] [--limit N]
"""

import argparse
import json
import os
import pathlib
import tempfile
import urllib.request

from client_support import inside_venv
from real_server import RealServer

NUMBER = r"#### (\-?[0-9\.\,]+)"


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_task(folder, name, rows, **fields):
    """A task of the harness with its data beside it."""
    import yaml

    write_jsonl(folder / f"{name}.jsonl", rows)
    task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}},
            "test_split": "test", "num_fewshot": 0, **fields}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))


def problem_task(folder, name, rows):
    rows = [{"question": row["question"], "number": row["answer"].rsplit("####", 1)[1].strip()} for row in rows]
    write_task(folder, name, rows, output_type="generate_until", doc_to_text="Question: {{question}}\nAnswer:",
               doc_to_target="{{number}}",
               generation_kwargs={"until": ["\n\n", "Question:"], "max_gen_toks": 96, "temperature": 0},
               filter_list=[{"name": "number", "filter": [{"function": "regex", "regex_pattern": NUMBER},
                                                          {"function": "take_first"}]}],
               metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}])


def make_tasks(folder, options):
    lines = (pathlib.Path(options.models) / "heldout_problems.jsonl").read_text().splitlines()[:options.limit]
    problem_task(folder, "heldout", [json.loads(line) for line in lines])
    tasks = {"generate": ["heldout"], "choose": []}
    data = pathlib.Path(options.data) if options.data else None
    if data is None or not data.is_dir():
        print("GSM8K and BBH are left out: their files are not here")
        return tasks
    lines = (data / "gsm8k" / "test.jsonl").read_text().splitlines()[:options.limit]
    problem_task(folder, "gsm8k_local", [json.loads(line) for line in lines])
    examples = json.loads((data / "bbh" / "bbh" / "boolean_expressions.json").read_text())["examples"][:options.limit]
    write_task(folder, "bbh_boolean", examples, output_type="generate_until", doc_to_text="Q: {{input}}\nA:",
               doc_to_target="{{target}}", generation_kwargs={"until": ["\n"], "max_gen_toks": 16, "temperature": 0},
               metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}])
    write_task(folder, "bbh_boolean_choice", examples, output_type="multiple_choice", doc_to_text="Q: {{input}}\nA:",
               doc_to_choice=["True", "False"], doc_to_target="{{['True', 'False'].index(target)}}",
               metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}])
    return {"generate": ["heldout", "gsm8k_local", "bbh_boolean"], "choose": ["bbh_boolean_choice"]}


class Harness:
    def __init__(self, folder, server):
        import lm_eval

        self.evaluate = lm_eval.simple_evaluate
        self.tasks = lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False)
        self.server = server

    def run(self, model, tasks, gen_kwargs=None):
        """Scores and, for every sample, what the model gave."""
        chat = model == "local-chat-completions"
        path = "/v1/chat/completions" if chat else "/v1/completions"
        arguments = {"model": "demo", "base_url": self.server.url + path, "num_concurrent": 4, "max_retries": 1, "max_length": 1024}
        if not chat:
            arguments.update(tokenizer_backend="remote", tokenized_requests=True)
        result = self.evaluate(model=model, model_args=arguments, tasks=tasks, task_manager=self.tasks, gen_kwargs=gen_kwargs,
                               apply_chat_template=chat, log_samples=True, bootstrap_iters=0, random_seed=0)
        samples = {name: [sample["resps"] for sample in sorted(rows, key=lambda row: row["doc_id"])]
                   for name, rows in result["samples"].items()}
        scores = {name: {key: value for key, value in values.items() if isinstance(value, float)}
                  for name, values in result["results"].items()}
        return scores, samples


def post(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def own_greedy_texts(server, count):
    """Prompts with what the model itself says. The harness tokenizes the text anew: texts that become other tokens are left out."""
    rows = []
    for index in range(count):
        prompt = ["Once upon a time", "Tom had a cat", "The little dog", "One day, Lily"][index % 4] + " and" * (index // 4)
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "decode": ["ar", "loopspec"][index % 2], "token_details": True}
        choice = post(server, "/v1/completions", body)["choices"][0]
        said = [token["id"] for token in choice["tokens"]]
        whole = post(server, "/tokenize", {"prompt": prompt + choice["text"], "add_special_tokens": False})["tokens"]
        if whole[-len(said):] == said:
            rows.append({"prompt": prompt, "said": choice["text"]})
    check(len(rows) > count // 2, f"{len(rows)} of {count} texts are tokenized as they were written")
    return rows


def greedy_is_greedy(folder, server):
    fields = {"output_type": "loglikelihood", "doc_to_text": "{{prompt}}", "doc_to_target": "{{said}}", "target_delimiter": "",
              "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]}
    rows = own_greedy_texts(server, 16)
    write_task(folder, "own", rows, **fields)
    write_task(folder, "changed", [{**row, "said": " zebra" + row["said"]} for row in rows], **fields)
    scores, _ = Harness(folder, server).run("local-completions", ["own", "changed"])
    own, changed = scores["own"]["acc,none"], scores["changed"]["acc,none"]
    check(own == 1.0 and changed == 0.0, f"the model's own greedy texts: {own}, changed ones: {changed}")
    return len(rows)


def one_model(options, name):
    with tempfile.TemporaryDirectory() as temporary, \
            RealServer(options.server, pathlib.Path(options.models) / name) as server:
        folder = pathlib.Path(temporary)
        tasks = make_tasks(folder, options)
        harness = Harness(folder, server)
        for model in ("local-completions", "local-chat-completions"):
            chosen = tasks["generate"]
            plain = harness.run(model, chosen, {"decode": "ar"})
            ours = harness.run(model, chosen, {"decode": "loopspec"})
            check(plain[1] == ours[1], f"{name}, {model}: autoregressive and LoopSpec texts differ")
            check(plain[0] == ours[0], f"{name}, {model}: {plain[0]} and {ours[0]}")
            count = sum(map(len, ours[1].values()))
            print(f"{name} {model}: {count} texts the same, scores {json.dumps(ours[0])}", flush=True)
        if tasks["choose"]:
            scores, _ = harness.run("local-completions", tasks["choose"])
            print(f"{name} loglikelihood of choices: {json.dumps(scores)}", flush=True)
        print(f"{name} own greedy texts are greedy, changed ones are not: {greedy_is_greedy(folder, server)} of each", flush=True)
        check(server.metric("loopspec:http_responses_total", 'code="5') == 0, "a 5xx")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--venv", required=True)
    parser.add_argument("--data")
    parser.add_argument("--limit", type=int, default=16)
    options = parser.parse_args()
    os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", OPENAI_API_KEY="none", TOKENIZERS_PARALLELISM="false")
    os.environ.setdefault("HF_HOME", str(pathlib.Path(options.venv) / "huggingface"))
    inside_venv(options.venv, ["lm_eval[api]"], "lm_eval, aiohttp")
    import lm_eval

    one_model(options, "ouro-demo")
    one_model(options, "raven-demo")
    print(f"lm_eval {lm_eval.__version__}: all checks passed")


if __name__ == "__main__":
    main()
