"""A loaded model."""

from __future__ import annotations

import asyncio
import atexit
import collections
import datetime
import json
import numbers
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from . import _core
from ._outputs import Calibration, RequestOutput, Token, Trace, output_of
from ._params import SamplingParams, flag, integer, integers, json_text, one_of, text

if TYPE_CHECKING:
    import numpy
    import numpy.typing
    from typing_extensions import Self, Unpack

    from ._params import ChatFields, FilterFields, ParamFields

Message: TypeAlias = Mapping[str, Any]
"""{"role": "user", "content": "Hello"}"""
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message] | Mapping[str, Any]
"""Text, ids, or a conversation."""

_DTYPES = {"auto": "auto", "f32": "f32", "float32": "f32", "bf16": "bf16", "bfloat16": "bf16"}
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_live: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Before the interpreter goes: an engine's threads must not outlive it."""
    for engine in list(_live):
        if engine._pid == os.getpid():
            engine.close()
    _core.finish_given_up()
    _core.finish_calls()


def _share(name: str, value: int | str | None) -> float:
    """0.8 of "80%"; 0 of what is no share."""
    if not isinstance(value, str) or not value.rstrip().endswith("%"):
        return 0.0
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value)
    if match is None or not 0 < float(match[1]) <= 100:
        raise ValueError(f"{name} is {value!r}, expected a share from 0% to 100%, such as '80%'")
    return float(match[1]) / 100


def _bytes(name: str, value: int | str | None) -> int:
    if value is None:
        return 0
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        if match is None or match[2].upper() not in _UNITS:
            raise ValueError(f"{name} is {value!r}, expected bytes, or a text such as '8GiB'")
        return int(float(match[1]) * _UNITS[match[2].upper()])
    return integer(name, value, 1, 2**62)


def _depth_sets(depths: Sequence[int] | Sequence[Sequence[int]] | None) -> list[list[int]]:
    if depths is None:
        return []
    if isinstance(depths, (str, bytes)) or not isinstance(depths, Iterable):
        raise TypeError(f"depths is {depths!r}, expected depths such as (1, 2), or a list of such sets")
    listed = list(depths)
    if not listed or isinstance(listed[0], int):
        return [integers("depths", listed)]
    return [integers(f"depths[{index}]", entry) for index, entry in enumerate(listed)]


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and "role" in value


def _is_one(prompts: object, name: str = "prompts") -> bool:
    """Whether this is one prompt, and no list of them."""
    if isinstance(prompts, (str, Mapping)):
        return True
    if hasattr(prompts, "tolist"):  # an array: of ids, or of rows of ids
        return getattr(prompts, "ndim", 1) == 1
    if isinstance(prompts, bytes) or not isinstance(prompts, Sequence):
        raise TypeError(f"{name} is a {type(prompts).__name__}, expected text, ids, messages, or a list of these")
    if not prompts:
        return False
    first = prompts[0]
    if isinstance(first, numbers.Integral) or _is_message(first):
        return True
    return not isinstance(first, (str, Mapping, Sequence)) and not hasattr(first, "tolist")


class Stream:
    """An answer under way, as `Engine.stream` returns it: an iterator of its tokens, which waits for the next one.

    ::

        with engine.stream("Once upon a time") as stream:
            for token in stream:
                print(token.text, end="", flush=True)
        print(stream.output.statistics.tokens_per_second)

    A stream that is closed, or not referenced any more, cancels its request. Its tokens wait until they are read, so
    a slow reader delays nobody. One thread reads at a time; any may `cancel`.
    """

    def __init__(self, core: _core.Stream, prompt: str | None, prompt_logprobs: bool) -> None:
        self._core = core
        self._prompt = prompt
        self._prompt_logprobs = prompt_logprobs
        self._buffer: collections.deque[Token] = collections.deque()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Token:
        if not self._buffer:
            self._buffer.extend(self._core.read())
            if not self._buffer:
                _raise_error(self._core.answer)
                raise StopIteration
        return self._buffer.popleft()

    def cancel(self) -> None:
        """Stops within a step. What was produced can still be read."""
        self._core.cancel()

    def close(self) -> None:
        """Cancels, and waits for the end. Tokens that were not read are in `output`."""
        self._core.cancel()
        while not self._core.done:
            self._core.read()
        self._buffer.clear()

    @property
    def output(self) -> RequestOutput:
        """The answer so far; complete, with its statistics, when all tokens are read."""
        output = output_of(self._core.answer, self._prompt, self._prompt_logprobs)
        output.finished = self._core.done
        return output

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._core.done:
            self.close()


