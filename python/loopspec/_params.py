"""What a request asks for besides its prompt."""

from __future__ import annotations

import dataclasses
import difflib
import json
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _core

__all__ = ["SamplingParams"]

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class FilterFields(TypedDict, total=False):
        """Temperature and what takes tokens out of the distribution, as keyword arguments."""

        temperature: float | None
        top_p: float | None
        top_k: int | None
        min_p: float | None
        top_n_sigma: float | None

    class ParamFields(FilterFields, total=False):
        """The fields of `SamplingParams` as keyword arguments. tests/python/fields_test.py compares the two."""

        n: int
        repetition_penalty: float | None
        presence_penalty: float | None
        frequency_penalty: float | None
        logit_bias: Mapping[int, float] | None
        seed: int | None
        max_tokens: int | None
        max_thinking_tokens: int | None
        stop: str | Sequence[str] | None
        stop_token_ids: Sequence[int] | None
        ignore_eos: bool
        json_schema: Mapping[str, Any] | str | type | None
        regex: str | None
        grammar: str | None
        skip_special_tokens: bool
        logprobs: int | None
        prompt_logprobs: int | None
        add_special_tokens: bool
        chat_template_kwargs: Mapping[str, Any] | None
        priority: int
        decoding: str
        depths: Sequence[int] | None
        sampler: str
        recurrence: int | None

    class ChatFields(ParamFields, total=False):
        """Those that `chat` takes besides."""

        tools: Sequence[Any]

_INT_MAX = 2**31 - 1
_SAMPLING: Mapping[str, tuple[str, float, str]] = _core.sampling_fields
_RANGES: Mapping[str, tuple[int, int] | None] = _core.request_fields


def integer(name: str, value: object, low: int, high: int = _INT_MAX) -> int:
    """The value as an int between these."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} is {value!r}, expected an integer")
    whole = int(value)
    if not low <= whole <= high:
        raise ValueError(f"{name} is {whole}, expected {low} to {high}")
    return whole


def number(name: str, value: object) -> float:
    """The value as a float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}, expected a number")
    return float(value)


def flag(name: str, value: object) -> bool:
    """The value as a bool: "false" would be true."""
    if value is True or value is False:
        return value
    if type(value).__name__ in ("bool", "bool_"):  # NumPy's
        return bool(value)
    raise TypeError(f"{name} is {value!r}, expected True or False")


def text(name: str, value: object) -> str:
    """The value as text that can be written down."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has {value[error.start]!r} at {error.start}, which is half a character") from None
    return value


def integers(name: str, values: object) -> list[int]:
    """The values as a list of 32-bit integers; an array's are taken over."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} is {values!r}, expected a list of integers")
    listed = list(values)
    if set(map(type, listed)) == {int} and min(listed) >= -_INT_MAX - 1 and max(listed) <= _INT_MAX:
        return listed  # as most are: one look at all of them
    return [integer(f"{name}[{index}]", value, -_INT_MAX - 1) for index, value in enumerate(listed)]


def json_text(name: str, value: object) -> str:
    """The value as JSON."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be written as JSON: {error}") from None


def schema_text(value: object) -> str:
    """A JSON schema as text: of a dict, of text, of a pydantic model's class."""
    if isinstance(value, str):
        return text("json_schema", value)
    of_class = getattr(value, "model_json_schema", None) if isinstance(value, type) else None
    if callable(of_class):
        value = of_class()
    if not isinstance(value, Mapping):
        raise TypeError(f"json_schema is {value!r}, expected a dict, JSON text or a pydantic model's class")
    return json_text("json_schema", dict(value))


def one_of(name: str, value: object, allowed: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(allowed)}")
    return value


def _bias_token(token: object) -> int:
    """A key of logit_bias: an id, or its digits, as JSON has them."""
    if isinstance(token, str) and token.isdecimal():
        token = int(token)
    return integer("a key of logit_bias", token, 0)


