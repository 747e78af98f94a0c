#!/usr/bin/env python3
"""loopspec and llama.cpp in the same minutes on the same machine, in turn, with models of the same shape.

  python3 -m venv v && v/bin/pip install gguf xllamacpp
  v/bin/python bench/peers/llama_cpp.py --loopspec build/release/bin/loopspec --threads 2 --work FOLDER [--like ouro-1.4b] [--llama-bench BINARY]

The twin of a released model (random weights, `loopspec synth`) is decoded autoregressively and by LoopSpec, whose drafts are accepted at the
paper's rates (--assume-acceptance). A Llama of the same layers, heads and widths is decoded by llama.cpp: by its own llama-bench where
--llama-bench names one, else through PyPI's xllamacpp, which has llama.cpp inside, by the times that llama.cpp itself reports. A looped model takes R passes
to a token, so llama.cpp's tokens/s are divided by R; that reads its head R times where ours is read once, 6 % more bytes for
Ouro-1.4B's shape. With --prefill N a prompt of N tokens is timed too, in seconds: all R recurrences of ours, R passes of llama.cpp's.
Medians over the rounds, with the least and the most; ratios are of one round each.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from llama_gguf import write_llama

KINDS = {"int8": "Q8_0", "int4": "Q4_0", "bf16": "BF16"}


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done.stdout


def prepare(options, kinds):
    """The twin in every precision, and the Llamas. What is there already is kept."""
    folder = options.work
    folder.mkdir(parents=True, exist_ok=True)
    twin = folder / "bf16"
    small = [word for name in ("layers", "width", "vocab") if getattr(options, name) for word in (f"--{name}", getattr(options, name))]
    if not (twin / "config.json").exists():
        run(options.loopspec, "synth", "--like", options.like, *small, "--no-measure", "-o", twin)
    config = json.loads((twin / "config.json").read_text(encoding="utf-8"))
    if config.get("model_type") != "ouro":
        raise SystemExit(f"--like {options.like} is of the family {config.get('model_type')}, expected ouro: its layers are a Llama's")
    for kind in kinds:
        if kind != "bf16" and not (folder / kind / "config.json").exists():
            run(options.loopspec, "quantize", "-m", twin, "--to", kind, "-o", folder / kind, "--prompts", "none", "--judge", "none")
        file = folder / f"llama-{KINDS[kind]}.gguf"
        if not file.exists():
            write_llama(file, config, KINDS[kind])
    return config["total_ut_steps"]


def ours(options, kind):
    """Tokens/s, autoregressive and by LoopSpec."""
    found = json.loads(run(options.loopspec, "bench", options.work / kind, "--prompt-tokens", options.prompt, "--limit", 1, "-n", options.tokens,
                           "--decode", "ar", f"loopspec:{options.depths}", "--assume-acceptance", "paper", "--ignore-eos", "--repeat", 1,
                           "--threads", options.threads, "--device", "cpu", "--json"))
    return [result["tokens_per_second"]["median"] for result in found["results"]]


def our_prompt(options, kind):
    """Seconds for a prompt: its last token begins the answer, so one more is given."""
    tokens = ",".join(str(3 + i % 250) for i in range(options.prefill + 1))
    found = json.loads(run(options.loopspec, "generate", "-m", options.work / kind, "--tokens", tokens, "-n", 1, "--ignore-eos",
                           "--threads", options.threads, "--device", "cpu", "--json"))
    return found["stats"]["prefill_seconds"]


def prompt_by_llama_bench(options, file):
    """Seconds for one pass over a prompt."""
    [row] = json.loads(run(options.llama_bench, "-m", file, "-t", options.threads, "-p", options.prefill, "-n", 0, "-r", 1, "-ngl", 0, "-o", "json"))
    return options.prefill / row["avg_ts"]


def by_llama_bench(options, file):
    """Tokens/s of one pass each, after a prompt of the same length."""
    rows = json.loads(run(options.llama_bench, "-m", file, "-t", options.threads, "-p", 0, "-n", options.tokens, "-d", options.prompt, "-r", 1, "-ngl", 0, "-o", "json"))
    [row] = [row for row in rows if row["n_gen"] > 0]
    return row["avg_ts"]


def xllamacpp_times(options, file, prompt, tokens):
    """The times in llama.cpp's answer; a process of its own, so that nothing of it is left for the next."""
    code = """
import json, sys
import xllamacpp
file, threads, prompt, tokens = sys.argv[1], *map(int, sys.argv[2:])
params = xllamacpp.CommonParams()
params.model.path = file
params.n_ctx = prompt + tokens + 64
params.n_parallel = 1
params.n_gpu_layers = 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.warmup = True
server = xllamacpp.Server(params)
ids = [3 + i % 250 for i in range(prompt)]
answer = server.handle_completions({"prompt": ids, "max_tokens": tokens, "n_predict": tokens, "ignore_eos": True, "temperature": 0, "cache_prompt": False})
answer = answer if isinstance(answer, dict) else json.loads(answer)
print("TIMES", json.dumps(answer["timings"]))
"""
    said = run(sys.executable, "-c", code, file, options.threads, prompt, tokens)
    [line] = [line for line in said.splitlines() if line.startswith("TIMES")]
    times = json.loads(line[5:])
    if (times["prompt_n"], times["predicted_n"]) != (prompt, tokens):
        raise SystemExit(f"llama.cpp read {times['prompt_n']} and wrote {times['predicted_n']} tokens, expected {prompt} and {tokens}")
    return times


