#!/usr/bin/env python3
"""Calls of tools that demo models write: every one that is complete is valid, and LoopSpec writes what autoregressive decoding writes.

  tool_calls.py --binary loopspec --models DIR --venv DIR      asks and judges
  tool_calls.py --binary loopspec --models DIR --keep FILE     asks, and keeps questions and answers as JSON lines
  tool_calls.py --judge FILE --venv DIR                        judges what was kept

Asking needs the standard library alone, judging needs jsonschema. --calls N and --seconds S say how much is asked, --workers N how many
servers run at once. Exits with 77, which ctest reports as skipped, where jsonschema cannot be installed.

Random tools; every form of calls; required, named and auto; one call and several; greedy, coupled and cascade; streamed and whole; no
thinking, thinking that the prompt opens, thinking after a tool's result and thinking that the answer opens itself. A demo model calls
nothing of its own accord: with auto, logit_bias makes the tokens of the opening mark likely, so that the model itself writes the mark
somewhere in free text and the grammar starts there. The mark is one token, one special token, two tokens, or two tokens that hold more
than the mark: for that some rare tokens of the demo models get other texts.
"""

import argparse
import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "grammar"))
from client_support import inside_venv  # noqa: E402
from real_server import RealServer  # noqa: E402
from valid_texts import Generator  # noqa: E402

MODELS = ["ouro-demo", "raven-demo"]
RECURRENCE = 4
FORMS = {  # what a template is known by
    "hermes": "{# tools <tool_call> #}",
    "xml": "{# tools <tool_call> <function= #}",
    "llama": '{# tools ipython "parameters": #}',
    "generic": "",
}
TURNS = "{%- for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
START = "{%- if add_generation_prompt %}assistant: {% endif %}"
START_THINKING = ("{%- if add_generation_prompt %}assistant: {% if think %}<think>{% elif think is false %}<think>\n\n</think>\n\n{% endif %}"
                  "{% endif %}")
# How the opening mark is cut into tokens: in <tool_call>, and in <|python_tag|>, which Llama's form may begin with. None: as it comes.
CUTS = {
    "bytes": (None, None),
    "one": (["<tool_call>"], ["<|python_tag|>"]),
    "special": (["<tool_call>"], ["<|python_tag|>"]),
    "halves": (["<tool", "_call>"], ["<|python", "_tag|>"]),
    "more": (["!<tool_", "call>\n"], ["<|python_", "tag|>{"]),
}
THINKING = ["<think>", "</think>"]
KNOWS_NO_THINKING = "more"  # the templates with this cut do not have <think>
# What a question's thinking is called in reports.
NONE, BEFORE, AFTER, OWN = "none", "before", "after a result", "opened by the answer"


# ---- Asking ----


