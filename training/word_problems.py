"""Arithmetic word problems with worked answers, made from a seed: no two runs need a download.

  from word_problems import problem;  question, answer = problem(random.Random(7))
The answer ends in a line '#### N', as GSM8K's do. The models were trained with one to three steps between start and question.

  python3 word_problems.py --count 128 --steps 4     JSONL of problems whose answers have that many lines of work"""

import argparse
import json
import random

NAMES = "Tom Anna Ben Lily Sam Mia Jack Emma Leo Ruth Omar Nina Paul Zoe Ivan Sara Max Ella Noah Kate Amir Lucy Hugo Maya Finn Rosa Carl Ines Theo Dora Kofi Aiko Ravi Yara Otis Vera".split()
THINGS = [
    ("apple", "apples"),
    ("marble", "marbles"),
    ("book", "books"),
    ("sticker", "stickers"),
    ("coin", "coins"),
    ("pencil", "pencils"),
    ("shell", "shells"),
    ("card", "cards"),
    ("cookie", "cookies"),
    ("flower", "flowers"),
    ("stamp", "stamps"),
    ("toy car", "toy cars"),
    ("balloon", "balloons"),
    ("peach", "peaches"),
    ("button", "buttons"),
    ("candle", "candles"),
    ("egg", "eggs"),
    ("stone", "stones"),
]
BOXES = [
    ("box", "boxes"),
    ("bag", "bags"),
    ("basket", "baskets"),
    ("jar", "jars"),
    ("pack", "packs"),
    ("drawer", "drawers"),
]
WHO = {
    n: ("she", "her")
    for n in "Anna Lily Mia Emma Ruth Nina Zoe Sara Ella Kate Lucy Maya Rosa Ines Dora Aiko Yara Vera".split()
}


def plural(n, pair):
    return f"{n} {pair[0] if n == 1 else pair[1]}"


def problem(rng, steps=None):
    name = rng.choice(NAMES)
    he, his = WHO.get(name, ("he", "his"))
    He = he.capitalize()
    friend = rng.choice([n for n in NAMES if n != name])
    t = rng.choice(THINGS)
    b = rng.choice(BOXES)
    q, a = [], []
    if rng.random() < 0.5:
        n = rng.randint(3, 60)
        q.append(f"{name} has {plural(n, t)}.")
    else:
        k, m = rng.randint(2, 9), rng.randint(2, 12)
        n = k * m
        q.append(f"{name} has {plural(k, b)} with {plural(m, t)} in each.")
        a.append(f"{name} starts with {k} * {m} = {n} {t[1]}.")
    kinds = ["buy", "give", "boxes", "half", "double", "find", "lose", "other", "third"]
    for _ in range(steps or rng.randint(1, 3)):
        k = rng.choice(kinds)
        if k == "buy":
            d = rng.randint(2, 40)
            q.append(
                rng.choice(
                    [
                        f"{He} buys {d} more.",
                        f"{friend} gives {name} {d} more.",
                        f"Then {he} gets {plural(d, t)} for {his} birthday.",
                    ]
                )
            )
            a.append(f"Now {he} has {n} + {d} = {n+d} {t[1]}.")
            n += d
        elif k == "find":
            d = rng.randint(2, 25)
            q.append(f"On the way home {he} finds {plural(d, t)}.")
            a.append(f"With those {he} has {n} + {d} = {n+d} {t[1]}.")
            n += d
        elif k == "give" and n > 3:
            d = rng.randint(1, n - 1)
            q.append(
                rng.choice(
                    [
                        f"{He} gives {d} of them to {friend}.",
                        f"{He} sells {d} of them.",
                        f"{He} uses {d} of them at school.",
                    ]
                )
            )
            a.append(f"That leaves {n} - {d} = {n-d} {t[1]}.")
            n -= d
        elif k == "lose" and n > 4:
            d = rng.randint(1, n // 2)
            q.append(f"Sadly, {he} loses {plural(d, t)}.")
            a.append(f"After that {he} has {n} - {d} = {n-d} {t[1]}.")
            n -= d
        elif k == "boxes":
            c, m = rng.randint(2, 6), rng.randint(2, 9)
            q.append(f"Then {he} gets {plural(c, b)} with {plural(m, t)} in each.")
            a.append(
                f"The {b[1]} hold {c} * {m} = {c*m} {t[1]}, so {he} has {n} + {c*m} = {n+c*m} {t[1]}."
            )
            n += c * m
        elif k == "half" and n % 2 == 0 and n > 2:
            q.append(f"{He} gives half of them to {friend}.")
            a.append(f"Half of {n} is {n//2}, so {he} keeps {n//2} {t[1]}.")
            n //= 2
        elif k == "third" and n % 3 == 0 and n > 3:
            q.append(f"{He} puts a third of them away.")
            a.append(f"A third of {n} is {n//3}, so {n} - {n//3} = {n - n//3} {t[1]} are left.")
            n -= n // 3
        elif k == "double" and n < 60:
            q.append(f"Then {his} number of {t[1]} doubles.")
            a.append(f"Twice {n} is {2*n} {t[1]}.")
            n *= 2
        elif k == "other":
            m = rng.randint(2, 30)
            q.append(f"{friend} has {plural(m, t)} and gives them all to {name}.")
            a.append(f"Together that is {n} + {m} = {n+m} {t[1]}.")
            n += m
    r = rng.random()
    if r < 0.6:
        q.append(f"How many {t[1]} does {name} have now?")
    elif r < 0.8:
        p = rng.randint(2, 9)
        q.append(f"{He} sells all of them for {p} dollars each. How many dollars does {he} get?")
        a.append(f"{He} gets {n} * {p} = {n*p} dollars.")
        n *= p
    else:
        ds = [d for d in range(2, 10) if n % d == 0 and n > d]
        if ds:
            d = rng.choice(ds)
            q.append(
                f"{He} shares them equally among {d} children. How many {t[1]} does each child get?"
            )
            a.append(f"Each child gets {n} / {d} = {n//d} {t[1]}.")
            n //= d
        else:
            q.append(f"How many {t[1]} does {name} have now?")
    if not a:
        a.append(f"{name} has {n} {t[1]}.")
    return " ".join(q), "\n".join(a) + f"\n#### {n}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=11)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    made = 0
    while made < options.count:
        question, answer = problem(rng, options.steps)
        if answer.count("\n") == options.steps:  # a step that does not fit the number at hand is left out
            made += 1
            print(json.dumps({"question": question, "answer": answer}))


if __name__ == "__main__":
    main()
