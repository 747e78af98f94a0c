#!/usr/bin/env python3
"""The `openai` package from PyPI against `loopspec serve` on a demo model: what it asks for is what the model's own numbers say, streamed or
not, alone or many at once, autoregressive or LoopSpec.

  openai_real_client.py --server BINARY --model FOLDER --venv FOLDER
"""

import argparse
import asyncio
import json
import time
import urllib.request

from client_support import inside_venv
from real_server import RealServer

STORY = [{"role": "user", "content": "Tell me a story about a cat."}]


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def ways(decode):
    return {"extra_body": {"decode": decode}}


def whole_answers(client, model):
    chat = {way: client.chat.completions.create(model=model, messages=STORY, max_tokens=40, temperature=0, **ways(way))
            for way in ("ar", "loopspec")}
    texts = {way: answer.choices[0].message.content for way, answer in chat.items()}
    check(texts["ar"] == texts["loopspec"] and len(texts["ar"]) > 40, texts)
    check(chat["ar"].usage.completion_tokens == 40, chat["ar"].usage)
    check(chat["loopspec"].model_extra["loopspec"]["gamma"] > 1, chat["loopspec"].model_extra)
    seeded = [client.completions.create(model=model, prompt="Once", max_tokens=20, temperature=1, seed=7,
                                        extra_body={"sampler": "coupled", "decode": way}).choices[0].text
              for way in ("ar", "loopspec", "loopspec")]
    check(seeded[0] == seeded[1] == seeded[2], seeded)
    several = client.completions.create(model=model, prompt=["Once upon", "Tom had"], n=2, max_tokens=5, temperature=0)
    check([choice.index for choice in several.choices] == [0, 1, 2, 3], several)
    check(several.choices[0].text == several.choices[1].text != several.choices[2].text, several)
    return texts["ar"]


def log_probabilities(client, model):
    plain = client.completions.create(model=model, prompt="Once upon a time", max_tokens=12, temperature=0, logprobs=3, **ways("ar"))
    ours = client.completions.create(model=model, prompt="Once upon a time", max_tokens=12, temperature=0, logprobs=3, **ways("loopspec"))
    check(plain.choices[0].logprobs == ours.choices[0].logprobs, "logprobs differ between ways of decoding")
    numbers = ours.choices[0].logprobs
    for value, top in zip(numbers.token_logprobs, numbers.top_logprobs):
        check(value == max(top.values()) and len(top) == 3 and value <= 0, (value, top))
    # The same text given and scored has the same numbers: on the CPU prefill equals decoding.
    ids = [[*prompt_ids(client, "Once upon a time"), *prompt_ids(client, ours.choices[0].text)]]
    echo = client.completions.create(model=model, prompt=ids, max_tokens=0, temperature=0, logprobs=3, extra_body={"echo": True})
    check(echo.choices[0].logprobs.token_logprobs[-12:] == numbers.token_logprobs, "echo and decoding differ")
    chat = client.chat.completions.create(model=model, messages=STORY, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2)
    entries = chat.choices[0].logprobs.content
    check(len(entries) == 4 and "".join(entry.token for entry in entries) == chat.choices[0].message.content, entries)
    check(all(entry.logprob == entry.top_logprobs[0].logprob for entry in entries), entries)


def prompt_ids(client, text):
    url = str(client.base_url).replace("/v1/", "/tokenize")
    body = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=60) as answer:
        return json.load(answer)["tokens"]


def streams(client, model, expected):
    chunks = list(client.chat.completions.create(model=model, messages=STORY, max_tokens=40, temperature=0, stream=True,
                                                 stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    check(text == expected, (text, expected))
    check(len(chunks) > 5 and chunks[-1].usage.completion_tokens == 40, chunks[-1])
    stopped = client.completions.create(model=model, prompt="Once upon a time", max_tokens=60, temperature=0, stop=["Lily", "named"])
    check(stopped.choices[0].finish_reason == "stop" and "named" not in stopped.choices[0].text, stopped)


def cancels(client, model, server):
    before = server.metric("loopspec:request_failure_total", "cancelled")
    stream = client.completions.create(model=model, prompt="Once", max_tokens=1800, temperature=0, stream=True,
                                       extra_body={"ignore_eos": True})
    next(iter(stream))
    start = time.monotonic()
    stream.close()
    while server.metric("loopspec:request_failure_total", "cancelled") == before:
        check(time.monotonic() - start < 10, "a hang-up was not noticed")
        time.sleep(0.01)
    return time.monotonic() - start


async def many_at_once(client, model, expected):
    async def one(decode):
        text = ""
        stream = await client.chat.completions.create(model=model, messages=STORY, max_tokens=40, temperature=0, stream=True, **ways(decode))
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        check(text == expected, (text, expected))

    async def cancelled():
        stream = await client.completions.create(model=model, prompt="Tom", max_tokens=1000, stream=True, extra_body={"ignore_eos": True})
        async for _ in stream:
            break
        await stream.close()

    await asyncio.gather(*(one(["ar", "loopspec"][index % 2]) for index in range(12)), *(cancelled() for _ in range(4)))
    await client.close()


def errors(client, model, openai):
    try:
        client.completions.create(model=model, prompt="x " * 3000, max_tokens=1)
    except openai.BadRequestError as error:
        check(error.code == "context_length_exceeded", error)
    else:
        raise AssertionError("a prompt beyond the context was taken")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--venv", required=True)
    options = parser.parse_args()
    inside_venv(options.venv, ["openai"], "openai")
    import openai

    with RealServer(options.server, options.model, "--api-key", "a-key", "--served-model-name", "demo") as server:
        arguments = {"base_url": server.url + "/v1", "api_key": "a-key", "max_retries": 0, "timeout": 300}
        client = openai.OpenAI(**arguments)
        check([model.id for model in client.models.list()] == ["demo"], "models")
        expected = whole_answers(client, "demo")
        streams(client, "demo", expected)
        noticed = cancels(client, "demo", server)
        asyncio.run(many_at_once(openai.AsyncOpenAI(**arguments), "demo", expected))
        errors(client, "demo", openai)
        check(server.metric("loopspec:http_responses_total", 'code="5') == 0, "a 5xx")
    with RealServer(options.server, options.model) as server:
        log_probabilities(openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300), "demo")
    print(f"openai {openai.__version__}: all checks passed, a hang-up was noticed after {noticed * 1000:.0f} ms")


if __name__ == "__main__":
    main()
