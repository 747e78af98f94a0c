#!/usr/bin/env python3
"""How fast a model is decoded beside other busy processes, as a table.

Starts 0, 1, 2 and 4 busy loops, and beside them runs `loopspec generate` in turn with all threads and with one. A fair
scheduler gives every thread the same share of a core: all threads should reach that share of their speed alone, or the
speed of one thread if that is more. With --baseline, another binary takes its turn when there is no busy loop.

Runs during which a third party took more than a few percent of the machine are thrown away.

    scripts/busy-check.py [--binary build/release/bin/loopspec] [--model models/ouro-demo] [--decode ar]
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

TICKS = os.sysconf("SC_CLK_TCK")
CORES = len(os.sched_getaffinity(0))


def machine_seconds():
    """CPU time of the whole machine that was not idle, the host's share of a virtual machine included."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS


def process_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(command, loops, timeout):
    """Tokens per second, and the share of the machine that neither the command nor the loops took."""
    def foreign_seconds():
        return machine_seconds() - sum(process_seconds(loop.pid) for loop in loops) - children_seconds()
    began, foreign = time.monotonic(), foreign_seconds()
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr.strip()}")
    share = (foreign_seconds() - foreign) / (CORES * (time.monotonic() - began))
    return json.loads(result.stdout)["stats"]["tokens_per_second"], share


def compare(commands, loop_count, rounds, options):
    """Medians over `rounds` undisturbed turns of every command."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loop_count)]
    speeds = {name: [] for name in commands}
    try:
        time.sleep(0.2)
        for _ in range(rounds * 3):
            for name, command in commands.items():
                speed, foreign = measure(command, loops, options.timeout)
                if foreign <= options.foreign:
                    speeds[name].append(speed)
            if min(map(len, speeds.values())) >= rounds:
                break
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    short = [name for name, values in speeds.items() if len(values) < rounds]
    if short:
        print(f"beside {loop_count} busy loops: too few undisturbed runs of {', '.join(short)}")
    return {name: (statistics.median(values), min(values), max(values)) if values else (float("nan"),) * 3
            for name, values in speeds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/loopspec")
    parser.add_argument("--baseline", help="another binary to compare with, alone")
    parser.add_argument("--model", default="models/ouro-demo")
    parser.add_argument("--decode", default="loopspec", choices=["loopspec", "ar"])
    parser.add_argument("--loops", default="0,1,2,4", help="numbers of busy loops; 0 must be among them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--foreign", type=float, default=0.03, help="largest share of the machine for third parties")
    parser.add_argument("--timeout", type=float, default=120.0)
    options = parser.parse_args()

    def generate(binary, *more):
        return [binary, "generate", "-m", options.model, "-p", "Once upon a time", "-n", str(options.tokens),
                "--ignore-eos", "--json", "--decode", options.decode, *more]
    ours = {"all threads": generate(options.binary), "-t 1": generate(options.binary, "-t", "1")}
    counts = sorted(set(map(int, options.loops.split(","))))
    if counts[0] != 0:
        parser.error("--loops must name 0: the speed alone is the yardstick")

    print(f"{options.model}, --decode {options.decode}, {options.tokens} tokens, {CORES} cores, "
          f"medians of {options.rounds} (min-max) tokens/s")
    print("| busy loops | all threads | -t 1 | fair share | all threads over the better |")
    print("|---|---|---|---|---|")
    alone = None
    for count in counts:
        commands = dict(ours)
        if count == 0 and options.baseline:
            commands["baseline"] = generate(options.baseline)
        found = compare(commands, count, options.rounds, options)
        every, one = found["all threads"], found["-t 1"]
        alone = alone or every[0]
        fair = alone * min(1.0, CORES / (CORES + count))
        print("| {} | {:.0f} ({:.0f}-{:.0f}) | {:.0f} ({:.0f}-{:.0f}) | {:.0f} | {:.2f} |".format(
            count, *every, *one, fair, every[0] / max(one[0], fair)), flush=True)
        if "baseline" in found:
            print("| 0, baseline | {:.0f} ({:.0f}-{:.0f}) | | | {:.3f} of the baseline |".format(
                *found["baseline"], every[0] / found["baseline"][0]), flush=True)


if __name__ == "__main__":
    main()
