"""Values between the process of a program and the process of its tests: JSON with tags for what JSON does not have. The encoding is
closed: whatever comes in, decoding it makes plain values of the types below, and never runs code. It stands before program.py and
tests.py, which are one script each with it."""
import binascii
import itertools
import json
import os

LARGEST_FRAME = 256 << 20  # bytes
LONGEST_ITERATOR = 100_000  # items
PLAIN = {type(None), bool, str, float}  # as they are in JSON
SCALARS = PLAIN | {int}
EXACT_BELOW = 1 << 53  # larger integers are written in base 16, in time linear in their length


class Opaque:
    """A value of the program that cannot cross, as the tests see it: it can be given back to the program, told from None, and have
    attributes that the program is asked for. Whatever else is done with it is reported to `refuse`, above all a comparison."""

    __slots__ = ("number", "kind")
    refuse = get = set = None

    def __init__(self, number, kind):
        object.__setattr__(self, "number", number)
        object.__setattr__(self, "kind", kind)

    def __repr__(self):
        return f"<{self.kind} of the program>"

    def __getattr__(self, name):
        return Opaque.get(self, name)

    def __setattr__(self, name, value):
        Opaque.set(self, name, value)


def _refused(self, *arguments, **named):
    Opaque.refuse(f"a value of type {self.kind} cannot be judged, expected plain values")


for _name in ("eq ne lt le gt ge hash bool iter next len contains getitem setitem delitem delattr call int float complex index str format "
              "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg pos abs round and rand or ror xor "
              "rxor enter exit reversed bytes array").split():
    setattr(Opaque, f"__{_name}__", _refused)


def _known(value):
    """Types of the standard library, imported only by a program or tests that have them."""
    kind = type(value)
    place = (kind.__module__, kind.__name__)
    if place == ("collections", "Counter"):
        return "C", dict.items(value)
    if place == ("collections", "OrderedDict"):
        return "O", kind.items(value)
    if place == ("collections", "deque"):
        return "q", kind.__iter__(value)
    if place == ("decimal", "Decimal"):
        return "D", str(value)
    if place == ("fractions", "Fraction"):
        return "F", (value.numerator, value.denominator)
    if place[0] == "numpy" and hasattr(value, "item") and not getattr(value, "shape", None):
        return "", value.item()  # a scalar, as the number that it is
    return None, None


def _table(values):
    """A long list of tuples of one length with at most 256 strings among all of them: its width, the strings, and which one each
    element is. Lists of combinations have a hundred million elements. None for any other list."""
    if len(values) < 1000 or set(map(type, values)) != {tuple}:
        return None
    width = len(values[0])
    if width == 0 or set(map(type, values[0])) != {str} or set(map(len, values)) != {width}:
        return None
    strings = list(set(itertools.chain.from_iterable(values)))
    if len(strings) > 256 or set(map(type, strings)) != {str}:
        return None
    numbers = {string: number for number, string in enumerate(strings)}
    which = bytes(map(numbers.__getitem__, itertools.chain.from_iterable(values)))
    return [width, strings, binascii.b2a_base64(which, newline=False).decode("ascii")]


def _rows(width, strings, which):
    elements = map(strings.__getitem__, binascii.a2b_base64(which))
    return list(zip(*[elements] * width, strict=True))


class Encoder:
    """`keep(value)` takes what cannot be encoded and returns its number; it may raise instead."""

    def __init__(self, keep):
        self.keep = keep

    def many(self, values):
        values = list(values)
        kinds = set(map(type, values))
        if kinds <= PLAIN:
            return values
        if kinds <= SCALARS and all(-EXACT_BELOW < value < EXACT_BELOW for value in values if type(value) is int):
            return values
        return [self.one(value) for value in values]

    def pairs(self, pairs):
        return [self.many(pair) for pair in pairs]

    def one(self, value):
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind is int:
            return value if -EXACT_BELOW < value < EXACT_BELOW else {"i": hex(value)}
        if kind is Opaque:
            return {"o": [value.number, ""]}
        tag, content = _known(value)
        if tag == "":
            return self.one(content)
        if tag == "D":
            return {tag: content}
        if tag in ("C", "O"):
            return {tag: self.pairs(content)}
        if tag is not None:
            return {tag: self.many(content)}
        # Of a class that inherits from one of these, only what that class holds: no method of its own crosses. Not
        # isinstance, which an object can deceive.
        if kind is list:
            try:
                table = _table(value)
            except TypeError:  # what cannot be hashed
                table = None
            if table is not None:
                return {"T": table}
        if issubclass(kind, list):
            return self.many(list.__iter__(value))
        if issubclass(kind, tuple):
            return {"t": self.many(tuple.__iter__(value))}
        if issubclass(kind, dict):
            return {"d": self.pairs(dict.items(value))}
        if issubclass(kind, set):
            return {"s": self.many(set.__iter__(value))}
        if issubclass(kind, frozenset):
            return {"f": self.many(frozenset.__iter__(value))}
        if issubclass(kind, str):
            return str.__str__(value)
        if issubclass(kind, int):
            return self.one(int.__index__(value))
        if issubclass(kind, float):
            return float.__float__(value)
        if issubclass(kind, complex):
            return {"c": [complex.real.__get__(value), complex.imag.__get__(value)]}
        if issubclass(kind, bytes):
            return {"b": bytes.hex(value)}
        if issubclass(kind, bytearray):
            return {"B": bytearray.hex(value)}
        if kind is range:
            return {"r": self.many((value.start, value.stop, value.step))}
        if kind is type({}.keys()):
            return {"k": self.many(value)}
        if kind is type({}.values()):
            return {"v": self.many(value)}
        if kind is type({}.items()):
            return {"e": self.pairs(value)}
        if hasattr(kind, "__next__"):
            items = []
            for item in value:
                items.append(item)
                if len(items) > LONGEST_ITERATOR:
                    return {"o": [self.keep(value), f"iterator of more than {LONGEST_ITERATOR} items"]}
            return {"I": self.many(items)}
        return {"o": [self.keep(value), str(kind.__name__)[:100]]}


