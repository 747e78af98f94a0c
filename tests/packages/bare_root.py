#!/usr/bin/env python3
"""The Debian packages in a bare Debian: made by CPack, read by lintian, installed by apt with what they depend on, used, removed without a trace.

    bare_root.py --build BUILD_FOLDER --source SOURCE [--keep FOLDER]

python3-loopspec is the build's own where it was configured with LOOPSPEC_PYTHON_LINKED, else from a build of the module alone in
BUILD_FOLDER/python-linked. The root is debootstrap's smallest, from the mirror that this machine's apt has. Needs root and debootstrap; skipped (77) otherwise.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
LIMIT = 1800  # seconds for one command
RELEASE = "bookworm"
PROGRAM = ("usr/bin/loopspec", "usr/share/man/man1/loopspec.1.gz", "usr/share/bash-completion/completions/loopspec", "usr/share/zsh/site-functions/_loopspec",
           "usr/share/fish/vendor_completions.d/loopspec.fish", "usr/share/doc/loopspec/README.md", "usr/share/doc/loopspec/copyright",
           "lib/systemd/system/loopspec.service")
PYTHON = '''
from loopspec import Engine
engine = Engine("ouro-demo")
for token in engine.stream("Once upon a time", max_tokens=24, temperature=0):
    print(token.text, end="", flush=True)
print()
'''
# What apt, dpkg and the loader keep for themselves.
OWN = re.compile(r"(var/(cache|log|lib/apt|lib/dpkg|lib/systemd)|tmp|proc|dev|run)(/|$)")


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(SKIPPED)


def run(*command, **more):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LIMIT, check=False, **more)
    check(done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:]))
    return done.stdout


class Root:
    def __init__(self, folder):
        self.folder = folder

    def run(self, *command):
        """In a mount namespace of its own, so that nothing stays mounted here. Nothing of this machine's environment goes along."""
        inside = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp/home", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        return run("unshare", "--mount", "--propagation", "private", "sh", "-c", inside, self.folder, *command, env=environment)

    def apt(self, *words):
        return self.run("apt-get", "--yes", "--quiet", "--no-install-recommends", *words)

    def files(self):
        out = set()
        for place, folders, names in os.walk(self.folder):
            inside = pathlib.Path(place).relative_to(self.folder)
            folders[:] = [name for name in folders if not OWN.match(str(inside / name))]
            out |= {str(inside / name) for name in folders + names if not OWN.match(str(inside / name))}
        return out


def mirror():
    """Where this machine's apt has the release from, and the keys it is signed with."""
    listed = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(SIGNED_BY)", "Created-By: Packages")
    for line in listed.splitlines():
        uri, release, *keys = line.split()
        if release == RELEASE:
            return uri, keys[0] if keys and os.path.exists(keys[0]) else None
    skip(f"apt of this machine has no {RELEASE}")


def make_root(folder):
    uri, keys = mirror()
    try:
        run("debootstrap", "--variant=minbase", *([f"--keyring={keys}"] if keys else []), RELEASE, folder, uri)
    except AssertionError as error:
        if "Couldn't download" in str(error) or "Failed getting release file" in str(error):
            skip("the mirror cannot be reached")
        raise
    for name in ("apt/sources.list", "apt/sources.list.d", "apt/apt.conf.d", "apt/trusted.gpg.d", "apt/keyrings", "hosts", "resolv.conf"):
        source, target = pathlib.Path("/etc") / name, folder / "etc" / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, target)
    for file in (folder / "etc/apt/apt.conf.d").iterdir():
        if "-Invoke" in file.read_text(encoding="utf-8"):  # programs of this machine that are called after an installation
            file.unlink()
    if not (pathlib.Path("/etc/apt/sources.list")).exists():
        (folder / "etc/apt/sources.list").unlink(missing_ok=True)  # debootstrap's own, doubled otherwise
    root = Root(folder)
    root.apt("update")
    return root


def make_packages(build, folder):
    run("cpack", "--config", build / "CPackConfig.cmake", "-B", folder)
    return {file.name.split("_")[0]: file for file in folder.glob("*.deb")}


def make_python(build, source, folder):
    """The package of a build with the linked module and little else; without the module's needs, none, and the reason."""
    linked = build / "python-linked"
    less = [f"-DLOOPSPEC_{part}=OFF" for part in ("TOOLS", "SERVER", "TESTS", "BENCH", "CUDA")]
    configure = ["cmake", "-S", source, "-B", linked, "-DCMAKE_BUILD_TYPE=Release", "-DLOOPSPEC_PYTHON_LINKED=ON", *less]
    done = subprocess.run(list(map(str, configure)), capture_output=True, text=True, timeout=LIMIT, check=False)
    if missing := re.search(r"LOOPSPEC_PYTHON_LINKED is ON, and (.*?)\n(?:Call Stack|\n)", done.stderr, re.S):
        return {}, " ".join(missing[1].split())
    check(done.returncode == 0, done.stderr[-2000:])
    run("cmake", "--build", linked, "--parallel", os.cpu_count(), "--target", "loopspec_python", "loopspec_python_stub")
    return make_packages(linked, folder), None


