#!/usr/bin/env python3
"""What the Python package costs, against the C++ interface doing the same work on an engine of its own: a stream's tokens, and many prompts at
once. Both processes are loaded and take turns. Two things must be within 2 %: the CPU time that reading takes more in Python, as a share of the
work's time, which is what it can cost at most where the engine needs every core; and, on a quiet machine, the medians of the times
themselves. `loopspec bench`'s figure is shown beside them.

  overhead_check.py --reference PROGRAM [--rounds N]       LOOPSPEC_BINARY: the command line
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

from support import BINARY, OURO, PROMPTS

STREAM_TOKENS = 128
BULK_TOKENS = 32
BULK_PROMPTS = 24
MOST = 0.02
QUIET = 1.05  # C++'s median round over its best


def python_stream(engine, prompts):
    return sum(1 for _ in engine.stream(prompts[0], max_tokens=STREAM_TOKENS, ignore_eos=True))


def python_bulk(engine, prompts):
    outputs = engine.generate(prompts, max_tokens=BULK_TOKENS, ignore_eos=True, use_tqdm=False)
    return sum(len(output.token_ids) for output in outputs)


def timed(work):
    """Seconds, seconds of this thread's CPU time, and tokens."""
    start, busy = time.perf_counter(), time.thread_time()
    count = work()
    return time.perf_counter() - start, time.thread_time() - busy, count


class Reference:
    """The same in C++."""

    def __init__(self, program, file):
        self.process = subprocess.Popen([program, OURO, file, "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, what, tokens):
        self.process.stdin.write(f"{what} {tokens}\n")
        self.process.stdin.flush()
        seconds, busy, count = self.process.stdout.readline().split()
        return float(seconds), float(busy), int(count)

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def bench(file):
    """Tokens per second of the first prompt, by the engine's clock: from the read prompt to the last token."""
    done = subprocess.run([BINARY, "bench", "--model", OURO, "--prompts", file, "--limit", "1", "--decode", "loopspec", "--ignore-eos",
                           "-n", str(STREAM_TOKENS), "--repeat", "9", "--json"], capture_output=True, text=True, check=True)
    [way] = json.loads(done.stdout)["results"]
    return f"{way['tokens_per_second']['median']:.1f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--reference", required=True)
    parser.add_argument("--rounds", type=int, default=30)
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
        taken = {(who, what): [] for who in ("C++", "Python") for what in work}
        count = {}
        for round_ in range(options.rounds + 1):
            for what, (tokens, ours) in work.items():
                turns = [("C++", lambda what=what, tokens=tokens: reference.run(what, tokens)), ("Python", lambda ours=ours: timed(ours))]
                for who, turn in turns if round_ % 2 else turns[::-1]:
                    seconds, busy, count[who, what] = turn()
                    if round_:  # the first one warms up
                        taken[who, what].append((seconds, busy))
                if count["C++", what] != count["Python", what]:
                    sys.exit(f"{what}: {count} tokens, expected as many")
        own = []
        for _ in range(9):
            with engine.stream(prompts[0], max_tokens=STREAM_TOKENS, ignore_eos=True) as stream:
                for _ in stream:
                    pass
            own.append(stream.output.statistics.tokens_per_second)
        engine.close()
        reference.close()
        print(f"bench {bench(file.name)}, the engine under Python by the same clock {statistics.median(own):.1f} tokens/s (medians)")
    failed = []
    for what in work:
        tokens = count["Python", what]
        best, middle, busy = ({who: pick(entry[part] for entry in taken[who, what]) for who in ("C++", "Python")}
                              for pick, part in ((min, 0), (statistics.median, 0), (statistics.median, 1)))
        ratio = middle["Python"] / middle["C++"]
        share = (busy["Python"] - busy["C++"]) / best["C++"]
        quiet = middle["C++"] <= QUIET * best["C++"]
        print(f"{what}, {tokens} tokens: C++ {tokens / best['C++']:.1f} tokens/s, Python {tokens / best['Python']:.1f} at best; medians "
              f"{tokens / middle['C++']:.1f} and {tokens / middle['Python']:.1f}, ratio of times {ratio:.4f}; the reader's CPU time per token: "
              f"C++ {busy['C++'] / tokens * 1e6:.1f} us, Python {busy['Python'] / tokens * 1e6:.1f} us, {share:.2%} more of the time", flush=True)
        if share > MOST:
            failed.append(f"{what} by CPU time")
        if quiet and ratio > 1 + MOST:
            failed.append(what)
        elif not quiet:
            print(f"{what}: the machine was busy, times are not compared")
    if failed:
        sys.exit(f"{', '.join(failed)}: expected at most {MOST:.0%} more than in C++")
    print("the package's cost: all checks passed")


if __name__ == "__main__":
    main()
