#!/usr/bin/env python3
"""Fails where the CUDA backend, its tests or its benchmarks copy, fill or launch outside the one way to do it.

The backend's streams do not wait for CUDA's default stream, so that a copy, a fill or a kernel in that stream may still be under way
when another kernel reads its result. src/backends/cuda/host/transfers.h says how data travel; its .cc alone calls CUDA's functions.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["src/backends/cuda", "tests/backends/cuda", "bench/cuda"]
TRANSFERS = "src/backends/cuda/host/transfers.cc"

# Inside a launch's angle brackets: grid, block, shared memory, stream.
LAUNCH = re.compile(r"<<<(.*?)>>>", re.S)
# Words that mean the default stream, or wait for the whole device: other streams of the process would be held up.
FORBIDDEN = {
    r"\bcuda(Memcpy|Memset)\w*\s*\(": "only transfers.cc copies and fills (transfers.h)",
    r"\bcu(Memcpy|Memset)\w*\s*\(": "only transfers.cc copies and fills (transfers.h)",
    r"\bcudaStreamLegacy\b": "nothing uses the default stream",
    r"\bcudaDeviceSynchronize\b": "wait for the stream that does the work",
    r"\bcudaEventRecord\(\s*\w+\s*\)": "name the stream",
    r"\b__managed__\b|\bcudaMallocManaged\b": "memory that both sides write has no order",
    r"\b__constant__\b": "constants would need a copy of their own",
}


def without_comments(text):
    """The same lines without comments."""
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def arguments(text):
    """How many arguments stand between a launch's brackets: commas outside any parentheses."""
    depth, count = 0, 1
    for letter in text:
        depth += letter in "([{"
        depth -= letter in ")]}"
        count += letter == "," and depth == 0
    return count


def findings(name, text):
    """What is wrong in a file, as (line, sentence)."""
    text = without_comments(text)
    if name != TRANSFERS:
        for pattern, why in FORBIDDEN.items():
            for match in re.finditer(pattern, text):
                yield text.count("\n", 0, match.start()) + 1, f"{match[0].strip(' (')}: {why}"
    for match in LAUNCH.finditer(text):
        if arguments(match[1]) != 4:
            yield text.count("\n", 0, match.start()) + 1, f"<<<{match[1]}>>>: a launch names its stream, expected four arguments"
    for match in re.finditer(r"\bcudaLaunchConfig_t (\w+)", text):
        if not re.search(rf"\b{match[1]}\.stream\s*=", text[match.end():]):
            yield text.count("\n", 0, match.start()) + 1, f"{match[1]}: a launch names its stream"


def check_itself():
    """Each rule finds what it is about."""
    for bad in ["cudaMemcpy(a, b, n, kind);", "cudaMemcpyAsync(a, b, n, kind, s);", "cudaMemset(a, 0, n);", "K<<<1, 2>>>();",
                "K<<<dim3(1, 2), f(3, 4), 0>>>();", "cudaStreamSynchronize(cudaStreamLegacy);", "cudaDeviceSynchronize();",
                "cudaEventRecord(begin);", "cudaLaunchConfig_t config{};"]:
        if not list(findings("x.cu", bad)):
            sys.exit(f"check-transfers.py does not see: {bad}")
    for good in ["K<<<dim3(1, 2), f(3, 4), 0, stream>>>(x);", "// cudaMemcpy(", "cudaEventRecord(begin, stream);",
                 "cudaLaunchConfig_t config{}; config.stream = stream;", "cudaMemcpyHostToDevice"]:
        if list(findings("x.cu", good)):
            sys.exit(f"check-transfers.py complains about: {good}")


def main():
    check_itself()
    wrong, count = [], 0
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in {".cc", ".cu", ".h", ".cuh"}:
                count += 1
                name = str(file.relative_to(ROOT))
                wrong += [f"{name}:{line}: {what}" for line, what in findings(name, file.read_text(encoding="utf-8"))]
    if wrong:
        sys.exit("\n".join(wrong))
    if count < 50:
        sys.exit(f"only {count} files found: is this the right folder?")
    print(f"{count} files of the CUDA backend copy, fill and launch in one way")


if __name__ == "__main__":
    main()
