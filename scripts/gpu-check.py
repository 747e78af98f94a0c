#!/usr/bin/env python3
"""Checks and times the CUDA backend on a GPU host, and prints one table.

Needs a compiler, CMake, Ninja, CUDA and the header packages (nlohmann-json, fmt, googletest), but no network.
Figures are kept in the results folder, so that the table can be drawn from several calls; a part that is run again
replaces its own. A PyTorch peer's lines in files peer-*.log there stand in the table beside ours."""
import argparse
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = {
    "build": "the backend, its tests and its benchmarks (tests/backends/cuda/standalone)",
    "tests": "the GPU tests, and the GPU against the CPU where Highway is installed",
    "bench": "steps at the shapes of the released models; LoopSpec on full-size synthetic twins at assumed acceptance",
    "peer": "PyTorch: prompts of Nanbeige and Huginn (bench/cuda/prefill_peer.py), steps of Ouro and Raven "
            "(bench/peers/torch_step.py); only where it is named",
    "twins": "LoopSpec against autoregressive decoding bit for bit: demo models and twins",
    "table": "what the results folder has, against what is asked",
}
TWINS = ["ouro-1.4b", "ouro-2.6b", "raven-llama", "raven-olmo", "raven-tinyllama"]
TWIN_DEPTHS = {"ouro": "1,2;1;1,3", "raven": "2,8;4,8;3,7", "nanbeige": "1", "huginn": "4,16;4,8;8", "ifm": "1,2;2;1,3;3"}
SANITIZED = ["CudaSampling.Greedy*", "*.DoNotDependOnHowRecurrences*/4", "*.DoNotDependOnWhoFetches*/3"]


