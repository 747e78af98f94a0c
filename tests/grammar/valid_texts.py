#!/usr/bin/env python3
"""Texts that models write under JSON schemas, judged by jsonschema: those that ended by themselves are valid, every one.

  valid_texts.py --binary loopspec --venv DIR --models DIR [--texts N] [--device NAME]

Random schemas, those that check-jsonschema ships, pydantic models and tool definitions; greedy, cascade and coupled; LoopSpec,
autoregressive and lookup; both demo models. Texts that were cut by their length are counted apart: each is the beginning of a valid one.
Exits with 77, which ctest reports as skipped, where the packages cannot be installed.

The same in three parts, of which the second needs no packages and can run on another machine:

  valid_texts.py --make-requests REQUESTS --binary loopspec --venv DIR [--texts N] [--seed N]
  valid_texts.py --requests REQUESTS --keep TEXTS --binary loopspec --models DIR [--device NAME] [--workers N] [--seconds S]
  valid_texts.py --judge TEXTS --binary loopspec --venv DIR [--workers N]

Another seed makes other random schemas and other texts.
"""

import argparse
import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "serve"))
from client_support import inside_venv  # noqa: E402
from schema_sources import Generator, pydantic_schemas, shipped_schemas, tool_schemas  # noqa: E402

PACKAGES = ["jsonschema==4.26.0", "check-jsonschema==0.39.0", "pydantic==2.14.3"]
# With how many recurrences: fewer are quicker, and what they write is as good a test.
MODELS = {"ouro-demo": 2, "raven-demo": 4}
# Requests of one run of the program, at most.
PART = 900
DECODINGS = ["loopspec", "ar", "lookup"]
SAMPLINGS = {"greedy": {"temperature": 0}, "cascade": {"temperature": 1}, "coupled": {"temperature": 1, "sampler": "coupled"}}
# By seed, so that greedy texts of the fixed schemas differ too.
PROMPTS = ["Here is the record:\n", "JSON:\n", "Answer: ", "The object is\n", "```json\n", "Result of the call: ", "data = "]


# ---- Lines: a schema, {"number", "kind", "schema"}; what to ask, {"number", "model", "way", "body"}; an answer, {"number", "model",
# "way", "finish_reason", "text"} or with "error". A file of answers has the schemas too. ----


def read_lines(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if "schema" in line], [line for line in lines if "schema" not in line]


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


# ---- Requests ----


def enforceable(binary, schema):
    """Whether the grammar can be compiled; refusing is right where it cannot be enforced."""
    result = subprocess.run([binary, "grammar", "check", "--schema", "-"], input=json.dumps(schema), capture_output=True, text=True, timeout=120)
    return result.returncode == 0, result.stderr.strip()