def lint(packages):
    if not shutil.which("lintian"):
        return "not read by lintian, which is not here"
    done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", *map(str, packages.values())], capture_output=True, text=True, timeout=LIMIT, check=False)
    check(done.returncode == 0, ("lintian", done.stdout, done.stderr))
    warnings = sorted(set(re.findall(r"^W: \S+: (\S+)", done.stdout, re.M)))
    return "no errors of lintian, warnings: " + (", ".join(warnings) or "none")


def installed(root, packages, names):
    for name in names:
        shutil.copy(packages[name], root.folder / "tmp" / f"{name}.deb")
    root.apt("install", *(f"/tmp/{name}.deb" for name in names))


def removed(root, names, before):
    root.apt("purge", "--autoremove", *names)
    left = root.files() - before
    check(not left, ("left behind", sorted(left)[:20]))
    status = root.run("dpkg-query", "-W", "-f", "${Package} ${Status}\n")
    check(not [line for line in status.splitlines() if line.split()[0] in names], status)


def try_program(root, packages, build, source):
    """Without a clone and from the root's own folder: the demo, and a text by the name of the installed model."""
    before = root.files()
    installed(root, packages, ["loopspec", "loopspec-demo"])
    for file in PROGRAM:
        check((root.folder / file).exists(), f"{file} is not there")
    version = root.run("loopspec", "--version")
    check(re.match(r"loopspec \d+\.\d+\.\d+ ", version), version)
    generate = ("Once upon a time", "--max-tokens", "24", "--temperature", "0")
    check("the same text from both: yes" in root.run("loopspec", "demo"), "the demo does not run")
    text = root.run("loopspec", "generate", "ouro-demo", *generate)
    check(text == run(build / "bin/loopspec", "generate", source / "models/ouro-demo", *generate), text)
    check("loopspec" in root.run("loopspec", "completion", "bash"), "no completions")
    removed(root, ["loopspec", "loopspec-demo"], before)
    return version.splitlines()[0], text


def try_library(root, packages, source):
    root.apt("install", "g++", "cmake", "make", "pkg-config")
    before = root.files()
    installed(root, packages, ["libloopspec-dev"])
    shutil.copytree(source / "examples", root.folder / "tmp/examples")
    root.run("cmake", "-S", "/tmp/examples", "-B", "/tmp/examples/build")
    root.run("cmake", "--build", "/tmp/examples/build")
    said = root.run("/tmp/examples/build/tell_story", "/tmp/model")
    check(re.search(r"Once upon a time.*tokens, .* per second, gamma", said, re.S), said)
    removed(root, ["libloopspec-dev"], before)


def try_python(root, packages, text):
    """The program's text, in a Python that has nothing from PyPI; the files are compiled, and gone afterwards with what was compiled."""
    before = root.files()
    installed(root, packages, ["python3-loopspec", "loopspec-demo"])
    package = root.folder / "usr/lib/python3/dist-packages/loopspec"
    check(list(package.glob("__pycache__/__init__.*.pyc")), "the Python files were not compiled")
    check((root.folder / "usr/share/doc/python3-loopspec/copyright").read_text(encoding="utf-8").count("Copyright") >= 3, "a licence is missing")
    said = root.run("python3", "-c", PYTHON)
    check(said == text, (said, text))
    versions = root.run("python3", "-c", "import sys, loopspec; from importlib import metadata, util; assert util.find_spec('nanobind_backend') is None; "
                        "assert metadata.version('loopspec') == loopspec.__version__; print(loopspec.__version__, 'Python', sys.version.split()[0])")
    removed(root, ["python3-loopspec", "loopspec-demo"], before)
    return versions.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--keep", type=pathlib.Path, help="a folder that gets the packages")
    options = parser.parse_args()
    if os.geteuid() != 0:
        skip("needs root")
    for program in ("debootstrap", "cpack", "unshare"):
        if not shutil.which(program):
            skip(f"there is no {program}")
    source = options.source.resolve()
    with tempfile.TemporaryDirectory(prefix="loopspec-test-") as temporary:
        folder = pathlib.Path(temporary)
        build, place = options.build.resolve(), options.keep or folder / "packages"
        packages, no_python = make_packages(build, place), None
        check({"loopspec", "libloopspec-dev", "loopspec-demo"} <= set(packages), packages)
        if "python3-loopspec" not in packages:
            python, no_python = make_python(build, source, place)
            packages |= python
        print(", ".join(f"{file.name} ({file.stat().st_size / 1e6:.1f} MB)" for file in packages.values()), flush=True)
        print(lint(packages), flush=True)
        root = make_root(folder / "root")
        print("a bare root:", len(root.run("dpkg-query", "-W").splitlines()), "packages", flush=True)
        shutil.copytree(source / "models/ouro-demo", root.folder / "tmp/model")
        version, text = try_program(root, packages, build, source)
        print(version, text, sep="\n", flush=True)
        if no_python:
            print(f"python3-loopspec: not made, {no_python}", flush=True)
        else:
            print(f"python3-loopspec: {try_python(root, packages, text)}, the same text as the program", flush=True)
        try_library(root, packages, source)
        print("libloopspec-dev: found by find_package, the example built and run; all packages removed without a trace", flush=True)


if __name__ == "__main__":
    main()
