#!/usr/bin/env python3
"""Clients from PyPI against `loopspec serve` on a demo model, as their own manuals set them up: whole answers, streams, and what each
adds of its own. The text that they show is the text that the server gives to a plain POST.

  clients.py --server BINARY --model FOLDER --venv FOLDER [--only NAME ...]

Prints a line for each client with its version. Packages that cannot be installed are skipped, one by one.
"""

import argparse
import asyncio
import importlib
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request

from client_support import SKIPPED
from real_server import RealServer

QUESTION = "Tell me a story about a cat."
TOKENS = 24
KEY = "a-key-for-tests"


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def post(url, path, body):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    with urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode(), headers), timeout=300) as answer:
        return json.loads(answer.read()), answer.headers


def expected(url):
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": TOKENS, "temperature": 0}
    return post(url, "/v1/chat/completions", body)[0]["choices"][0]["message"]["content"]


# ---- One function for each client: says what was done ----


def run_openai(server, model, text):
    from openai import OpenAI

    client = OpenAI(base_url=server.url + "/v1", api_key=KEY)
    messages = [{"role": "user", "content": QUESTION}]
    whole = client.chat.completions.create(model=model, messages=messages, max_tokens=TOKENS, temperature=0)
    check(whole.choices[0].message.content == text, whole)
    events = client.chat.completions.create(model=model, messages=messages, max_tokens=TOKENS, temperature=0, stream=True,
                                            stream_options={"include_usage": True})
    pieces = list(events)
    check("".join(event.choices[0].delta.content or "" for event in pieces if event.choices) == text, pieces)
    check(pieces[-1].usage.completion_tokens == TOKENS, pieces[-1])
    check(client.models.retrieve(model).id == model, "models.retrieve")
    return "chat, stream with usage, models.retrieve"


def run_litellm(server, model, text):
    import litellm

    litellm.suppress_debug_info = True
    arguments = {"model": f"hosted_vllm/{model}", "api_base": server.url + "/v1", "api_key": KEY, "max_tokens": TOKENS, "temperature": 0,
                 "messages": [{"role": "user", "content": QUESTION}]}
    check(litellm.completion(**arguments).choices[0].message.content == text, "completion")
    check(litellm.completion(**{**arguments, "model": f"openai/{model}"}).choices[0].message.content == text, "openai/")
    streamed = "".join(event.choices[0].delta.content or "" for event in litellm.completion(**arguments, stream=True))
    check(streamed == text, streamed)
    router = litellm.Router(model_list=[{"model_name": "any", "litellm_params": {
        "model": f"openai/{model}", "api_base": server.url + "/v1", "api_key": KEY}}])
    answer = router.completion(model="any", messages=arguments["messages"], max_tokens=TOKENS, temperature=0)
    check(answer.choices[0].message.content == text, answer)
    return "completion (openai/, hosted_vllm/), stream, Router"


def run_langchain(server, model, text):
    from langchain_openai import ChatOpenAI, OpenAI

    chat = ChatOpenAI(model=model, base_url=server.url + "/v1", api_key=KEY, max_tokens=TOKENS, temperature=0)
    check(chat.invoke(QUESTION).content == text, "invoke")
    check("".join(piece.content for piece in chat.stream(QUESTION)) == text, "stream")
    check([answer.content for answer in chat.batch([QUESTION] * 3)] == [text] * 3, "batch")
    plain = OpenAI(model=model, base_url=server.url + "/v1", api_key=KEY, max_tokens=4, temperature=0).invoke("Once upon a")
    check(len(plain) > 0, plain)
    return "ChatOpenAI invoke, stream, batch; OpenAI"


def run_llama_index(server, model, text):
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    chat = OpenAILike(model=model, api_base=server.url + "/v1", api_key=KEY, is_chat_model=True, max_tokens=TOKENS, temperature=0)
    check(chat.chat([ChatMessage(role="user", content=QUESTION)]).message.content == text, "chat")
    check("".join(piece.delta or "" for piece in chat.stream_chat([ChatMessage(role="user", content=QUESTION)])) == text, "stream")
    plain = OpenAILike(model=model, api_base=server.url + "/v1", api_key=KEY, is_chat_model=False, max_tokens=4, temperature=0)
    check(len(plain.complete("Once upon a").text) > 0, "complete")
    return "OpenAILike chat, stream_chat, complete"


def run_pydantic_ai(server, model, text):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=server.url + "/v1", api_key=KEY)
    agent = Agent(OpenAIChatModel(model, provider=provider), model_settings={"max_tokens": TOKENS, "temperature": 0})
    answer = agent.run_sync(QUESTION)
    check(answer.output == text, (answer, text))

    async def streamed():
        async with agent.run_stream(QUESTION) as result:
            return await result.get_output()

    check(asyncio.run(streamed()) == text, "run_stream")
    return "Agent run_sync, run_stream"


def run_openai_agents(server, model, text):
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    async def run():
        client = AsyncOpenAI(base_url=server.url + "/v1", api_key=KEY)
        agent = Agent(name="story", model=OpenAIChatCompletionsModel(model=model, openai_client=client),
                      model_settings=ModelSettings(max_tokens=TOKENS, temperature=0))
        whole = await Runner.run(agent, QUESTION)
        streamed = Runner.run_streamed(agent, QUESTION)
        async for _ in streamed.stream_events():
            pass
        await client.close()
        return whole.final_output, streamed.final_output

    check(asyncio.run(run()) == (text, text), "Runner")
    return "Runner.run, run_streamed with the chat model"


