"""Bodies and events held against the types of the packages `openai` and `anthropic`: every field that a type requires is there, every field that
is there is one that a type knows."""

import json
import typing
import urllib.request

import pydantic

UNTYPED = {"store"}  # OpenAI's responses have it, the type of its package has not


def post(url, body, key=None):
    headers = {"Content-Type": "application/json"}
    if key:
        headers["x-api-key"] = key
    return urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=300)


def events(url, body, key=None):
    """The data of a stream's events; each is named by its type."""
    found, name = [], None
    with post(url, body | {"stream": True}, key) as answer:
        for line in answer.read().decode().split("\n"):
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = json.loads(line[6:])
                assert data["type"] == name, (name, data)
                found.append(data)
    return found


def unknown_fields(value, path=""):
    """Fields that the types do not know, in a model and all that is in it."""
    found = []
    if isinstance(value, pydantic.BaseModel):
        found += [f"{path}.{name}" for name in value.model_extra or {} if name not in UNTYPED]
        for name in type(value).model_fields:
            found += unknown_fields(getattr(value, name, None), f"{path}.{name}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            found += unknown_fields(item, f"{path}[{index}]")
    return found


def checked(kind, data):
    model = pydantic.TypeAdapter(kind).validate_python(data)
    extra = unknown_fields(model)
    assert not extra, f"{kind} does not know {extra} of {data}"
    return model


def members(union):
    """The classes of a union by the value of their field `type`."""
    found = {}
    for part in typing.get_args(union):
        if part in (None, type(None)) or isinstance(part, str):
            continue
        if typing.get_origin(part) is not None:
            found |= members(part)
        elif isinstance(part, type) and "type" in part.model_fields:
            for name in typing.get_args(part.model_fields["type"].annotation):
                found[name] = part
    return found


def check_events(union, data):
    """Every event against the type that its name says. Returns the models."""
    kinds = members(union)
    return [checked(kinds[event["type"]], event) for event in data]
