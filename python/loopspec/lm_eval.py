"""Models for the lm-evaluation-harness: `--model loopspec`.

The harness (0.4.13) does not look for models of other packages by itself. Importing this module registers ours::

    import lm_eval
    import loopspec.lm_eval

    lm_eval.simple_evaluate(model="loopspec", model_args="pretrained=models/ouro-demo", tasks=["gsm8k"])

All requests of a task go through one engine together. Scores are those that the harness gets from
`loopspec serve` through `local-completions`.
"""

from __future__ import annotations

from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ._engine import Engine
from ._params import SamplingParams

__all__ = ["LoopspecLM"]


@register_model("loopspec")
class LoopspecLM(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """A loopspec engine for the harness: generate_until, loglikelihood, loglikelihood_rolling.

    pretrained: the model, a folder or ORG/NAME in the Hugging Face cache.
    max_length: longest text in tokens; the model's context unless told. Longer ones lose their beginning.
    max_gen_toks: of an answer, where the task does not say.
    add_bos_token: put the tokenizer's special tokens around texts.
    seed: of sampled answers.
    decoding: "loopspec", "ar" or "lookup": the same scores at different speeds.
    Everything else goes to `loopspec.Engine`: threads, depths, dtype, recurrence ...
    """

    def __init__(self, pretrained: str, *, max_length: int | None = None, max_gen_toks: int = 256, add_bos_token: bool = False,
                 seed: int = 1234, decoding: str = "loopspec", batch_size: Any = None, max_batch_size: Any = None,
                 device: str | None = None, **engine: Any) -> None:
        super().__init__()
        del batch_size, max_batch_size  # the engine batches by itself
        self.engine = Engine(pretrained, device=device or "auto", **engine)
        self.max_length = min(max_length or self.engine.context, self.engine.context)
        self.max_gen_toks = max_gen_toks
        self.add_bos_token = add_bos_token
        self.params = SamplingParams(temperature=0.0, seed=seed, decoding=decoding)

    # ---- Text ----

    @property
    def eot_token_id(self) -> int:
        return self.engine.eos_token_ids[0]

    @property
    def prefix_token_id(self) -> int:
        if self.engine.bos_token is None:
            return self.eot_token_id
        return self.engine.encode(self.engine.bos_token, add_special_tokens=False)[0]

    @property
    def tokenizer_name(self) -> str:
        return self.engine.model

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self.engine.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.engine.apply_chat_template(chat_history, add_generation_prompt=add_generation_prompt)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        special = self.add_bos_token if add_special_tokens is None else add_special_tokens
        if special and self.engine.bos_token and string.startswith(self.engine.bos_token):
            special = False  # it is there already
        return self.engine.encode(string, add_special_tokens=special)

    # ---- Requests ----

    def _loglikelihood_tokens(self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False,
                              **more: Any) -> list[tuple[float, bool]]:
        del more
        texts = [(context + continuation)[-self.max_length:] for _, context, continuation in requests]
        outputs = self.engine.generate(texts, self.params, max_tokens=0, prompt_logprobs=1, use_tqdm=False if disable_tqdm else None)
        scores = []
        for (key, _, continuation), output in zip(requests, outputs):
            tokens = output.prompt_logprobs[-len(continuation):] if continuation else []
            score = sum(token.logprob for token in tokens), all(token.logprob == token.top[0][1] for token in tokens)
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, score)
            scores.append(score)
        return scores

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        windows: list[tuple[None, list[int], list[int]]] = []
        counts = []
        for (string,) in [request.args for request in requests]:
            parts = get_rolling_token_windows(token_list=self.tok_encode(string), prefix_token=self.prefix_token_id,
                                              max_seq_len=self.max_length - 1, context_len=1)
            before = len(windows)
            windows.extend((None, *make_disjoint_window(part)) for part in parts)
            counts.append(len(windows) - before)
        scores = iter(self._loglikelihood_tokens(windows, disable_tqdm))
        sums = []
        for request, count in zip(requests, counts):
            sums.append(sum(next(scores)[0] for _ in range(count)))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, sums[-1])
        return sums

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        prompts, params = [], []
        for context, wanted in [request.args for request in requests]:
            how = dict(wanted)
            length = int(how.pop("max_tokens", how.pop("max_gen_toks", self.max_gen_toks)))
            stop = [word for word in handle_stop_sequences(how.pop("until", None), self.engine.eos_token) if word]
            if how.pop("do_sample", True) is False:
                how["temperature"] = 0.0
            if "decode" in how:  # as the server calls it
                how["decoding"] = how.pop("decode")
            params.append(self.params.replace(stop=stop, max_tokens=length, **how))
            prompts.append(self.tok_encode(context)[-max(self.max_length - length, 1):])
        outputs = self.engine.generate(prompts, params, use_tqdm=False if disable_tqdm else None)
        texts = [output.text for output in outputs]
        for request, text in zip(requests, texts):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts
