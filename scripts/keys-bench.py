#!/usr/bin/env python3
"""Speed and memory of types of keys on a CPU, in turn: one process for each type, of which one works at a time.

    scripts/keys-bench.py models/raven-demo --depths 4,8 --context 3000 8000 --types bf16 int8 loops

Prints medians, the least and the most, and how they compare with the first type. Acceptance is the paper's, drawn, not
decided by the model. Decoding goes on from a prompt that is read once; prompts are timed on their own, --prompt tokens long.
"""
import argparse
import json
import statistics
import subprocess


class Worker:
    def __init__(self, options, kv_type):
        command = [options.program, options.model, kv_type, options.depths, str(max(options.context) + options.tokens + 128)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.facts = self.read()
        self.times = {}

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"keys_bench ended: {self.process.wait()}")
        return json.loads(line)

    def ask(self, command):
        print(command, file=self.process.stdin, flush=True)
        return self.read()

    def note(self, name, value):
        self.times.setdefault(name, []).append(value)


def row(name, workers, unit):
    cells = []
    for worker in workers:
        times = worker.times[name]
        # Rounds are compared in pairs: all types worked in turn in each of them.
        ratio = statistics.median(a / b for a, b in zip(times, workers[0].times[name]))
        cells.append(f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f}), {ratio:.3f}x")
    print(f"| {name}, {unit} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--types", nargs="+", default=["bf16", "int8", "loops"])
    parser.add_argument("--depths", required=True)
    parser.add_argument("--context", nargs="+", type=int, default=[3000, 8000])
    parser.add_argument("--prompt", type=int, default=0, help="tokens of the prompts that are timed; 0: none")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", default="build/release/bench/keys_bench")
    options = parser.parse_args()
    workers = [Worker(options, kv_type) for kv_type in options.types]
    print(f"{options.model} on {workers[0].facts['chip']}, ({options.depths}), {options.rounds} rounds, {options.tokens} tokens")
    print("| | " + " | ".join(worker.facts["kv_type"] for worker in workers) + " |")
    print("|---|" + "---|" * len(workers))
    for turn in range(options.rounds if options.prompt else 0):
        for worker in workers:
            worker.note("prompt", options.prompt / worker.ask(f"prompt {options.prompt} {100 + turn}")["prefill_seconds"])
    if options.prompt:
        row("prompt", workers, f"tokens/s of {options.prompt}")
    for context in sorted(options.context):
        for worker in workers:
            seconds = worker.ask(f"prompt {context} 1")["prefill_seconds"]
            worker.note(f"prompt of {context}", context / seconds)
        row(f"prompt of {context}", workers, "tokens/s, once")
        for _ in range(options.rounds):
            for way in ("loopspec", "ar"):
                for worker in workers:
                    told = worker.ask(f"{way} {options.tokens}")
                    if told["cached_tokens"] < context - 64:
                        raise SystemExit(f"{context - told['cached_tokens']} tokens of the prompt were read again")
                    worker.note(f"{way} at {context}", told["tokens_per_second"])
        for way in ("ar", "loopspec"):
            row(f"{way} at {context}", workers, "tokens/s")
    for name in ("token", "window", "weights", "resident", "most_resident"):
        print(f"| {name}, MB | " + " | ".join(f"{worker.ask('memory')[name] / 1e6:.4g}" for worker in workers) + " |")


if __name__ == "__main__":
    main()
