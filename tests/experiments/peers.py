"""What the comparisons with packages of the ecosystem share: a virtual environment, and a line to the task_driver binary."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import venv


def reexecute_in_venv(folder, packages, check):
    """Runs the calling script again with a Python that has `packages`. Exits with 77, which ctest reports as skipped, when they
    cannot be installed. `check` is a statement that fails while they are missing."""
    folder = pathlib.Path(folder)
    python = folder / "bin" / "python"
    if pathlib.Path(sys.prefix).resolve() == folder.resolve():
        return
    try:
        if not python.exists():
            venv.create(folder, with_pip=True, symlinks=True)
        if subprocess.run([python, "-c", check], capture_output=True).returncode != 0:
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *packages], check=True, timeout=900)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"SKIPPED: {' '.join(packages)} cannot be installed in {folder} ({error})")
        sys.exit(77)
    os.execv(python, [str(python), *sys.argv])


def begin(description, packages, check):
    """The options that every comparison takes, once their benchmark files and packages are there; else the test is skipped."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--venv", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"SKIPPED: no benchmark files in {arguments.data}")
        sys.exit(77)
    reexecute_in_venv(arguments.venv, packages, check)
    return arguments


def read_json_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


class Driver:
    """One JSON request per line, one JSON answer per line."""

    def __init__(self, binary):
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def __call__(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the driver ended with {self.process.wait()} at {str(request)[:300]}")
        answer = json.loads(line)
        if "error" in answer:
            sys.exit(f"the driver refused {str(request)[:300]}: {answer['error']}")
        return answer
