#!/usr/bin/env python3
"""Texts that models write under JSON schemas, judged by jsonschema: those that ended by themselves are valid, every one.

  valid_texts.py --binary loopspec --venv DIR --models DIR [--texts N] [--device NAME]

Random schemas, those that check-jsonschema ships, pydantic models and tool definitions; greedy, cascade and coupled; LoopSpec,
autoregressive and lookup; both demo models. Texts that were cut by their length are counted apart: each is the beginning of a valid one.
Exits with 77, which ctest reports as skipped, where the packages cannot be installed.
"""

import argparse
import collections
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import venv

PACKAGES = ["jsonschema==4.26.0", "check-jsonschema==0.39.0", "pydantic==2.14.3"]
# With how many recurrences: fewer are quicker, and what they write is as good a test.
MODELS = {"ouro-demo": 2, "raven-demo": 4}
# Requests of one run of the program.
PART = 900
DECODINGS = ["loopspec", "ar", "lookup"]
SAMPLINGS = [{"temperature": 0}, {"temperature": 1}, {"temperature": 1, "sampler": "coupled"}]


def reexecute_in_venv(folder):
    """Runs this script again with a Python that has the packages."""
    python = folder / "bin" / "python"
    if pathlib.Path(sys.prefix).resolve() == folder.resolve():
        return
    try:
        if not python.exists():
            venv.create(folder, with_pip=True, symlinks=True)
        has = subprocess.run([python, "-c", "import jsonschema, check_jsonschema, pydantic"], capture_output=True)
        if has.returncode != 0:
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"SKIPPED: {PACKAGES} cannot be installed in {folder} ({error})")
        sys.exit(77)
    os.execv(python, [str(python), *sys.argv])


# ---- Schemas ----


