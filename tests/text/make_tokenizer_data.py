#!/usr/bin/env python3
"""Writes data/tokenizers.tar.xz: tokenizers that may be shipped, and what the PyPI library makes of some strings.

The plain test run compares with it and needs no Python.  In the archive: real/NAME.json, synthetic/NAME.json and
expected.json, a list of {"tokenizer", "cases": [[text as hex, ids, ids without special tokens, text, text without special
tokens], ...]}.

usage: make_tokenizer_data.py SHARED_FOLDER OUTPUT, with the `tokenizers` package at hand
"""
import io
import json
import os
import random
import sys
import tarfile

import tokenizers

import compare_tokenizers
import synthetic_tokenizers

SHIPPED = ["ouro-1.4b", "tinyllama"]  # MIT and Apache-2.0


def cases(spec, strings):
    library = tokenizers.Tokenizer.from_str(spec)
    result = []
    for data in strings:
        text = data.decode("utf-8", errors="replace")
        ids = library.encode(text).ids
        result.append([data.hex(), ids, library.encode(text, add_special_tokens=False).ids,
                       library.decode(ids, skip_special_tokens=False), library.decode(ids, skip_special_tokens=True)])
    return result


def strings_for(count, specials, seed):
    """No lines of benchmarks here: some of them may not be shipped."""
    rng = random.Random(seed)
    return [b"", b" ", b"\xf0\x9f\x98", b"a" * 300] + [
        data for data in compare_tokenizers.corpus(count * 3, "/nonexistent", specials, seed) if len(data) < 400 and rng.random() < 0.33]


def main():
    shared, output = sys.argv[1:]
    files, expected = {}, []
    for name in SHIPPED:
        with open(os.path.join(shared, "tokenizers", name, "tokenizer.json"), encoding="utf-8") as file:
            spec = file.read()
        specials = [t["content"] for t in json.loads(spec)["added_tokens"]]
        files[f"real/{name}.json"] = json.dumps(json.loads(spec), ensure_ascii=False, separators=(",", ":"))
        expected.append({"tokenizer": f"real/{name}.json", "cases": cases(spec, strings_for(400, specials, 5))})
    for i, (name, spec) in enumerate(synthetic_tokenizers.all_tokenizers()):
        text = json.dumps(spec, ensure_ascii=i % 2 == 0, separators=(",", ":"))
        files[f"synthetic/{name}.json"] = text
        expected.append({"tokenizer": f"synthetic/{name}.json", "cases": cases(text, strings_for(24, ["<s>", "</s>"], 100 + i))})
    files["expected.json"] = json.dumps(expected, separators=(",", ":"))
    with tarfile.open(output, "w:xz", preset=9) as archive:
        for name in sorted(files):
            data = files[name].encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    print(f"{output}: {os.path.getsize(output)} bytes, {sum(len(e['cases']) for e in expected)} cases")


if __name__ == "__main__":
    main()
