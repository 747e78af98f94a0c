#!/usr/bin/env python3
"""Compares Tokenizer with the PyPI `tokenizers` library: ids, decoded text, with and without special tokens.

Installs the library into a virtual environment of its own; exits with 77 (skipped) where it cannot.

usage: compare_tokenizers.py --driver BINARY --venv FOLDER --source FOLDER [--strings N] [--only NAME] [--time]
"""
import argparse
import glob
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

SKIPPED = 77


def run_inside_venv(venv):
    """Starts this script again with the library at hand."""
    python = os.path.join(venv, "bin", "python")
    if subprocess.run([python, "-c", "import tokenizers"], capture_output=True, check=False).returncode != 0 \
            if os.path.exists(python) else True:
        made = subprocess.run([sys.executable, "-m", "venv", venv], capture_output=True, check=False)
        installed = made.returncode == 0 and subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "tokenizers>=0.20"], capture_output=True, check=False)
        if not installed or installed.returncode != 0:
            print("SKIPPED: the PyPI package tokenizers could not be installed here")
            sys.exit(SKIPPED)
    os.execv(python, [python, *sys.argv, "--inside"])


def benchmark_lines(source):
    lines = []
    for path in sorted(glob.glob(os.path.join(source, "..", "shared", "benchmarks", "**", "*"), recursive=True)):
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                lines += file.read().splitlines(keepends=True)
    for path in sorted(glob.glob(os.path.join(source, "src", "**", "*.cc"), recursive=True)):
        with open(path, encoding="utf-8", errors="replace") as file:
            lines += file.read().splitlines(keepends=True)
    return lines


WORDS = ("the The THE and band don't we'll I'M they\u2019ve caf\u00e9 cafe\u0301 na\u00efve Stra\u00dfe \u0130stanbul \u4f60\u597d \u3053\u3093\u306b\u3061\u306f \u043f\u0440\u0438\u0432\u0435\u0442 "
         "\u0645\u0631\u062d\u0628\u0627 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \ud55c\uad6d\uc5b4 \ufb01ne \u00bd x\u00b2 1234567 3.14 0x1F 12,345 \u0661\u0662\u0663 \u2167 == != -> :: // #include int main() return; "
         "<|endoftext|> <|im_start|> <|im_end|> <think> </think> <s> </s> <unk> <x> <X> <X>y [N] [N\u00c9W] [n\u00e9w] <0x0A> <0xE2> \u2581 \u2581the \u0120the "
         "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd \u2764\ufe0f ab abc abcd a\u00a0b whole Et\u00c9 \u017f 'S 'Ll '\u017f \u00c9t\u00e9 zz aNd").split(" ")
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u2003", "\u3000", "\u180e", "\u200b", "\u0085", "\u2028", "\x0b", "\x00", ""]


def mixed(rng, specials):
    return "".join(part for _ in range(rng.randint(0, 9))
                   for part in (rng.choice(WORDS if not specials or rng.random() < 0.9 else specials), rng.choice(SPACES)))


def random_unicode(rng):
    def character():
        block = rng.random()
        if block < 0.3:
            return rng.randint(0, 0x7F)
        if block < 0.5:
            return rng.randint(0x80, 0x36F)
        if block < 0.8:
            return rng.randint(0x370, 0xFFFF)
        return rng.randint(0x10000, 0x1FFFF) if block < 0.95 else rng.randint(0x20000, 0x10FFFF)
    points = (character() for _ in range(rng.randint(1, 24)))
    return "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000)


def all_characters():
    """Every code point of the planes in use, a few at a time, in words and alone."""
    for begin in [*range(0, 0x40000, 16), *range(0xE0000, 0xE1000, 16)]:
        points = [chr(c) for c in range(begin, begin + 16) if not 0xD800 <= c < 0xE000]
        yield ("a" if begin & 16 else " ").join(points)


