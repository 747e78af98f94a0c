#!/usr/bin/env python3
"""Requests as agents send them at their oddest, to `loopspec serve` on demo models, in chat completions, Responses and Messages: histories of odd
shapes, unknown blocks, many and large tools, odd names, small budgets. Each gets an answer or one clear sentence; nothing is a 5xx; no call is left
in the text; a streamed answer is the whole one, and LoopSpec's that of autoregressive decoding.

  odd_agents.py --server BINARY [--models FOLDER] [--model NAME] [--only TEXT] [--quick]
"""

import argparse
import json
import pathlib
import socket
import urllib.error
import urllib.request

from client_support import FakeServer
from real_server import RealServer

MODELS = ["ouro-demo", "raven-demo"]
DIGITS = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"enum": [3, 4]}}, "required": ["a", "b"]}
LAWS = [{"temperature": 0}, {"temperature": 1, "sampler": "coupled", "seed": 5}]  # whose texts do not depend on the decoding
OK, NO = (200,), (400,)


def check(condition, what):
    if not condition:
        raise AssertionError(what)


# ---- The three APIs: a conversation and tools in one form, and what comes back ----


class Chat:
    """Conversations as lists of (kind, ...): user, system, assistant, call, result, raw."""

    name, path = "chat", "/v1/chat/completions"

    @staticmethod
    def body(turns, tools=None, choice=None, tokens=8, parallel=True):
        messages = []
        for kind, *said in turns:
            if kind == "call":
                messages.append({"role": "assistant", "content": None, "tool_calls": [
                    {"id": said[0], "type": "function", "function": {"name": said[1], "arguments": json.dumps(said[2])}}]})
            elif kind == "result":
                messages.append({"role": "tool", "tool_call_id": said[0], "content": said[1]})
            else:
                messages.append({"role": kind, "content": said[0]})
        body = {"messages": messages, "max_tokens": tokens}
        if tools is not None:
            body["tools"] = [{"type": "function", "function": {"name": name, "description": "Does.", "parameters": schema}} for name, schema in tools]
        if choice:
            body["tool_choice"] = {"type": "function", "function": {"name": choice[1]}} if isinstance(choice, tuple) else choice
        if not parallel:
            body["parallel_tool_calls"] = False
        return body

    @staticmethod
    def whole(answer):
        message = answer["choices"][0]["message"]
        return {"text": message["content"] or "", "thinking": message.get("reasoning_content") or "",
                "calls": [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []],
                "end": answer["choices"][0]["finish_reason"]}

    @staticmethod
    def streamed(events):
        said = {"text": "", "thinking": "", "calls": [], "end": None}
        for event in events:
            for choice in event["choices"]:
                delta = choice["delta"]
                said["text"] += delta.get("content") or ""
                said["thinking"] += delta.get("reasoning_content") or ""
                said["end"] = choice["finish_reason"] or said["end"]
                for piece in delta.get("tool_calls") or []:
                    if piece["index"] == len(said["calls"]):
                        said["calls"].append((piece["function"]["name"], ""))
                    name, arguments = said["calls"][piece["index"]]
                    said["calls"][piece["index"]] = (name, arguments + piece["function"]["arguments"])
        return said


