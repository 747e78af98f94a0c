#!/usr/bin/env python3
"""Packages from PyPI that agents are made with, against `loopspec serve` on a demo model: each calls a tool and sends the result back, whole and
as a stream; bodies and events are held against the packages' own types.

  agent_clients.py --server BINARY --model FOLDER --venv FOLDER
"""

import argparse
import json
import typing

from client_support import inside_venv
from real_server import RealServer

# Of 2026-11-18: pinned, since pip looks long for a set that fits together.
PACKAGES = ["openai==2.54.0", "anthropic==2.10.0", "openai-agents==0.20.0", "instructor==1.17.0", "langchain-openai==1.7.3"]
DIGIT = {"type": "integer", "enum": [1, 2, 3]}
SCHEMA = {"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "required": ["a", "b"], "additionalProperties": False}
QUESTION = "Add two numbers."
KEY = "a-key"


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def added(arguments):
    """What the tool answers; the arguments are always valid."""
    values = json.loads(arguments) if isinstance(arguments, str) else arguments
    check(list(values) == ["a", "b"] and all(value in (1, 2, 3) for value in values.values()), arguments)
    return str(values["a"] + values["b"])


# ---- Types ----


def types_of_responses(url):
    from openai.types.responses import Response, ResponseStreamEvent
    from sdk_types import check_events, checked, events, post

    tool = {"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True}
    bodies = [
        {"input": "Tell me a story.", "max_output_tokens": 20},
        {"input": QUESTION, "tools": [tool, {"type": "web_search"}], "tool_choice": "required", "max_output_tokens": 200},
        {"input": QUESTION, "tools": [tool], "tool_choice": {"type": "function", "name": "add"}, "reasoning": {"effort": "low", "summary": "auto"},
         "max_output_tokens": 200, "metadata": {"a": "b"}, "instructions": "Be brief.", "temperature": 0, "top_p": 1},
        {"input": "A shape.", "max_output_tokens": 200, "text": {"format": {"type": "json_schema", "name": "shape", "strict": True, "schema": SCHEMA}}},
    ]
    for body in bodies:
        body["seed"] = 1
        with post(url + "/v1/responses", body, KEY) as answer:
            whole = checked(Response, json.load(answer))
        models = check_events(ResponseStreamEvent, events(url + "/v1/responses", body, KEY))
        check([model.sequence_number for model in models] == list(range(len(models))), "sequence numbers")
        last = models[-1].response
        check(last.status == whole.status, (last.status, whole.status))
        check([item.type for item in last.output] == [item.type for item in whole.output], (last.output, whole.output))
        check(last.output_text == whole.output_text, (last.output_text, whole.output_text))
        done = [model.item for model in models if model.type == "response.output_item.done"]
        check([item.model_dump() for item in done] == [item.model_dump() for item in last.output], "items differ from those of the stream")
        check(models[0].response.id == last.id and models[0].response.usage is None, models[0])


def types_of_messages(url):
    from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
    from sdk_types import check_events, checked, events, post

    tool = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}
    ask = [{"role": "user", "content": QUESTION}]
    bodies = [
        {"messages": ask, "max_tokens": 20},
        {"messages": ask, "max_tokens": 200, "tools": [tool, {"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}},
        {"messages": ask, "max_tokens": 200, "tools": [tool], "tool_choice": {"type": "tool", "name": "add"},
         "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}], "thinking": {"type": "disabled"}},
    ]
    for body in bodies:
        body |= {"seed": 1, "model": "any"}
        with post(url + "/v1/messages", body, KEY) as answer:
            whole = checked(Message, json.load(answer))
        models = check_events(RawMessageStreamEvent, [event for event in events(url + "/v1/messages", body, KEY) if event["type"] != "ping"])
        check(models[-2].delta.stop_reason == whole.stop_reason, (models[-2], whole.stop_reason))
        counted = {name: value for name, value in body.items() if name != "max_tokens"}
        with post(url + "/v1/messages/count_tokens", counted, KEY) as answer:
            count = checked(MessageTokensCount, json.load(answer)).input_tokens
        check(count == whole.usage.input_tokens + whole.usage.cache_read_input_tokens, (count, whole.usage))


# ---- Round trips ----


def openai_chat(client):
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True}}]
    messages = [{"role": "user", "content": QUESTION}]
    arguments = {"model": "demo", "tools": tools, "max_tokens": 200, "temperature": 0}
    message = client.chat.completions.create(messages=messages, tool_choice="required", parallel_tool_calls=False, **arguments).choices[0].message
    call = message.tool_calls[0]
    with client.chat.completions.stream(messages=messages, tool_choice="required", parallel_tool_calls=False, **arguments) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    check((streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments), (streamed, call))
    messages += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": added(call.function.arguments)}]
    answer = client.chat.completions.create(messages=messages, tool_choice="none", **arguments)
    check(answer.choices[0].message.content and not answer.choices[0].message.tool_calls, answer)


def openai_responses(client):
    import pydantic

    tools = [{"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True}]
    history = [{"role": "user", "content": QUESTION}]
    arguments = {"model": "demo", "tools": tools, "max_output_tokens": 200, "temperature": 0, "store": False}
    response = client.responses.create(input=history, tool_choice="required", parallel_tool_calls=False, **arguments)
    call = response.output[-1]
    check(call.type == "function_call" and call.name == "add", response.output)
    with client.responses.stream(input=history, tool_choice="required", parallel_tool_calls=False, **arguments) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response().output[-1]
    check(kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds)
    check(streamed.arguments == call.arguments, (streamed, call))
    history += response.output
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": added(call.arguments)})
    answer = client.responses.create(input=history, tool_choice="none", **arguments)
    check(answer.output_text, answer)

    class Pair(pydantic.BaseModel):
        a: typing.Literal[1, 2, 3]
        b: typing.Literal[1, 2, 3]

    parsed = client.responses.parse(model="demo", input="A pair.", text_format=Pair, max_output_tokens=200)
    check(parsed.output_parsed.a in (1, 2, 3), parsed)
    try:
        client.responses.create(model="demo", input="go on", previous_response_id=response.id)
    except Exception as error:  # pylint: disable=broad-exception-caught
        check(error.status_code == 400 and error.param == "previous_response_id", error)
    else:
        raise AssertionError("previous_response_id was taken")


def anthropic_messages(client):
    tools = [{"name": "add", "description": "Adds.", "input_schema": SCHEMA}]
    messages = [{"role": "user", "content": QUESTION}]
    arguments = {"model": "demo", "tools": tools, "max_tokens": 200, "extra_body": {"temperature": 0}}
    force = {"type": "any", "disable_parallel_tool_use": True}
    message = client.messages.create(messages=messages, tool_choice=force, **arguments)
    check(message.stop_reason == "tool_use", message)
    call = message.content[-1]
    with client.messages.stream(messages=messages, tool_choice=force, **arguments) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_message()
    check(streamed.content[-1].input == call.input and streamed.stop_reason == "tool_use", (streamed, call))
    check(streamed.usage.input_tokens + streamed.usage.cache_read_input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens,
          (streamed.usage, message.usage))
    messages += [{"role": "assistant", "content": message.content},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": added(call.input)}]}]
    answer = client.messages.create(messages=messages, tool_choice={"type": "none"}, **arguments)
    check(answer.content[0].type == "text" and answer.content[0].text, answer)
    long = client.messages.with_raw_response.create(model="demo", messages=messages, max_tokens=32000, stop_sequences=["."], timeout=300)
    check(int(long.headers["X-Loopspec-Max-Tokens"]) < 32000 and long.parse().stop_reason in ("stop_sequence", "end_turn", "max_tokens"), long.headers)


def openai_agents(make_client):
    import asyncio

    import agents
    import pydantic

    calls = []

    class Total(pydantic.BaseModel):
        """What an agent ends with. A model that tells stories would not end by itself."""

        total: typing.Literal[2, 3, 4, 5, 6]

    @agents.function_tool
    def add(a: typing.Literal[1, 2, 3], b: typing.Literal[1, 2, 3]) -> int:
        """Adds."""
        calls.append((a, b))
        return a + b

    agents.set_tracing_disabled(True)
    settings = agents.ModelSettings(tool_choice="required", parallel_tool_calls=False, max_tokens=200, temperature=0)
    for model in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):

        def make_agent(client, model=model):
            return agents.Agent(name="adder", instructions="Add.", tools=[add], model=model("demo", client), model_settings=settings,
                                output_type=Total)

        async def run(stream, make_agent=make_agent):
            async with make_client() as client:  # closed before its loop is
                if not stream:
                    return (await agents.Runner.run(make_agent(client), QUESTION, max_turns=10)).final_output
                streamed = agents.Runner.run_streamed(make_agent(client), QUESTION, max_turns=10)
                async for _ in streamed.stream_events():
                    pass
                return streamed.final_output

        for stream in (False, True):
            before = len(calls)
            output = asyncio.run(run(stream))
            check(output.total in range(2, 7) and len(calls) > before, f"stream: {stream}: {output}")


def instructor_models(client):
    import instructor
    import pydantic

    class Pair(pydantic.BaseModel):
        """A pair."""

        a: typing.Literal[1, 2, 3]
        b: typing.Literal[1, 2, 3]

    ask = {"model": "demo", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 200, "temperature": 0}
    patched = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    pair = patched.chat.completions.create(response_model=Pair, **ask)
    check(pair.a in (1, 2, 3) and pair.b in (1, 2, 3), pair)
    last = None
    for last in patched.chat.completions.create_partial(response_model=Pair, **ask):
        pass
    check(last.a in (1, 2, 3) and last.b in (1, 2, 3), last)


def langchain(url):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    tool = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}
    for responses in (True, False):
        model = ChatOpenAI(model="demo", base_url=url + "/v1", api_key=KEY, use_responses_api=responses, temperature=0, max_tokens=200, max_retries=0)
        bound = model.bind_tools([tool], tool_choice="required", parallel_tool_calls=False)
        history = [HumanMessage(QUESTION)]
        message = bound.invoke(history)
        whole = None
        for chunk in bound.stream(history):
            whole = chunk if whole is None else whole + chunk
        check(whole.tool_calls[0]["args"] == message.tool_calls[0]["args"], (whole, message))
        history += [message, ToolMessage(added(message.tool_calls[0]["args"]), tool_call_id=message.tool_calls[0]["id"])]
        check(model.invoke(history).content, "an answer after the tool")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--venv", required=True)
    parser.add_argument("--only", help="one check by its name")
    options = parser.parse_args()
    inside_venv(options.venv, PACKAGES, "openai, anthropic, agents, instructor, langchain_openai")
    import anthropic
    import openai

    with RealServer(options.server, options.model, "--api-key", KEY, "--served-model-name", "demo") as server:
        arguments = {"base_url": server.url + "/v1", "api_key": KEY, "max_retries": 0, "timeout": 300}
        client = openai.OpenAI(**arguments)
        checks = {
            "types_of_responses": lambda: types_of_responses(server.url),
            "types_of_messages": lambda: types_of_messages(server.url),
            "openai_chat": lambda: openai_chat(client),
            "openai_responses": lambda: openai_responses(client),
            "anthropic_messages": lambda: anthropic_messages(anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0, timeout=300)),
            "openai_agents": lambda: openai_agents(lambda: openai.AsyncOpenAI(**arguments)),
            "instructor": lambda: instructor_models(client),
            "langchain": lambda: langchain(server.url),
        }
        for name, run in checks.items():
            if options.only in (None, name):
                run()
                print(f"{name}: passed", flush=True)
        check(server.metric("loopspec:http_responses_total", 'code="5') == 0, "a 5xx")


if __name__ == "__main__":
    main()