@dataclasses.dataclass(kw_only=True)
class SamplingParams:
    """How an answer is made: length, randomness, ends, what is told about it.

    Every field can be given to `Engine.generate`, `chat`, `stream` and `astream` by its own name instead; a
    `SamplingParams` is for those who use the same ones again and again::

        warm = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=64, seed=7)
        engine.generate(["Once upon a time", "Tom had a cat"], warm)
        engine.generate("Tell me more", warm, max_tokens=200)   # one field changed

    A field left at None is the model's own choice (its generation_config.json), which is greedy decoding where it
    says nothing. The same seed gives the same text, alone or among other requests.

    n: answers to make, each with draws of its own.
    temperature: 0 is greedy: the likeliest token, always. 1 is the model's own distribution.
    top_p, top_k, min_p: cut off unlikely tokens; 1, 0 (or -1) and 0 switch them off.
    top_n_sigma: keeps tokens whose logits are within this many standard deviations of the largest; 0 or less is off.
    repetition_penalty: above 1, tokens of prompt and answer become less likely.
    presence_penalty, frequency_penalty: the same for tokens of the answer, once or by their count.
    logit_bias: what is added to the logits of tokens, by id: {42: -100.0}.
    seed: of the draws. None: a random one, which the output tells.
    max_tokens: the longest answer; None: 256 tokens, or what the context has room for. 0 only reads the prompt.
    max_thinking_tokens: where the prompt ends in <think>, </think> comes after this many at the latest.
    stop: the text ends before any of these strings.
    stop_token_ids: it ends with any of these tokens.
    ignore_eos: it does not end where the model would end it.
    json_schema: the answer is JSON that is valid by this schema: a dict, JSON text or a pydantic model's class.
    regex: the whole answer matches this regular expression.
    grammar: the answer is one that this grammar allows, which has llama.cpp's GBNF form.
    skip_special_tokens: they are not part of the text.
    logprobs: n: tell the log-probability of each token, and the n likeliest ones.
    prompt_logprobs: the same for the tokens of the prompt.
    add_special_tokens: put those around a text prompt that the tokenizer wants there (a begin-of-text token).
    chat_template_kwargs: more variables for the chat template: {"enable_thinking": False}.
    priority: among waiting requests a lower one comes first.

    How it is computed; greedy text depends on none of these:

    decoding: "loopspec" drafts tokens at early depths and verifies them at the last; "ar" is plain autoregressive
        decoding; "lookup" guesses by what the text repeats.
    depths: the proposal depths, among those that the engine was loaded with.
    sampler: "cascade" is the paper's rejection sampling; "coupled" makes sampled text independent of `decoding` and
        `depths`, too.
    recurrence: read answers out after fewer recurrences than R: quicker, and another model's text.
    """

    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    top_n_sigma: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_thinking_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    json_schema: Mapping[str, Any] | str | type | None = None
    regex: str | None = None
    grammar: str | None = None
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    add_special_tokens: bool = True
    chat_template_kwargs: Mapping[str, Any] | None = None
    priority: int = 0
    decoding: str = "loopspec"
    depths: Sequence[int] | None = None
    sampler: str = "cascade"
    recurrence: int | None = None

    def __post_init__(self) -> None:
        for name, (kind, low, _) in _SAMPLING.items():
            value = getattr(self, name)
            if value is not None:
                integer(name, value, int(low)) if kind == "int" else number(name, value)
        for field in dataclasses.fields(self):
            limits, value = _RANGES.get(field.name), getattr(self, field.name)
            if limits is not None and (value is not None or field.default is not None):
                integer(field.name, value, *limits)
        if self.seed is not None:
            integer("seed", self.seed, 0, 2**64 - 1)
        one_of("decoding", self.decoding, list(_core.Decoding.__members__))
        one_of("sampler", self.sampler, list(_core.Sampler.__members__))

    def replace(self, **changes: Unpack[ParamFields]) -> SamplingParams:
        """The same with some fields changed; an unknown name is a TypeError."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f": did you mean {close[0]}?" if close else f", expected one of {', '.join(known)}"
                raise TypeError(f"unknown parameter {name!r}{hint}")
        return dataclasses.replace(self, **changes)

    def _sampling(self, default: Mapping[str, Any]) -> _core.Sampling | None:
        """None: as the model says."""
        given = {name: getattr(self, name) for name in _SAMPLING if getattr(self, name) is not None}
        if not given and self.logit_bias is None and self.sampler == "cascade":
            return None
        sampling = _core.Sampling()
        for name, value in {**default, **given}.items():
            setattr(sampling, name, int(value) if _SAMPLING[name][0] == "int" else float(value))
        sampling.sampler = _core.Sampler[self.sampler]
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping):
                raise TypeError(f"logit_bias is {self.logit_bias!r}, expected a dict such as {{42: -100.0}}")
            sampling.set_bias([(_bias_token(token), number(f"logit_bias[{token!r}]", bias)) for token, bias in self.logit_bias.items()])
        return sampling

    def _fill(self, request: _core.Request, default: Mapping[str, Any]) -> None:
        """Everything but the prompt."""
        request.choices = self.n
        request.sampling = self._sampling(default)
        request.seed = self.seed
        request.max_tokens = self.max_tokens
        request.max_thinking_tokens = self.max_thinking_tokens
        if self.stop is not None:
            if not isinstance(self.stop, (str, Iterable)):
                raise TypeError(f"stop is {self.stop!r}, expected text, or a list of texts")
            stops = [self.stop] if isinstance(self.stop, str) else list(self.stop)
            request.stop = [text(f"stop[{index}]", value) for index, value in enumerate(stops)]
        if self.stop_token_ids is not None:
            request.stop_tokens = integers("stop_token_ids", self.stop_token_ids)
        request.ignore_eos = flag("ignore_eos", self.ignore_eos)
        given = [name for name in _core.grammar_fields if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[1]} is a second grammar beside {given[0]}, expected one of them")
        for name in given:
            value = getattr(self, name)
            request.set_grammar(name, schema_text(value) if name == "json_schema" else text(name, value))
        request.show_special = not flag("skip_special_tokens", self.skip_special_tokens)
        request.logprobs = self.logprobs
        request.prompt_logprobs = self.prompt_logprobs
        request.add_special_tokens = flag("add_special_tokens", self.add_special_tokens)
        if self.chat_template_kwargs is not None and not isinstance(self.chat_template_kwargs, Mapping):
            raise TypeError(f"chat_template_kwargs is {self.chat_template_kwargs!r}, expected a dict such as {{'enable_thinking': False}}")
        request.priority = self.priority
        request.decoding = _core.Decoding[self.decoding]
        if self.depths is not None:
            request.depths = integers("depths", self.depths)
        request.recurrence = self.recurrence