class Responses:
    name, path = "responses", "/v1/responses"

    @staticmethod
    def body(turns, tools=None, choice=None, tokens=8, parallel=True):
        items = []
        for kind, *said in turns:
            if kind == "call":
                items.append({"type": "function_call", "call_id": said[0], "name": said[1], "arguments": json.dumps(said[2])})
            elif kind == "result":
                items.append({"type": "function_call_output", "call_id": said[0], "output": said[1]})
            else:
                items.append({"role": kind, "content": said[0]})
        body = {"input": items, "max_output_tokens": tokens}
        if tools is not None:
            body["tools"] = [{"type": "function", "name": name, "description": "Does.", "parameters": schema} for name, schema in tools]
        if choice:
            body["tool_choice"] = {"type": "function", "name": choice[1]} if isinstance(choice, tuple) else choice
        if not parallel:
            body["parallel_tool_calls"] = False
        return body

    @staticmethod
    def whole(answer):
        said = {"text": "", "thinking": "", "calls": [], "end": answer["status"]}
        for item in answer["output"]:
            if item["type"] == "message":
                said["text"] += "".join(part["text"] for part in item["content"])
            elif item["type"] == "reasoning":
                said["thinking"] += "".join(part["text"] for part in (item.get("content") or []) + (item.get("summary") or []))
            else:
                said["calls"].append((item["name"], item["arguments"]))
        return said

    @staticmethod
    def streamed(events):
        check([event["sequence_number"] for event in events] == list(range(len(events))), "sequence numbers")
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        said = Responses.whole(events[-1]["response"])
        check(text == said["text"], (text, said))
        arguments = {}
        for event in events:
            if event["type"] == "response.function_call_arguments.delta":
                arguments[event["output_index"]] = arguments.get(event["output_index"], "") + event["delta"]
        check([arguments[i] for i in sorted(arguments)] == [call[1] for call in said["calls"] if call[1]], (arguments, said))
        return said