class AsyncStream:
    """An answer under way, as `Engine.astream` returns it: an asynchronous iterator of its tokens.

    ::

        async for token in engine.astream("Once upon a time"):
            print(token.text, end="", flush=True)

    The event loop is woken through a file descriptor that the engine's thread writes to; no thread waits. Cancelling
    the task, `aclose`, or dropping the stream cancels the request.
    """

    def __init__(self, start: Callable[[], _core.Stream], prompt: str | None, prompt_logprobs: bool) -> None:
        self._start = start
        self._core: _core.Stream | None = None
        self._prompt = prompt
        self._prompt_logprobs = prompt_logprobs
        self._buffer: collections.deque[Token] = collections.deque()

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Token:
        if self._buffer:
            return self._buffer.popleft()
        if self._core is None:  # a long prompt takes a while to become ids: not in the loop's thread
            self._core = await asyncio.to_thread(self._start)
        try:
            while True:
                self._buffer.extend(self._core.read(0))
                if self._buffer:
                    return self._buffer.popleft()
                if self._core.done:
                    _raise_error(self._core.answer)
                    raise StopAsyncIteration
                await self._readable(self._core.fileno())
        except asyncio.CancelledError:
            self._core.cancel()
            raise

    @staticmethod
    async def _readable(descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        loop.add_reader(descriptor, wake)
        try:
            await ready
        finally:
            loop.remove_reader(descriptor)

    def cancel(self) -> None:
        """Stops within a step. What was produced can still be read."""
        if self._core is not None:
            self._core.cancel()

    async def aclose(self) -> None:
        """Cancels, and waits for the end."""
        self._buffer.clear()
        if self._core is None:
            return
        self._core.cancel()
        while not self._core.done:
            if not self._core.read(0) and not self._core.done:
                await self._readable(self._core.fileno())

    @property
    def output(self) -> RequestOutput:
        """The answer so far; complete, with its statistics, when all tokens are read."""
        if self._core is None:
            raise RuntimeError("the stream has not begun: read a token first")
        output = output_of(self._core.answer, self._prompt, self._prompt_logprobs)
        output.finished = self._core.done
        return output

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.aclose()


def _raise_error(answer: _core.Answer, where: str = "") -> None:
    if answer.error:
        raise (ValueError if answer.refused else RuntimeError)(where + answer.error)


def _kv_type(value: Any) -> str:
    if isinstance(value, str) and value.startswith("loops"):
        return value  # the plan is read where R is known
    return one_of("kv_type", value, ("auto", "bf16", "int8", "loops", "loops:PLAN"))


class Engine:
    """A loaded model that answers any number of requests at a time.

    ::

        from loopspec import Engine

        engine = Engine("models/ouro-demo")
        print(engine.generate("Once upon a time").text)                        # one
        for output in engine.generate(["Tom had", "Lily saw"], max_tokens=20):  # many, decoded together
            print(output.text)
        print(engine.chat([{"role": "user", "content": "Tell me a story."}], temperature=0.8, seed=1).text)
        for token in engine.stream("The little dog"):
            print(token.text, end="", flush=True)

    Any thread may use it. Requests that run at the same time share the engine's steps, and each gets the text that it
    gets alone. Python's lock is released while the engine works, and Ctrl-C cancels what is waited for.

    model: folder of a checkpoint as the Hugging Face Hub has it, ORG/NAME in the Hugging Face cache, or "ouro-demo" where
        the package loopspec-demo is installed.
    pull: download a model that is not in the cache, with its progress on standard error; Ctrl-C stops, the next call goes on.
    device: "auto" (the first GPU where the package loopspec-cuda and a driver are, else the CPU), "cpu", "cuda", "cuda:1".
    dtype: what matrix products take in: "float32", "bfloat16", or "auto": bfloat16 where the weights are and the chip is
        fast at it.
    kv_type: keys and values: "bf16", "int8" (half the memory, and on a GPU faster over long texts), "auto": as the dtype,
        or "loops": int8, and beyond the last positions only what the model's plan keeps; "loops:PLAN" names one:
        "loops:int8*8,last" keeps the first 8 loops and the last, on a CPU "loops:int8,r5,r4" residuals of 5 and 4 bits
        against the last. Text depends on the plan, which `engine.kv_type` names.
    threads: of a CPU; 0 takes every usable core.
    depths: proposal depths, such as (1, 2); a list of such sets lets requests choose among them, the first being
        the default. None: chosen for the model, or what `calibrate` found. () decodes without drafts.
    recurrence: how many recurrences to run, instead of the model's own R.
    recurrences: numbers below R after which requests and `logits` may read the model out, too; Ouro models have them all.
    kv_memory: for keys and values, in bytes, as "8GiB", or as "80%" of what is free beside the weights; None: a quarter of a CPU's memory, less than half of a GPU's.
    kv_positions: the same counted in tokens, those of all requests together, prompts and answers; give one or the other.
    cache_memory: how much of it may keep prefixes of texts for later requests; None: all of it. 0: none.
    max_running, max_queued: answers that are decoded at once, and that may wait: more are QueueFull.
    max_rows, prefill_chunk, cells: limits of a step, for those who study the scheduler.
    config: overrides of config.json: {"max_position_embeddings": 8192}; dots descend.
    state_seed: of the random initial states of Raven models.
    calibration: False: a calibration file of the model is ignored.
    trust_special_tokens: special tokens that stand in messages of users and tools are tokens, not text.

    Raises FileNotFoundError where there is no such model, and ValueError for what is wrong with it or with an argument.
    """

    def __init__(self, model: str | os.PathLike[str], *, device: str = "auto", dtype: str = "auto", kv_type: str = "auto",
                 threads: int = 0, depths: Sequence[int] | Sequence[Sequence[int]] | None = None, recurrence: int | None = None,
                 recurrences: Sequence[int] = (), kv_memory: int | str | None = None, kv_positions: int | None = None,
                 cache_memory: int | str | None = None, max_running: int = 0, max_queued: int = 1024, max_rows: int = 0,
                 prefill_chunk: int = 0, cells: int = 256, config: Mapping[str, Any] | None = None, state_seed: int = 0,
                 calibration: bool = True, trust_special_tokens: bool = False, pull: bool = False) -> None:
        if not isinstance(model, (str, os.PathLike)):
            raise TypeError(f"model is {model!r}, expected a folder or ORG/NAME")
        name = text("model", os.fspath(model))
        self._pid = os.getpid()
        overrides = [f"{key}={json_text(f'config[{key!r}]', value)}" for key, value in (config or {}).items()]
        def load() -> _core.Engine:
            return _core.Engine(
                model=name, device=text("device", device), compute=_DTYPES[one_of("dtype", dtype, list(_DTYPES))],
                kv_type=_kv_type(kv_type), threads=integer("threads", threads, 0),
                recurrence=0 if recurrence is None else integer("recurrence", recurrence, 1),
                recurrences=integers("recurrences", recurrences), config=overrides,
                state_seed=integer("state_seed", state_seed, 0, 2**64 - 1), depths=_depth_sets(depths),
                trust_special_tokens=flag("trust_special_tokens", trust_special_tokens), calibration=flag("calibration", calibration),
                kv_memory=0 if _share("kv_memory", kv_memory) else _bytes("kv_memory", kv_memory), kv_share=_share("kv_memory", kv_memory),
                kv_positions=0 if kv_positions is None else integer("kv_positions", kv_positions, 1, 2**62),
                cache_bytes=-1 if cache_memory is None else 0 if cache_memory == 0 else _bytes("cache_memory", cache_memory),
                cells=integer("cells", cells, 1), max_running=integer("max_running", max_running, 0),
                max_queued=integer("max_queued", max_queued, 1), max_rows=integer("max_rows", max_rows, 0),
                prefill_chunk=integer("prefill_chunk", prefill_chunk, 0))

        try:
            self._core = load()
        except FileNotFoundError:
            if not pull:
                raise
            _pull(name)
            self._core = load()
        self._facts: dict[str, Any] = self._core.facts()
        _live.add(self)

    # ---- What is known of the model ----

    @property
    def model(self) -> str:
        """The model as it was named."""
        return str(self._facts["model"])

    @property
    def device(self) -> str:
        """"cpu" or "cuda:0"."""
        return str(self._facts["device"])

    @property
    def kv_type(self) -> str:
        """"f32", "bf16", "int8" or "loops:PLAN@SPAN": how keys and values are kept."""
        return str(self._facts["kv_type"])

    @property
    def dtype(self) -> str:
        """"f32" or "bf16": what matrix products take in."""
        return str(self._facts["dtype"])

    @property
    def context(self) -> int:
        """Positions that prompt and answer may have: the model's, or what memory holds."""
        return int(self._facts["context"])

    @property
    def parameters(self) -> int:
        """How many numbers the model consists of."""
        return int(self._facts["parameters"])

    @property
    def vocab_size(self) -> int:
        """Tokens that there are."""
        return int(self._facts["vocab_size"])

    @property
    def recurrence(self) -> int:
        """R: how often a token goes through the shared blocks."""
        return int(self._facts["recurrence"])

    @property
    def recurrences(self) -> list[int]:
        """Depths that requests and `logits` may ask for; R is the last."""
        return list(self._facts["recurrences"])

    @property
    def depths(self) -> list[list[int]]:
        """Sets of proposal depths that requests may choose from."""
        return [list(depths) for depths in self._facts["depths"]]

    @property
    def chat_template(self) -> str | None:
        """The model's chat template, in Jinja."""
        template: str | None = self._facts["chat_template"]
        return template

    @property
    def bos_token(self) -> str | None:
        """The token that begins a text."""
        token: str | None = self._facts["bos_token"]
        return token

    @property
    def eos_token(self) -> str | None:
        """The token that ends a text."""
        token: str | None = self._facts["eos_token"]
        return token

    @property
    def pad_token(self) -> str | None:
        """The token that fills up."""
        token: str | None = self._facts["pad_token"]
        return token

    @property
    def eos_token_ids(self) -> list[int]:
        """The tokens that end an answer."""
        return list(self._facts["eos_token_ids"])

    @property
    def default_sampling(self) -> dict[str, float]:
        """What the model's generation_config.json asks for; greedy where it has none."""
        return dict(self._facts["sampling"])

    @property
    def metrics(self) -> dict[str, Any]:
        """Where the engine stands now.

        waiting, prefilling, decoding, preempted: requests by what they are doing.
        pages, pages_free, pages_cached: of key/value memory, each of page_positions tokens.
        finished, cancelled, failed, prompt_tokens, cached_tokens, decoded_tokens, steps, rows: counts so far; accepted,
        fallback, early, drafted, preemptions: as in `Statistics`.
        """
        return self._core.metrics()

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.device
        return f"<{type(self).__name__} {self.model!r}: {self.parameters / 1e6:.1f} M parameters, R = {self.recurrence}, {state}>"

    # ---- Answers ----

    @overload  # a text is a sequence of texts, too: the first that fits is taken
    def generate(  # type: ignore[overload-overlap]
            self, prompts: str, params: SamplingParams | None = None, *, use_tqdm: bool | None = None,
            **kw: Unpack[ParamFields]) -> RequestOutput: ...
    @overload
    def generate(self, prompts: Sequence[str], params: SamplingParams | Sequence[SamplingParams] | None = None, *,
                 use_tqdm: bool | None = None, **kw: Unpack[ParamFields]) -> list[RequestOutput]: ...
    @overload
    def generate(self, prompts: Any, params: SamplingParams | Sequence[SamplingParams] | None = None, *,
                 use_tqdm: bool | None = None, **kw: Unpack[ParamFields]) -> Any: ...

    def generate(self, prompts: Any, params: SamplingParams | Sequence[SamplingParams] | None = None, *,
                 use_tqdm: bool | None = None, **kw: Any) -> Any:
        """Answers one prompt, or a list of them; one gives a `RequestOutput`, a list gives a list in the same order.

        A prompt is a text to go on from, a list of token ids (or an array), or a conversation: a list of messages
        such as {"role": "user", "content": "Hello"}. {"prompt": ...} and {"prompt_token_ids": [...]} work, too.
        A list may be as long as you like: the engine keeps as many under way as it has room for.

        params: a `SamplingParams`, or one for each prompt. **kw are fields of `SamplingParams` by name, and go before it:
            max_tokens=64, temperature=0.8, stop="\\n" ... An answer has 256 tokens at most unless told.
        use_tqdm: True shows a progress bar, False none; None shows one for a list that takes longer than a second,
            at a terminal that has tqdm.

        Nothing is returned of a list in which one prompt is wrong, such as one longer than `context`: that raises
        ValueError, which names it.
        """
        one = _is_one(prompts)
        listed = [prompts] if one else list(prompts)
        requests = self._requests(listed, params, kw, one)
        outputs = self._run(listed, requests, bool(use_tqdm) if use_tqdm is not None or one else None)
        return outputs[0] if one else outputs

    @overload
    def chat(  # type: ignore[overload-overlap]
            self, messages: str | Sequence[Message], params: SamplingParams | None = None, *, use_tqdm: bool | None = None,
            **kw: Unpack[ChatFields]) -> RequestOutput: ...
    @overload
    def chat(self, messages: Sequence[str] | Sequence[Sequence[Message]],
             params: SamplingParams | Sequence[SamplingParams] | None = None, *, use_tqdm: bool | None = None,
             **kw: Unpack[ChatFields]) -> list[RequestOutput]: ...

    def chat(self, messages: Any, params: SamplingParams | Sequence[SamplingParams] | None = None, *,
             use_tqdm: bool | None = None, **kw: Any) -> Any:
        """Answers a conversation, or a list of conversations, through the model's chat template.

        messages: a list of {"role": ..., "content": ...}, or a list of such lists; a text is a user's message.
        Parameters are those of `generate`; `chat_template_kwargs={"enable_thinking": False}` and
        `tools=[...]` go to the template.
        """
        if "tools" in kw:
            kw["chat_template_kwargs"] = {**(kw.get("chat_template_kwargs") or {}), "tools": kw.pop("tools")}

        def conversation(value: Any) -> Any:
            if isinstance(value, str):
                return [{"role": "user", "content": value}]
            if isinstance(value, Sequence) and value and all(map(_is_message, value)):
                return value
            raise TypeError(f"messages is {value!r}, expected a list such as [{{'role': 'user', 'content': 'Hello'}}]")

        if _is_one(messages, "messages"):
            return self.generate(conversation(messages), params, use_tqdm=use_tqdm, **kw)
        return self.generate([conversation(value) for value in messages], params, use_tqdm=use_tqdm, **kw)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, **kw: Unpack[ParamFields]) -> Stream:
        """Answers one prompt as an iterator of `Token`s, each with its proposal and, where asked for, its logprobs.

        The prompt and the parameters are those of `generate`. Raises QueueFull when too many requests wait.
        """
        [request] = self._requests([prompt], params, kw, True)
        return Stream(self._core.submit(request), *self._told(prompt, request))

    def astream(self, prompt: Prompt, params: SamplingParams | None = None, **kw: Unpack[ParamFields]) -> AsyncStream:
        """The same as `stream` for asyncio: `async for token in engine.astream(...)`."""
        [request] = self._requests([prompt], params, kw, True)
        return AsyncStream(lambda: self._core.submit(request), *self._told(prompt, request))

    def _told(self, prompt: Any, request: _core.Request) -> tuple[str | None, bool]:
        if isinstance(prompt, Mapping):
            prompt = prompt.get("prompt")
        return prompt if isinstance(prompt, str) else None, request.prompt_logprobs is not None

    def _requests(self, prompts: Sequence[Any], params: SamplingParams | Sequence[SamplingParams] | None,
                  kw: Mapping[str, Any], one: bool) -> list[_core.Request]:
        if params is None or isinstance(params, SamplingParams):
            given = [params or SamplingParams()] * len(prompts)
        else:
            if isinstance(params, (str, bytes, Mapping)) or not isinstance(params, Iterable):
                raise TypeError(f"params is {params!r}, expected SamplingParams(...), or a list of them")
            given = list(params)
            for index, entry in enumerate(given):
                if not isinstance(entry, SamplingParams):
                    raise TypeError(f"params[{index}] is {entry!r}, expected SamplingParams(...)")
            if len(given) != len(prompts):
                raise ValueError(f"params has {len(given)} entries, expected one for each of {len(prompts)} prompts")
        if kw:  # the same for most
            changed = {id(entry): entry.replace(**kw) for entry in given}
            given = [changed[id(entry)] for entry in given]
        default = self._facts["sampling"]
        return [self._request(prompt, entry, default, "prompt" if one else f"prompts[{index}]")
                for index, (prompt, entry) in enumerate(zip(prompts, given))]

    def _request(self, prompt: Any, params: SamplingParams, default: Mapping[str, Any], name: str) -> _core.Request:
        request = _core.Request()
        params._fill(request, default)
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" in prompt:
                prompt = prompt["prompt_token_ids"]
            elif isinstance(prompt.get("prompt"), str):
                prompt = prompt["prompt"]
            elif _is_message(prompt):
                raise TypeError(f"{name} is one message, expected a list of messages")
            else:
                raise TypeError(f"{name} has {', '.join(map(str, prompt))}, expected prompt or prompt_token_ids")
        if isinstance(prompt, str):
            request.prompt = text(name, prompt)
        elif isinstance(prompt, Sequence) and prompt and _is_message(prompt[0]):
            request.messages_json = json_text(name, list(map(dict, prompt)))
            if params.chat_template_kwargs:
                request.template_arguments = json_text("chat_template_kwargs", dict(params.chat_template_kwargs))
        else:
            request.tokens = integers(name, prompt)
            if not request.tokens:
                raise ValueError(f"{name} is empty, expected at least one token")
        return request

    def _run(self, prompts: Sequence[Any], requests: list[_core.Request], use_tqdm: bool | None) -> list[RequestOutput]:
        answers = self._answers(requests, use_tqdm)
        outputs = []
        for index, (prompt, request, answer) in enumerate(zip(prompts, requests, answers)):
            _raise_error(answer, f"prompts[{index}]: " if len(prompts) > 1 else "")
            output = output_of(answer, *self._told(prompt, request))
            if any(choice.finish_reason == "cancelled" for choice in output.outputs):
                raise RuntimeError("the engine was closed before the answers were there")
            outputs.append(output)
        return outputs

    def _answers(self, requests: list[_core.Request], use_tqdm: bool | None = False,
                 finished: Callable[[int, _core.Answer], None] | None = None) -> list[_core.Answer]:
        """Whatever each came to, errors included. `finished` is told of each as it ends."""
        bar = progress_bar(use_tqdm, len(requests), "prompt")
        if bar is None:
            return self._core.run(requests, finished=finished)
        with bar:
            def progress(done: int, tokens: int) -> None:
                elapsed = bar.format_dict["elapsed"]
                if elapsed:
                    bar.set_postfix_str(f"{tokens / elapsed:.0f} tokens/s", refresh=False)
                bar.update(done - bar.n)

            return self._core.run(requests, progress, finished)

    # ---- Text ----

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The text as token ids."""
        return self._core.encode(_text("text", text), add_special_tokens)

    def decode(self, ids: Sequence[int] | int, *, skip_special_tokens: bool = True) -> str:
        """Token ids as text."""
        return self._core.decode(self._tokens([ids] if isinstance(ids, int) else ids), flag("skip_special_tokens", skip_special_tokens))

    def _tokens(self, ids: object) -> list[int]:
        """Ids of the model's tokens."""
        listed = integers("ids", ids)
        for index, value in enumerate(listed):
            if not 0 <= value < self.vocab_size:
                raise ValueError(f"ids[{index}] is {value}, expected 0 to {self.vocab_size - 1}, the model's tokens")
        return listed

    def token_bytes(self, id: int) -> bytes:
        """A token's own bytes, perhaps half a character."""
        return self._core.piece(integer("id", id, 0, self.vocab_size - 1))

    @overload
    def apply_chat_template(self, messages: Sequence[Message], *, tokenize: bool) -> list[int]: ...
    @overload
    def apply_chat_template(self, messages: Sequence[Message], *, add_generation_prompt: bool = True,
                            tools: Sequence[Any] | None = None, **variables: Any) -> str: ...

    def apply_chat_template(self, messages: Sequence[Message], *, tokenize: bool = False, add_generation_prompt: bool = True,
                            tools: Sequence[Any] | None = None, **variables: Any) -> str | list[int]:
        """The prompt that the model's chat template makes of a conversation: text, or ids with tokenize=True.

        add_generation_prompt: end with the beginning of an answer.
        tools and **variables are for the template: enable_thinking=False.
        """
        if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
            raise TypeError(f"messages is {messages!r}, expected a list such as [{{'role': 'user', 'content': 'Hello'}}]")
        if tools is not None:
            variables["tools"] = list(tools)
        variables["add_generation_prompt"] = flag("add_generation_prompt", add_generation_prompt)
        given = json_text("messages", list(map(dict, messages))), json_text("template variables", variables)
        return self._core.encode_chat(*given) if tokenize else self._core.render(*given)

    # ---- A look inside ----

    def logits(self, ids: Sequence[int] | str, depths: Sequence[int] | int | None = None) -> numpy.typing.NDArray[numpy.float32]:
        """Logits of every position, as a NumPy array of float32 [depths, tokens, vocabulary].

        ids: the text as ids; a text is encoded first.
        depths: any of `recurrences`; one depth as a number leaves the first axis out. None: R alone, also without
            that axis.

        The array is the engine's own memory, not copied; torch.from_dlpack(array) shares it, too. Equal bit for bit
        to what decoding computes on a CPU.
        """
        try:
            import numpy  # noqa: F401  # what the array is made of
        except ImportError:
            raise ImportError("logits are NumPy arrays, and NumPy is not installed: pip install 'loopspec[numpy]'") from None
        tokens = self.encode(ids) if isinstance(ids, str) else self._tokens(ids)
        if depths is None:
            depths = self.recurrence
        single = isinstance(depths, int)
        array = _core.logits(self._core, tokens, [depths] if isinstance(depths, int) else integers("depths", depths))
        return array[0] if single else array

    def trace(self, prompt: Prompt, params: SamplingParams | None = None, **kw: Unpack[ParamFields]) -> Trace:
        """Answers one prompt and keeps what became of every branch: drafts, verdicts, what was pruned.

        A notebook draws the result; `trace.save("picture.svg")` writes it. Parameters are those of `generate`.
        """
        [request] = self._requests([prompt], params, kw, True)
        request.trace = True
        [answer] = self._answers([request])
        _raise_error(answer)
        names = ("kind", "step", "branch", "parent", "token", "position", "depth", "proposal")
        events: list[dict[str, Any]] = [dict(zip(names, event)) for event in answer.trace]
        if self._facts["has_tokenizer"]:
            for event in events:
                if event["token"] >= 0:
                    event["text"] = self._core.decode([event["token"]], False)
        return Trace(recurrence=self.recurrence, kv_type=self.kv_type, depths=list(answer.depths), events=events,
                     output=output_of(answer, *self._told(prompt, request)))

    def calibrate(self, prompts: Sequence[Any], *, views: Sequence[str] = ("greedy", "sampling"), positions: int = 4096,
                  max_tokens: int = 128, proposals: int = 3, measure: int = 6, measure_prompts: int = 4, repeat: int = 3,
                  seed: int = 0, save: bool = True, force: bool = False, use_tqdm: bool | None = None,
                  **sampling: Unpack[FilterFields]) -> Calibration:
        """Finds the proposal depths that are fastest for this model on this machine, as `loopspec calibrate` does.

        prompts: such as you will decode; text, ids or conversations. A few dozen will do.
        views: "greedy", "sampling" or both: each gets depths of its own.
        **sampling: temperature and the filters of `SamplingParams`, which shape the second view; temperature 1 and top_p 0.7
            unless they are given.
        positions: to look at, prompts and answers together. max_tokens: of each answer.
        proposals: depths in a set at most. measure: sets that are timed, `repeat` times over `measure_prompts` prompts.
        save: engines that are loaded from now on use the depths; this one keeps its own.
        force: use what was found even where the machine was busy. Else the result says so (`busy`) and is kept beside the place
            of the calibration; a second run that comes to the same choice is used.

        Nothing else should run meanwhile, on this engine or on the machine.
        """
        listed = [prompts] if _is_one(prompts) else list(prompts)
        if not listed:
            raise ValueError("prompts is empty, expected a few dozen")
        if isinstance(views, str):
            raise TypeError(f"views is {views!r}, expected a list such as ['greedy']")
        for name in sampling:
            if name not in _core.sampling_filters:
                raise TypeError(f"calibrate has no parameter {name!r}")
        params = SamplingParams(**sampling)
        if params.temperature is None:
            params.temperature = 1.0
        drawn = params._sampling({"top_p": 0.7})
        assert drawn is not None
        requests = self._requests(listed, None, {}, False)
        for view in views:
            one_of("views", view, ("greedy", "sampling"))
        ids = [request.tokens or (self._core.encode_chat(request.messages_json, request.template_arguments)
                                  if request.messages_json else self._core.encode(request.prompt, True))
               for request in requests]
        bar = progress_bar(use_tqdm, None, "")

        def progress(what: str, done: int, total: int, unit: str) -> None:
            if bar is not None:
                if bar.desc != what + ": ":
                    bar.reset(total)
                    bar.set_description(what)
                bar.update(done - bar.n)

        try:
            result = _core.calibrate(
                self._core, prompts=ids, views=list(dict.fromkeys(views)), sampling=drawn,
                positions=integer("positions", positions, 2), max_tokens=integer("max_tokens", max_tokens, 2),
                proposals=integer("proposals", proposals, 1, 3), measure=integer("measure", measure, 0),
                measure_prompts=integer("measure_prompts", measure_prompts, 1), repeat=integer("repeat", repeat, 1),
                seed=integer("seed", seed, 0, 2**64 - 1), date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
                version=_core.version, command="loopspec.Engine.calibrate", name=f"{len(ids)} prompts", progress=progress)
        finally:
            if bar is not None:
                bar.close()
        path = None
        if save and (force or not result.busy or result.confirmed):
            try:
                path = result.write()
            except ValueError as error:
                raise OSError(str(error)) from None
        elif save:
            result.keep_pending()
        return Calibration(depths=result.chosen("greedy"), sampled_depths=result.chosen("sampling"), spread=result.spread,
                           busy=result.busy, path=path, data=json.loads(result.json), text=result.text, page=result.page)

    # ---- The end ----

    def close(self) -> None:
        """Cancels what is under way and gives all memory back. Also at the end of a `with` block, and of the program."""
        self._core.close()

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._core.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class LLM(Engine):
    """An `Engine` in the shape of vLLM's class: `generate` and `chat` return a list for one prompt, too.

    ::

        from loopspec import LLM, SamplingParams

        llm = LLM("models/ouro-demo")
        outputs = llm.generate(["Once upon a time", "Tom had a cat"], SamplingParams(temperature=0.8, max_tokens=64))
        print(outputs[0].outputs[0].text)
    """

    def generate(  # type: ignore[override]  # a list for one prompt, too
            self, prompts: Any, params: SamplingParams | Sequence[SamplingParams] | None = None, *,
            sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, use_tqdm: bool | None = None,
            **kw: Unpack[ParamFields]) -> list[RequestOutput]:
        """As `Engine.generate`, always a list. `sampling_params` is another name of params."""
        outputs = super().generate(prompts, _one_name(params, sampling_params), use_tqdm=use_tqdm, **kw)
        return outputs if isinstance(outputs, list) else [outputs]

    def chat(  # type: ignore[override]  # a list for one conversation, too
            self, messages: Any, params: SamplingParams | Sequence[SamplingParams] | None = None, *,
            sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, use_tqdm: bool | None = None,
            **kw: Unpack[ChatFields]) -> list[RequestOutput]:
        """As `Engine.chat`, always a list."""
        outputs = super().chat(messages, _one_name(params, sampling_params), use_tqdm=use_tqdm, **kw)
        return outputs if isinstance(outputs, list) else [outputs]


