#!/usr/bin/env python3
"""Says in one line which tests were skipped and why; nothing where none was.

A skip of GoogleTest counts as passed for ctest, and one of another program shows no reason: both are in what they printed.

usage: skipped-tests.py RESULTS, which `ctest --output-junit RESULTS --test-output-size-passed 10000000` wrote
"""
import re
import sys
import xml.etree.ElementTree


def skipped(results):
    """(name, reason) for each skipped test."""
    for test in results.iter("testcase"):
        output = test.findtext("system-out") or ""
        if test.find("skipped") is not None:
            lines = output.strip().splitlines()
            yield test.get("name"), lines[-1].strip() if lines else "without a reason"
        # What a test of GoogleTest says stands between two lines of its own.
        for name, said in re.findall(r"^\[ RUN      \] (\S+)\n((?:(?!\[ ).*\n)*)\[  SKIPPED \] \1", output, flags=re.M):
            yield name, " ".join(line.strip() for line in said.splitlines() if line and not line.endswith(": Skipped"))


def main():
    # Characters that XML does not have may come from tests that print hostile bytes.
    with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
        text = re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|&#(x[0-9a-fA-F]+|\d+);", "?", file.read())
    found = dict(skipped(xml.etree.ElementTree.fromstring(text)))
    if found:
        print(f"{len(found)} skipped: " + "; ".join(f"{name} ({reason})" for name, reason in sorted(found.items())))


if __name__ == "__main__":
    main()