def make_requests(options):
    """Schemas, and for each of them a request to each model in each way."""
    generator = Generator(options.seed)
    fixed = [("pydantic", schema) for schema in pydantic_schemas()] + [("tool", schema) for schema in tool_schemas()]
    candidates = itertools.chain(fixed, shipped_schemas(), (("random", generator.schema()) for _ in itertools.count()))
    wanted = -(-options.texts // (len(DECODINGS) * len(SAMPLINGS) * len(MODELS)))
    schemas, refused = [], collections.Counter()
    for kind, schema in candidates:
        if len(schemas) == wanted:
            break
        taken, why = enforceable(options.binary, schema)
        if taken:
            schemas.append({"number": len(schemas), "kind": kind, "schema": schema})
        else:
            refused[why] += 1
    print(f"{len(schemas)} schemas taken, {sum(refused.values())} refused")
    for why, count in refused.most_common():
        print(f"  {count} x {why}")
    requests = []
    for line, model, decode, sampling in itertools.product(schemas, MODELS, DECODINGS, SAMPLINGS):
        body = {"prompt": PROMPTS[options.seed % len(PROMPTS)], "max_tokens": 64, "seed": options.seed * 1_000_000 + line["number"],
                "decode": decode, **SAMPLINGS[sampling]}
        requests.append({"number": line["number"], "model": model, "way": f"{decode} {sampling}", "body": body})
    return schemas, requests


# ---- Texts ----


def write_part(options, threads, deadline, schemas, part, folder):
    """The answers to requests of one model, as many of them as were there in time."""
    if time.monotonic() > deadline:
        return []
    model = part[0]["model"]
    by_id = {f"{request['number']}/{request['way']}": request for request in part}
    lines = []
    for custom_id, request in by_id.items():
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schemas[request["number"]]["schema"]}}
        lines.append({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {**request["body"], "response_format": form}})
    name = f"{threading.get_ident()}-{time.monotonic_ns()}"
    asked, answered = folder / f"{name}.requests", folder / f"{name}.answers"
    write_lines(asked, lines)
    process = subprocess.Popen([options.binary, "batch", "--model", options.models / model, "--device", options.device, "--threads", str(threads),
                                "--recurrence", str(MODELS[model]), "--order", "free", "--input", asked, "--output", answered],
                               stderr=subprocess.DEVNULL)
    try:
        code = process.wait(max(1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        code = 0
    if code != 0:
        raise RuntimeError(f"loopspec batch of {model} ended with {code}")
    found = []
    # A program that is interrupted while it loads leaves no file.
    lines = answered.read_text().splitlines() if answered.exists() else []
    for answer in map(json.loads, lines):
        request, response = by_id[answer["custom_id"]], answer["response"]
        line = {"number": request["number"], "model": model, "way": request["way"]}
        if response["status_code"] == 200:
            choice = response["body"]["choices"][0]
            found.append({**line, "finish_reason": choice["finish_reason"], "text": choice["text"]})
        else:
            found.append({**line, "error": response["body"]})
    asked.unlink()
    answered.unlink(missing_ok=True)
    return found


def write_texts(options, schemas, requests, folder):
    """The answers to all requests, by several processes at once."""
    deadline = time.monotonic() + options.seconds
    size = min(PART, -(-len(requests) // options.workers))
    parts = []
    for model in MODELS:
        own = [request for request in requests if request["model"] == model]
        parts += [own[at:at + size] for at in range(0, len(own), size)]
    threads = max(1, len(os.sched_getaffinity(0)) // options.workers)
    answers = []
    with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        running = [pool.submit(write_part, options, threads, deadline, schemas, part, folder) for part in parts]
        for done in concurrent.futures.as_completed(running):
            answers += done.result()
            print(f"{len(answers)} of {len(requests)} texts", flush=True)
    return answers


# ---- Judging ----


def is_beginning(binary, folder, schema, text):
    """Whether a text that was cut short is the beginning of a valid one."""
    path = folder / f"text-{threading.get_ident()}"
    path.write_text(text)
    result = subprocess.run([binary, "grammar", "check", "--schema", "-", "--text", path], input=json.dumps(schema),
                            capture_output=True, text=True, timeout=120)
    return result.returncode == 0 or "ends too early" in result.stderr


def judge(binary, folder, schema, answer):
    """What is wrong with an answer; None: nothing."""
    import jsonschema

    if "error" in answer:
        return f"{answer['error']}"
    text = answer["text"]
    if answer["finish_reason"] == "stop":
        try:
            validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
            validator(schema).validate(json.loads(text))
        except (ValueError, jsonschema.ValidationError) as error:
            return f"invalid {text!r}: {str(error).splitlines()[0]}"
    elif not is_beginning(binary, folder, schema, text.rstrip("\N{REPLACEMENT CHARACTER}")):
        return f"no beginning of a valid text: {text!r}"
    return None


def judge_all(options, schemas, answers, folder):
    with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        verdicts = list(pool.map(lambda answer: judge(options.binary, folder, schemas[answer["number"]]["schema"], answer), answers))
    failures = [(answer, verdict) for answer, verdict in zip(answers, verdicts) if verdict]
    for answer, verdict in failures[:20]:
        schema = schemas[answer["number"]]
        print(f"{answer['model']} {answer['way']} {schema['kind']} {json.dumps(schema['schema'])[:2000]}: {verdict}")
    ends = collections.Counter(answer.get("finish_reason", "error") for answer in answers)
    kinds = collections.Counter(schemas[answer["number"]]["kind"] for answer in answers)
    print(f"schemas: {dict(kinds)}; {len({answer['number'] for answer in answers})} different")
    print(f"{len(answers)} texts: {ends['stop']} ended by themselves, {ends['length']} were cut by their length, {len(failures)} failures")
    return 1 if failures or ends["stop"] == 0 else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--venv", type=pathlib.Path)
    parser.add_argument("--models", type=pathlib.Path)
    parser.add_argument("--texts", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time, which share the cores")
    parser.add_argument("--seconds", type=float, default=6600, help="what is not written by then is left out")
    parser.add_argument("--make-requests", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--requests", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--judge", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    if options.requests is None:
        if options.venv is None:
            parser.error("--venv is needed for what is not --requests")
        inside_venv(options.venv, PACKAGES, "jsonschema, check_jsonschema, pydantic")
    if options.models is None and options.make_requests is None and options.judge is None:
        parser.error("--models is needed to write texts")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if options.judge:
            return judge_all(options, *read_lines(options.judge), folder)
        schemas, requests = read_lines(options.requests) if options.requests else make_requests(options)
        if options.make_requests:
            write_lines(options.make_requests, schemas + requests)
            return 0
        answers = write_texts(options, schemas, requests, folder)
        if options.keep:
            write_lines(options.keep, schemas + answers)
        return judge_all(options, schemas, answers, folder) if options.venv else 0


if __name__ == "__main__":
    sys.exit(main())