def renamed(tokenizer, texts, special):
    """Gives the texts to the last tokens of a vocabulary, and returns their ids."""
    model = tokenizer["model"]
    last = sorted(model["vocab"], key=model["vocab"].get)[-len(texts):]
    given = {}
    for text, old in zip(texts, last):  # ascending: ids of added tokens follow their order
        given[text] = model["vocab"].pop(old)
        model["merges"] = [merge for merge in model["merges"] if (merge if isinstance(merge, str) else " ".join(merge)).replace(" ", "") != old]
        tokenizer["added_tokens"].append({"id": given[text], "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                                          "normalized": False, "special": special})
    return given


class Site:
    """A demo model with one form of calls and one way to cut its mark."""

    def __init__(self, model, form, cut, seed):
        self.model, self.form, self.cut, self.seed = model, form, cut, seed
        self.name = f"{model}/{form}/{cut}"
        self.llama = form == "llama"
        self.mark = CUTS[cut][self.llama]
        self.thinks = cut != KNOWS_NO_THINKING
        self.ids = {}

    def make_folder(self, source, folder):
        for file in pathlib.Path(source).resolve().iterdir():
            if file.name != "tokenizer.json":
                (folder / file.name).symlink_to(file)
        tokenizer = json.loads((source / "tokenizer.json").read_text())
        if self.mark:
            texts = self.mark + (["</tool_call>"] if len(self.mark) == 1 else []) + (THINKING if self.thinks else [])
            self.ids = renamed(tokenizer, texts, self.cut == "special")
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        (folder / "chat_template.jinja").write_text(FORMS[self.form] + TURNS + (START_THINKING if self.thinks else START))

    def question(self, number):
        choice = random.Random(f"{self.name}/{self.seed}/{number}")
        generator = Generator(choice.randrange(10**9))
        tools = []
        for index in range(choice.randint(1, 4)):
            function = {"name": choice.choice(["look", "add", "get_weather", "mcp.read-file"]) + str(index), "description": "Does something."}
            if choice.random() < 0.9:
                function["parameters"] = generator.schema()
            tools.append({"type": "function", "function": function})
        modes = ["required", "named"] + (["auto"] * 3 if self.mark or self.llama else [])
        mode = choice.choice(modes)
        named = {"type": "function", "function": {"name": choice.choice(tools)["function"]["name"]}}
        body = {"messages": [{"role": "user", "content": choice.choice(["Hello", "What is 3 + 4?", "Tell me a story."])}],
                "tools": tools, "max_tokens": 200, "parallel_tool_calls": choice.random() < 0.5,
                "tool_choice": named if mode == "named" else mode}
        body.update(choice.choice([{"temperature": 0}, {"temperature": 1, "sampler": "coupled"}, {"temperature": 1, "sampler": "cascade"}]))
        body["seed"] = number
        bias = choice.choice([8, 12, 16, 100])
        likely = {}
        if mode == "auto":
            likely = {str(self.ids[text]): bias for text in self.mark} if self.mark else {"{": bias}
            if len(likely) > 1:
                body["frequency_penalty"] = 2  # else one half of the mark would follow itself forever
        thinking = choice.choice([NONE, BEFORE, AFTER, OWN] if self.thinks else [NONE, AFTER])
        if thinking == AFTER:
            call = {"id": "call_1", "type": "function", "function": {"name": tools[0]["function"]["name"], "arguments": "{}"}}
            body["messages"] += [{"role": "assistant", "content": "", "tool_calls": [call]},
                                 {"role": "tool", "tool_call_id": "call_1", "content": "7"}]
        if thinking in (BEFORE, AFTER) and self.thinks:
            body.update({"chat_template_kwargs": {"think": True}, "max_thinking_tokens": choice.randint(1, 30)})
        elif thinking == NONE and self.thinks:
            body["chat_template_kwargs"] = {"think": False}
        elif thinking == OWN and self.mark:
            likely.update({str(self.ids[text]): min(100, choice.choice([bias, bias + 1])) for text in THINKING})
        if self.thinks and choice.random() < 0.7:
            body["reasoning_format"] = "deepseek"
        return {"site": self.name, "number": number, "form": self.form, "cut": self.cut, "mode": mode, "thinking": thinking,
                "likely": likely, "body": body, "streams": [choice.random() < 0.5, choice.random() < 0.5]}


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return answer.headers, answer.read().decode()


def whole(text):
    choice = json.loads(text)["choices"][0]
    message = choice["message"]
    return {"content": message["content"] or "", "reasoning": message.get("reasoning_content") or "",
            "calls": [call["function"] for call in message.get("tool_calls", [])], "finish": choice["finish_reason"]}


def streamed(text):
    said = {"content": "", "reasoning": "", "calls": [], "finish": None}
    for line in text.splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        choice = json.loads(line[6:])["choices"][0]
        delta = choice["delta"]
        said["content"] += delta.get("content") or ""
        said["reasoning"] += delta.get("reasoning_content") or ""
        said["finish"] = choice["finish_reason"] or said["finish"]
        for piece in delta.get("tool_calls", []):
            calls = said["calls"]
            if piece["index"] == len(calls):
                assert piece["id"].startswith("call_") and piece["type"] == "function", piece
                calls.append({"name": piece["function"]["name"], "arguments": ""})
            assert piece["index"] == len(calls) - 1, piece
            calls[-1]["arguments"] += piece["function"]["arguments"]
    return said


def ask(url, question):
    """The question with its answers, of LoopSpec and of autoregressive decoding; or with what the server refuses it for."""
    record = {**question, "answers": []}
    for decode, stream in zip(["loopspec", "ar"], question["streams"]):
        try:
            headers, text = post(url, "/v1/chat/completions", {**question["body"], "decode": decode, "stream": stream})
        except urllib.error.HTTPError as error:
            return {**question, "answers": [], "status": error.code, "refused": error.read().decode()}
        ignored = headers.get("X-Loopspec-Ignored-Keywords")
        record["answers"].append({"decode": decode, "stream": stream, "ignored": ignored, **(streamed(text) if stream else whole(text))})
    return record


class Run:
    """All sites, asked by several workers until there are enough calls or time is up."""

    def __init__(self, options, keep):
        self.options, self.keep = options, keep
        self.sites = [Site(*parts, options.seed) for parts in itertools.product(MODELS, FORMS, CUTS)]
        random.Random(1).shuffle(self.sites)
        self.each = -(-options.calls // len(self.sites))
        self.end = time.monotonic() + options.seconds
        self.lock = threading.Lock()
        self.counts = collections.Counter()

    def take(self):
        """The next site, and when it must be left so that the others get as much time."""
        with self.lock:
            if not self.sites or time.monotonic() >= self.end:
                return None
            share = (self.end - time.monotonic()) * min(self.options.workers, len(self.sites)) / len(self.sites)
            return self.sites.pop(), time.monotonic() + share

    def work(self):
        while taken := self.take():
            site, end = taken
            with tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)
                site.make_folder(self.options.models / site.model, folder)
                threads = max(1, (os.cpu_count() or 1) // self.options.workers)
                arguments = ["--recurrence", RECURRENCE, "--log-file", "/dev/null", "--device", self.options.device, "--threads", threads]
                if self.options.device != "cpu":
                    arguments += ["--kv-memory", "1G"]  # several servers share the device
                with RealServer(self.options.binary, folder, *arguments) as server:
                    self.ask_site(site, server, end)

    def ask_site(self, site, server, end):
        brace = json.loads(post(server.url, "/tokenize", {"prompt": "{", "add_special_tokens": False})[1])["tokens"][-1]

        def one(number):
            if time.monotonic() >= end:
                return 0
            question = site.question(number)
            likely = question.pop("likely")
            if likely:
                question["body"]["logit_bias"] = {str(brace) if key == "{" else key: value for key, value in likely.items()}
            record = ask(server.url, question)
            with self.lock:
                self.keep.write(json.dumps(record) + "\n")
            return len(complete(record["answers"][0])) if record["answers"] else 0

        calls = number = 0
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            while calls < self.each and time.monotonic() < end:
                calls += sum(pool.map(one, range(number, number + 8)))
                number += 8
                assert number < 100 * self.each + 1000, f"{site.name}: the model ends no calls"
        with self.lock:
            self.keep.flush()
            self.counts["sites"] += 1
            self.counts["calls"] += calls
            print(f"{site.name}: {calls} calls in {number} answers of LoopSpec; {self.counts['calls']} calls so far", flush=True)

    def run(self):
        with concurrent.futures.ThreadPoolExecutor(self.options.workers) as pool:
            for worker in [pool.submit(self.work) for _ in range(self.options.workers)]:
                worker.result()
        print(f"{self.counts['calls']} calls at {self.counts['sites']} sites, {len(self.sites)} sites not asked", flush=True)


# ---- Judging ----


def complete(answer):
    return answer["calls"] if answer["finish"] == "tool_calls" else answer["calls"][:-1]


def faults(record, validate):
    """What is wrong with the answers to a question, in sentences. `validate` tells why a call is not valid."""
    if "refused" in record:
        # The generator makes schemas that nothing fulfils.
        return [] if record["status"] == 400 and "allows no text at all" in record["refused"] else [f"{record['status']} {record['refused']}"]
    found = []
    body, mode = record["body"], record["mode"]
    said = [{key: answer[key] for key in ("content", "reasoning", "calls", "finish")} for answer in record["answers"]]
    if body.get("sampler") != "cascade" and said[0] != said[1]:
        found.append("autoregressive decoding says something else")
    for answer in record["answers"]:
        content, calls = answer["content"], answer["calls"]
        # Where thinking stays in the text it may look like anything.
        answered = content.split("</think>")[-1] if body.get("reasoning_format") is None and record["thinking"] != NONE else content
        if "<tool_call>" in answered if record["form"] != "llama" else answered.lstrip().startswith(("{", "<|python_tag|>")):
            found.append("a call is left in the text")
        if mode != "auto" and not calls and answer["finish"] != "length":
            found.append(f"{mode}, and nothing is called")
        if (mode == "named" or not body["parallel_tool_calls"]) and len(calls) > 1:
            found.append(f"{len(calls)} calls")
        if answer["finish"] == "tool_calls" and not calls:
            found.append("no call, but it ended with one")
        if calls and answer["finish"] not in ("tool_calls", "length"):
            found.append(f"calls, but it ended with {answer['finish']}")
        for call in complete(answer):
            if mode == "named" and call["name"] != body["tool_choice"]["function"]["name"]:
                found.append(f"{call['name']} is called")
            if why := validate(body["tools"], call, answer["ignored"]):
                found.append(f"{call} is not valid: {why}")
    return found


def validate_with_jsonschema(tools, call, ignored):
    import jsonschema

    by_name = {tool["function"]["name"]: tool["function"] for tool in tools}
    if call["name"] not in by_name:
        return "no tool has this name"
    schema = by_name[call["name"]].get("parameters", {"type": "object", "maxProperties": 0})
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(call["arguments"]))
    except json.JSONDecodeError as error:
        return str(error)
    except jsonschema.ValidationError as error:
        return None if ignored else error.message
    return None


def judge(path):
    """Prints how many calls of what kind there are; returns how many answers are wrong."""
    calls, answers, wrong = collections.Counter(), collections.Counter(), 0
    total = 0
    for line in path.read_text().splitlines():
        record = json.loads(line)
        found = faults(record, validate_with_jsonschema)
        if found:
            wrong += 1
            print(f"{record['site']} {record['number']}: {'; '.join(found)}\n  {line}")
        if "refused" in record:
            answers["refused, since nothing fulfils the schema"] += 1
        for answer in record["answers"]:
            done = complete(answer)
            total += len(done)
            answers[answer["finish"]] += 1
            calls["cut by the answer's end"] += len(answer["calls"]) - len(done)
            calls["with keywords that are not enforced"] += len(done) if answer["ignored"] else 0
            kinds = [record["form"], f"mark: {record['cut']}", record["mode"], f"thinking: {record['thinking']}", answer["decode"],
                     "streamed" if answer["stream"] else "whole", record["site"].split("/")[0],
                     record["body"].get("sampler", "greedy"), "several in an answer" if len(done) > 1 else "one in an answer"]
            if record["mode"] == "auto" and record["form"] != "llama":
                kinds.append("begun by the model" + (" after text" if answer["content"] or answer["reasoning"] else ""))
            for kind in kinds:
                calls[kind] += len(done)
    print(f"{total} calls, {wrong} questions with a fault")
    print("calls:   " + ", ".join(f"{count} {kind}" for kind, count in sorted(calls.items())))
    print("answers: " + ", ".join(f"{count} {kind}" for kind, count in sorted(answers.items())))
    return wrong if total else 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", "--server", dest="binary")
    parser.add_argument("--models", type=pathlib.Path)
    parser.add_argument("--venv")
    parser.add_argument("--calls", type=int, default=2000, help="of LoopSpec; autoregressive decoding writes as many")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1, help="of the questions")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--judge", type=pathlib.Path)
    options = parser.parse_args()
    if options.judge or not options.keep:
        inside_venv(options.venv, ["jsonschema==4.26.0"], "jsonschema")
    if options.judge:
        return 1 if judge(options.judge) else 0
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or pathlib.Path(folder) / "calls.jsonl"
        with path.open("w") as keep:
            Run(options, keep).run()
        if options.keep:
            return 0
        return 1 if judge(path) else 0


if __name__ == "__main__":
    sys.exit(main())
