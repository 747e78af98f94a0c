#!/usr/bin/env python3
"""What the Python package costs, against the C++ interface doing the same work on an engine of its own: a stream's tokens, and many prompts at
once. Both processes are loaded, and take turns; medians of the rounds are compared, and `loopspec bench`'s own figure is shown. At most
2 % slower is expected, which only a quiet machine can show: a first round apart from the others by more than that is said.

  overhead_check.py --reference PROGRAM [--rounds N]       LOOPSPEC_BINARY: the command line
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from support import BINARY, OURO, PROMPTS

STREAM_TOKENS = 400
BULK_TOKENS = 48
BULK_PROMPTS = 48
MOST = 1.02


def python_stream(engine, prompts):
    start = time.perf_counter()
    count = sum(1 for _ in engine.stream(prompts[0], max_tokens=STREAM_TOKENS, ignore_eos=True))
    return time.perf_counter() - start, count


def python_bulk(engine, prompts):
    start = time.perf_counter()
    outputs = engine.generate(prompts, max_tokens=BULK_TOKENS, ignore_eos=True, use_tqdm=False)
    return time.perf_counter() - start, sum(len(output.token_ids) for output in outputs)


class Reference:
    """The same in C++."""

    def __init__(self, program, file):
        self.process = subprocess.Popen([program, OURO, file, "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, what, tokens):
        self.process.stdin.write(f"{what} {tokens}\n")
        self.process.stdin.flush()
        seconds, count = self.process.stdout.readline().split()
        return float(seconds), int(count)

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def bench(file):
    """Tokens per second of the first prompt, and the engine's own clock from the read prompt to the last token."""
    done = subprocess.run([BINARY, "bench", "--model", OURO, "--prompts", file, "--limit", "1", "--decode", "loopspec", "--ignore-eos",
                           "-n", str(STREAM_TOKENS), "--repeat", "3", "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--reference", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    import loopspec

    prompts = [f"{PROMPTS[index % 2]} {index}" for index in range(BULK_PROMPTS)]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(prompts) + "\n")
        file.flush()
        reference = Reference(options.reference, file.name)
        engine = loopspec.Engine(OURO, cache_memory=0)
        work = {"stream": (STREAM_TOKENS, lambda: python_stream(engine, prompts)),
                "bulk": (BULK_TOKENS, lambda: python_bulk(engine, prompts))}
        seconds = {(who, what): [] for who in ("C++", "Python") for what in work}
        own = []
        for round_ in range(options.rounds + 1):
            for what, (tokens, ours) in work.items():
                turns = [("C++", lambda what=what, tokens=tokens: reference.run(what, tokens)), ("Python", ours)]
                counts = {}
                for who, turn in turns if round_ % 2 else turns[::-1]:
                    took, counts[who] = turn()
                    if round_:  # the first one warms up
                        seconds[who, what].append(took)
                if counts["C++"] != counts["Python"]:
                    sys.exit(f"{what}: {counts} tokens, expected as many")
                work_tokens = counts["Python"]
                if round_ == 0:
                    print(f"{what}: {work_tokens} tokens a round", flush=True)
            with engine.stream(prompts[0], max_tokens=STREAM_TOKENS, ignore_eos=True) as stream:
                for _ in stream:
                    pass
            own.append(stream.output.statistics.tokens_per_second)
        engine.close()
        reference.close()
        said = bench(file.name)
    failed = []
    for what in work:
        plain, ours = (statistics.median(seconds[who, what]) for who in ("C++", "Python"))
        spread = max(seconds["C++", what]) / min(seconds["C++", what])
        ratio = ours / plain
        line = f"{what}: C++ {plain:.3f} s, Python {ours:.3f} s, ratio {ratio:.4f}; C++ itself from round to round {spread:.3f}"
        if what == "stream":
            line += f"; {(ours - plain) / STREAM_TOKENS * 1e6:.1f} us a token"
        print(line, flush=True)
        if ratio > MOST and spread <= 1.1:
            failed.append(what)
        elif ratio > MOST:
            print(f"{what}: the machine was busy, and nothing can be said")
    theirs = said["ways"][0]["tokens_per_second"] if "ways" in said else said
    print(f"bench: {json.dumps(theirs)[:300]}; the engine under Python, by the same clock: {statistics.median(own):.1f} tokens/s")
    if failed:
        sys.exit(f"{', '.join(failed)}: expected at most {MOST} times as long as in C++")
    print("the package's cost: all checks passed")


if __name__ == "__main__":
    main()
