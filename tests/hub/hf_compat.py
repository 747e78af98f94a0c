#!/usr/bin/env python3
"""`loopspec pull` and huggingface_hub from PyPI over one cache: what one has downloaded the other does not.

    hf_compat.py --binary BINARY --venv FOLDER

The virtual environment is made where it is missing; exit code 77 where PyPI cannot be reached.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import venv

from fake_hub import FakeHub
from support import User, check_layout, check_sound, demo_files, folder_of, needed, sharded

MODEL = "org/model"


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def make_environment(folder):
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    installed = subprocess.run([python, "-m", "pip", "install", "-q", "huggingface_hub"], capture_output=True, text=True, check=False)
    known = subprocess.run([python, "-c", "import huggingface_hub; print(huggingface_hub.__version__)"], capture_output=True, text=True, check=False)
    if known.returncode != 0:
        print("skipped: huggingface_hub cannot be installed:", installed.stderr.strip()[-200:])
        sys.exit(77)
    print("huggingface_hub", known.stdout.strip())
    return folder / "bin"


class Case:
    def __init__(self, binary, programs, folder, name):
        self.hub = FakeHub()
        self.user = User(binary, folder / name, self.hub)
        self.programs = programs
        self.environment = {**self.user.environment, "HF_HUB_DISABLE_UPDATE_CHECK": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                            "PATH": f"{programs}:/usr/bin:/bin"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hub.__exit__()

    def pull(self, *arguments, **environment):
        result = self.user.run("pull", *arguments, environment=environment)
        check(result.returncode == 0, result.stderr)
        return pathlib.Path(result.stdout.strip())

    def hf(self, *arguments, **environment):
        result = subprocess.run([self.programs / "hf", *arguments], env={**self.environment, **environment}, capture_output=True, text=True, check=False,
                                timeout=300, stdin=subprocess.DEVNULL)
        check(result.returncode == 0, (arguments, result.stdout, result.stderr))
        return result.stdout

    def python(self, code):
        result = subprocess.run([self.programs / "python", "-c", code], env=self.environment, capture_output=True, text=True, check=False, timeout=300)
        check(result.returncode == 0, result.stderr)
        return result.stdout


def tree(cache):
    """Every path below, with where links lead and what files hold."""
    out = {}
    for path in cache.rglob("*"):
        if path.is_symlink():
            out[str(path.relative_to(cache))] = "-> " + os.readlink(path)
        elif path.is_file():
            out[str(path.relative_to(cache))] = path.read_bytes()
    return out


def after_ours_hf_transfers_nothing(case):
    repository = case.hub.add(MODEL, {name: data for name, data in sharded().items() if name in needed(sharded())})
    folder = case.pull(MODEL)
    case.hub.forget()
    out = case.hf("download", MODEL)
    check(str(folder) in out, out)
    check(case.hub.sent() == 0, [request for request in case.hub.requests])
    check_layout(case.user.cache, repository, needed(repository.files))
    # Offline, and through the functions that transformers calls.
    case.environment["HF_HUB_OFFLINE"] = "1"
    case.hub.forget()
    found = case.python(f"from huggingface_hub import try_to_load_from_cache, snapshot_download; print(try_to_load_from_cache('{MODEL}', 'config.json')); print(snapshot_download('{MODEL}'))")
    check(found.split() == [str(folder / "config.json"), str(folder)], found)
    check(case.hub.requests == [], case.hub.requests)


def after_ours_hf_fetches_only_the_rest(case):
    repository = case.hub.add(MODEL, sharded())
    case.pull(MODEL)
    case.hub.forget()
    case.hf("download", MODEL)
    rest = set(repository.files) - needed(repository.files)
    asked = {request.path.split(repository.commit + "/")[1] for request in case.hub.bodies()}
    check(asked == rest, asked)
    check_layout(case.user.cache, repository, repository.files)


def after_hf_ours_transfers_nothing(case):
    repository = case.hub.add(MODEL, sharded())
    case.hf("download", MODEL)
    case.hub.forget()
    folder = case.pull(MODEL)
    check(folder == folder_of(case.user.cache, MODEL) / "snapshots" / repository.commit, folder)
    check(case.hub.sent() == 0, case.hub.requests)
    check_layout(case.user.cache, repository, repository.files)


def half_by_hf_half_by_ours(case):
    repository = case.hub.add(MODEL, sharded())
    case.hf("download", MODEL, "config.json", "model-00002-of-00004.safetensors")
    case.hub.forget()
    case.pull(MODEL)
    for path in ("config.json", "model-00002-of-00004.safetensors"):
        check(case.hub.sent("/" + path) == 0, path)
    check_layout(case.user.cache, repository, needed(repository.files))


def the_same_tree(case, other):
    """The same files through both: what lies there afterwards is the same, byte for byte and link for link."""
    files = {name: data for name, data in sharded().items() if name in needed(sharded())}
    for each in (case, other):
        each.hub.add(MODEL, files, revisions=("main", "refs/pr/3"))
    case.pull(MODEL)
    case.pull(MODEL + "@refs/pr/3")
    other.hf("download", MODEL)
    other.hf("download", MODEL, "--revision", "refs/pr/3")
    ours, theirs = tree(case.user.cache), tree(other.user.cache)
    for found in (ours, theirs):
        check(found.pop("CACHEDIR.TAG").startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n"), "CACHEDIR.TAG")
    # Its newer versions keep the listing too; without it they ask for it again.
    theirs = {path: what for path, what in theirs.items() if "/trees/" not in path}
    check(ours == theirs, sorted(set(ours.items()) ^ set(theirs.items()))[:10])


def hf_knows_what_is_there(case):
    repository = case.hub.add(MODEL, sharded())
    case.pull(MODEL)
    scan = case.python("from huggingface_hub import scan_cache_dir; i = scan_cache_dir(); assert not i.warnings, i.warnings; "
                       "print([(r.repo_id, [(v.commit_hash, sorted(v.refs), v.nb_files) for v in r.revisions]) for r in i.repos])")
    check(scan.strip() == repr([(MODEL, [(repository.commit, ["main"], len(needed(repository.files)))])]), scan)
    listed = json.loads(case.user.run("list", "--json").stdout)
    check([model["model"] for model in listed] == [MODEL], listed)


def locks_exclude_each_other(case):
    """While one holds the lock of a blob the other waits for it, and then has nothing to do."""
    case.hub.add(MODEL, demo_files())
    case.hub.chunk, case.hub.delay = 1 << 18, 0.01
    ours = case.user.start("pull", MODEL)
    theirs = subprocess.Popen([case.programs / "hf", "download", MODEL], env=case.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for process in (ours, theirs):
        _, err = process.communicate(timeout=300)
        check(process.returncode == 0, err)
    check(len(case.hub.bodies("/model.safetensors")) == 1, case.hub.bodies("/model.safetensors"))
    check_sound(case.user.cache)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--venv", type=pathlib.Path, required=True)
    options = parser.parse_args()
    programs = make_environment(options.venv.resolve())
    binary = os.path.abspath(options.binary)
    with tempfile.TemporaryDirectory(prefix="loopspec-test-") as scratch:
        folder = pathlib.Path(scratch)
        for test in (after_ours_hf_transfers_nothing, after_ours_hf_fetches_only_the_rest, after_hf_ours_transfers_nothing, half_by_hf_half_by_ours,
                     hf_knows_what_is_there, locks_exclude_each_other):
            with Case(binary, programs, folder, test.__name__) as case:
                test(case)
                print("passed:", test.__name__)
        with Case(binary, programs, folder, "tree-ours") as case, Case(binary, programs, folder, "tree-theirs") as other:
            the_same_tree(case, other)
            print("passed: the_same_tree")


if __name__ == "__main__":
    main()
