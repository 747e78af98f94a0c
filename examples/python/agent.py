#!/usr/bin/env python3
"""A small agent: a model that may call a tool which adds numbers, over OpenAI's Responses and the standard library alone.

  loopspec serve --model ByteDance/Ouro-1.4B-Thinking &
  python3 examples/python/agent.py "What is 17 + 25, and that plus 8?"

The whole conversation is sent with every request; the server finds what it has computed before again.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request

TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds two whole numbers from 0 to 999.",
    "parameters": {
        "type": "object",
        "properties": {name: {"type": "integer", "minimum": 0, "maximum": 999} for name in ("a", "b")},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "strict": True,
}


def ask(options, conversation, choice):
    body = {
        "model": "any",
        "instructions": "You add numbers with the tool add, never by yourself. Then you answer in one sentence.",
        "input": conversation,
        "tools": [TOOL],
        "tool_choice": choice,
        "temperature": 0,
        "max_output_tokens": options.max_tokens,
    }
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {options.key}"}
    request = urllib.request.Request(options.url + "/v1/responses", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def run(options):
    """Asks until the model calls no tool any more. Returns what it says at last."""
    conversation = [{"role": "user", "content": options.question}]
    for turn in range(options.turns):
        # A model that is too small to think of the tool by itself can be told to call it first.
        choice = "required" if options.must_call and turn == 0 else "auto"
        if turn == options.turns - 1:
            choice = "none"
        response = ask(options, conversation, choice)
        conversation += response["output"]
        cached = response["usage"]["input_tokens_details"]["cached_tokens"]
        print(f"turn {turn + 1}: {response['usage']['input_tokens']} tokens in, {cached} of them found computed")
        calls = [item for item in response["output"] if item["type"] == "function_call" and item["status"] == "completed"]
        for call in calls:
            numbers = json.loads(call["arguments"])
            result = numbers["a"] + numbers["b"]
            print(f"  add({numbers['a']}, {numbers['b']}) = {result}")
            conversation.append({"type": "function_call_output", "call_id": call["call_id"], "output": str(result)})
        if not calls:
            break
    texts = [part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(texts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="What is 17 + 25, and that plus 8?")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--key", default="none", help="an API key, where the server wants one")
    parser.add_argument("--turns", type=int, default=8, help="requests at most")
    parser.add_argument("--max-tokens", type=int, default=4000, help="of one answer")
    parser.add_argument("--must-call", action="store_true", help="the first answer calls the tool")
    options = parser.parse_args()
    try:
        print(run(options))
    except urllib.error.HTTPError as error:  # the server says why
        sys.exit(f"{options.url} refuses: {json.load(error)['error']['message']}")
    except OSError as error:
        sys.exit(f"{options.url} does not answer ({getattr(error, 'reason', error)}): start it with `loopspec serve`, or name another with --url.")


if __name__ == "__main__":
    main()
