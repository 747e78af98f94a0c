#!/usr/bin/env python3
"""loopspec and llama.cpp in the same minutes on the same machine, in turn, with models of the same shape.

  python3 -m venv v && v/bin/pip install gguf xllamacpp
  v/bin/python bench/peers/llama_cpp.py --loopspec build/release/bin/loopspec --threads 2 --work FOLDER [--like ouro-1.4b] [--llama-bench BINARY]

The twin of a released model (random weights, `loopspec synth`) is decoded autoregressively and by LoopSpec, whose drafts are accepted at the
paper's rates (--assume-acceptance). A Llama of the same layers, heads and widths is decoded by llama.cpp: by its own llama-bench where
--llama-bench names one, else through PyPI's xllamacpp, which has llama.cpp inside, by the times that llama.cpp itself reports. A looped model takes R passes
to a token, so llama.cpp's tokens/s are divided by R; that reads its head R times where ours is read once, 6 % more bytes for
Ouro-1.4B's shape. Medians over the rounds, with the least and the most.
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


def by_llama_bench(options, file):
    """Tokens/s of one pass each, after a prompt of the same length."""
    rows = json.loads(run(options.llama_bench, "-m", file, "-t", options.threads, "-p", 0, "-n", options.tokens, "-d", options.prompt, "-r", 1, "-ngl", 0, "-o", "json"))
    [row] = [row for row in rows if row["n_gen"] > 0]
    return row["avg_ts"]


def by_xllamacpp(options, file):
    """The same by the times in llama.cpp's answer; a process of its own, so that nothing of it is left for the next."""
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
    said = run(sys.executable, "-c", code, file, options.threads, options.prompt, options.tokens)
    [line] = [line for line in said.splitlines() if line.startswith("TIMES")]
    times = json.loads(line[5:])
    if times["predicted_n"] != options.tokens:
        raise SystemExit(f"llama.cpp wrote {times['predicted_n']} tokens, expected {options.tokens}")
    return times["predicted_per_second"]


def cell(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


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
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    for name in ("layers", "width", "vocab"):
        parser.add_argument(f"--{name}", type=int, help="smaller than the model, for a trial")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise SystemExit(f"--kinds has {unknown[0]}, expected {', '.join(KINDS)}")
    passes = prepare(options, kinds)
    peer = by_llama_bench if options.llama_bench else by_xllamacpp
    rates = {kind: ([], [], []) for kind in kinds}
    for _ in range(options.rounds):
        for kind in kinds:
            for values, rate in zip(rates[kind], [*ours(options, kind), peer(options, options.work / f"llama-{KINDS[kind]}.gguf") / passes]):
                values.append(rate)
    print(f"{options.like}, {options.threads} threads, {options.tokens} tokens after {options.prompt}, {options.rounds} rounds in turn; tokens/s: median (least to most)")
    print(f"| | autoregressive | LoopSpec ({options.depths}), drafts accepted at the paper's rates | llama.cpp, {passes} passes to a token |\n|---|---|---|---|")
    for kind, (plain, drafts, theirs) in rates.items():
        print(f"| {kind}, {KINDS[kind]} | {cell(plain)} | {cell(drafts)} | {cell(theirs)} |")


if __name__ == "__main__":
    main()
