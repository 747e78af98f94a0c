"""What the tests of the Python package share."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
OURO = str(ROOT / "models" / "ouro-demo")
RAVEN = str(ROOT / "models" / "raven-demo")
BINARY = os.environ.get("LOOPSPEC_BINARY", "")  # the command line, built in the same tree

PROBLEM = "Question: Tom has 3 red marbles and buys 4 more. How many marbles does Tom have?\nAnswer:"
PROMPTS = ["Once upon a time", "Tom had a cat", PROBLEM, "One day, Lily found a", "def add(a, b):\n    return", "The sun was"]

# Costs of steps are measured once, for all processes of these tests.
_cache = tempfile.TemporaryDirectory(prefix="loopspec-test-")
os.environ["XDG_CACHE_HOME"] = _cache.name

_engines = {}


def engine(model=OURO):
    """One for all tests of a process: loading takes a while."""
    import loopspec

    if model not in _engines:
        _engines[model] = loopspec.Engine(model)
    return _engines[model]


def command(*arguments):
    """What `loopspec generate --json` prints."""
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def command_text(*arguments):
    """What a command prints."""
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, check=True).stdout


def python(program, **options):
    """A Python of the same kind with the same package, as a process."""
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