def _one_name(params: SamplingParams | Sequence[SamplingParams] | None,
              sampling_params: SamplingParams | Sequence[SamplingParams] | None) -> SamplingParams | Sequence[SamplingParams] | None:
    if params is not None and sampling_params is not None:
        raise TypeError("params and sampling_params are two names of one argument, expected one of them")
    return params if sampling_params is None else sampling_params


_text = text  # where a parameter has that name


def progress_bar(use_tqdm: bool | None, total: int | None, unit: str) -> Any:
    """A bar of tqdm, or None where there should be none."""
    if use_tqdm is False or (use_tqdm is None and not sys.stderr.isatty() and "ipykernel" not in sys.modules):
        return None
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        if use_tqdm:
            raise ImportError("use_tqdm=True needs tqdm: pip install tqdm") from None
        return None
    return tqdm(total=total, unit=unit, dynamic_ncols=True, delay=0 if use_tqdm else 1)


def _pull(name: str) -> None:
    """Downloads a model, and says on standard error how far it is."""
    bar = progress_bar(None if sys.stderr is not None else False, 0, "B")
    if bar is not None:
        bar.unit_scale = True
        bar.set_description(name, refresh=False)
    told = 0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if bar is not None:
            bar.total = total
            bar.update(done - bar.n)
        elif total > 0 and 10 * done // total > told and sys.stderr is not None:
            told = 10 * done // total  # a line for every tenth
            print(f"downloading {name}: {done / 1e6:.0f} of {total / 1e6:.0f} MB", file=sys.stderr)

    def notice(sentence: str) -> None:
        if sys.stderr is not None:
            print(sentence, file=sys.stderr)

    try:
        size = _core.pull(name, progress, notice)
        notice(f"downloaded {name}: {size / 1e6:.1f} MB")
    finally:
        if bar is not None:
            bar.close()
