#!/usr/bin/env python3
"""deploy/'s container images: built where there is a Docker daemon, else read: known instructions, files that exist, and a last stage that has
every shared library of the program that was built here.

    containers.py --source SOURCE --binary BINARY [--build]

--build builds them with Docker; skipped (77) where there is no daemon.
"""

import argparse
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

SKIPPED = 77
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "USER", "VOLUME", "WORKDIR"}


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def instructions(file):
    """(instruction, its text), continued lines joined."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n", " ", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def stages(file):
    out = []
    for word, rest in instructions(file):
        check(word in INSTRUCTIONS, (file.name, word))
        if word == "FROM":
            out.append([])
        if out:
            out[-1].append((word, rest))
    return out


def read(file, source):
    found = stages(file)
    check(len(found) == 2, (file.name, len(found)))
    names = {match.group(1) for stage in found for word, rest in stage if word == "FROM" for match in [re.search(r" AS (\S+)$", rest)] if match}
    for stage in found:
        check(not re.search(r":latest|^[^:]+$", stage[0][1].split(" AS ")[0]), (file.name, "an image without a version", stage[0]))
        for word, rest in stage:
            if word == "COPY":
                words = shlex.split(rest)
                origin = [w for w in words if w.startswith("--from=")]
                check(not origin or origin[0][7:] in names, (file.name, rest))
                if not origin:
                    for path in words[:-1]:
                        check((source / path).exists(), (file.name, path))
            if word == "RUN" and "apt-get update" in rest:
                check("rm -rf /var/lib/apt/lists" in rest and "--no-install-recommends" in rest, (file.name, rest))
    last = dict(found[-1])
    check(last.get("USER", "0") not in ("0", "root"), (file.name, "runs as root"))
    check("/health" in last["HEALTHCHECK"] and "serve" in last["ENTRYPOINT"], (file.name, last))
    return found


def closure(packages):
    """These and all that they depend on, as far as it is installed here."""
    known, waiting = set(), list(packages)
    while waiting:
        name = waiting.pop()
        if name in known:
            continue
        asked = subprocess.run(["dpkg-query", "-W", "-f", "${Pre-Depends}, ${Depends}\n", name], capture_output=True, text=True, check=False)
        if asked.returncode != 0:
            continue
        known.add(name)
        waiting += [re.split(r"[ (:|]", part.strip())[0] for part in asked.stdout.replace("\n", ",").split(",") if part.strip()]
    return known


def libraries(binary):
    """Packages of the shared libraries that a program needs."""
    listed = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout
    out = {}
    for path in re.findall(r"=> (/\S+)", listed):
        for each in (path, path.removeprefix("/usr"), str(pathlib.Path(path).resolve())):
            owner = subprocess.run(["dpkg-query", "-S", each], capture_output=True, text=True, check=False)
            if owner.returncode == 0:
                out[path] = owner.stdout.split(":")[0]
                break
    return out


def has_libraries(stage, binary):
    installed = [word for kind, rest in stage if kind == "RUN" for match in re.findall(r"apt-get install([^&]*)", rest) for word in match.split() if not word.startswith("-")]
    essential = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Essential}\n"], capture_output=True, text=True, check=True).stdout
    base = closure([line.split()[0] for line in essential.splitlines() if line.endswith(" yes")] + ["apt"])
    there = base | closure(installed) | set(installed)
    missing = {path: package for path, package in libraries(binary).items() if package not in there}
    check(not missing, ("the last stage of Dockerfile.cpu lacks", missing))
    return len(libraries(binary))


def build(source):
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        print("SKIPPED: there is no Docker daemon")
        sys.exit(SKIPPED)
    subprocess.run(["docker", "build", "-f", "deploy/Dockerfile.cpu", "-t", "loopspec:test", "."], cwd=source, check=True)
    version = subprocess.run(["docker", "run", "--rm", "--entrypoint", "loopspec", "loopspec:test", "--version"], capture_output=True, text=True, check=True).stdout
    check(version.startswith("loopspec "), version)
    print(version)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--build", action="store_true")
    options = parser.parse_args()
    source = options.source.resolve()
    if options.build:
        build(source)
        return
    for name in ("Dockerfile.cpu", "Dockerfile.cuda"):
        read(source / "deploy" / name, source)
    release = pathlib.Path("/etc/os-release").read_text(encoding="utf-8")
    if "VERSION_CODENAME=bookworm" not in release or not shutil.which("dpkg-query"):
        print("read; libraries not compared: this is not the Debian of the image")
        return
    print("read;", has_libraries(read(source / "deploy/Dockerfile.cpu", source)[-1], options.binary), "libraries are there")


if __name__ == "__main__":
    main()
