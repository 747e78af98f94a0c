#!/usr/bin/env python3
"""The same prompts file twice through `loopspec serve`, all prompts at once and in another order the second time. With a seed the texts are
the same; without one they differ, and each answer names the seed that gives its text again; greedy text needs none.

  seeds.py --server BINARY --model FOLDER
"""

import argparse
import concurrent.futures
import json
import pathlib
import tempfile
import urllib.request

from bad_clients import check
from real_server import RealServer

PROMPTS = ["Once upon a time", "The little bear", "Tom and Mia", "One day a bird", "In the garden", "It was raining", "A boy had a kite", "The old house"]
TOKENS = 24


def ask(server, line, **fields):
    """Text and seed of a completion, and of the same as a message."""
    answers = []
    for path, prompt in (("completions", {"prompt": line["prompt"]}), ("chat/completions", {"messages": [{"role": "user", "content": line["prompt"]}]})):
        body = {"max_tokens": TOKENS, "ignore_eos": True, **prompt, **fields}
        request = urllib.request.Request(f"{server.url}/v1/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as response:
            answer = json.load(response)
        choice = answer["choices"][0]
        answers.append((choice["text"] if "text" in choice else choice["message"]["content"], answer["loopspec"].get("seed")))
    return answers


def run(server, lines, backwards=False, **fields):
    """The answers to all lines, in the lines' order."""
    order = list(enumerate(lines))[:: -1 if backwards else 1]
    with concurrent.futures.ThreadPoolExecutor(len(lines)) as pool:
        waiting = {i: pool.submit(ask, server, line, **fields) for i, line in order}
    return [waiting[i].result() for i in range(len(lines))]


def texts(answers):
    return [text for answer in answers for text, _ in answer]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, RealServer(options.server, options.model) as server:
        file = pathlib.Path(folder) / "prompts.jsonl"
        file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS), encoding="utf-8")
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

        seeded = [run(server, lines, backwards, temperature=1, seed=7) for backwards in (False, True)]
        check(texts(seeded[0]) == texts(seeded[1]), ("a seed gave two texts", seeded))
        other = run(server, lines, temperature=1, seed=8)
        check(texts(other) != texts(seeded[0]), "two seeds gave the same texts")

        drawn = [run(server, lines, backwards, temperature=1) for backwards in (False, True)]
        check(texts(drawn[0]) != texts(drawn[1]), "without a seed two runs gave the same texts")
        seeds = [seed for answers in drawn for answer in answers for _, seed in answer]
        check(None not in seeds and len(set(seeds)) == len(seeds), ("every answer draws a seed of its own and names it", seeds))
        for line, answer in zip(lines[:2], drawn[0]):
            for way, (text, seed) in enumerate(answer):
                check(ask(server, line, temperature=1, seed=seed)[way][0] == text, ("the seed that an answer names gives its text", seed, text))

        greedy = [run(server, lines, backwards, temperature=0) for backwards in (False, True)]
        check(texts(greedy[0]) == texts(greedy[1]), "greedy text changed")
        print(f"{len(lines)} prompts, {7 * len(texts(greedy[0]))} answers: equal with a seed, different and repeatable without one")


if __name__ == "__main__":
    main()
