"""Every command of the README and of the docs, run in a folder that looks like a clone.

    commands.py BINARY [WORD]     only those with WORD in them

Commands of loopspec run with small numbers where the text gives none (LOOPSPEC_MAX_TOKENS and its kin). Where the text
takes a model that is not in the clone, the command must get as far as missing it: all its options are known. What cannot
be run is listed below, each with its reason, and must at least name files that exist.
"""
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 600  # seconds for one command

# Small numbers, where the docs leave the choice.
SMALL = {
    "LOOPSPEC_MAX_TOKENS": "8",
    "LOOPSPEC_LIMIT": "1",
    "LOOPSPEC_REPEAT": "1",
    "LOOPSPEC_POSITIONS": "64",
    "LOOPSPEC_MEASURE": "1",
    "LOOPSPEC_MEASURE_PROMPTS": "1",
    "LOOPSPEC_MEASURE_TOKENS": "8",
    "LOOPSPEC_FORCE": "true",
    "LOOPSPEC_VIEW": "greedy",
    "LOOPSPEC_PROPOSALS": "1",
    "LOOPSPEC_PORT": "0",
}

# Beginnings of commands that this test does not run, and why.
NOT_RUN = {
    "./run": "builds; tests/docs/run_script.py calls it",
    ".ci/run": "all checks, this one among them",
    "ctest": "the tests, this one among them",
    "curl": "needs the server of the line before; the tests of the server send the same",
    "cmake": "install_test does it",
    "cpack": "makes packages",
    "scripts/fuzz.sh": "takes hours",
    "scripts/gpu-check.py": "needs a GPU",
    "scripts/gpu-neighbours.py": "needs a GPU",
    "scripts/first-token.py": "takes minutes, with a server of a release build in the clone",
    "scripts/keys-bench.py": "takes minutes, with a program of a release build in the clone",
    "scripts/fetch-benchmarks.py": "downloads",
    "scripts/make-release.sh": "builds and makes packages",
    "apt": "installs",
    "pip": "installs",
    "scripts/python-venv.sh": "downloads",
    "python3 prepare_corpus.py": "trains a model",
    "python3 train_looped.py": "trains a model",
    "loopspec experiment run": "takes minutes; the tests of the tools run experiments",
    "loopspec synth": "writes gigabytes; the tests of the tools write small ones",
    "loopspec pull": "downloads; tests/hub does from a Hub of its own",
    "python3 bench/cuda/prefill_peer.py": "needs a GPU and PyTorch",
    "python3 bench/peers/torch_step.py": "needs PyTorch, and a GPU unless it is told otherwise",
    "python3 bench/peers/llama_cpp.py": "writes gigabytes and needs packages from PyPI",
    "man": "shows a page",
}

# What a command says when its model, or a file that is not in a clone, is all that it misses.
MISSING = re.compile(r"hf download|is not in the cache|no such folder|No such file or directory|loopspec experiment run has written")


def documents():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
            ROOT / "training" / "README.md", ROOT / "models" / "README.md", ROOT / "experiments" / "README.md"]


def code_lines(text):
    """Lines of indented and fenced blocks, continued ones joined."""
    fenced, previous_blank, inside = False, True, False
    pending = ""
    for line in text.split("\n") + [""]:
        if line.startswith("```"):
            fenced = not fenced
            continue
        indented = line.startswith("    ") and (previous_blank or inside)
        inside = indented
        previous_blank = not line.strip()
        if not (fenced or indented):
            continue
        code = line if fenced else line[4:]
        if code.rstrip().endswith("\\"):
            pending += code.rstrip()[:-1]
            continue
        yield pending + code
        pending = ""


def commands_of(file):
    """Commands of a file's blocks: (what is printed, words)."""
    known = re.compile(r"(loopspec|\$loopspec|\./run|\.ci/run|scripts/\S+|ctest|curl|cmake|python3|man|echo .*\|)( |$)")
    for line in code_lines(file.read_text(encoding="utf-8")):
        for part in re.split(r" && ", re.sub(r"\s+#\s.*", "", line).strip()):
            if known.match(part):
                yield re.sub(r"\$loopspec\b", "loopspec", part.strip())


def clone(folder):
    """What a clone has, as links, and files that readers have of their own; what commands write stays in the folder."""
    for name in os.listdir(ROOT):
        if name not in ("build", ".git"):
            (folder / name).symlink_to(ROOT / name)
    (folder / "schema.json").write_text('{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}')
    (folder / "answer.json").write_text('{"a": 1}')
    (folder / "list.gbnf").write_text('root ::= ("- " [a-z ]+ "\\n")+\n')


