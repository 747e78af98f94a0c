"""The process of a program that a model wrote. It runs the program, then calls its functions as the other process asks. Nothing here
is trusted: it holds no tests and no verdict, and what it answers is only ever taken for results of the program."""

REQUESTS, REPLIES, SETUP = 3, 4, 5


class Program:
    def __init__(self, text):
        self.text = text
        self.names = {"__name__": "answer"}
        self.kept, self.numbers = [], {}  # values that cannot cross, by number; their numbers by identity
        self.encoder = Encoder(self.keep)
        self.decoder = Decoder(lambda number, kind: self.kept[number])

    def keep(self, value):
        number = self.numbers.setdefault(id(value), len(self.kept))
        if number == len(self.kept):
            self.kept.append(value)
        return number

    def load(self):
        exec(compile(self.text, "program.txt", "exec"), self.names)

    def answer(self, what, name, arguments, named):
        """What became of a request, its value, and the arguments where the program changed them."""
        values, named_values = self.decoder.many(arguments), dict(self.decoder.pairs(named))
        try:
            answer = ["returned", self.encoder.one(self.perform(what, name, values, named_values))]
        except BaseException as error:
            answer = ["raised", describe(error)]
        now, named_now = self.encoder.many(values), self.encoder.pairs(named_values.items())
        return answer + [None if _dump(now) == _dump(arguments) else now, None if _dump(named_now) == _dump(named) else named_now]

    def perform(self, what, name, values, named):
        if what == "get":
            return getattr(values[0], name)
        if what == "set":
            return setattr(values[0], name, values[1])
        if name not in self.names:
            raise NameError(f"name {name!r} is not defined")
        return self.names[name](*values, **named)


def describe(error):
    """The name of an exception's type and its text."""
    try:
        text = str(error)[:500]
    except BaseException:
        text = ""
    return [type(error).__name__, text]


def main():
    setup = read_setup(SETUP)
    if setup["threads"]:  # counted by user namespace, so that only the sandbox can limit them
        import resource
        resource.setrlimit(resource.RLIMIT_NPROC, (setup["threads"], setup["threads"]))
    program = Program(setup["program"])
    send(REPLIES, ["started"])
    try:
        program.load()
        send(REPLIES, ["loaded"])
    except BaseException as error:
        send(REPLIES, ["raised", describe(error)])
    while True:
        try:
            request = receive(REQUESTS)
        except EOFError:
            os._exit(0)
        try:
            send(REPLIES, program.answer(*request))
        except BaseException as error:
            send(REPLIES, ["unable", describe(error)])


if __name__ == "__main__":
    main()
