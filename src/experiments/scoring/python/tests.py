"""The process of the tests: trusted, and the only one that can give a verdict. The functions that the tests call are proxies for
those of the program, which runs in a process and a sandbox of its own."""
import builtins
import sys
import types

REQUESTS, REPLIES, SETUP, VERDICT = 3, 4, 5, 6


def finish(verdict, reason=""):
    """Ends this process: no test can catch it and go on."""
    os.write(VERDICT, (verdict + reason[:2000]).encode("utf-8", "replace"))
    os._exit(0)


def fail(reason):
    finish("failed:", reason)


class ProgramError(Exception):
    """An exception of the program whose type the tests do not know."""


def exception_of(name, text):
    """The program's exception as the tests can catch it. What would end a loop of the tests quietly is raised as another one."""
    known = getattr(builtins, name, None)
    error = ProgramError(f"{name}: {text}")
    if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, (StopIteration, StopAsyncIteration)):
        try:
            error = known(text)
        except TypeError:
            pass
    error.reason = f"{name}: {text}" if text else name
    return error


def copy_into(old, new):
    """Makes `old` hold what `new` holds, as the same object where its type allows it, and returns it; else returns `new`."""
    if type(old) is not type(new):
        return new
    if type(old) is list:
        old[:] = [copy_into(a, b) for a, b in zip(old, new)] + new[len(old):]
    elif type(old) is tuple and len(old) == len(new):
        parts = [copy_into(a, b) for a, b in zip(old, new)]
        return old if all(a is b for a, b in zip(old, parts)) else tuple(parts)
    elif isinstance(old, dict):
        merged = {key: copy_into(old[key], value) if key in old else value for key, value in new.items()}
        old.clear()
        old.update(merged)
    elif type(old) is set:
        old.clear()
        old.update(new)
    elif type(old) is bytearray:
        old[:] = new
    elif type(old).__name__ == "deque":
        old.clear()
        old.extend(new)
    else:
        return new
    return old


def refuse_argument(value):
    fail(f"an argument of type {type(value).__name__} cannot be given to the program, expected plain values")


class Candidate:
    """The program, by the names of its functions."""

    def __init__(self):
        Opaque.refuse, Opaque.get, Opaque.set = fail, self.get_attribute, self.set_attribute
        self.encoder = Encoder(refuse_argument)
        self.decoder = Decoder(Opaque)

    def answer(self):
        try:
            return receive(REPLIES)
        except EOFError:
            fail("the program ended before its tests did")
        except BaseException as error:
            fail(f"the program's answer cannot be read ({type(error).__name__})")

    def load(self):
        if self.answer() != ["started"]:
            finish("error:", "the process of the program has not started")
        answer = self.answer()
        if answer == ["loaded"]:
            return
        self.report(answer)

    def report(self, answer):
        """Fails with what an answer that is no result says."""
        try:
            what, (name, text) = answer[:2]
            reason = f"{name}: {text}" if text else str(name)
        except (TypeError, ValueError):
            fail("the program's answer cannot be read")
        if what == "raised":
            fail(reason)
        fail(f"a result of the program cannot be given to its tests ({reason})")

    def get_attribute(self, value, name):
        if name.startswith("__"):  # asked for by Python or a library, not by the tests
            raise AttributeError(name)
        return self.ask("get", name, (value,), {})

    def set_attribute(self, value, name, new):
        self.ask("set", name, (value, new), {})

    def ask(self, what, name, arguments, named):
        try:
            sent = [what, name, self.encoder.many(arguments), [[key, self.encoder.one(value)] for key, value in named.items()]]
            send(REQUESTS, sent)
        except BrokenPipeError:
            fail("the program ended before its tests did")
        except BaseException as error:
            fail(f"the program cannot be called ({type(error).__name__}: {error})")
        answer = self.answer()
        if type(answer) is not list or len(answer) != 4 or answer[0] not in ("returned", "raised"):
            self.report(answer)
        try:
            for old, new in zip(arguments, self.decoder.many(answer[2] or ())):
                copy_into(old, new)
            for key, new in self.decoder.pairs(answer[3] or ()):
                copy_into(named[key], new)
            if answer[0] == "returned":
                return self.decoder.one(answer[1])
            name, text = answer[1]
            error = exception_of(str(name), str(text))
        except BaseException as error:
            fail(f"the program's answer cannot be read ({type(error).__name__})")
        raise error

    def function(self, name):
        def proxy(*arguments, **named):
            return self.ask("call", name, arguments, named)
        proxy.__name__ = name
        return proxy


def names_from_program(code):
    """Names that the tests may take from the program: all that they use, but none of the builtins. Those that the tests define
    themselves are theirs as soon as they do."""
    names = {name for name in code.co_names if not hasattr(builtins, name)}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_from_program(constant)
    return names


def close(a, b, rtol, atol):
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        if not isinstance(a, (list, tuple)):
            a = [a] * len(b)
        if not isinstance(b, (list, tuple)):
            b = [b] * len(a)
        if len(a) != len(b):
            raise ValueError("operands could not be broadcast together")
        return all(close(x, y, rtol, atol) for x, y in zip(a, b))
    if not isinstance(a, (int, float, complex)) or not isinstance(b, (int, float, complex)):
        raise TypeError("not a number")
    return a == b or abs(a - b) <= atol + rtol * abs(b)


def provide_numpy():
    """numpy as far as the tests of HumanEval+ and MBPP+ use it, where it is not installed."""
    try:
        import numpy
    except ImportError:
        numpy = types.ModuleType("numpy")
        numpy.ndarray = type("ndarray", (), {})
        numpy.float64 = type("float64", (float,), {})
        numpy.float32 = type("float32", (float,), {})
        numpy.allclose = lambda a, b, rtol=1e-5, atol=1e-8: close(a, b, rtol, atol)
        sys.modules["numpy"] = numpy


def main():
    setup = read_setup(SETUP)
    candidate = Candidate()
    candidate.load()
    try:
        code = compile(setup["tests"], "tests.txt", "exec")
        if "numpy" in setup["tests"]:
            provide_numpy()
        names = {"__name__": "tests"}
        for name in names_from_program(code) | set(setup["names"]):
            names[name] = candidate.function(name)
        if setup["entry_point"]:
            names["candidate"] = candidate.function(setup["entry_point"])
        exec(code, names)
    except BaseException as error:
        text = str(error)
        fail(getattr(error, "reason", None) or (f"{type(error).__name__}: {text}" if text else type(error).__name__))
    finish("passed")


if __name__ == "__main__":
    main()
