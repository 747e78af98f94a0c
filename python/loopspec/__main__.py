"""`loopspec` where pip installed it: `loopspec demo`, a plain `loopspec chat`, and a way to the program.

    loopspec demo              the demo model, autoregressive and LoopSpec side by side; `python -m loopspec demo` is the same
    loopspec chat [MODEL]      a conversation at the terminal or through a pipe, a message on a line
    loopspec ANYTHING          the program's, where it is on the path too (the Debian package, the tarball, a build)
"""

from __future__ import annotations

import os
import sys
from typing import Any

from . import __version__
from ._engine import Engine, Message
from ._outputs import Statistics

_PROMPTS = {
    "A word problem": "Tom has 3 boxes with 4 marbles in each. He buys 5 more. On the way home he finds 6 marbles. "
                      "How many marbles does Tom have now?",
    "A story": "Tell me a story about a little dog.",
}


def _program() -> str | None:
    """The program on the path: a binary of that name, and no script such as this one."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder, "loopspec")
        if not os.access(path, os.X_OK):
            continue
        try:
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    return path
        except OSError:
            continue
    return None


def _show(engine: Engine, title: str, prompt: str) -> None:
    print(f"{title}\n> {prompt}")
    rows: list[tuple[str, Statistics]] = []
    texts: list[Any] = []
    for decoding, name in (("ar", "autoregressive"), ("loopspec", f"LoopSpec ({','.join(map(str, engine.depths[0]))})")):
        engine.chat(prompt, max_tokens=200, temperature=0, decoding=decoding)  # once to warm up
        output = engine.chat(prompt, max_tokens=200, temperature=0, decoding=decoding)
        rows.append((name, output.statistics))
        texts.append(output.token_ids)
    print(f"{output.text}\n\n  {'':<18}{'tokens/s':>12}{'speedup':>12}")
    for name, statistics in rows:
        speedup = statistics.tokens_per_second / rows[0][1].tokens_per_second
        print(f"  {name:<18}{statistics.tokens_per_second:>12.0f}{speedup:>11.2f}x")
    same = "yes" if texts[0] == texts[1] else "NO, and that is a bug"
    print(f"  {len(texts[0])} tokens, the same text from both: {same}\n", flush=True)


def _demo(model: str) -> None:
    with Engine(model, max_running=1, kv_positions=512, cache_memory=0) as engine:
        print(f"{engine.model}: {engine.parameters / 1e6:.1f} M parameters, {engine.recurrence} recurrences per token, on {engine.device}\n")
        for title, prompt in _PROMPTS.items():
            _show(engine, title, prompt)


def _room(engine: Engine, messages: list[Message]) -> int:
    """Tokens that the context has for an answer."""
    return engine.context - len(engine.apply_chat_template(messages, tokenize=True))


def _make_room(engine: Engine, messages: list[Message]) -> None:
    """The oldest turns go until a quarter of the context is free for an answer."""
    while len(messages) > 1 and _room(engine, messages) < engine.context // 4:
        del messages[:2]


def _answer(engine: Engine, messages: list[Message]) -> str:
    """Writes the answer as it comes; Ctrl-C stops it."""
    said = ""
    try:
        with engine.stream(messages, max_tokens=max(1, _room(engine, messages))) as stream:
            for token in stream:
                print(token.text, end="", flush=True)
                said += token.text
    except KeyboardInterrupt:
        pass
    print(flush=True)
    return said


def _chat(model: str) -> None:
    terminal = sys.stdin.isatty()
    if terminal:
        try:
            import readline  # noqa: F401  # arrow keys and history for input()
        except ImportError:
            pass
    with Engine(model, max_running=1) as engine:
        if terminal:
            print(f"Talk to {engine.model}; Ctrl-C stops an answer, Ctrl-D leaves. (The program's chat has more: /help there.)")
        messages: list[Message] = []
        while True:
            try:
                line = input("> " if terminal else "").strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                if not terminal:
                    raise
                print()  # the line is dropped
                continue
            if line in ("/quit", "/exit", "/bye"):
                return
            if not line:
                continue
            messages.append({"role": "user", "content": line})
            try:
                _make_room(engine, messages)
                messages.append({"role": "assistant", "content": _answer(engine, messages)})
            except ValueError as error:  # such as a message that is longer than the context
                if not terminal:
                    raise
                messages.pop()
                print(f"loopspec: {error}", file=sys.stderr)


def _run(command: str, model: str) -> int:
    try:
        {"demo": _demo, "chat": _chat, "run": _chat}[command](model)
    except BrokenPipeError:  # as after `| head -1`: whoever read has what was wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (OSError, ValueError) as error:
        print(f"loopspec: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def main() -> int:
    """Exit code."""
    given = sys.argv[1:]
    program = _program()
    if program is not None:
        os.execv(program, [program, *given])
    if given[:1] in (["demo"], ["chat"], ["run"]) and len(given) <= 2 and not given[-1].startswith("-"):
        return _run(given[0], given[1] if len(given) == 2 else "ouro-demo")
    if given == ["--version"]:
        print(f"loopspec {__version__}, the Python package alone")
        return 0
    print(f"loopspec: {' '.join(given) or 'no command'}: the Python package alone has `loopspec demo` and a plain `loopspec chat [MODEL]`, and Engine for "
          "your own code; all other commands come with the program, from the Debian package or the tarball of the same release", file=sys.stderr)
    return 0 if given[:1] in (["help"], ["--help"], ["-h"]) else 2


if __name__ == "__main__":
    sys.exit(main())
