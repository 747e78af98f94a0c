#!/usr/bin/env python3
"""Calls of tools that a demo model writes, judged by jsonschema: every one that is complete is valid.

  tool_calls.py --server loopspec --model DIR --venv DIR [--calls N]

The model's folder with the chat templates of every form of calls; random tools; required, named and auto, one call and several;
greedy and seeded; streamed and whole; with and without thinking before. LoopSpec must say what autoregressive decoding says. A demo
model calls nothing by itself: with auto, the first byte of a call is made likely by logit_bias. Exits with 77, which ctest reports
as skipped, where the packages cannot be installed.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import random
import sys
import tempfile
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "grammar"))
from client_support import inside_venv  # noqa: E402
from real_server import RealServer  # noqa: E402
from valid_texts import Generator  # noqa: E402

TURNS = ("{%- for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
         "{%- if add_generation_prompt %}{% if think %}<think>{% else %}assistant: {% endif %}{% endif %}")
FORMS = {  # what a template is known by
    "hermes": "{# tools <tool_call> #}",
    "xml": "{# tools <tool_call> <function= #}",
    "llama": '{# tools ipython "parameters": #}',
    "generic": "",
}


def post(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return answer.headers, answer.read().decode()


def whole(server, body):
    headers, text = post(server, "/v1/chat/completions", body)
    choice = json.loads(text)["choices"][0]
    calls = [call["function"] for call in choice["message"].get("tool_calls", [])]
    return headers, choice["message"]["content"] or "", calls, choice["finish_reason"]


def streamed(server, body):
    headers, text = post(server, "/v1/chat/completions", {**body, "stream": True})
    content, calls, finish = "", [], None
    for line in text.splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        choice = json.loads(line[6:])["choices"][0]
        content += choice["delta"].get("content") or ""
        finish = choice["finish_reason"] or finish
        for piece in choice["delta"].get("tool_calls", []):
            if piece["index"] == len(calls):
                assert piece["id"].startswith("call_") and piece["type"] == "function", piece
                calls.append({"name": piece["function"]["name"], "arguments": ""})
            assert piece["index"] == len(calls) - 1, piece
            calls[-1]["arguments"] += piece["function"]["arguments"]
    return headers, content, calls, finish


class Judge:
    def __init__(self, server, form, brace):
        self.server, self.form, self.brace = server, form, brace
        self.counts = collections.Counter()

    def ask(self, number):
        import jsonschema
        choice = random.Random(f"{self.form}/{number}")
        generator = Generator(choice.randrange(10**9))
        tools, schemas = [], {}
        for index in range(choice.randint(1, 4)):
            name = choice.choice(["look", "add", "get_weather", "mcp.read-file"]) + str(index)
            function = {"name": name, "description": "Does something."}
            if choice.random() < 0.9:
                function["parameters"] = generator.schema()
            schemas[name] = function.get("parameters", {"type": "object", "maxProperties": 0})
            tools.append({"type": "function", "function": function})
        mode = choice.choice(["required", "named", "auto"])
        body = {"messages": [{"role": "user", "content": choice.choice(["Hello", "What is 3 + 4?", "Tell me a story."])}],
                "tools": tools, "max_tokens": 400, "parallel_tool_calls": choice.random() < 0.5,
                "tool_choice": {"type": "function", "function": {"name": name}} if mode == "named" else mode}
        body.update(choice.choice([{"temperature": 0}, {"temperature": 1, "sampler": "coupled", "seed": number}]))
        if mode == "auto":
            body["logit_bias"] = {str(self.brace["{" if self.form == "llama" else "<"]): 100}
            if self.form != "llama":  # text that begins like a call, or JSON
                body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 1}}}
        elif choice.random() < 0.3:
            body.update({"chat_template_kwargs": {"think": True}, "max_thinking_tokens": choice.randint(1, 30)})
        read = streamed if choice.random() < 0.5 else whole
        try:
            headers, content, calls, finish = read(self.server, body)
            other = whole(self.server, {**body, "decode": "ar"})
        except urllib.error.HTTPError as error:
            said = error.read().decode()
            if error.code == 400 and "allows no text at all" in said:  # the generator makes schemas that nothing fulfils
                self.counts["impossible"] += 1
                return 0
            raise AssertionError(f"{self.form} {number}: {error.code} {said}\n{json.dumps(body)}") from error
        where = f"{self.form} {number} {mode}: {content!r} {calls} {finish}\n{json.dumps(body)}"
        assert (content, calls, finish) == other[1:], f"{where}\nautoregressive: {other[1:]}"
        thinks = "chat_template_kwargs" in body
        assert "<tool_call>" not in content or thinks, where
        assert finish == "length" or calls or mode == "auto", where  # which may be words, where no tool can be called
        assert body["parallel_tool_calls"] or len(calls) <= 1, where
        complete = calls if finish == "tool_calls" else calls[:-1]
        self.counts["cut"] += len(calls) - len(complete)
        for call in complete:
            assert mode != "named" or call["name"] == name, where
            ignored = headers.get("X-Loopspec-Ignored-Keywords")
            arguments = json.loads(call["arguments"])
            try:
                jsonschema.Draft202012Validator(schemas[call["name"]]).validate(arguments)
                self.counts[mode] += 1
            except jsonschema.ValidationError as error:
                if not ignored:
                    raise AssertionError(f"{where}\n{error.message}") from error
                self.counts["not enforced"] += 1
        return len(complete)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--server", "--model", "--venv"):
        parser.add_argument(name, required=True)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--forms", nargs="*", default=list(FORMS))
    options = parser.parse_args()
    inside_venv(options.venv, ["jsonschema==4.26.0"], "jsonschema")
    for form in options.forms:
        with tempfile.TemporaryDirectory() as folder:
            for file in pathlib.Path(options.model).resolve().iterdir():
                (pathlib.Path(folder) / file.name).symlink_to(file)
            (pathlib.Path(folder) / "chat_template.jinja").write_text(FORMS[form] + TURNS)
            with RealServer(options.server, folder, "--recurrence", "4", "--log-file", "/dev/null") as server:
                brace = {}
                for text in "{<":
                    brace[text] = json.loads(post(server, "/tokenize", {"prompt": text, "add_special_tokens": False})[1])["tokens"][-1]
                judge = Judge(server, form, brace)
                calls, number = 0, 0
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    while calls < options.calls / len(options.forms):
                        calls += sum(pool.map(judge.ask, range(number, number + 16)))
                        number += 16
                        assert number < 100 * options.calls, "the model ends no calls"
                print(f"{form}: {calls} calls in {number} answers, all valid: {dict(judge.counts)}", flush=True)


if __name__ == "__main__":
    main()
