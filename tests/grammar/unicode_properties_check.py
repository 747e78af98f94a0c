#!/usr/bin/env python3
r"""General categories of patterns, against Python's unicodedata.

  unicode_properties_check.py DRIVER

For each category all its code points must be taken by ^\p{..}*$ and all others by ^\P{..}*$; one that is in neither or in both is a failure of
unicode_properties_test. Exits with 77, which ctest reports as skipped, where Python's Unicode version is not utf8proc's.
"""

import json
import subprocess
import sys
import unicodedata

SKIPPED = 77
# At most as many characters as a text of the check has.
LENGTH = 20_000


def main():
    with subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8") as driver:

        def ask(line):
            driver.stdin.write(json.dumps(line) + "\n")
            driver.stdin.flush()
            return json.loads(driver.stdout.readline())

        version = ask({"unicode_version": True})["unicode_version"]
        if version != unicodedata.unidata_version:
            print(f"SKIPPED: utf8proc has Unicode {version}, Python {unicodedata.unidata_version}")
            return SKIPPED
        categories = {}
        for code_point in range(0x110000):
            if not 0xD800 <= code_point <= 0xDFFF:
                categories.setdefault(unicodedata.category(chr(code_point)), []).append(chr(code_point))
        names = sorted({*categories, *(category[0] for category in categories)})
        checked = failures = 0
        for name in names:
            for property, holds in (("p", True), ("P", False)):
                members = [c for category, characters in categories.items() if category.startswith(name) == holds for c in characters]
                texts = ["".join(members[i : i + LENGTH]) for i in range(0, len(members), LENGTH)]
                schema = {"type": "string", "pattern": rf"^\{property}{{{name}}}*$"}
                answer = ask({"schema": schema, "texts": [json.dumps(text, ensure_ascii=False) for text in texts]})
                checked += len(members)
                if answer.get("valid") != [-1] * len(texts):
                    failures += 1
                    print(f"\\{property}{{{name}}}: {str(answer)[:200]}")
        driver.stdin.close()
    print(f"{len(names)} categories, {checked} characters, {failures} failures")
    return 1 if failures or checked == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