def answers(log):
    """Whether the server of this log serves its model."""
    address = re.search(r"http://127\.0\.0\.1:\d+", log)
    if not address:
        return False
    try:
        with urllib.request.urlopen(address[0] + "/v1/models", timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


def run(binary, command, folder):
    """Empty when it went well, else what went wrong."""
    environment = {**SMALL, "PATH": f"{binary.parent}:/usr/bin:/bin", "HOME": str(folder / "home"), "LC_ALL": "C.UTF-8",
                   "HF_HUB_CACHE": str(folder / "hub")}
    for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"):
        if name in os.environ:
            environment[name] = os.environ[name]
    if "calibrate" in command:
        environment["LOOPSPEC_OUTPUT"] = str(folder / "calibration")  # not beside the models of the clone
        (folder / "calibration").mkdir(exist_ok=True)
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(
            ["bash", "-c", "exec " + command if command.startswith("loopspec") and "|" not in command else command],
            cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True) as process:
        def said():
            log.seek(0)
            return log.read()
        try:
            process.stdin.write("/quit\n")  # to chat
            process.stdin.close()
        except BrokenPipeError:
            pass
        if command.startswith("loopspec serve"):
            end = time.monotonic() + LIMIT
            while not answers(said()) and process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"no end after {LIMIT} s"
        if code == 0:
            return ""
        return f"exit {code}: {said()[-600:]}"


def in_the_clone(command):
    """Whether all that it names is there."""
    return not re.search(r"(ByteDance|smcleish|org)/|twins/| benchmarks\b|loopspec-results", command)


def all_helps(binary):
    """The help of every command by its name."""
    helps = {name: subprocess.run([binary, *name.split(), "--help"], capture_output=True, text=True, check=True).stdout
             for name in subprocess.run([binary, "completion", "bash"], capture_output=True, text=True,
                                        check=True).stdout.split('"" | help) words="')[1].split('"')[0].split()
             if not name.startswith("-") and name != "help"}
    helps["experiment"] += subprocess.run([binary, "experiment", "run", "--help"], capture_output=True, text=True,
                                          check=True).stdout
    return helps


def unknown_words(helps, command):
    """What a command line of loopspec names that its help does not."""
    words = command.split()
    if words[1] not in helps:
        return [f"there is no command {words[1]}"]
    return [f"loopspec {words[1]} has no {option}" for option in re.findall(r" (--[a-z][a-z-]+)", command)
            if option not in helps[words[1]]]


def inline(helps):
    """Commands that the text mentions: those of loopspec exist, with their options."""
    wrong = []
    for file in documents():
        for code in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", file.read_text(encoding="utf-8"), flags=re.S)):
            words = code.split()
            if len(words) < 2 or words[0] != "loopspec" or not re.match(r"[a-z]+$", words[1]) or words[1] == "help":
                continue
            wrong += [f"{file.name}: `{code}`: {what}" for what in unknown_words(helps, code)]
    return wrong


def main():
    binary = Path(sys.argv[1]).resolve()
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    helps = all_helps(binary)
    wrong, ran, missed, left = inline(helps), 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="loopspec-test-") as temporary:
        folder = Path(temporary)
        clone(folder)
        for file in documents():
            for command in commands_of(file):
                if only not in command:
                    continue
                reason = next((why for start, why in NOT_RUN.items()
                               if command == start or command.startswith(start + " ")), None)
                script = command.split()[0]
                if script.startswith(("scripts/", "./", ".ci/")) and not os.access(ROOT / script, os.X_OK):
                    wrong.append(f"{file.name}: {command}: {script} is no program")
                if reason:
                    left += 1
                    if script == "loopspec":
                        wrong += [f"{file.name}: {command}: {what}" for what in unknown_words(helps, command)]
                    print(f"not run ({reason}): {command}", flush=True)
                    continue
                begin = time.monotonic()
                found = run(binary, command, folder)
                if in_the_clone(command):
                    ran += 1
                    if found:
                        wrong.append(f"{file.name}: {command}\n  {found}")
                else:
                    missed += 1
                    if not found.startswith("exit 2") or not MISSING.search(found):
                        wrong.append(f"{file.name}: {command}\n  expected that only its files are missing: {found}")
                print(f"{time.monotonic() - begin:.1f} s: {command}", flush=True)
    if wrong:
        sys.exit("\n".join(wrong))
    if not only and ran < 8:
        sys.exit(f"only {ran} commands found: is this the right folder?")
    print(f"{ran} commands ran, {missed} missed only what a clone has not, {left} are not for this test")


if __name__ == "__main__":
    main()
