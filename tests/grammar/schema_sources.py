"""Schemas for tests of grammars: random ones, those that check-jsonschema ships, pydantic models and tool definitions."""

import json
import pathlib
import random


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
