#!/usr/bin/env python3
"""The GPU backend beside other programs on the same GPU: the same bits, and what a neighbour costs.

  scripts/gpu-neighbours.py --build DIR [--model DIR ...] [--tokens N] [--timed DIR] [--tests TEST[:FILTER] ...]

--build: a build with the CUDA backend and its tests. Beside each neighbour in turn (none; kernels in a loop, PyTorch's where it is
installed; a second engine of ours; a program that takes and frees memory) it runs the GPU tests (--tests names others than all; tests of
small kernels take ten times as long beside a busy loop), compares --tokens tokens of
LoopSpec with autoregressive decoding, and the text of `generate` and of a server with what they gave alone. --timed names a
model whose tokens/s are then measured beside each. Exit code 1: something failed or differed.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
TORCH = """
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range(20):
        b = a @ a
    torch.cuda.synchronize()
"""
PROMPTS = ["Once upon a time", "The cat", "Tom has 3 apples and", "One day, a little girl named"]


class Neighbour:
    """Processes that run until the end of a `with` block; none of them may end by itself."""

    def __init__(self, *commands):
        self.commands = commands
        self.processes = []

    def __enter__(self):
        for command in self.commands:
            self.processes.append(subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                                   start_new_session=True))
        if self.commands:
            time.sleep(8)  # PyTorch takes a few seconds to start
        return self

    def alive(self):
        return all(process.poll() is None for process in self.processes)

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run(command, seconds=600):
    """(exit code, output), 124 when it took too long."""
    try:
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds,
                              check=False)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as expired:
        return 124, (expired.stdout or b"").decode(errors="replace")


def generated(binary, model, tokens):
    """Ids of greedy and of seeded text."""
    texts = []
    for sampling in ([], ["--temperature", "1", "--seed", "7", "--sampler", "coupled"]):
        code, output = run([binary, "generate", "--model", model, "--device", "cuda", "--prompt", PROMPTS[0], "-n", tokens,
                            "--ignore-eos", "--json", *sampling])
        if code != 0:
            return f"generate failed with {code}: {output[-300:]}"
        texts.append(json.loads(output[output.index("{"):])["token_ids"])
    return texts


def served(binary, model):
    """Answers of a server to several prompts, with drafts and without."""
    with tempfile.NamedTemporaryFile("w+") as log:
        process = subprocess.Popen([str(binary), "serve", "--model", str(model), "--device", "cuda", "--port", "0"], stdout=subprocess.DEVNULL,
                                   stderr=log)
        try:
            for _ in range(600):
                found = re.search(r"ready: .* (http://\S+)", pathlib.Path(log.name).read_text(encoding="utf-8"))
                if found or process.poll() is not None:
                    break
                time.sleep(0.1)
            if not found:
                return "the server did not start: " + pathlib.Path(log.name).read_text(encoding="utf-8")[-300:]
            answers = []
            for prompt in PROMPTS:
                for decode in ("loopspec", "ar"):
                    body = {"prompt": prompt, "max_tokens": 100, "temperature": 0, "decode": decode}
                    request = urllib.request.Request(found[1] + "/v1/completions", json.dumps(body).encode(),
                                                     {"Content-Type": "application/json"})
                    with urllib.request.urlopen(request, timeout=300) as answer:
                        answers.append(json.load(answer)["choices"][0]["text"])
            return answers
        finally:
            process.terminate()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, nargs="+", default=[ROOT / "models/ouro-demo", ROOT / "models/raven-demo"])
    parser.add_argument("--tokens", type=int, default=20000, help="compared beside all neighbours together")
    parser.add_argument("--timed", type=pathlib.Path)
    parser.add_argument("--tests", nargs="*", default=["cuda_test", "cuda_prefill_test", "cuda_equality_test"])
    options = parser.parse_args()
    tests = options.build / "tests/backends/cuda"
    binary = options.build / "bin/loopspec"
    has_torch = run([sys.executable, "-c", "import torch; assert torch.cuda.is_available()"], 120)[0] == 0
    busy = [sys.executable, "-c", TORCH] if has_torch else [tests / "gpu_neighbour", "busy"]
    second = ["bash", "-c", f"while true; do '{tests}/gpu_check' equal '{options.model[0]}' --tokens 4000 --seconds 60; done"]
    neighbours = {
        "alone": Neighbour(),
        "beside a loop of matrix products": Neighbour(busy),
        "beside a second engine": Neighbour(second),
        "beside a program that takes and frees memory": Neighbour([tests / "gpu_neighbour", "memory"]),
    }
    failed, expected, rates = [], {}, {}
    share = -(-options.tokens // (3 * len(options.model)))  # of each model beside each neighbour
    compared = 0
    for name, neighbour in neighbours.items():
        print(f"== {name}" + (" (PyTorch)" if "matrix" in name and has_torch else ""), flush=True)

        def check(good, what):
            print(("ok      " if good else "FAILED  ") + what, flush=True)
            if not good:
                failed.append(f"{name}: {what}")

        with neighbour:
            for test in options.tests if neighbour.commands else []:
                start = time.time()
                program, _, chosen = test.partition(":")
                code, output = run([tests / program, "--gtest_brief=1", "--gtest_filter=" + (chosen or "*")])
                wrong = sorted(set(re.findall(r"\[  FAILED  \] ([^ ,\n]+/[^ ,\n]+|[^ ,\n]+\.[^ ,\n]+)", output)))
                check(code == 0, f"{test} in {time.time() - start:.0f} s" + (f", exit code {code}: {len(wrong)} failed, {wrong[:4]}" if code else ""))
            for model in options.model:
                if neighbour.commands:
                    code, output = run([tests / "gpu_check", "equal", model, "--tokens", share, "--text", "500", "--seconds", "120"])
                    match = re.search(r": (\d+) tokens in", output)
                    compared += int(match[1]) if match else 0
                    check(code == 0, f"LoopSpec == autoregressive on {model.name}: {output.strip().splitlines()[-1] if output.strip() else code}")
                for what, got in (("generate", generated(binary, model, 400)), ("serve", served(binary, model))):
                    known = expected.setdefault((what, model.name), got)
                    check(isinstance(got, list) and got == known, f"{what} on {model.name} as alone" + (f": {got}" if isinstance(got, str) else ""))
            if options.timed:
                code, output = run([tests / "gpu_check", "time", options.timed, "--context", "1024", "--depths", "1,2", "--assume", "0.90,0.075",
                                    "--tokens", "256", "--repeat", "2"])
                rates[name] = re.findall(r"^  (\S.*?)\s+([\d.]+) tokens/s", output, flags=re.M)
                check(code == 0 and bool(rates[name]), f"tokens/s: {rates[name] or output[-300:]}")
            check(neighbour.alive(), "the neighbour ran all the while")
    print(f"== {compared} tokens compared beside neighbours; " + (f"{len(failed)} failed: " + "; ".join(failed) if failed else "nothing differs"))
    for name, rate in rates.items():
        print(f"   {name}: " + ", ".join(f"{way} {tokens} tokens/s" for way, tokens in rate))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