class Generator:
    """Random schemas of the kinds that strict modes, pydantic and zod emit, whose texts are short."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def schema(self):
        root = self.object(self.random.choice([1, 1, 2]))
        if self.random.random() < 0.3:
            root["$defs"] = {"part": self.object(1), "tree": self.tree()}
            root["properties"]["part"] = {"$ref": "#/$defs/part"}
            root["properties"]["tree"] = {"$ref": "#/$defs/tree"}
            root["required"] = root.get("required", []) + self.some(["part", "tree"])
        return root

    def tree(self):
        return {"type": "object", "required": ["v"], "additionalProperties": False,
                "properties": {"v": self.value(0), "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}}}

    def some(self, things):
        return [thing for thing in things if self.random.random() < 0.7]

    def object(self, depth):
        names = self.random.sample(["id", "name", "kind", "size", "when", "tags", "note", "a b", "ü", "x\"y"], self.random.randint(1, 3))
        schema = {"type": "object", "properties": {name: self.value(depth - 1) for name in names},
                  "required": self.some(names)}
        more = self.random.random()
        if more < 0.7:
            schema["additionalProperties"] = False
        elif more < 0.8:
            schema["additionalProperties"] = self.value(0)
            schema["maxProperties"] = len(names) + 1
        return schema

    def value(self, depth):
        makers = [self.string, self.number, self.integer, self.enum, lambda: {"type": self.random.choice(["boolean", "null"])},
                  lambda: {"const": self.random.choice([1, "one", None, True, [1, {"a": 2}]])}]
        if depth > 0:
            makers += [lambda: self.object(depth), lambda: self.array(depth), lambda: self.any_of(depth), lambda: self.all_of(depth)]
        return self.random.choice(makers)()

    def string(self):
        kind = self.random.random()
        if kind < 0.2:
            return {"type": "string", "format": self.random.choice(["date", "time", "date-time", "uuid", "ipv4", "email"])}
        if kind < 0.4:
            return {"type": "string", "pattern": self.random.choice(["^[a-z]{1,6}$", "^(ab|cd)+e?$", "^\\d{2,4}-[A-F]$", "^x.{0,4}y$"]), "maxLength": 16}
        low = self.random.randint(0, 3)
        return {"type": "string", "minLength": low, "maxLength": low + self.random.randint(0, 10)}

    def bounds(self, low, high):
        bounds = {}
        if self.random.random() < 0.7:
            bounds[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.random.random() < 0.7:
            bounds[self.random.choice(["maximum", "exclusiveMaximum"])] = high
        return bounds

    def number(self):
        low = self.random.choice([-3.5, 0, 1, 12.25])
        return {"type": "number", **self.bounds(low, low + self.random.choice([2, 10.5, 1000]))}

    def integer(self):
        low = self.random.choice([-20, -1, 0, 7])
        schema = {"type": "integer", **self.bounds(low, low + self.random.choice([12, 100, 12345]))}
        if self.random.random() < 0.2:
            schema["multipleOf"] = self.random.choice([2, 5, 10])
        return schema

    def enum(self):
        return {"enum": self.random.sample(["red", "green", 1, 2.5, None, True, "a\nb", [], {"k": 1}], self.random.randint(1, 4))}

    def array(self, depth):
        schema = {"type": "array", "items": self.value(depth - 1), "maxItems": self.random.randint(1, 3)}
        if self.random.random() < 0.4:
            schema["minItems"] = self.random.randint(0, schema["maxItems"])
        if self.random.random() < 0.2:
            schema["prefixItems"] = [self.value(0)]
        return schema

    def any_of(self, depth):
        return {"anyOf": [self.value(depth - 1) for _ in range(self.random.randint(1, 3))]}

    def all_of(self, depth):
        return {"allOf": [self.object(depth), {"required": self.some(["id", "name"])}]}


def pydantic_schemas():
    import datetime
    import enum
    import typing

    import pydantic

    class Colour(enum.Enum):
        red = "red"
        blue = "blue"

    class Point(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        x: float
        y: float = 0
        label: typing.Optional[str] = pydantic.Field(None, max_length=8)

    class Circle(pydantic.BaseModel):
        kind: typing.Literal["circle"]
        centre: Point
        radius: float = pydantic.Field(gt=0, le=100)

    class Square(pydantic.BaseModel):
        kind: typing.Literal["square"]
        corner: Point
        side: int = pydantic.Field(ge=1, lt=50)

    class Drawing(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        title: str = pydantic.Field(min_length=1, max_length=12)
        made: datetime.date
        colour: Colour
        shapes: list[typing.Annotated[typing.Union[Circle, Square], pydantic.Field(discriminator="kind")]] = pydantic.Field(max_length=2)
        size: tuple[int, int]

    class Node(pydantic.BaseModel):
        value: int
        children: list["Node"] = pydantic.Field(max_length=2)

    return [model.model_json_schema() for model in (Point, Circle, Square, Drawing, Node)]


def tool_schemas():
    def call(name, properties, required):
        return {"type": "object", "required": ["name", "arguments"], "additionalProperties": False, "properties": {
            "name": {"const": name},
            "arguments": {"type": "object", "properties": properties, "required": required, "additionalProperties": False}}}

    text = {"type": "string", "maxLength": 20}
    tools = [call("get_weather", {"city": text, "unit": {"enum": ["C", "F"]}}, ["city"]),
             call("search", {"query": text, "limit": {"type": "integer", "minimum": 1, "maximum": 50}}, ["query", "limit"]),
             call("move", {"path": {"type": "array", "items": {"type": "integer", "minimum": -9, "maximum": 9}, "maxItems": 4}}, ["path"])]
    return [*tools, {"anyOf": tools}]


def shipped_schemas():
    import check_jsonschema

    folder = pathlib.Path(check_jsonschema.__file__).parent / "builtin_schemas" / "vendor"
    return [(path.stem, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]


# ---- Texts ----


def enforceable(binary, folder, schema):
    """Whether the grammar can be compiled; refusing is right where it cannot be enforced."""
    path = folder / "schema.json"
    path.write_text(json.dumps(schema))
    result = subprocess.run([binary, "grammar", "check", "--schema", path], capture_output=True, text=True, timeout=120)
    return result.returncode == 0, result.stderr.strip()


def viable(binary, folder, schema, text):
    """Whether a text that was cut short is the beginning of a valid one."""
    (folder / "schema.json").write_text(json.dumps(schema))
    (folder / "text").write_text(text)
    result = subprocess.run([binary, "grammar", "check", "--schema", folder / "schema.json", "--text", folder / "text"],
                            capture_output=True, text=True, timeout=120)
    return result.returncode == 0 or "ends too early" in result.stderr


def write_texts(options, model, lines, folder):
    requests, results = folder / "requests.jsonl", folder / "results.jsonl"
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
    results.unlink(missing_ok=True)
    subprocess.run([options.binary, "batch", "--model", options.models / model, "--device", options.device,
                    "--recurrence", str(MODELS[model]), "--input", requests, "--output", results], check=True, timeout=3400)
    return {answer["custom_id"]: answer["response"] for answer in map(json.loads, results.read_text().splitlines())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--venv", type=pathlib.Path, required=True)
    parser.add_argument("--models", type=pathlib.Path, required=True)
    parser.add_argument("--texts", type=int, default=10000)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    reexecute_in_venv(options.venv)
    import jsonschema

    ways = list(itertools.product(DECODINGS, SAMPLINGS))
    generator = Generator(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        schemas, refused = [], collections.Counter()
        fixed = [("pydantic", schema) for schema in pydantic_schemas()] + [("tool", schema) for schema in tool_schemas()]
        candidates = itertools.chain(fixed, shipped_schemas(), (("random", generator.schema()) for _ in itertools.count()))
        wanted = -(-options.texts // (len(ways) * len(MODELS)))
        for kind, schema in candidates:
            if len(schemas) == wanted:
                break
            taken, why = enforceable(options.binary, folder, schema)
            if taken:
                schemas.append((kind, schema))
            else:
                refused[why] += 1
        lines = []
        for number, (kind, schema) in enumerate(schemas):
            for decode, sampling in ways:
                way = f"{decode} {'coupled' if 'sampler' in sampling else 'cascade' if sampling['temperature'] else 'greedy'}"
                lines.append({"custom_id": f"{number}/{way}", "method": "POST", "url": "/v1/completions", "body": {
                    "prompt": "JSON:\n", "max_tokens": 64, "seed": number, "decode": decode, **sampling,
                    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}})
        counts, failures = collections.Counter(), []
        parts = [lines[at:at + PART] for at in range(0, len(lines), PART)]
        for part, model in itertools.product(parts, MODELS):
            answers = write_texts(options, model, part, folder)
            for line in part:
                number, way = line["custom_id"].split("/")
                kind, schema = schemas[int(number)]
                response = answers[line["custom_id"]]
                where = f"{model} {way} {kind} {json.dumps(schema)}"
                if response["status_code"] != 200:
                    failures.append(f"{where}: {response['body']}")
                    continue
                choice = response["body"]["choices"][0]
                counts[choice["finish_reason"]] += 1
                if choice["finish_reason"] == "stop":
                    try:
                        validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
                        validator(schema).validate(json.loads(choice["text"]))
                    except (ValueError, jsonschema.ValidationError) as error:
                        failures.append(f"{where}: invalid {choice['text']!r}: {str(error).splitlines()[0]}")
                elif not viable(options.binary, folder, schema, choice["text"].rstrip("\N{REPLACEMENT CHARACTER}")):
                    failures.append(f"{where}: no beginning of a valid text: {choice['text']!r}")
            print(f"{model}: {dict(counts)} up to {part[-1]['custom_id']}, {len(failures)} failures", flush=True)
        for failure in failures[:20]:
            print(failure)
        print(f"{len(schemas)} schemas taken, {sum(refused.values())} refused")
        for why, count in refused.most_common():
            print(f"  {count} x {why}")
        print(f"{counts.total()} texts: {counts['stop']} ended by themselves, {counts['length']} were cut by their length, {len(failures)} failures")
        return 1 if failures or counts["stop"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
