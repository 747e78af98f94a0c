"""Random JSON schemas, judged by PyPI's jsonschema: what the grammar writes is valid, and of mutated values it takes
the valid ones and no other. grammar_driver and the number of schemas are the arguments. Exit code 77 without jsonschema."""

import copy
import json
import random
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print("jsonschema is not installed: skipped")
    sys.exit(77)

NAMES = ["a", "b", "name", "x-y", "id"]
WORDS = ["a", "b", "red", "x y", "é", ""]


def scalar(rnd):
    return rnd.choice([None, True, False, 0, 1, -3, 12, 2.5, "a", "red", "x y"])


def value(rnd, depth=0):
    kind = rnd.random()
    if depth > 2 or kind < 0.6:
        return scalar(rnd)
    if kind < 0.8:
        return [value(rnd, depth + 1) for _ in range(rnd.randint(0, 3))]
    return {name: value(rnd, depth + 1) for name in rnd.sample(NAMES, rnd.randint(0, 3))}


def schema(rnd, depth=0):
    """A schema out of the keywords that docs/grammars.md says are enforced."""
    kind = rnd.choice(["string", "integer", "number", "boolean", "enum", "const"] + ["object", "array", "any"] * (2 if depth < 3 else 0))
    if kind in ("enum", "const"):
        return {"enum": [value(rnd, 2) for _ in range(rnd.randint(1, 4))]} if kind == "enum" else {"const": value(rnd, 2)}
    if kind == "string":
        more = rnd.choice([{}, {"minLength": 1, "maxLength": 4}, {"pattern": "^[a-z ]*$"}, {"format": "date"}, {"pattern": "e|\\d"}])
        return {"type": "string", **more}
    if kind in ("integer", "number"):
        more = rnd.choice([{}, {"minimum": -2, "maximum": 12}, {"exclusiveMinimum": 0}, {"multipleOf": 3}, {"maximum": 2.5}])
        return {"type": kind, **more}
    if kind == "boolean":
        return rnd.choice([{"type": "boolean"}, {"type": ["boolean", "null"]}, True, {}])
    if kind == "any":
        parts = [schema(rnd, depth + 1) for _ in range(rnd.randint(1, 3))]
        return rnd.choice([{"anyOf": parts}, {"oneOf": parts}, {"allOf": parts[:2]}, {"not": parts[0]},
                           {"if": parts[0], "then": parts[-1], "else": schema(rnd, depth + 1)}])
    if kind == "array":
        made = {"type": "array"}
        if rnd.random() < 0.8:
            made["items"] = schema(rnd, depth + 1)
        if rnd.random() < 0.3:
            made["prefixItems"] = [schema(rnd, depth + 1) for _ in range(rnd.randint(1, 2))]
        if rnd.random() < 0.4:
            made["uniqueItems"] = True
        elif rnd.random() < 0.3:
            made["contains"] = schema(rnd, depth + 1)
        if rnd.random() < 0.4:
            made["maxItems"] = rnd.randint(1, 4)
        return made
    made = {"type": "object", "properties": {name: schema(rnd, depth + 1) for name in rnd.sample(NAMES, rnd.randint(0, 3))}}
    if rnd.random() < 0.6:
        made["required"] = rnd.sample(NAMES, rnd.randint(0, 2))
    if rnd.random() < 0.6:
        made["additionalProperties"] = rnd.choice([False, schema(rnd, depth + 1)])
    if rnd.random() < 0.2:
        made["patternProperties"] = {"^[a-c]": schema(rnd, depth + 1)}
    if rnd.random() < 0.2:
        made["propertyNames"] = {"maxLength": 2}
    if rnd.random() < 0.2:
        made["dependentRequired"] = {"a": ["b"]}
    if rnd.random() < 0.15 and "additionalProperties" not in made:
        made["allOf"] = [schema(rnd, depth + 2)]
        made["unevaluatedProperties"] = False
    return made


def places(item, path=()):
    yield path, item
    for key, part in item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ():
        yield from places(part, path + (key,))


def mutated(rnd, item):
    path, old = rnd.choice(list(places(item)))
    new = value(rnd, 1)
    if isinstance(old, list) and rnd.random() < 0.6:
        new = old + [rnd.choice(old) if old and rnd.random() < 0.5 else new]
    elif isinstance(old, dict) and rnd.random() < 0.6:
        new = {**old, rnd.choice(NAMES + WORDS): new}
    if not path:
        return new
    item = copy.deepcopy(item)
    parent = item
    for key in path[:-1]:
        parent = parent[key]
    if rnd.random() < 0.2:
        del parent[path[-1]]
    else:
        parent[path[-1]] = new
    return item


def is_ours(item):
    """Whether its numbers are written as the grammar writes them: whole ones without a point or an exponent."""
    return all(not isinstance(part, float) or (part != int(part) and 1e-4 < abs(part) < 1e15) for _, part in places(item))


def main():
    driver, count = sys.argv[1], int(sys.argv[2])
    rnd = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    wrong = 0
    seen = {"schemas": 0, "refused": 0, "written": 0, "valid": 0, "invalid": 0}
    with subprocess.Popen([driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:

        def ask(request):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        for _ in range(count):
            made = schema(rnd)
            checker = jsonschema.Draft202012Validator(made, format_checker=jsonschema.FormatChecker(["date"]))
            answer = ask({"schema": made, "samples": 6})
            if "error" in answer:
                seen["refused"] += 1
                if "no text" in answer["error"] and any(checker.is_valid(value(rnd)) for _ in range(30)):
                    # The values that are left may be such as the grammar does not write.
                    print("allows no text:", json.dumps(made))
                continue
            seen["schemas"] += 1
            items = [value(rnd) for _ in range(10)]
            for text in answer["samples"]:
                if text is None:
                    continue
                if not isinstance(text, str) or not checker.is_valid(json.loads(text)):
                    wrong += 1
                    print("writes what is invalid:", json.dumps(made), text)
                    continue
                seen["written"] += 1
                items.append(json.loads(text))
            items += [mutated(rnd, rnd.choice(items)) for _ in range(30)]
            items = [item for item in items if is_ours(item)]
            texts = [json.dumps(item, ensure_ascii=False) for item in items]
            answer = ask({"schema": made, "texts": texts, "any_order": True})
            if "error" in answer:
                wrong += 1
                print("refused in any order alone:", json.dumps(made), answer["error"])
                continue
            for item, text, at in zip(items, texts, answer["valid"]):
                valid = checker.is_valid(item)
                seen["valid" if valid else "invalid"] += 1
                if valid != (at == -1):
                    wrong += 1
                    print("refuses" if valid else "takes", text, "of", json.dumps(made))
        process.stdin.close()
    print(wrong, "wrong of", seen)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
