"""What the tests with clients from PyPI share: a virtual environment, and a running server."""

import os
import pathlib
import subprocess
import sys
import venv

SKIPPED = 77  # what ctest reports as skipped


def inside_venv(folder, packages, module):
    """Runs the calling script again with a Python that has the packages; skips when they cannot be installed."""
    folder = pathlib.Path(folder)
    python = folder / "bin" / "python"
    if pathlib.Path(sys.prefix).resolve() == folder.resolve():
        return
    try:
        if not python.exists():
            venv.create(folder, with_pip=True, symlinks=True)
        has = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
        if has.returncode != 0:
            command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
            subprocess.run(command, check=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"SKIPPED: {packages} cannot be installed in {folder} ({error})")
        sys.exit(SKIPPED)
    os.execv(python, [str(python), *sys.argv])


class FakeServer:
    """The server with made-up tokens, as a child process."""

    def __init__(self, binary, *arguments):
        self.process = subprocess.Popen([binary, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=20)