def corpus(count, source, specials, seed=1):
    """Strings as bytes, about `count` of them."""
    rng = random.Random(seed)
    lines = benchmark_lines(source)
    rng.shuffle(lines)
    result = [b"", b" ", b"\n", "\u0301".encode(), b"\xff", b"\xf0\x9f\x98", b"a" * 3000, b" " * 500, "\u4f60".encode() * 400]
    result += [line.encode()[:2000] for line in lines[:count * 2 // 5]]
    sweep = list(all_characters())
    result += [text.encode() for text in (sweep if count >= 50000 else rng.sample(sweep, min(len(sweep), count // 6)))]
    while len(result) < count:
        kind = rng.random()
        if kind < 0.5:
            result.append(mixed(rng, specials).encode())
        elif kind < 0.75:
            result.append(random_unicode(rng).encode())
        elif kind < 0.85:
            result.append("".join(rng.choice(" \t\n\r\u00a0\u3000a1.") for _ in range(rng.randint(1, 30))).encode())
        elif kind < 0.92:
            result.append("".join(rng.choice("0123456789,. \u0663\u00b2") for _ in range(rng.randint(1, 20))).encode())
        else:
            data = bytearray(mixed(rng, specials).encode() or b"x")
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randint(0x80, 0xFF)
            result.append(bytes(data))
    return result


def driver_results(driver, path, strings):
    with tempfile.TemporaryFile() as file:
        for text in strings:
            file.write(struct.pack("<I", len(text)) + text)
        file.seek(0)
        done = subprocess.run([driver, "compare", path], stdin=file, capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{path}: the driver ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    out, at = done.stdout, 0
    for _ in strings:
        fields = []
        for kind in range(6):
            size = struct.unpack_from("<I", out, at)[0]
            at += 4
            if kind < 2:
                fields.append(list(struct.unpack_from(f"<{size}i", out, at)))
                at += 4 * size
            else:
                fields.append(out[at:at + size].decode())
                at += size
        yield fields


FIELDS = ["ids with special tokens", "ids without", "text with special tokens", "text without", "streamed text with special tokens",
          "streamed text without"]


def compare(driver, name, path, strings):
    """The number of differences; prints the first few."""
    from tokenizers import Tokenizer  # pylint: disable=import-outside-toplevel
    theirs = Tokenizer.from_file(path)
    theirs.no_truncation()
    theirs.no_padding()
    texts = [s.decode("utf-8", errors="replace") for s in strings]
    with_special = [e.ids for e in theirs.encode_batch_fast(texts, add_special_tokens=True)]
    without = [e.ids for e in theirs.encode_batch_fast(texts, add_special_tokens=False)]
    shown = theirs.decode_batch(with_special, skip_special_tokens=False)
    hidden = theirs.decode_batch(with_special, skip_special_tokens=True)
    differences = 0
    for i, ours in enumerate(driver_results(driver, path, strings)):
        expected = [with_special[i], without[i], shown[i], hidden[i], shown[i], hidden[i]]
        for field, mine, right in zip(FIELDS, ours, expected):
            if mine != right:
                differences += 1
                if differences <= 3:
                    print(f"DIFFERENT {name}: {field} of {strings[i]!r}\n  ours   {mine!r}\n  theirs {right!r}")
    return differences


def real_tokenizers(source):
    seen = set()
    for path in sorted(glob.glob(os.path.join(source, "..", "shared", "tokenizers", "*", "tokenizer.json")) +
                       glob.glob(os.path.join(source, "models", "*", "tokenizer.json")) +
                       glob.glob(os.path.join(source, "..", "shared", "models", "*", "tokenizer.json"))):
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).digest()
        if digest not in seen:
            seen.add(digest)
            yield os.path.basename(os.path.dirname(path)), path


def print_speed(driver, source):
    """One thread each, the same text, in one run."""
    from tokenizers import Tokenizer  # pylint: disable=import-outside-toplevel
    text = "".join(benchmark_lines(source))
    text = (text * (1 + 8_000_000 // max(1, len(text))))[:8_000_000]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        for name, path in real_tokenizers(source):
            ours = json.loads(subprocess.run([driver, "time", path, file.name], capture_output=True, check=True).stdout)
            begin = time.perf_counter()
            theirs = Tokenizer.from_file(path)
            load = time.perf_counter() - begin
            best, count = 1e9, 0
            for _ in range(2):
                begin = time.perf_counter()
                count = len(theirs.encode(text).ids)
                best = min(best, time.perf_counter() - begin)
            # Short texts suit the library better: the same lines one by one, without offsets.
            lines = text.splitlines(keepends=True)
            begin = time.perf_counter()
            theirs.encode_batch_fast(lines)
            by_line = time.perf_counter() - begin
            size = len(text.encode())
            print(f"{name}: encoding {ours['mb_per_s']:.1f} MB/s, the library {size / best / 1e6:.1f} MB/s ({size / by_line / 1e6:.1f} MB/s line by line); "
                  f"loading {ours['load_ms']:.0f} ms, the library {load * 1e3:.0f} ms; tokens equal: {count == ours['tokens']}", flush=True)


def compare_synthetic(options, scratch):
    import synthetic_tokenizers  # pylint: disable=import-outside-toplevel
    differences = count = 0
    strings = corpus(600, options.source, ["<s>", "</s>"], seed=2)
    for name, spec in synthetic_tokenizers.all_tokenizers():
        if options.only and options.only not in name:
            continue
        path = os.path.join(scratch, name + ".json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(spec, file, ensure_ascii=len(name) % 2 == 0)
        count += 1
        try:
            differences += compare(options.driver, name, path, strings)
        except (RuntimeError, BaseException) as error:  # the library's panics are no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            differences += 1
            print(f"FAILED {name}: {error}")
    print(f"{count} synthetic tokenizers, {len(strings)} strings each: {differences} differences", flush=True)
    return differences


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", required=True)
    parser.add_argument("--venv", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--strings", type=int, default=100000)
    parser.add_argument("--only", default="")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--inside", action="store_true")
    options = parser.parse_args()
    if not options.inside:
        run_inside_venv(options.venv)
    os.environ["RAYON_NUM_THREADS"] = "1" if options.time else "2"
    os.environ["TOKENIZERS_PARALLELISM"] = "false" if options.time else "true"
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    if options.time:
        return print_speed(options.driver, options.source)
    differences = 0
    with tempfile.TemporaryDirectory() as scratch:
        differences += compare_synthetic(options, scratch)
    for name, path in real_tokenizers(options.source):
        if options.only and options.only not in name:
            continue
        with open(path, encoding="utf-8") as file:
            specials = [t["content"] for t in json.load(file)["added_tokens"]][:40]
        strings = corpus(options.strings, options.source, specials)
        found = compare(options.driver, name, path, strings)
        print(f"{name}: {len(strings)} strings, {found} differences", flush=True)
        differences += found
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
