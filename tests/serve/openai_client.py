#!/usr/bin/env python3
"""The `openai` package from PyPI against the server: whole answers, streams, logprobs, errors, cancellation.

  openai_client.py --server BINARY --venv FOLDER
"""

import argparse
import asyncio
import time

from client_support import FakeServer, inside_venv

ANSWER = "abcdefghij"


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def whole_answers(client):
    completion = client.completions.create(model="fake", prompt="hello", max_tokens=12, logprobs=2, seed=3)
    choice = completion.choices[0]
    check(choice.text == ANSWER + "ab", choice)
    check(choice.finish_reason == "length", choice)
    check(choice.logprobs.tokens == list(ANSWER + "ab"), choice.logprobs)
    check(choice.logprobs.token_logprobs[0] == max(choice.logprobs.top_logprobs[0].values()), choice.logprobs)
    check(completion.usage.completion_tokens == 12, completion.usage)
    check(completion.model_extra["loopspec"]["seed"] == 3, completion)

    several = client.completions.create(model="fake", prompt=[[1, 2], [3, 4]], n=2, max_tokens=2)
    check([c.index for c in several.choices] == [0, 1, 2, 3], several)

    chat = client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hi"}], max_completion_tokens=3, logprobs=True,
        top_logprobs=2, extra_body={"decode": "ar", "min_p": 0.1})
    check(chat.choices[0].message.content == "abc", chat)
    check(chat.choices[0].logprobs.content[0].token == "a", chat)
    check(len(chat.choices[0].logprobs.content[0].top_logprobs) == 2, chat)
    check([model.id for model in client.models.list()] == ["fake"], "models")


def streams(client):
    chunks = list(client.completions.create(model="fake", prompt="x", max_tokens=25, stream=True))
    check("".join(c.choices[0].text for c in chunks) == (ANSWER * 3)[:25], chunks)
    chunks = list(client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hi"}], max_tokens=7, stream=True,
        stream_options={"include_usage": True}))
    check(chunks[0].choices[0].delta.role == "assistant", chunks[0])
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    check(text == "abcdefg", text)
    check(chunks[-1].usage.completion_tokens == 7, chunks[-1])
    check(chunks[-2].choices[0].finish_reason == "length", chunks[-2])


def errors(client, openai):
    for arguments, param in (({"temperature": -1}, "temperature"), ({"extra_body": {"min_tokens": 5}}, "min_tokens"),
                             ({"max_tokens": 100000}, "prompt")):
        try:
            client.completions.create(model="fake", prompt="x", **arguments)
        except openai.BadRequestError as error:
            check(error.param == param, error)
        else:
            raise AssertionError(f"not refused: {arguments}")
    try:
        client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "x"}],
                                       tools=[{"type": "function", "function": {"name": "f f", "parameters": {}}}])
    except openai.BadRequestError as error:
        check(error.param == "tools[0].function.name", error)
    else:
        raise AssertionError("a tool without a proper name was not refused")


def cancels(client, server):
    stream = client.completions.create(model="fake", prompt="x", max_tokens=4000, stream=True)
    next(iter(stream))
    check(server.ask("running") == 1, "not running")
    before = server.ask("cancelled")
    start = time.monotonic()
    stream.close()
    while server.ask("cancelled") == before:
        check(time.monotonic() - start < 1, "a hang-up was not noticed within a second")
        time.sleep(0.01)


def drains(options, openai):
    """SIGTERM: what runs is finished, what is new is refused, and the process ends by itself."""
    with FakeServer(options.server, 0.01) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=30)
        stream = iter(client.completions.create(model="fake", prompt="x", max_tokens=100, stream=True))
        text = next(stream).choices[0].text
        server.process.terminate()
        time.sleep(0.3)
        try:
            client.completions.create(model="fake", prompt="x")
        except openai.InternalServerError as error:
            check(error.status_code == 503 and error.code == "draining", error)
        else:
            raise AssertionError("a request was taken while draining")
        text += "".join(chunk.choices[0].text for chunk in stream)
        check(text == ANSWER * 10, text)
        check(server.process.stdout.readline() == "ended\n", "did not end by itself")
        check(server.process.wait(timeout=10) == 0, "exit code")


async def many_at_once(client):
    async def one(index):
        text = ""
        stream = await client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": str(index)}], max_tokens=20 + index, stream=True)
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        check(text == (ANSWER * 10)[:20 + index], text)

    await asyncio.gather(*(one(index) for index in range(32)))
    await client.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--venv", required=True)
    options = parser.parse_args()
    inside_venv(options.venv, ["openai"], "openai")
    import openai

    with FakeServer(options.server, 0.005, "a-key") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="a-key", max_retries=0, timeout=30)
        whole_answers(client)
        streams(client)
        errors(client, openai)
        cancels(client, server)
        asyncio.run(many_at_once(openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="a-key", max_retries=0)))
        try:
            openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0).models.list()
        except openai.AuthenticationError:
            pass
        else:
            raise AssertionError("a wrong key was let in")
    drains(options, openai)
    print(f"openai {openai.__version__}: all checks passed")


if __name__ == "__main__":
    main()
