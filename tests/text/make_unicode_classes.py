#!/usr/bin/env python3
"""Writes src/text/unicode_classes.inc: what the PyPI `tokenizers` library holds each code point to be.

The library's parts look at characters through different crates of different Unicode versions (Oniguruma for regular
expressions, Rust's standard library for digits, older tables for punctuation and accents), so the only way to agree with
it on every code point is to ask it.  Needs a Python whose unicodedata is at version 14, as utf8proc 2.8 is.

usage: make_unicode_classes.py OUTPUT
"""
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

LETTER, NUMBER, SPACE, WORD, NUMERIC, PUNCTUATION, ACCENT, FROZEN = (1 << i for i in range(8))
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def regex_members(pattern):
    """Code points that an Oniguruma pattern for one character matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found = set()
    for i in range(0, len(CODE_POINTS), 4096):
        text = "".join(map(chr, CODE_POINTS[i:i + 4096]))
        for piece, _ in split.pre_tokenize_str(text):
            found.update(map(ord, piece))
    return found


def pre_tokenizer_members(pre_tokenizer, pieces):
    """Code points that leave so many pieces of `a?b`-like text."""
    return {c for c in CODE_POINTS
            if c in (0x61, 0x62) and pieces == 1
            or c not in (0x61, 0x62) and len(pre_tokenizer.pre_tokenize_str("a" + chr(c) + "b")) == pieces}


def unknown_combining_class():
    """Marks that the library's normalizers do not reorder: their tables are older than the mark."""
    nfd = normalizers.NFD()
    unknown = set()
    for c in CODE_POINTS:
        combining = unicodedata.combining(chr(c))
        if combining == 0 or unicodedata.normalize("NFD", chr(c)) != chr(c):
            continue
        text = "a\u0301" + chr(c) if combining < 230 else "a" + chr(c) + "\u0327"
        if nfd.normalize_str(text) != unicodedata.normalize("NFD", text):
            unknown.add(c)
    return unknown


def frozen():
    """Code points that normalizers must leave alone: unknown to the library, or to Unicode 14."""
    nfkd = normalizers.NFKD()
    result = {c for c in CODE_POINTS
              if nfkd.normalize_str(chr(c)) != unicodedata.normalize("NFKD", chr(c))}
    result |= unknown_combining_class()
    result |= {0x11935, 0x11930}  # the parts of U+11938, which the library does not compose
    assigned = set(CODE_POINTS) - regex_members(r"\p{Cn}")
    result |= {c for c in assigned if unicodedata.category(chr(c)) == "Cn"}
    return result


def main():
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    strip_accents = normalizers.StripAccents()
    classes = {
        LETTER: regex_members(r"\p{L}"),
        NUMBER: regex_members(r"\p{N}"),
        SPACE: regex_members(r"\s"),
        WORD: pre_tokenizer_members(pre_tokenizers.Whitespace(), 1),
        NUMERIC: pre_tokenizer_members(pre_tokenizers.Digits(individual_digits=True), 3),
        PUNCTUATION: pre_tokenizer_members(pre_tokenizers.Punctuation(), 3),
        ACCENT: {c for c in CODE_POINTS if strip_accents.normalize_str("a" + chr(c)) == "a"},
        FROZEN: frozen(),
    }
    bits = [0] * 0x110000
    for flag, members in classes.items():
        for c in members:
            bits[c] |= flag
    entries = [(c, bits[c]) for c in range(0x110000) if c == 0 or bits[c] != bits[c - 1]]
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write("// Written by tests/text/make_unicode_classes.py; do not edit. Each entry: first code point << 8 | classes.\n")
        out.write("// clang-format off\n")
        for i in range(0, len(entries), 10):
            out.write(" ".join(f"0x{c << 8 | b:x}," for c, b in entries[i:i + 10]) + "\n")
        out.write("// clang-format on\n")


if __name__ == "__main__":
    main()