class Check:
    def __init__(self, options):
        self.options = options
        self.results = options.results
        self.tests = options.build / "tests/backends/cuda"
        self.bench = options.build / "bench/cuda"
        self.deadline = time.monotonic() + options.budget
        self.failed = False
        self.making = {}  # twins that are being written, by name
        self.results.mkdir(parents=True, exist_ok=True)

    def left(self):
        return self.deadline - time.monotonic()

    def say(self, text):
        print(f"\n== {text} ({self.options.budget - self.left():.0f} of {self.options.budget} s)", flush=True)

    def fail(self, text):
        print(f"FAILED: {text}", flush=True)
        self.failed = True

    def run(self, what, seconds, *command, log=None):
        """Whether the command ended well within its time and the budget. With `log` its output goes there too."""
        seconds = min(seconds, self.left())
        if seconds <= 5:
            self.fail(f"{what}: no time left")
            return False
        command = ["timeout", "--kill-after=5", f"{seconds:.0f}", *map(str, command)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            lines = []
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        if log:
            log.write_text("".join(lines))
        if process.returncode != 0:
            self.fail(f"{what} (exit code {process.returncode})")
        return process.returncode == 0

    def build(self):
        options = self.options
        architecture = options.architecture or gpu("compute_cap").split("\n")[0].replace(".", "") + "-real"
        self.say(f"build for {architecture}")
        configure = ["cmake", "-S", ROOT / "tests/backends/cuda/standalone", "-B", options.build, "-G", "Ninja",
                     "-DCMAKE_BUILD_TYPE=Release", f"-DLOOPSPEC_CUDA_ARCHITECTURES={architecture}"]
        if options.prefix:
            configure.append(f"-DCMAKE_PREFIX_PATH={options.prefix}/usr;{options.prefix}")
        if subprocess.run(configure, check=False).returncode or \
                subprocess.run(["cmake", "--build", options.build, "--parallel"], check=False).returncode:
            sys.exit("gpu-check.py: the build failed")

    # ---- Twins: writing them takes the processors, not the GPU, so several are written at a time ----

    def have(self, name):
        readme = self.options.twins / name / "README.md"
        return readme.exists() and "Measured" in readme.read_text()

    def start_twins(self, names):
        for name in names:
            if name in self.making or self.have(name):
                continue
            folder, results = self.options.twins / name, self.results / f"synth-{name}.txt"
            subprocess.run(["rm", "-rf", folder, results], check=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            with open(self.results / f"synth-{name}.log", "w", encoding="utf-8") as log:
                self.making[name] = subprocess.Popen([self.tests / "gpu_check", "synth", name, folder,
                                                      "--results", results], stdout=log, stderr=log)

    def await_twin(self, name):
        """Whether the twin is there, once it is written."""
        if name in self.making:
            try:
                self.making[name].wait(max(0, self.left()))
            except subprocess.TimeoutExpired:
                self.making[name].kill()
            del self.making[name]
            print((self.results / f"synth-{name}.log").read_text(), end="")
        if not self.have(name):
            self.fail(f"there is no twin of {name}")
        return self.have(name)

    def few_bits(self, name, folder):
        """The checkpoint's matrices rounded to 8 and to 4 bits: folders beside the twins."""
        made = []
        for bits in ["8", "4"]:
            to = self.options.twins / f"{name}-int{bits}"
            if (to / "config.json").exists() or \
                    self.run(f"{name} in {bits} bits", 120, self.tests / "gpu_check", "few-bits", folder, to, "--bits", bits):
                made.append(to)
        return made

    # ---- The other parts ----

    def test(self, name, *command):
        log = self.results / f"{name}.log"
        outcome = "ok" if self.run(name, 300, *command, log=log) else "FAILED"
        if outcome == "ok" and "SKIPPED" in log.read_text():
            outcome = "partly-skipped"
        with open(self.results / "tests.txt", "a", encoding="utf-8") as file:
            file.write(f"tests.{name} {outcome}\n")

    def part_tests(self):
        self.say("tests")
        (self.results / "tests.txt").write_text("")
        for name in ["cuda_test", "cuda_prefill_test", "cuda_cpu_test", "cuda_equality_test"]:
            if (self.tests / name).exists():
                self.test(name, self.tests / name, "--gtest_brief=1")
            else:
                print(f"{name} is NOT built: it needs Highway")
        if self.options.sanitizer:
            few = "--gtest_filter=" + ":".join(["Families/CudaGolden.*", *SANITIZED])
            self.test("sanitizer_memcheck", "compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "1",
                      self.tests / "cuda_test", "--gtest_brief=1", few)
            self.racecheck()

    def racecheck(self):
        """Races in our own kernels; cuBLASLt's pipelines (nvjet) are reported as hazards too."""
        log = self.results / "racecheck.log"
        self.test("sanitizer_racecheck", "sh", "-c",
                  'log=$1; shift; "$@" > "$log" 2>&1 || exit 1; ! grep -E "(Read|Write) Thread" "$log" | grep -v " at nvjet"',
                  "racecheck", log, "compute-sanitizer", "--tool", "racecheck", "--racecheck-report", "all",
                  "--print-limit", "1000000", "--show-backtrace", "no", self.tests / "cuda_test", "--gtest_brief=1",
                  "--gtest_filter=" + ":".join(SANITIZED))

    def part_bench(self):
        self.start_twins(["ouro-1.4b", "raven-llama"])
        for name in list(self.making):  # nothing else may run beside a timing
            self.await_twin(name)
        figures, times = self.results / "bench.txt", self.results / "time.txt"
        figures.unlink(missing_ok=True)
        times.unlink(missing_ok=True)
        self.say("steps and prompts")
        for family in ["ouro", "raven", "nanbeige", "huginn"]:
            self.run(f"{family} steps", 120, self.bench / "cuda_step_bench", family, "--results", figures)
        self.run("steps with int8 keys", 60, self.bench / "cuda_step_bench", "ouro", "--rows", "128", "--requests", "32",
                 "--kv-type", "bf16;int8", "--results", figures)
        for family in ["ouro", "raven"]:
            self.run(f"{family} steps with weights of few bits", 60, self.bench / "cuda_step_bench", family, "--rows", "1,4,32",
                     "--weights", "bf16,int8,int4", "--results", figures)
        self.run("prompts", 60, self.bench / "cuda_prefill_bench", "--results", figures)
        self.say("LoopSpec at assumed acceptance")
        ouro = ["ouro-1.4b", "--depths", "1,2", "--assume", "0.90,0.075"]
        keys = ["--groups", "0", "--tokens", "256", "--repeat", "2", "--kv-type", "bf16;int8"]
        planned = [*keys[:-1], "bf16;int8;loops:int8*8,last"]
        plain = ["--tokens", "512", "--repeat", "3"]
        raven = ["raven-llama", "--depths", "2,8", "--assume", "0.92,0.075"]
        for context, (twin, *how) in [("128", ouro + plain), ("1024", ouro + plain), ("1024", ouro + keys),
                                      ("16384", ouro + keys), ("1024", raven + plain), ("8000", raven + planned)]:
            if self.await_twin(twin):
                self.run(f"timing {twin} at context {context}", 120, self.tests / "gpu_check", "time",
                         self.options.twins / twin, "--context", context, *how, "--results", times)

        for twin, *how in [ouro, raven]:
            if self.await_twin(twin):
                folder = self.options.twins / twin
                self.run(f"timing {twin} with weights of few bits", 200, self.tests / "gpu_check", "time", folder,
                         *self.few_bits(twin, folder), "--context", "1024", *how, "--groups", "0", "--tokens", "256",
                         "--results", times)

    def part_peer(self):
        for family, *lengths in [("nanbeige", "1024", "8000"), ("huginn", "1024", "4000")]:
            self.say(f"peer of prompts, {family}")
            self.run(f"peer of {family}", 200, sys.executable, ROOT / "bench/cuda/prefill_peer.py", family, *lengths,
                     log=self.results / f"peer-prefill-{family}.log")
        for family, rows in [("ouro", "1,4,64,128"), ("raven", "1,32,64,128")]:
            self.say(f"peer of steps, {family}")
            self.run(f"peer of {family}'s steps", 240, sys.executable, ROOT / "bench/peers/torch_step.py", family, "--rows", rows,
                     log=self.results / f"peer-step-{family}.log")

    def part_twins(self):
        self.say("LoopSpec against autoregressive decoding, bit for bit")
        self.start_twins(self.options.twin)
        models = ["ouro-demo", "raven-demo", *self.options.twin]
        for count, name in enumerate(models):
            demo = name.endswith("-demo")
            folder = ROOT / "models" / name if demo else self.options.twins / name
            if not demo and not self.await_twin(name):
                continue
            how = ["--text", "500", "--tokens", "10000"] if demo else \
                ["--text", "250", "--tokens", "1000", "--depths", TWIN_DEPTHS[re.match("[a-z]+", name).group()]]
            seconds = int(self.left() * 0.8 / (len(models) - count))
            results = self.results / f"equal-{name}.txt"
            results.unlink(missing_ok=True)
            equal = [self.tests / "gpu_check", "equal", folder, *how]
            self.run(f"equality on {name}", 600, *equal, "--seconds", seconds, "--results", results)
            if demo or name == "ouro-1.4b":
                self.run(f"equality with int8 keys on {name}", 120, *equal, "--seconds", seconds // 4,
                         "--kv-type", "int8")
                plan = "int8*8,last" if name.startswith("raven") else "int8*2,last"
                self.run(f"equality with a plan of keys on {name}", 120, *equal, "--seconds", seconds // 4,
                         "--kv-type", f"loops:{plan}")
                for few in self.few_bits(name, folder):
                    for keys in ["bf16", "int8"]:
                        self.run(f"equality of {few.name} with {keys} keys", 120, self.tests / "gpu_check", "equal", few, *how,
                                 "--seconds", seconds // 4, "--kv-type", keys)

    def part_table(self):
        self.say("table")
        host = self.results / "host.txt"
        print(host.read_text() if host.exists() else "", end="")
        lines = [path.read_text() for pattern in ["tests.txt", "bench.txt", "time.txt", "synth-*.txt", "equal-*.txt"]
                 for path in sorted(self.results.glob(pattern))]
        for path in sorted(self.results.glob("peer-*.log")):  # its lines become keys like ours
            text = path.read_text()
            for model, part, rows, ms, rate in re.findall(
                    r"^(\S+) ([BC]) rows=(\d+) .* ms=([\d.]+) .* TBps=([\d.]+)", text, re.M):
                lines.append(f"peer.{model}.{part}.rows{rows}.ms {ms}\npeer.{model}.{part}.rows{rows}.TBps {rate}\n")
            for family, length, ms in re.findall(r"^(\S+) prefill T=(\d+) ms=([\d.]+) ", text, re.M):
                lines.append(f"peer.{family}.prefill.{length}.ms {ms}\n")
        subprocess.run(["awk", "-v", "names=" + " ".join(self.options.twin), "-f", ROOT / "scripts/gpu-table.awk"],
                       input="".join(lines), text=True, check=True)


def gpu(what):
    found = subprocess.run(["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"], capture_output=True, text=True,
                           check=False)
    if found.returncode:
        sys.exit("gpu-check.py: nvidia-smi finds no GPU here")
    return found.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="\n".join(["parts, in this order unless some are named:"] +
                                                      [f"  {name:7}{what}" for name, what in PARTS.items()]))
    parser.add_argument("part", nargs="*", metavar="PART")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/gpu", help="build folder (build/gpu)")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "build/gpu-results", help="(build/gpu-results)")
    parser.add_argument("--twins", type=pathlib.Path, default=ROOT / "build/gpu-twins",
                        help="where twins are made, 17 GB for five, 32 GB for all seven (build/gpu-twins)")
    parser.add_argument("--twin", action="append", help="may be given several times; nanbeige4.2-3b and huginn-0125 too; "
                        "default: " + " ".join(TWINS))
    parser.add_argument("--budget", type=int, default=570, help="seconds that one call may take after the build (570)")
    parser.add_argument("--sanitizer", action="store_true", help="tests: a few under compute-sanitizer as well")
    parser.add_argument("--prefix", help="where packages lie that the system lacks (Highway): DIR or DIR/usr")
    parser.add_argument("--architecture", help="such as 90-real, instead of the card's own")
    options = parser.parse_args()
    for part in options.part:
        if part not in PARTS:
            parser.error(f"{part} is no part, expected {', '.join(PARTS)}")
    if options.prefix and not pathlib.Path(options.prefix).is_dir():
        parser.error(f"--prefix {options.prefix}: expected a folder")
    options.twin = options.twin or TWINS
    parts = options.part or [part for part in PARTS if part != "peer"]
    check = Check(options)
    try:
        if "build" in parts:
            check.build()
            check.deadline = time.monotonic() + options.budget
            if not options.part:
                check.start_twins(options.twin)  # while the tests run
        for part in [part for part in parts if part != "build"]:
            if part != "table":
                (check.results / "host.txt").write_text(gpu("name,driver_version,memory.total"))
            getattr(check, f"part_{part}")()
    finally:
        for process in check.making.values():  # whatever is still being made ends with this program
            process.kill()
    sys.exit(check.failed)


if __name__ == "__main__":
    main()