def run_haystack(server, model, text):
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.utils import Secret

    pieces = []
    for callback in (None, lambda piece: pieces.append(piece.content)):
        generator = OpenAIChatGenerator(api_key=Secret.from_token(KEY), model=model, api_base_url=server.url + "/v1", streaming_callback=callback,
                                        generation_kwargs={"max_tokens": TOKENS, "temperature": 0})
        check(generator.run([ChatMessage.from_user(QUESTION)])["replies"][0].text == text, "run")
    check("".join(pieces) == text, pieces)
    return "OpenAIChatGenerator, whole and streamed"


def run_guidellm(server, model, _):
    """A benchmark: what it counted is what it asked for."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        command = [str(pathlib.Path(sys.prefix) / "bin" / "guidellm"), "run",
                   "--backend", f"kind=openai_http,target={server.url},model={model},api_key={KEY}", "--profile", "kind=synchronous",
                   "--constraint", "kind=max_requests,count=3", "--tokenizer", f"kind=hf_auto,model={os.environ['LOOPSPEC_TEST_TOKENIZER']}",
                   "--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8", "--output", f"kind=json,path={report}", "--disable-console-interactive"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        check(result.returncode == 0 and report.exists(), (result.stdout + result.stderr)[-3000:])
        benchmark = json.loads(report.read_text())["benchmarks"][0]
        done = benchmark["requests"]["successful"]
        check(len(done) == 3, (result.stdout + result.stderr)[-3000:])
        counts = [request["output_metrics"]["text_tokens"] if "output_metrics" in request else request["output_tokens"] for request in done]
        check(counts == [8, 8, 8], counts)
    return "benchmark run: 3 of 3 requests, 8 tokens counted for each"


def run_aider(server, model, _):
    """A coding tool over litellm; the demo models cannot code, so what counts is that it gets its answer."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(pathlib.Path(os.environ.get("LOOPSPEC_TEST_AIDER", sys.prefix)) / "bin" / "aider"), "--model", f"openai/{model}",
                   "--openai-api-base", server.url + "/v1", "--openai-api-key", KEY, "--no-git", "--yes-always", "--no-check-update",
                   "--no-show-model-warnings", "--analytics-disable", "--no-pretty", "--edit-format", "ask", "--map-tokens", "0",
                   "--message", "Hello"]
        before = server.metric("vllm:generation_tokens_total")
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False, env={**os.environ, "HOME": folder})
        check(result.returncode == 0 and not re.search(r"litellm\.\w*Error", result.stdout), (result.stdout + result.stderr)[-3000:])
        check(server.metric("vllm:generation_tokens_total") > before, result.stdout)
    return "--message, streamed"


def run_raw(server, model, text):
    """What hand-written and promptfoo-like clients send: every field at its default, some that nobody knows."""
    body = {"model": model, "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}], "max_tokens": TOKENS, "temperature": 0,
            "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "n": 1, "stop": [], "tools": [], "tool_choice": "auto", "user": "me",
            "response_format": {"type": "text"}, "stream": False, "logit_bias": {}, "seed": None, "apiHost": "nowhere", "passthrough": {}}
    answer, headers = post(server.url, "/v1/chat/completions", body)
    check(answer["choices"][0]["message"]["content"] == text, answer)
    check(headers["X-Loopspec-Ignored"] == "apiHost, passthrough", headers["X-Loopspec-Ignored"])
    return "every field at its default, two that nobody knows"


CLIENTS = {  # name: packages, module
    "openai": (["openai"], "openai", run_openai),
    "litellm": (["litellm"], "litellm", run_litellm),
    "langchain-openai": (["langchain-openai"], "langchain_openai", run_langchain),
    "llama-index-llms-openai-like": (["llama-index-llms-openai-like"], "llama_index.llms.openai_like", run_llama_index),
    "pydantic-ai-slim": (["pydantic-ai-slim[openai]"], "pydantic_ai.models.openai", run_pydantic_ai),
    "openai-agents": (["openai-agents"], "agents", run_openai_agents),
    "haystack-ai": (["haystack-ai"], "haystack", run_haystack),
    "guidellm": (["guidellm"], "guidellm", run_guidellm),
    "aider-chat": (["aider-chat"], "aider", run_aider),
    "raw": ([], "json", run_raw),
}


def inside(folder, name, packages, module):
    """The Python of a virtual environment of this client's own, where its packages can be had: their demands contradict each other."""
    python = pathlib.Path(folder) / name / "bin" / "python"
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        if subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode != 0:
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True, timeout=900)
        return python
    except (OSError, subprocess.SubprocessError) as error:
        print(f"| {name} | | cannot be installed: {error} |", flush=True)
        return None


def one(options):
    """The child: one client, in its own environment."""
    name = options.client
    with RealServer(options.server, options.model, "--api-key", KEY, "--served-model-name", "demo/story") as server:
        said = CLIENTS[name][2](server, "demo/story", expected(server.url))
    version = importlib.metadata.version(name) if CLIENTS[name][0] else ""
    print(f"| {name} | {version} | {said} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--venv", required=True)
    parser.add_argument("--only", nargs="*", default=list(CLIENTS))
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("LOOPSPEC_TEST_TOKENIZER", str(pathlib.Path(options.model).resolve()))
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched
    if options.client:
        return one(options)
    failed, ran = [], 0
    for name in options.only:
        packages, module, _ = CLIENTS[name]
        python = inside(options.venv, name, packages, module) if packages else sys.executable
        if python is None:
            continue
        ran += 1
        command = [str(python), __file__, "--server", options.server, "--model", options.model, "--venv", options.venv, "--client", name]
        if subprocess.run(command, check=False).returncode != 0:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    if ran == 0 or (ran == 1 and len(options.only) == len(CLIENTS)):  # the raw one needs none
        print("SKIPPED: no package can be installed")
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main()
