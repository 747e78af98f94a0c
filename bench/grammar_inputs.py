#!/usr/bin/env python3
"""Inputs of grammar_bench: real schemas with values that are valid by them.

  grammar_inputs.py --venv DIR --output FOLDER [--schemas N]

N resource schemas that cfn-lint ships, all that check-jsonschema and validate-pyproject-schema-store ship, pydantic models, tool definitions
and N / 4 random ones. Each becomes a file {"schema": ..., "texts": [...]}: values whose strings are words, those that jsonschema finds valid.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import venv

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "grammar"))
from schema_sources import Generator, pydantic_schemas, shipped_schemas, tool_schemas  # noqa: E402

PACKAGES = ["jsonschema==4.26.0", "check-jsonschema==0.39.0", "pydantic==2.14.3", "cfn-lint==1.58.0", "validate-pyproject-schema-store==2026.10.23"]
WORDS = "the record of a small house by the river that nobody has seen since Monday evening and what it costs in euros".split()
TEXTS = 3


class Values:
    """Random values that follow a schema's most usual keywords; jsonschema says which are valid."""

    def __init__(self, root, seed):
        self.root, self.random = root, random.Random(seed)

    def resolve(self, schema):
        for _ in range(20):
            if not isinstance(schema, dict) or not str(schema.get("$ref", "")).startswith("#/"):
                break
            target = self.root
            for part in schema["$ref"][2:].split("/"):
                target = target.get(part.replace("~1", "/").replace("~0", "~"), {})
            schema = target
        return schema if isinstance(schema, dict) else {}

    def value(self, schema, depth=0):
        schema = self.resolve(schema)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema and "properties" not in schema:
                return self.value(self.random.choice(schema[keyword]), depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = self.random.choice(kind)
        return {"object": self.object, "array": self.array, "string": self.string, "integer": self.number, "number": self.number,
                "boolean": lambda schema, depth: self.random.random() < 0.5}.get(kind, lambda schema, depth: None)(schema, depth)

    def object(self, schema, depth):
        required = schema.get("required", [])
        chance = 0.6 if depth < 3 else 0.1
        return {name: self.value(part, depth + 1) for name, part in list(schema.get("properties", {}).items())[:60]
                if name in required or (depth < 8 and self.random.random() < chance)}

    def array(self, schema, depth):
        count = max(schema.get("minItems", 0), self.random.randint(0, 3 if depth < 6 else 0))
        return [self.value(schema.get("items", {}), depth + 1) for _ in range(min(count, schema.get("maxItems", count)))]

    def string(self, schema, depth):
        texts = {"date": "2026-11-18", "date-time": "2026-11-18T14:30:00Z", "uri": "https://example.org/a", "email": "a@example.org"}
        if schema.get("format") in texts:
            return texts[schema["format"]]
        if str(schema.get("pattern", "")).startswith("^arn"):
            return "arn:aws:iam::123456789012:role/reader"
        text = " ".join(self.random.choices(WORDS, k=self.random.randint(1, 12)))
        return text[:schema.get("maxLength", 80)].replace(" ", "-" if "pattern" in schema else " ")

    def number(self, schema, depth):
        low = int(schema.get("minimum", 0))
        return self.random.randint(low, max(low, int(schema.get("maximum", low + 5000))))


def valid_texts(schema, seed):
    import jsonschema

    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)
    values, texts = Values(schema, seed), []
    for _ in range(10 * TEXTS):
        try:
            value = values.value(schema)
            if len(texts) < TEXTS and value != {} and validator.is_valid(value):
                texts.append(json.dumps(value, ensure_ascii=False))
        except Exception:  # noqa: BLE001  a schema that jsonschema or the values cannot follow has fewer texts
            continue
    return texts


def package_schemas(package, pattern):
    folder = pathlib.Path(importlib.util.find_spec(package).origin).parent
    return [(path.name.removesuffix(".json").removesuffix(".schema"), json.loads(path.read_text())) for path in sorted(folder.glob(pattern))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--venv", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--schemas", type=int, default=240)
    options = parser.parse_args()
    python = options.venv / "bin" / "python"
    if pathlib.Path(sys.prefix).resolve() != options.venv.resolve():
        if not python.exists():
            venv.create(options.venv, with_pip=True, symlinks=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
        os.execv(python, [str(python), *sys.argv])

    generator = Generator(77)
    resources = package_schemas("cfnlint", "data/schemas/resources/*.json")
    schemas = random.Random(1).sample(resources, min(options.schemas, len(resources)))
    schemas += package_schemas("validate_pyproject_schema_store", "resources/*.schema.json") + shipped_schemas()
    schemas += [(f"pydantic{i}", schema) for i, schema in enumerate(pydantic_schemas())]
    schemas += [(f"tool{i}", schema) for i, schema in enumerate(tool_schemas())]
    schemas += [(f"random{i}", generator.schema()) for i in range(options.schemas // 4)]
    options.output.mkdir(parents=True, exist_ok=True)
    count = 0
    for seed, (name, schema) in enumerate(schemas):
        texts = valid_texts(schema, seed)
        count += len(texts)
        (options.output / f"{name}.json").write_text(json.dumps({"schema": schema, "texts": texts}))
    print(f"{len(schemas)} schemas, {count} texts")


if __name__ == "__main__":
    main()