def by_xllamacpp(options, file):
    return xllamacpp_times(options, file, options.prompt, options.tokens)["predicted_per_second"]


def prompt_by_xllamacpp(options, file):
    return xllamacpp_times(options, file, options.prefill, 1)["prompt_ms"] / 1e3


def cell(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def ratio(over, under):
    return cell([a / b for a, b in zip(over, under)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loopspec", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for the models, about 8 GB for ouro-1.4b")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--llama-bench", help="llama.cpp's own, instead of xllamacpp")
    parser.add_argument("--like", default="ouro-1.4b")
    parser.add_argument("--depths", default="1,2")
    parser.add_argument("--kinds", default="int8,int4", help="of int8, int4 and bf16")
    parser.add_argument("--prompt", type=int, default=32, help="tokens before those that are timed")
    parser.add_argument("--tokens", type=int, default=64, help="0: prompts alone")
    parser.add_argument("--prefill", type=int, default=0, help="a prompt of so many tokens is timed too")
    parser.add_argument("--rounds", type=int, default=5)
    for name in ("layers", "width", "vocab"):
        parser.add_argument(f"--{name}", type=int, help="smaller than the model, for a trial")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise SystemExit(f"--kinds has {unknown[0]}, expected {', '.join(KINDS)}")
    if not options.tokens and not options.prefill:
        raise SystemExit("--tokens 0 without --prefill: nothing to time")
    passes = prepare(options, kinds)
    by_bench = options.llama_bench is not None
    rates = {kind: ([], [], []) for kind in kinds}
    prompts = {kind: ([], []) for kind in kinds}
    for _ in range(options.rounds):
        for kind in kinds:
            file = options.work / f"llama-{KINDS[kind]}.gguf"
            if options.tokens:
                theirs = (by_llama_bench if by_bench else by_xllamacpp)(options, file)
                for values, rate in zip(rates[kind], [*ours(options, kind), theirs / passes]):
                    values.append(rate)
            if options.prefill:
                theirs = (prompt_by_llama_bench if by_bench else prompt_by_xllamacpp)(options, file)
                for values, seconds in zip(prompts[kind], [our_prompt(options, kind), theirs * passes]):
                    values.append(seconds)
    print(f"{options.like}, {options.threads} threads, {options.rounds} rounds in turn: median (least to most)")
    if options.tokens:
        print(f"{options.tokens} tokens after {options.prompt}, tokens/s; drafts accepted at the paper's rates; llama.cpp: {passes} passes to a token")
        print(f"| | autoregressive | LoopSpec ({options.depths}) | LoopSpec over autoregressive | llama.cpp | autoregressive over llama.cpp |\n|---|---|---|---|---|---|")
        for kind, (plain, drafts, theirs) in rates.items():
            print(f"| {kind}, {KINDS[kind]} | {cell(plain)} | {cell(drafts)} | {ratio(drafts, plain)} | {cell(theirs)} | {ratio(plain, theirs)} |")
    if options.prefill:
        print(f"a prompt of {options.prefill} tokens, s; llama.cpp: {passes} passes\n| | loopspec | llama.cpp | as fast as llama.cpp |\n|---|---|---|---|")
        for kind, (mine, theirs) in prompts.items():
            print(f"| {kind}, {KINDS[kind]} | {cell(mine)} | {cell(theirs)} | {ratio(theirs, mine)} |")


if __name__ == "__main__":
    main()
