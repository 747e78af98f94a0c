#!/usr/bin/env python3
"""Masks held against those of llguidance and xgrammar, token by token along texts that our grammars write.

  oracles.py --driver grammar_driver --venv DIR --tokenizer tokenizer.json [--schemas N]

Schemas come from schema_sources.py; all engines write no white space and keep the order of properties. Where both others say the same of a
token, or one of them does not take the schema or the text, ours must say it too: a difference of a known kind is counted by kind, any other is a
failure. Exits with 77, which ctest reports as skipped, where the packages cannot be installed.

xgrammar wants torch and transformers for functions that are not used here: empty modules stand in for them, and numpy's arrays hold the masks.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "serve"))
from client_support import SKIPPED, inside_venv  # noqa: E402
from schema_sources import Generator, tool_schemas  # noqa: E402

PACKAGES = ["llguidance==1.9.1", "tokenizers", "numpy", "apache-tvm-ffi", "pydantic"]
XGRAMMAR = "xgrammar==0.2.8"


def install_xgrammar():
    """Without what it asks for: torch alone is larger than everything here."""
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "show", "xgrammar"], capture_output=True, check=False).returncode == 0:
        return
    try:
        subprocess.run([*pip, "install", "--quiet", "--disable-pip-version-check", "--no-deps", XGRAMMAR], check=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"SKIPPED: {XGRAMMAR} cannot be installed ({error})")
        sys.exit(SKIPPED)


def import_xgrammar():
    import numpy
    import tvm_ffi  # noqa: F401  before torch is there, which it would use

    torch = types.ModuleType("torch")
    torch.Tensor = torch.FloatTensor = torch.LongTensor = numpy.ndarray
    torch.int32 = numpy.int32
    torch.tensor = lambda value, dtype=None: numpy.array(value, dtype)
    transformers = types.ModuleType("transformers")
    for name in ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast", "LogitsProcessor"):
        setattr(transformers, name, type(name, (), {}))
    sys.modules.update({"torch": torch, "transformers": transformers})
    import xgrammar

    return xgrammar


class Driver:
    """Our grammars, in a process of their own."""

    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


class Llguidance:
    def __init__(self, tokenizer):
        import llguidance

        self.library, self.tokenizer = llguidance, tokenizer

    def compile(self, schema):
        """None where it does not take the schema."""
        options = {**schema, "x-guidance": {"whitespace_flexible": False}}
        grammar = self.library.LLMatcher.grammar_from_json_schema(json.dumps(options))
        return None if self.library.LLMatcher(self.tokenizer, grammar).is_error() else grammar

    def start(self, grammar):
        return self.library.LLMatcher(self.tokenizer, grammar)

    def mask(self, matcher):
        return None if matcher.is_stopped() else int.from_bytes(matcher.compute_bitmask(), "little")

    def take(self, matcher, token):
        return matcher.consume_token(token)


class Xgrammar:
    def __init__(self, tokens):
        import numpy

        self.library, self.numpy, self.words = import_xgrammar(), numpy, (len(tokens) + 32) // 32
        vocabulary = self.library.TokenizerInfo([*tokens, b"<end>"], self.library.VocabType.RAW, vocab_size=len(tokens) + 1,
                                                stop_token_ids=[len(tokens)])
        self.compiler = self.library.GrammarCompiler(vocabulary, max_threads=1)

    def compile(self, schema):
        try:
            return self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=False, separators=(",", ":"), strict_mode=False)
        except RuntimeError:
            return None

    def start(self, grammar):
        return self.library.GrammarMatcher(grammar)

    def mask(self, matcher):
        if matcher.is_terminated():
            return None
        words = self.numpy.full((1, self.words), -1, self.numpy.int32)
        matcher.fill_next_token_bitmask(words)
        return int.from_bytes(words.tobytes(), "little")

    def take(self, matcher, token):
        return matcher.accept_token(token)


def is_within_string(text):
    return text.replace(b"\\\\", b"").replace(b"\\\"", b"").count(b'"') % 2 == 1


def has(schema, found):
    """Whether some part of the schema is a dictionary of which `found` is true."""
    if isinstance(schema, dict) and found(schema):
        return True
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else []
    return any(has(part, found) for part in parts)


def kind_of(schema, text, token, ours, others):
    """What a difference is about; None: nothing known."""
    side = "ours alone" if ours else "theirs alone"
    if not ours and list(others) == ["xgrammar"]:
        if is_within_string(text) and any(c < 0x20 for c in token):
            return f"{side}: a control character in a string, which JSON does not allow"
        # It says in warnings that it ignores these.
        if has(schema, lambda part: "multipleOf" in part):
            return f"{side}: a number that is no multiple"
        if has(schema, lambda part: "pattern" in part and "maxLength" in part):
            return f"{side}: a text that is longer than maxLength"
    if list(others) == ["xgrammar"] and not is_within_string(text) and b"," in text[-1:] + token:
        return f"{side}: a space after a comma in a value of any kind, which xgrammar writes whatever it is told"
    whole = text + token
    strings = is_within_string(whole)
    if not ours and is_within_string(text) and re.search(rb"\\u[dD][89abAB]?[0-9a-fA-F]*$|\\u[dD][89abAB][0-9a-fA-F]{2}.{0,11}$", text):
        return f"{side}: half a pair of surrogates"
    if strings and b"\\" in whole[-12 - len(token):]:
        return f"{side}: an escape in a string"
    if ours and not strings and token.isdigit() and re.search(rb"[:,\[]-?[0-9.]*$", text):
        return f"{side}: a digit that only an exponent below 0 can follow, such as 3e-1 up to 2"
    if not strings and re.search(rb"[0-9][eE][+-]?[0-9]*$", text):
        return f"{side}: digits of an exponent, of which we take three"
    if any(c in token for c in b"eE") and any(48 <= c <= 57 for c in (text[-1:] + token)):
        return f"{side}: an exponent of a number"
    if strings and b"\x7f" in token:
        return f"{side}: U+007F in a string, which JSON allows"
    if any(c >= 0x80 for c in token):
        return f"{side}: bytes of a character"
    return None


def bits(mask):
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Comparison:
    def __init__(self, tokens, plain):
        self.tokens = tokens
        self.plain = sum(1 << token for token in plain)
        self.counts, self.kinds = collections.Counter(), collections.Counter()
        self.examples, self.unknown = {}, []

    def is_forced(self, theirs, ours):
        """Whether one token alone is allowed, and all of ours begin the same text: llguidance leaves canonical tokens alone then."""
        if theirs.bit_count() != 1 or not theirs & ours:
            return False
        text = self.tokens[theirs.bit_length() - 1]
        return all(text.startswith(self.tokens[token]) or self.tokens[token].startswith(text) for token in bits(ours))

    def add(self, schema, text, ours, others):
        """One mask; `others`: theirs, by name."""
        ours &= self.plain
        others = {name: mask & self.plain for name, mask in others.items()}
        self.counts["masks"] += 1
        for name, mask in others.items():
            self.counts[f"masks equal to {name}'s"] += mask == ours
            if self.is_forced(mask, ours) and mask != ours:
                self.counts[f"masks equal to {name}'s but for other tokens of a forced text"] += 1
                others[name] = ours
        agreed = self.plain
        for mask in others.values():
            agreed &= ~(mask ^ next(iter(others.values())))
        if len(others) == 2:
            self.counts["masks compared with both"] += 1
            self.counts["masks in which the others differ"] += agreed != self.plain
            self.counts["tokens of which the others say different things"] += (self.plain & ~agreed).bit_count()
        wrong = (ours ^ next(iter(others.values()))) & agreed
        self.counts["masks that are equal wherever the others agree"] += wrong == 0
        for token in bits(wrong):
            mine = bool(ours >> token & 1)
            kind = kind_of(schema, text, self.tokens[token], mine, others)
            where = f"{json.dumps(schema)} after {text!r}: {self.tokens[token]!r} {'ours' if mine else 'theirs'} alone, beside {' and '.join(others)}"
            if kind is None:
                self.unknown.append(where)
            else:
                kind = f"{kind}, beside {' and '.join(others)}"
                self.kinds[kind] += 1
                self.examples.setdefault(kind, where)

    def report(self):
        for name, count in self.counts.items():
            print(f"{count} {name}")
        for kind, count in self.kinds.most_common():
            print(f"{count} tokens: {kind}, such as {self.examples[kind][:400]}")
        for where in self.unknown[:20]:
            print(f"UNKNOWN {where}")
        print(f"{len(self.unknown)} differences of no known kind")
        return 1 if self.unknown or self.counts["masks compared with both"] == 0 else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", type=pathlib.Path, required=True)
    parser.add_argument("--venv", type=pathlib.Path, required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--schemas", type=int, default=200)
    options = parser.parse_args()
    inside_venv(options.venv, PACKAGES, "llguidance, tokenizers, numpy, tvm_ffi")
    install_xgrammar()
    import llguidance

    tokenizer = llguidance.LLTokenizer(options.tokenizer.read_text())
    tokens = [tokenizer.decode_bytes([i]) for i in range(tokenizer.vocab_size)]
    comparison = Comparison(tokens, [i for i, token in enumerate(tokens) if token and not tokenizer.is_special_token(i)])
    engines = {"llguidance": Llguidance(tokenizer), "xgrammar": Xgrammar(tokens)}
    driver, generator = Driver(options.driver), Generator(7)
    for schema in tool_schemas() + [generator.schema() for _ in range(options.schemas)]:
        answer = driver.ask({"schema": schema, "compact": True, "samples": 4})
        if "error" in answer:
            comparison.counts["schemas that we refuse"] += 1
            continue
        comparison.counts["schemas"] += 1
        grammars = {}
        for name, engine in engines.items():
            grammar = engine.compile(schema)
            if grammar is None:
                comparison.counts[f"schemas that {name} refuses"] += 1
            else:
                grammars[name] = grammar
        lists = [tokenizer.tokenize_str(text) for text in answer["samples"] if isinstance(text, str)]
        rows = driver.ask({"schema": schema, "compact": True, "masks": lists})["masks"]
        for ids, masks in zip(lists, rows):
            going = {name: engines[name].start(grammar) for name, grammar in grammars.items()}
            for at, row in enumerate(masks):
                others = {name: engines[name].mask(matcher) for name, matcher in going.items()}
                others = {name: mask for name, mask in others.items() if mask is not None}
                if not others:
                    break
                comparison.add(schema, b"".join(tokens[i] for i in ids[:at]), int.from_bytes(bytes.fromhex(row), "little"), others)
                if at == len(ids):
                    break
                for name in list(going):
                    if name not in others or not engines[name].take(going[name], ids[at]):
                        comparison.counts[f"texts of ours that {name} refuses"] += name in others
                        del going[name]
    return comparison.report()


if __name__ == "__main__":
    sys.exit(main())