class Messages:
    name, path = "messages", "/v1/messages"

    @staticmethod
    def body(turns, tools=None, choice=None, tokens=8, parallel=True):
        messages = []
        for kind, *said in turns:
            if kind == "call":
                messages.append({"role": "assistant", "content": [{"type": "tool_use", "id": said[0], "name": said[1], "input": said[2]}]})
            elif kind == "result":
                messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": said[0], "content": said[1]}]})
            else:
                messages.append({"role": "user" if kind == "developer" else kind, "content": said[0]})
        body = {"messages": messages, "max_tokens": tokens}
        if tools is not None:
            body["tools"] = [{"name": name, "description": "Does.", "input_schema": schema} for name, schema in tools]
        if choice:
            body["tool_choice"] = {"type": "tool", "name": choice[1]} if isinstance(choice, tuple) else {"type": {"required": "any"}.get(choice, choice)}
        if not parallel:
            body.setdefault("tool_choice", {"type": "auto"})["disable_parallel_tool_use"] = True
        return body

    @staticmethod
    def whole(answer):
        said = {"text": "", "thinking": "", "calls": [], "end": answer["stop_reason"]}
        for block in answer["content"]:
            if block["type"] == "text":
                said["text"] += block["text"]
            elif block["type"] == "thinking":
                said["thinking"] += block["thinking"]
            else:
                said["calls"].append((block["name"], block["input"]))
        return said

    @staticmethod
    def streamed(events):
        blocks, end = {}, None
        for event in events:
            if event["type"] == "content_block_start":
                block = event["content_block"]
                blocks[event["index"]] = {"type": block["type"], "name": block.get("name"), "data": ""}
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                if delta["type"] != "signature_delta":
                    blocks[event["index"]]["data"] += delta[{"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}[delta["type"]]]
            elif event["type"] == "message_delta":
                end = event["delta"]["stop_reason"]
        said = {"text": "", "thinking": "", "calls": [], "end": end}
        for _, block in sorted(blocks.items()):
            if block["type"] == "tool_use":
                said["calls"].append((block["name"], block["data"]))
            else:
                said[block["type"]] += block["data"]
        return said


APIS = [Chat, Responses, Messages]


def send(url, path, body):
    """Status, headers and text."""
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def events_of(text):
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def arguments_of(call):
    """None where an answer's end has cut them."""
    if isinstance(call[1], dict):
        return call[1]
    try:
        return json.loads(call[1])
    except json.JSONDecodeError:
        return None


def same(api, first, second):
    """Messages has no form for arguments that are cut: whole answers have an empty object for them, streamed ones what there is."""
    if api is not Messages:
        return first == second
    plain = [{**said, "calls": [(call[0], arguments_of(call) or {}) for call in said["calls"]]} for said in (first, second)]
    return plain[0] == plain[1]


def one_sentence(api, text, name):
    error = json.loads(text)["error"]
    message = error["message"]
    check(isinstance(message, str) and 10 < len(message) < 520 and "\n" not in message and message.endswith("."), (name, message))
    check("exception" not in message.lower() and "assert" not in message.lower(), (name, message))
    return message


def judge(api, url, name, body, wanted, names, seen, laws):
    """Asks whole and streamed, LoopSpec and autoregressive, greedy and coupled."""
    for law in laws:
        first = None
        for decode, stream in (("loopspec", law is LAWS[0]), ("ar", law is not LAWS[0])):
            status, _, text = send(url, api.path, {**law, **body, "decode": decode, "stream": stream})
            where = f"{api.name}, {name}, {law}, {decode}, {'streamed' if stream else 'whole'}"
            check(status in wanted, f"{where}: {status} {text[:600]}, expected {wanted}")
            if status != 200:
                seen.add((api.name, name, one_sentence(api, text, where)))
                if first is not None:
                    check(first == text, f"{where}: {text} and {first}")
                first = text
                continue
            if stream:
                events = events_of(text)
                check(not any("error" in event and event["error"] for event in events), f"{where}: {text[-600:]}")
            said = api.streamed(events) if stream else api.whole(json.loads(text))
            check("<tool_call>" not in said["text"] and "<tool_call>" not in said["thinking"], f"{where}: a call is left in {said}")
            for call in said["calls"]:
                check(call[0] in names, f"{where}: {call} is no tool")
            if said["end"] in ("tool_calls", "tool_use"):
                check(said["calls"] and all(isinstance(arguments_of(call), dict) for call in said["calls"]), f"{where}: {said}")
            if first is None:
                first = said
            else:
                check(same(api, first, said), f"{where}: {said}, but first {first}")
    return status


# ---- What is asked ----


def deep(levels):
    schema = {"type": "object", "properties": {"x": {"enum": [1]}}, "required": ["x"]}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    return schema


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def large(size):
    """A schema of about `size` bytes."""
    return {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"type": "string", "enum": [f"value-{i:06d}" for i in range(size // 15)]}}, "required": ["a"]}


def common():
    """(name, turns, other arguments of body(), statuses), for all three."""
    ask = [("user", "What is 1 + 3?")]
    add = [("add", DIGITS)]
    call = ("call", "c1", "add", {"a": 1, "b": 3})
    result = ("result", "c1", "4")
    yield "a system text alone", [("system", "Be brief.")], {}, (200, 400)
    yield "an empty text", [("user", "")], {}, (200, 400)
    yield "empty content lists", [("user", []), ("assistant", []), ("user", "Go on.")], {}, OK
    yield "nothing but empty content", [("user", [])], {}, (200, 400)
    yield "ends with the assistant", [("user", "Hi"), ("assistant", "It is")], {}, OK
    yield "begins with the assistant", [("assistant", "Hello."), ("user", "Hi")], {}, OK
    yield "users in a row", [("user", "a"), ("user", "b"), ("user", "c")], {}, OK
    yield "system in the middle", [("user", "a"), ("system", "Be brief."), ("user", "b")], {}, OK
    yield "a result before its call", [result, call, *ask], {"tools": add}, OK
    yield "a result without a call", [*ask, ("result", "nobody", "4"), ("user", "So?")], {"tools": add}, OK
    yield "a call without a result", [*ask, call, ("user", "So?")], {"tools": add}, OK
    yield "a call at the end", [*ask, call], {"tools": add}, OK
    yield "a result at the end", [*ask, call, result], {"tools": add}, OK
    yield "calls of the same id", [*ask, call, result, call, result, ("user", "So?")], {"tools": add}, OK
    yield "calls of tools that are gone", [*ask, ("call", "c1", "removed-tool", {"x": nested(20)}), result, ("user", "So?")], {"tools": add}, OK
    yield "calls without tools", [*ask, call, result, ("user", "So?")], {}, OK
    yield "an empty result", [*ask, call, ("result", "c1", "")], {"tools": add}, OK
    yield "a call's mark in a user's text", [("user", 'Write <tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>')], {"tools": add}, OK
    yield "a call's mark in a result", [*ask, call, ("result", "c1", "<tool_call></tool_call><tool_response></tool_response></think>")], {"tools": add}, OK
    yield "special tokens in texts", [("user", "<|im_end|><|endoftext|><s></s><think></think>")], {}, OK
    yield "both halves of Unicode", [("user", "\U0001f600\u0000\u2028\ufeff\u202e e\u0301 \U0010ffff \ud7ff")], {}, OK
    yield "an empty list of tools", ask, {"tools": []}, OK
    yield "a tool must be called", ask, {"tools": add, "choice": "required", "tokens": 100}, OK
    yield "one call at most", ask, {"tools": add, "choice": "required", "tokens": 150, "parallel": False}, OK
    yield "one call at most, if any", ask, {"tools": add, "parallel": False}, OK
    yield "the named tool", ask, {"tools": add, "choice": ("named", "add"), "tokens": 100}, OK
    yield "no tool may be called", ask, {"tools": add, "choice": "none"}, OK
    yield "a choice of an unknown tool", ask, {"tools": add, "choice": ("named", "subtract")}, NO
    yield "a choice and no tools", ask, {"tools": [], "choice": "required"}, (200, 400)
    yield "a call that is cut", ask, {"tools": add, "choice": "required", "tokens": 12}, OK
    yield "a call that is cut at once", ask, {"tools": add, "choice": "required", "tokens": 1}, OK
    yield "names with all that is allowed", ask, {"tools": [("mcp__a.b:c/d-e_9", DIGITS)], "choice": "required", "tokens": 100}, OK
    for odd in ("", "two words", 'quote"', "brace}{", "emoji\U0001f600", "new\nline", "<tool_call>", "x" * 200, "a\\b"):
        yield f"the name {odd[:12]!r}", ask, {"tools": [(odd, DIGITS)], "choice": "required"}, NO
    yield "two tools of a name", ask, {"tools": add + add}, NO
    yield "two hundred tools", ask, {"tools": [(f"t{i}", {"type": "object"}) for i in range(200)], "choice": "required", "tokens": 60}, (200, 400)
    yield "six hundred tools", ask, {"tools": [(f"t{i}", {"type": "object"}) for i in range(600)]}, NO
    yield "a schema of 100 kB", ask, {"tools": [("add", large(100_000))], "choice": "required", "tokens": 60}, (200, 400)
    yield "a deep schema", ask, {"tools": [("add", deep(30))], "choice": "required", "tokens": 60}, (200, 400)
    yield "a very deep schema", ask, {"tools": [("add", deep(300))], "choice": "required"}, (200, 400)
    yield "a deep call in the history", [*ask, ("call", "c1", "add", {"x": nested(300)}), result], {"tools": add}, (200, 400)
    yield "a schema that is true inside", ask, {"tools": [("add", {"type": "object", "properties": {"a": True}, "required": ["a"]})], "choice": "required", "tokens": 40}, OK
    yield "a schema that nothing fulfils", ask, {"tools": [("add", {"type": "object", "properties": {"a": False}, "required": ["a"]})], "choice": "required"}, NO
    yield "a schema that refers to itself", ask, {"tools": [("add", {"type": "object", "properties": {"a": {"$ref": "#"}}})], "choice": "required", "tokens": 40}, OK
    yield "a schema that refers to nothing", ask, {"tools": [("add", {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}})], "choice": "required"}, NO
    yield "no properties", ask, {"tools": [("add", {})], "choice": "required", "tokens": 40}, OK
    yield "not an object", ask, {"tools": [("add", {"type": "string"})], "choice": "required", "tokens": 40}, (200, 400)
    yield "very many turns", [turn for _ in range(60) for turn in (("user", "a"), ("assistant", "b"))] + ask, {}, OK
    yield "too long", [("user", "word " * 3000)], {}, NO


def special(api):
    """(name, body, statuses): what an API alone has."""
    add = [("add", DIGITS)]
    ask = api.body([("user", "What is 1 + 3?")], add)
    limit = "max_output_tokens" if api is Responses else "max_tokens"
    yield "32,000 tokens", {**ask, limit: 32000, "stop": ["."]} if api is Chat else {**ask, limit: 32000, "ignore_eos": False, "stop_token_ids": list(range(5, 250))}, \
        (400,) if api is Chat else (200,)
    for tokens in (0, -1, 1.5, "many"):
        yield f"{tokens} tokens", {**ask, limit: tokens}, NO
    image = {Chat: {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, Responses: {"type": "input_image", "image_url": "data:,"},
             Messages: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}}[api]
    said = {"type": "input_text" if api is Responses else "text", "text": "What is this?"}
    yield "an image", api.body([("user", [said, image])]), NO
    yield "an image talked about earlier", api.body([("user", [said, image]), ("assistant", "A cat."), ("user", "Sure?")]), OK
    yield "an unknown part", api.body([("user", [said, {"type": "hologram", "data": "x"}])]), (200, 400)
    yield "an unknown part alone", api.body([("user", [{"type": "hologram"}])]), (200, 400)
    yield "a part that is no object", api.body([("user", ["text"])]), NO
    yield "a part without a type", api.body([("user", [{"text": "x"}])]), (200, 400)
    yield "text that is a number", api.body([("user", [{**said, "text": 5}])]), NO
    yield "content that is a number", api.body([("user", 5)]), NO
    yield "an unknown role", api.body([("wizard", "Abra.")]), NO
    yield "an unknown field", {**ask, "hologram": {"x": 1}}, OK
    yield "tools that are null", {**ask, "tools": None}, OK
    yield "tools that are an object", {**ask, "tools": {}}, NO
    yield "a tool that is a string", {**ask, "tools": ["add"]}, NO
    yield "a choice that nobody knows", {**ask, "tool_choice": "perhaps" if api is not Messages else {"type": "perhaps"}}, NO
    yield "a choice that is a list", {**ask, "tool_choice": []}, NO
    yield "the choice null", {**ask, "tool_choice": None}, OK
    for budget in (0, 1):
        thinking = {"thinking": {"type": "enabled", "budget_tokens": budget}} if api is Messages else {"max_thinking_tokens": budget}
        yield f"a thinking budget of {budget}", {**ask, **thinking}, (200, 400)
    call = {**api.body([("user", "Add.")], add, "required", 100)}
    stop = "stop_sequences" if api is Messages else "stop"
    if api is not Responses:
        for text in ('"', "arguments", "{", "}", "<tool_call>", "</tool_call>", "add"):
            yield f"the stop string {text!r}", {**call, stop: [text]}, OK
    if api is Chat:
        parts = [{"type": "refusal", "refusal": "No."}]
        yield "a refusal earlier", {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": parts}, {"role": "user", "content": "So?"}], "max_tokens": 8}, OK
        history = lambda call: [{"role": "user", "content": "Add."}, {"role": "assistant", "tool_calls": call}, {"role": "tool", "tool_call_id": "c", "content": "4"}]
        function = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1'}}
        yield "arguments that were cut", {**ask, "messages": history([function])}, OK
        yield "arguments that are an object", {**ask, "messages": history([{**function, "function": {"name": "add", "arguments": {"a": 1}}}])}, OK
        yield "arguments that are a list", {**ask, "messages": history([{**function, "function": {"name": "add", "arguments": "[1, 2]"}}])}, OK
        yield "no arguments", {**ask, "messages": history([{**function, "function": {"name": "add"}}])}, OK
        yield "an empty list of calls", {**ask, "messages": history([])}, OK
        yield "a call that is a string", {**ask, "messages": history(["add"])}, NO
        yield "a call without a name", {**ask, "messages": history([{**function, "function": {"arguments": "{}"}}])}, NO
        yield "a call of type custom", {**ask, "messages": history([{"id": "c", "type": "custom", "custom": {"name": "x", "input": "y"}}])}, (200, 400)
        yield "a result of parts", {**ask, "messages": [*history([function])[:2], {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "4"}]}]}, OK
        yield "the role function", {**ask, "messages": [*history([function])[:2], {"role": "function", "name": "add", "content": "4"}]}, (200, 400)
        yield "no messages", {**ask, "messages": []}, NO
        yield "messages that are a string", {**ask, "messages": "Hi"}, NO
    if api is Responses:
        items = lambda *more: {**ask, "input": [{"role": "user", "content": "Hi"}, *more, {"role": "user", "content": "So?"}]}
        yield "a text", {"input": "Hi", "max_output_tokens": 8}, OK
        yield "an unknown item", items({"type": "web_search_call", "id": "ws_1", "status": "completed"}, {"type": "hologram"}), OK
        yield "a custom call", items({"type": "custom_tool_call", "call_id": "c", "name": "x", "input": "y"}, {"type": "custom_tool_call_output", "call_id": "c", "output": "z"}), OK
        yield "a shell's call", items({"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}, "status": "completed"}), OK
        yield "reasoning without content", items({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}), OK
        yield "reasoning of a wrong shape", items({"type": "reasoning", "summary": "text"}), NO
        yield "a reference", items({"type": "item_reference", "id": "x"}), NO
        yield "an item without a type", items({"name": "x"}), NO
        yield "a result of parts", items({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "4"}, {"type": "input_image", "image_url": "data:,"}]}), OK
        yield "a result that is an object", items({"type": "function_call_output", "call_id": "c", "output": {"a": 1}}), NO
        yield "arguments that were cut", items({"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 1'}), OK
        yield "no arguments", items({"type": "function_call", "call_id": "c", "name": "add"}), OK
        yield "no items", {**ask, "input": []}, NO
        yield "unknown items alone", {**ask, "input": [{"type": "hologram"}]}, NO
        yield "tools of other types alone", {**ask, "tools": [{"type": "web_search"}, {"type": "custom", "name": "x"}], "tool_choice": "required"}, OK
        yield "an earlier response", {**ask, "previous_response_id": "resp_1"}, NO
        yield "top_logprobs", {**ask, "top_logprobs": 5, "include": ["message.output_text.logprobs"]}, (200, 400)
    if api is Messages:
        blocks = lambda *blocks: {**ask, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": list(blocks)}, {"role": "user", "content": "So?"}]}
        yield "unknown blocks", blocks({"type": "server_tool_use", "id": "x", "name": "web_search", "input": {}}, {"type": "web_search_tool_result", "tool_use_id": "x", "content": []}), OK
        yield "thinking without a signature", blocks({"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "4"}), OK
        yield "redacted thinking", blocks({"type": "redacted_thinking", "data": "AAAA"}), OK
        yield "a call's input that is a string", blocks({"type": "tool_use", "id": "c", "name": "add", "input": "{}"}), NO
        yield "a call without input", blocks({"type": "tool_use", "id": "c", "name": "add"}), OK
        yield "a result that is an error", {**ask, "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "is_error": True}]}]}, OK
        yield "a result after text", {**ask, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "tool_result", "tool_use_id": "c", "content": []}]}]}, OK
        yield "no messages", {**ask, "messages": []}, NO
        yield "no max_tokens", {key: value for key, value in ask.items() if key != "max_tokens"}, NO
        yield "a tool without a schema", {**ask, "tools": [{"name": "add"}]}, NO
        yield "tools of Anthropic's servers alone", {**ask, "tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "any"}}, OK
        yield "thinking adaptive", {**ask, "thinking": {"type": "adaptive"}}, OK
        yield "thinking of a wrong kind", {**ask, "thinking": {"type": "deep"}}, NO
        yield "system null", {**ask, "system": None}, OK
        yield "a system of odd blocks", {**ask, "system": [{"type": "text", "text": ""}, {"type": "hologram"}]}, OK


def cut_streams(url):
    """Clients that go in the middle of a stream; the next one gets what it always gets."""
    port = int(url.rsplit(":", 1)[1])
    for api in APIS:
        body = {**api.body([("user", "What is 1 + 3?")], [("add", DIGITS)], "required", 200), "stream": True}
        data = json.dumps(body).encode()
        for size in (1, 300, 900):
            connection = socket.create_connection(("127.0.0.1", port), timeout=300)
            connection.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (api.path.encode(), len(data)) + data)
            connection.recv(size)
            connection.close()


def raw_bodies(url):
    """What is no JSON, or no object, or too deep; halves of characters written as escapes."""
    deep_body = b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    half = br'{"messages": [{"role": "user", "content": "\ud83d"}], "input": "\ud83d", "max_tokens": 4}'
    told = []
    for api in APIS:
        for data in (b"", b"{", b"[]", b"null", b"5", b'{"messages": 5, "input": 5, "max_tokens": 4}', deep_body, half, b'{"a": "\xff"}'):
            request = urllib.request.Request(url + api.path, data, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=300) as answer:
                    check(data == half, (api.name, data[:60], answer.status))
            except urllib.error.HTTPError as error:
                text = error.read().decode()
                check(error.code == 400, (api.name, data[:60], error.code, text))
                told.append((api.name, data[:30].decode(errors="replace"), one_sentence(api, text, data[:60])))
    return told


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--models", type=pathlib.Path, help="without it the server is the one with made-up tokens")
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--quick", action="store_true", help="greedy answers only")
    parser.add_argument("--keep-going", action="store_true", help="say all that is wrong, and what is refused and how")
    options = parser.parse_args()
    faults, seen, count = [], set(), 0
    for model in ["made-up tokens"] if options.models is None else [options.model] if options.model else MODELS:
        # One thread: on a busy machine two wait for each other.
        with FakeServer(options.server) if options.models is None else \
                RealServer(options.server, options.models / model, "--recurrence", 4, "--threads", 1, "--log-file", "/dev/null") as server:
            for api in APIS:
                cases = [(name, api.body(turns, **more), wanted) for name, turns, more, wanted in common()] + list(special(api))
                for name, body, wanted in cases:
                    if options.only and options.only not in name:
                        continue
                    count += 1
                    names = {tool.get("name") or tool.get("function", {}).get("name") for tool in body.get("tools") or [] if isinstance(tool, dict)}
                    try:
                        judge(api, server.url, name, body, wanted, names, seen, LAWS[:1] if options.quick else LAWS)
                    except AssertionError as fault:
                        if not options.keep_going:
                            raise
                        faults.append(str(fault))
                        print("FAULT", fault, flush=True)
                print(f"{model}, {api.name}: {len(cases)} cases", flush=True)
            if not options.only:
                cut_streams(server.url)
                seen.update(raw_bodies(server.url))
            if options.models is not None:
                check(server.metric("loopspec:http_responses_total", 'code="5') == 0, "a 5xx")
                check(server.stop() == 0, "the exit code")
    if options.keep_going:
        for one in sorted(seen):
            print(*one, sep=" | ")
    check(not faults, f"{len(faults)} faults")
    print(f"odd agents: {count} cases, all checks passed")


if __name__ == "__main__":
    main()
