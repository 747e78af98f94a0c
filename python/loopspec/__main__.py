"""`loopspec` where pip installed it: `loopspec demo`, and a way to the program.

    loopspec demo              the demo model, autoregressive and LoopSpec side by side; `python -m loopspec demo` is the same
    loopspec ANYTHING          the program's, where it is on the path too (the Debian package, the tarball, a build)
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ._engine import Engine
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


def _demo(model: str) -> int:
    try:
        with Engine(model, max_running=1, kv_positions=512, cache_memory=0) as engine:
            print(f"{engine.model}: {engine.parameters / 1e6:.1f} M parameters, {engine.recurrence} recurrences per token, on {engine.device}\n")
            for title, prompt in _PROMPTS.items():
                _show(engine, title, prompt)
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
    if given[:1] == ["demo"] and len(given) <= 2 and not given[-1].startswith("-"):
        return _demo(given[1] if len(given) == 2 else "ouro-demo")
    print(f"loopspec: {' '.join(given) or 'no command'}: the Python package alone has `loopspec demo`, and Engine for your own code; all other "
          "commands come with the program, from the Debian package or the tarball of the same release", file=sys.stderr)
    return 0 if given[:1] in (["help"], ["--help"], ["-h"]) else 2


if __name__ == "__main__":
    sys.exit(main())
