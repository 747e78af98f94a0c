"""What comes back."""

from __future__ import annotations

import dataclasses
import html
import json
import os
from typing import Any

from . import _core

Token = _core.Token


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistics:
    """How one answer ended, and what it took.

    finish_reason: "stop" (an end of text, a stop string or token), "length" (max_tokens), "cancelled".
    stop_string, stop_token: what "stop" was due to.
    prompt_tokens, cached_tokens: tokens of the prompt, and how many of them were found computed.
    decoded_tokens: tokens of the answer.
    accepted: tokens by the proposal they came from; fallback: tokens decided without an accepted draft.
    early: tokens whose computation had begun on a guess.
    gamma: tokens per R recurrences, the paper's measure. tokens_per_pass: the same by the recurrences that were made.
    queue_seconds, prefill_seconds, first_token_seconds, decode_seconds: where the time went.
    tokens_per_second: of decoding.
    drafted, recurrences, rows_mean, rows_peak, bytes_read, preemptions: for those who study the decoder.
    """

    finish_reason: str
    stop_string: str | None
    stop_token: int | None
    prompt_tokens: int
    cached_tokens: int
    decoded_tokens: int
    accepted: list[int]
    fallback: int
    early: int
    gamma: float
    preemptions: int
    queue_seconds: float
    prefill_seconds: float
    first_token_seconds: float
    decode_seconds: float
    tokens_per_second: float
    drafted: int
    recurrences: int
    rows_mean: float
    rows_peak: int
    tokens_per_pass: float
    bytes_read: float


@dataclasses.dataclass(kw_only=True)
class CompletionOutput:
    """One answer.

    index: its number among the request's n answers.
    text: what was written.
    token_ids, tokens: the same as ids, and as `Token`s with their source and logprobs.
    statistics: how it ended and what it took.
    """

    index: int
    text: str
    token_ids: list[int]
    tokens: list[Token] = dataclasses.field(repr=False)
    statistics: Statistics = dataclasses.field(repr=False)

    @property
    def finish_reason(self) -> str:
        """"stop", "length" or "cancelled"."""
        return self.statistics.finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string, or else the token, that ended it: a stop token or the model's own end of text."""
        return self.statistics.stop_token if self.statistics.stop_string is None else self.statistics.stop_string

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of its tokens' log-probabilities, where logprobs was asked for."""
        values = [token.logprob for token in self.tokens]
        return None if None in values else float(sum(value for value in values if value is not None))

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(kw_only=True)
class RequestOutput:
    """What a prompt came to: its answers, of which there is one unless n says otherwise.

    outputs: the answers; `text`, `token_ids`, `tokens`, `statistics` and `finish_reason` are those of the first.
    prompt: the prompt as it was given as text, else None.
    prompt_token_ids: the prompt as ids.
    prompt_logprobs: where asked for, a `Token` with its log-probability for every token of the prompt but the first.
    seed: that the draws came from: give it again to get the same text again.
    """

    prompt: str | None
    prompt_token_ids: list[int] = dataclasses.field(repr=False)
    outputs: list[CompletionOutput]
    prompt_logprobs: list[Token] | None = dataclasses.field(default=None, repr=False)
    seed: int = 0
    finished: bool = True

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        """The first answer's ids."""
        return self.outputs[0].token_ids

    @property
    def tokens(self) -> list[Token]:
        """The first answer's tokens."""
        return self.outputs[0].tokens

    @property
    def statistics(self) -> Statistics:
        """How the first answer ended and what it took."""
        return self.outputs[0].statistics

    @property
    def finish_reason(self) -> str:
        """Why the first answer ended."""
        return self.outputs[0].finish_reason

    def __str__(self) -> str:
        return self.text


def output_of(answer: _core.Answer, prompt: str | None, prompt_logprobs: bool) -> RequestOutput:
    """The binding's answer as people get it."""
    outputs = []
    for index, choice in enumerate(answer.choices):
        outputs.append(CompletionOutput(index=index, text=choice.text, token_ids=choice.token_ids, tokens=choice.tokens,
                                        statistics=Statistics(**choice.statistics)))
    return RequestOutput(prompt=prompt, prompt_token_ids=answer.prompt, outputs=outputs, seed=answer.seed,
                         prompt_logprobs=answer.prompt_logprobs if prompt_logprobs else None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """What became of every branch while an answer was decoded; a notebook draws it, as in the paper's Figure 1.

    A branch is a token on its way through the recurrences, on top of the tokens before it.

    events: dicts, in order, with kind, step (recurrences done so far), branch (its number), parent, token, text, position,
        depth and proposal. Kinds: "spawn" (a branch begins), "advance" (it goes through recurrences, up to depth), "draft" (it
        drafted token), "gate_closed" (it passed a proposal's depth without), "adopt" (its draft had been guessed, and was
        under way), "accept" (verified: token was its draft), "fallback" (verified: it was not), "prune" (it ends unused).
    output: the answer itself.
    recurrence, depths: R, and the depths that drafts came from.
    kv_type: how keys and values were kept, as `Engine.kv_type` says it.
    """

    recurrence: int
    depths: list[int]
    output: RequestOutput
    events: list[dict[str, Any]] = dataclasses.field(repr=False)
    kv_type: str = ""

    def to_json(self) -> str:
        """As `loopspec generate --trace` writes it and `loopspec trace` reads it."""
        return json.dumps({"recurrence": self.recurrence, "kv_type": self.kv_type, "depths": self.depths, "tokens": self.output.token_ids,
                           "events": self.events}, ensure_ascii=False)

    def svg(self, begin: int = 0, steps: int | None = None) -> str:
        """Recurrences from `begin` on as a picture; `steps` is 8 R unless told."""
        return _core.draw_trace(self.to_json(), begin, begin + (steps or 8 * self.recurrence))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture where the name ends with .svg, else the JSON."""
        content = self.svg() if os.fspath(path).endswith(".svg") else self.to_json()
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)

    def _repr_svg_(self) -> str:
        return self.svg()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """Which depths are best for a model on this machine; a notebook shows the charts.

    depths: the best depths for greedy text; sampled_depths: for sampled text. Empty: drafts do not pay here, n-gram
        guesses alone decode. None: that view was not looked at.
    spread: how much longer the same work took at one time than at another.
    busy: noise could have made the choice: it is used only with force=True, or when a second run comes to the same.
    path: the file that decoding reads from now on; None: nothing was written.
    data: all that was found, as the file has it.
    text: the tables. page: the charts, a page of HTML.
    """

    depths: list[int] | None
    sampled_depths: list[int] | None
    spread: float
    busy: bool
    path: str | None
    data: dict[str, Any] = dataclasses.field(repr=False)
    text: str = dataclasses.field(repr=False)
    page: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        # A page of its own: its style must not meet the notebook's.
        return (f'<iframe srcdoc="{html.escape(self.page)}" sandbox="" '
                'style="width: 100%; height: 640px; border: 0"></iframe>')
