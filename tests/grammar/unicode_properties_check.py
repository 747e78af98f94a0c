#!/usr/bin/env python3
r"""General categories of patterns, against the tables of Python or of PyPI's unicodedata2, which are made from Unicode's own files.

  unicode_properties_check.py --driver grammar_driver --venv DIR

For each category all its code points must be taken by ^\p{..}*$ and all others by ^\P{..}*$; one that is in neither or in both is a failure of
unicode_properties_test. Where Python has another version of Unicode than utf8proc, unicodedata2 of that version is installed. Exits with 77, which
ctest reports as skipped, where there is none.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import unicodedata

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "serve"))
from client_support import SKIPPED, inside_venv  # noqa: E402

# At most as many characters as a text of the check has.
LENGTH = 20_000


def version_of(driver):
    """Of Unicode, in the utf8proc that the driver has."""
    command = subprocess.run([driver], input=json.dumps({"unicode_version": True}) + "\n", capture_output=True, text=True, check=True)
    return json.loads(command.stdout)["unicode_version"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", required=True)
    parser.add_argument("--venv", type=pathlib.Path, required=True)
    options = parser.parse_args()
    version = version_of(options.driver)
    tables = unicodedata
    if tables.unidata_version != version:
        inside_venv(options.venv, [f"unicodedata2=={version}"], "unicodedata2")
        import unicodedata2 as tables
    if tables.unidata_version != version:
        print(f"SKIPPED: utf8proc has Unicode {version}, {tables.__name__} {tables.unidata_version}")
        return SKIPPED

    with subprocess.Popen([options.driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8") as driver:

        def ask(line):
            driver.stdin.write(json.dumps(line) + "\n")
            driver.stdin.flush()
            return json.loads(driver.stdout.readline())

        categories = {}
        for code_point in range(0x110000):
            if not 0xD800 <= code_point <= 0xDFFF:
                categories.setdefault(tables.category(chr(code_point)), []).append(chr(code_point))
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
    print(f"{len(names)} categories of Unicode {version} in {tables.__name__}, {checked} characters, {failures} failures")
    return 1 if failures or checked == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