class Decoder:
    """`given(number, kind)` makes a value of what could not be encoded."""

    def __init__(self, given):
        self.given = given

    def many(self, values):
        if type(values) is list and set(map(type, values)) <= SCALARS:
            return list(values)
        return [self.one(value) for value in values]

    def pairs(self, pairs):
        return [self.pair(pair) for pair in pairs]

    def pair(self, pair):
        key, value = self.many(pair)
        return key, value

    def one(self, value):
        if type(value) is list:
            return self.many(value)
        if type(value) is not dict:
            return value
        (tag, content), = value.items()
        return self.tagged(tag, content)

    def tagged(self, tag, content):
        if tag == "t":
            return tuple(self.many(content))
        if tag == "d":
            return dict(self.pairs(content))
        if tag == "s":
            return set(self.many(content))
        if tag == "f":
            return frozenset(self.many(content))
        if tag == "T":
            return _rows(*content)
        if tag == "i":
            return int(content, 16)
        if tag == "c":
            real, imaginary = content
            return complex(float(real), float(imaginary))
        if tag == "b":
            return bytes.fromhex(content)
        if tag == "B":
            return bytearray.fromhex(content)
        if tag == "r":
            return range(*self.many(content))
        if tag == "k":
            return dict.fromkeys(self.many(content)).keys()
        if tag == "v":
            return dict(enumerate(self.many(content))).values()
        if tag == "e":
            return dict(self.pairs(content)).items()
        if tag == "I":
            return iter(self.many(content))
        if tag == "C":
            from collections import Counter
            return Counter(dict(self.pairs(content)))
        if tag == "O":
            from collections import OrderedDict
            return OrderedDict(self.pairs(content))
        if tag == "q":
            from collections import deque
            return deque(self.many(content))
        if tag == "D":
            from decimal import Decimal
            return Decimal(str(content))
        if tag == "F":
            from fractions import Fraction
            numerator, denominator = self.many(content)
            return Fraction(numerator, denominator)
        if tag == "o":
            number, kind = content
            return self.given(int(number), str(kind)[:200])
        raise ValueError(f"unknown tag {tag!r}")


# float makes a new NaN each time: a list is equal to another with the same NaN object in it.
_parse = json.JSONDecoder(parse_constant=float).decode
_dump = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def send(descriptor, message):
    frame = _dump(message).encode("ascii")
    if len(frame) > LARGEST_FRAME:
        raise ValueError(f"a message of {len(frame)} bytes, expected at most {LARGEST_FRAME}")
    frame = memoryview(len(frame).to_bytes(4, "big") + frame)
    while frame:
        frame = frame[os.write(descriptor, frame):]


def read_exactly(descriptor, size):
    parts = []
    while size > 0:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise EOFError("the other side has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def receive(descriptor):
    size = int.from_bytes(read_exactly(descriptor, 4), "big")
    if size > LARGEST_FRAME:
        raise ValueError(f"a message of {size} bytes, expected at most {LARGEST_FRAME}")
    return _parse(read_exactly(descriptor, size).decode("ascii"))


def read_setup(descriptor):
    """What the runner wrote for this process, and where packages lie."""
    import sys
    with open(descriptor, "rb") as file:
        setup = json.loads(file.read())
    sys.path[:] = [path for path in sys.path if path] + setup["paths"]
    del sys.argv[1:]
    return setup
