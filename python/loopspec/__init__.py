"""loopspec: fast, lossless inference for looped transformers (Ouro, Raven, Huginn, Nanbeige4.2).

Such models run one stack of blocks R times for every token. LoopSpec decoding drafts tokens at early recurrences and
verifies them at the last, so that the text is exactly the model's own, only sooner. The engine is C++; this package is
a thin layer over it::

    from loopspec import Engine

    engine = Engine("models/ouro-demo")
    for token in engine.stream("Once upon a time"):
        print(token.text, end="", flush=True)

What there is:

    Engine          a loaded model: generate, chat, stream, astream, encode, decode, logits, trace, calibrate
    LLM             the same in the shape of vLLM's class
    SamplingParams  what a request asks for: temperature, max_tokens, stop, seed ...
    RequestOutput, CompletionOutput, Token, Statistics     what comes back
    Stream, AsyncStream, Trace, Calibration                what `stream`, `astream`, `trace` and `calibrate` return
    QueueFull       too many requests wait already

Words that come up again and again:

    recurrence      one run of a token through the shared blocks; a model makes R of them
    depth           how many recurrences a token has been through so far, 1 to R
    proposal        a depth below R at which the next token is drafted: depths=(1, 2) has two
    draft           a token guessed there; at depth R it is accepted, or another token takes its place

`python -m pydoc loopspec.Engine` explains the engine; docs/python.md is the guide.

With their packages installed, `loopspec.lm_eval` is a model of the lm-evaluation-harness, and `loopspec.ray` answers rows of
Ray Data and serves in Ray Serve; `python -m loopspec.evaluate` scores kept answers. loopspec-cuda, a package of its own, brings GPUs.
"""

from ._choose_core import choose_core

choose_core()

from . import _core  # noqa: E402
from ._core import QueueFull, Token
from ._engine import LLM, AsyncStream, Engine, Stream
from ._outputs import Calibration, CompletionOutput, RequestOutput, Statistics, Trace
from ._params import SamplingParams

__all__ = ["LLM", "AsyncStream", "Calibration", "CompletionOutput", "Engine", "QueueFull", "RequestOutput", "SamplingParams",
           "Statistics", "Stream", "Token", "Trace"]
__version__: str = _core.version

# Where people find them, and pickle does.
for _public in (QueueFull, Token, LLM, AsyncStream, Engine, Stream, Calibration, CompletionOutput, RequestOutput, Statistics, Trace,
                SamplingParams):
    _public.__module__ = "loopspec"
del _public
