#!/usr/bin/env python3
"""Compares our scoring of mathematics answers with math-verify's, over answers made from MATH-500: the gold answer in other words,
other spellings of the same value, values that are near, and answers to other problems. Prints every difference.

  compare_math_verify.py --driver FILE --venv DIR --data DIR

Exits with 77, which ctest reports as skipped, when the package cannot be installed or the benchmark files are not there.
"""

import collections
import random
import re
import sys

import peers

PACKAGES = ["math-verify==0.9.0", "latex2sympy2_extended==1.11.0", "antlr4-python3-runtime==4.13.2"]
CHECK = "import math_verify"
AGREEMENT = 0.995


def equivalent(gold):
    """Other spellings of an answer, as (kind, LaTeX)."""
    yield "same", gold
    yield "dfrac", gold.replace("\\frac", "\\dfrac")
    yield "left and right", gold.replace("(", "\\left(").replace(")", "\\right)") if "\\left" not in gold else gold
    yield "space", gold.replace("+", " + ").replace(",", ", ")
    if re.fullmatch(r"-?\d+", gold):
        n = int(gold)
        yield "point zero", f"{n}.0"
        yield "fraction of whole", f"\\frac{{{3 * n}}}{{3}}"
        yield "sum", f"{n - 2}+2"
        yield "product", f"2 \\cdot {n / 2:g}"
        yield "assignment", f"x = {n}"
        yield "unit", f"{n} \\text{{ cm}}"
        yield "percent", f"{n}\\%"
        yield "root of square", f"\\sqrt{{{n * n}}}"
        yield "set of one", f"\\{{{n}\\}}"
        yield "thousands", f"{n:,}"
    fraction = re.fullmatch(r"(-?)\\d?frac\{(\d+)\}\{(\d+)\}", gold)
    if fraction:
        sign, a, b = fraction[1], int(fraction[2]), int(fraction[3])
        yield "slash", f"{sign}{a}/{b}"
        yield "twice", f"{sign}\\frac{{{2 * a}}}{{{2 * b}}}"
        yield "decimal", f"{sign}{a / b:.10f}"
        yield "short decimal", f"{sign}{a / b:.2f}"
        yield "sign inside", f"\\frac{{{sign}{a}}}{{{b}}}"
        if a > b:
            yield "mixed", f"{sign}{a // b}\\frac{{{a % b}}}{{{b}}}"
    if "," in gold and not gold.startswith("\\"):
        inside = gold.strip("()[]")
        parts = inside.split(",")
        yield "bare list", inside
        yield "in braces", "\\{" + inside + "\\}"
        yield "in parentheses", "(" + inside + ")"
        yield "reversed", ",".join(reversed(parts))
        yield "closed", "[" + inside + "]"
    root = re.fullmatch(r"(\d+)\s*\\sqrt\{?(\d+)\}?", gold)
    if root:
        yield "root of product", f"\\sqrt{{{int(root[1]) ** 2 * int(root[2])}}}"
        yield "root as power", f"{root[1]} \\cdot {root[2]}^{{1/2}}"
    if re.search(r"[a-z]", gold) and "\\" not in gold and "=" not in gold and "_" not in gold:
        yield "plus zero", gold + "+0"
        yield "bracketed", f"({gold})"
        yield "named", f"y = {gold}"
    text = re.fullmatch(r"\\text\{(.*)\}", gold)
    if text:
        yield "without text", text[1]
        yield "mathrm", f"\\mathrm{{{text[1]}}}"
        yield "lower", f"\\text{{{text[1].lower()}}}"
    if "\\circ" in gold:
        yield "without degrees", gold.replace("^\\circ", "")
        yield "degrees in words", gold.replace("^\\circ", " \\text{ degrees}")


def different(gold, other):
    yield "other problem", other
    yield "plus one", gold + "+1"
    yield "negative", "-" + gold if not gold.startswith("-") else gold[1:]
    if re.fullmatch(r"-?\d+", gold):
        yield "next number", str(int(gold) + 1)
        yield "half", f"\\frac{{{gold}}}{{2}}"
        yield "point one", f"{gold}.1"
    yield "twice", f"2({gold})"


def wrap(rng, latex):
    forms = [f"${latex}$", f"Thus the result is $\\boxed{{{latex}}}$.", f"Final Answer: The final answer is ${latex}$. I hope it is correct.",
             f"First $y = 12$. The answer is ${latex}$.", f"We have 3 cases.\n\\[ \\boxed{{{latex}}} \\]\nThat is all.", f"\\boxed{{{latex}}}"]
    return rng.choice(forms)


def make_cases(data):
    rng = random.Random(1234)
    golds = [e["answer"] for e in peers.read_json_lines(data / "math500" / "test.jsonl")]
    cases = []
    for number, gold in enumerate(golds):
        other = golds[(number * 7 + 3) % len(golds)]
        for kind, answer in [*equivalent(gold), *different(gold, other)]:
            if kind == "same" or rng.random() < 0.5:
                cases.append((f"{kind}", gold, wrap(rng, answer)))
    plain = ["The answer is 42.", "So she pays $18.90.", "Answer: 3/4", "That makes 1,234 in total.", "12 + 30 = 42", "x = 7", "It is 50%.",
             "about 3.5 percent", "answer = 17", "The final answer is 12", "**42**", "no number here", "", "The answer is (A).", "2 * 21"]
    for gold in ["42", "18.90", "\\frac{3}{4}", "1234", "7", "50\\%", "0.5", "3.5\\%", "17", "12"]:
        cases += [("plain text", gold, text) for text in plain]
    return cases


def main():
    arguments = peers.begin(__doc__, PACKAGES, CHECK)
    from math_verify import parse, verify
    driver = peers.Driver(arguments.driver)
    counts, differences = collections.Counter(), collections.defaultdict(list)
    right = 0
    for kind, gold, text in make_cases(arguments.data):
        expected = verify(parse(f"$\\boxed{{{gold}}}$"), parse(text))
        ours = driver(gold=gold, answer=text)
        counts[kind] += 1
        right += expected
        if ours["equal"] != expected:
            differences[kind].append((gold, text, expected, ours))
    total, wrong = sum(counts.values()), sum(map(len, differences.values()))
    for kind, found in differences.items():
        for gold, text, expected, ours in found:
            print(f"{kind:18} gold {gold!r:32} answer {text!r}: math-verify {expected}, ours {ours['equal']} from {ours['extracted']!r}")
    print(f"\n{'kind':18} answers differences")
    for kind, count in sorted(counts.items()):
        print(f"{kind:18} {count:7} {len(differences[kind]):11}")
    print(f"{total} answers ({right} right by math-verify), {wrong} differences: agreement {1 - wrong / total:.4f}, expected {AGREEMENT} or more")
    sys.exit(0 if 1 - wrong / total >= AGREEMENT else 1)


if __name__ == "__main__":
    main()
