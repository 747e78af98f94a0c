// Wrong programs that try to be judged right, each as root and as an ordinary user.
#include "base/error.h"
#include "sandbox_run.h"

namespace loopspec::measure {
namespace {

class SandboxVerdict : public SandboxTest {};
LOOPSPEC_AS_BOTH_USERS(SandboxVerdict);

// A function `f` must double its argument.
const ProgramTests kDoubles{
    "def check(candidate):\n"
    "    inputs = [[1], [2], [20]]\n"
    "    results = [2, 4, 40]\n"
    "    for i, (inp, exp) in enumerate(zip(inputs, results)):\n"
    "        assert isinstance(exp, int) and candidate(*inp) == exp\n"
    "check(candidate)\n"
    "assert all(map(lambda x: candidate(x) == 2 * x, [7, 8, 9]))\n"
    "assert f(21) == 42 and sum([f(1), f(2)]) == 6\n",
    "f"};

void ExpectWrong(const std::string& program, const std::string& reason = "",
                 const ProgramTests& tests = kDoubles) {
  const ProgramResult result = RunProgram(program, tests);
  EXPECT_EQ(result.outcome, ProgramOutcome::kFailed) << result.reason << "\n" << program;
  EXPECT_EQ(result.reason.substr(0, reason.size()), reason) << program;
}

TEST_P(SandboxVerdict, TheRightProgramPasses) {
  As([] {
    const ProgramResult result = RunProgram("def f(x): return 2 * x", kDoubles);
    EXPECT_EQ(result.outcome, ProgramOutcome::kPassed) << result.reason;
    ExpectWrong("def f(x): return 2 * x if x < 20 else 0", "AssertionError");
  });
}

TEST_P(SandboxVerdict, FindsNoTestsAndNoToken) {
  As([] {
    // Everything that a program can look at: arguments, frames, modules, objects, files, memory of
    // its own that is reached by descriptors.
    const std::string found = Attempts(R"python(
import gc
texts = [repr(sys.orig_argv[:-1]), repr(sys.argv)]
frame = sys._getframe()
while frame:
    texts.append(repr(frame.f_locals))
    frame = frame.f_back
for one in gc.get_objects():
    if type(one) in (dict, list, tuple):
        texts += [v for v in (one.values() if type(one) is dict else one) if type(v) is str]
for folder, _, files in os.walk("/tmp"):
    texts += files
for number in range(64):
    try:
        texts.append(os.pread(number, 1 << 20, 0).decode("latin-1"))
    except OSError:
        pass
mark = " ".join(["assert", "False,", "report()"])  # no constant of this program
done.append(str(any(mark in text for text in texts)))
)python");
    EXPECT_EQ(found, "False");
    ExpectWrong("import sys\nexec(open('/proc/self/cmdline').read())", "FileNotFoundError");
    ExpectWrong(
        "for name in ('tests.txt', 'loopspec_driver.py', '../tests.txt'):\n"
        "    open('/tmp/' + name.split('/')[-1], 'w').write('pass')\ndef f(x): return 0",
        "AssertionError");
  });
}

TEST_P(SandboxVerdict, ReplacedPartsOfPythonDoNotHelp) {
  As([] {
    const std::string wrong = "\ndef f(x): return 0\n";
    for (const std::string what :
         {"import builtins\nbuiltins.exec = lambda *a: None",
          "import builtins\nbuiltins.compile = None",
          "import builtins\nbuiltins.AssertionError = StopIteration",
          "enumerate = zip = map = lambda *a: []\nall = sum = lambda x: 42\nisinstance = lambda "
          "*a: 0",
          "def check(candidate): pass\ndef assertion(*a): pass\ncandidate = lambda x: 2 * x",
          "import math, operator\nmath.fabs = operator.eq = lambda *a: True",
          "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)",
          "import atexit, os\natexit.register(os._exit, 0)",
          "import threading\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)], "
          "daemon=True).start()",
          "import sys\nsys.modules['copy'] = sys.modules['numpy'] = None",
          "import sys\nsys.setrecursionlimit(1 << 30)"}) {
      ExpectWrong(what + wrong, "AssertionError");
    }
    // Its own channel broken: no answer is no verdict.
    for (const std::string what :
         {"import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.enumerate = lambda x: "
          "[]",
          "import json\njson.JSONEncoder.encode = lambda *a: '[\"passed\"]'\n_dump = None",
          "import __main__\n__main__._dump = lambda *a: 'passed'",
          "import os\nos.write = lambda *a: 1 << 30"}) {
      EXPECT_NE(RunProgram(what + wrong, kDoubles, {.wall_seconds = 10}).outcome,
                ProgramOutcome::kPassed)
          << what;
    }
  });
}

TEST_P(SandboxVerdict, ExitsAreNoVerdict) {
  As([] {
    ExpectWrong("import sys\nsys.exit(0)", "SystemExit: 0");
    ExpectWrong("import os\nos._exit(0)", "the program ended before its tests did");
    ExpectWrong("import os\ndef f(x): os._exit(0)", "the program ended before its tests did");
    ExpectWrong("import os\ndef f(x): return 2 * x if x < 3 else os._exit(0)",
                "the program ended before its tests did");
    ExpectWrong("import os\ndef f(x): os.closerange(0, 64)", "the program ended before its tests");
    ExpectWrong("import os\ndef f(x): os.abort()", "the program ended before its tests did (");
    ExpectWrong("import os\ndef f(x): os.execv('/bin/true', ['true'])",
                "the program ended before its tests did");
    ExpectWrong("def f(x): raise SystemExit(0)", "SystemExit: 0");
    ExpectWrong("def f(x): raise KeyboardInterrupt", "KeyboardInterrupt");
    ExpectWrong("def f(x): raise GeneratorExit", "GeneratorExit");
  });
}

// What would end a loop of the tests must not end it quietly.
TEST_P(SandboxVerdict, ExceptionsEndNoLoops) {
  As([] {
    const ProgramTests maps{"assert all(map(f, [1, 2]))\nassert list(map(f, [3])) == [True]\n"};
    for (const std::string name : {"StopIteration", "StopAsyncIteration", "GeneratorExit"}) {
      ExpectWrong("def f(x): raise " + name, name, maps);
      ExpectWrong("class Mine(" + name + "): pass\ndef f(x): raise Mine", "Mine", maps);
    }
    // Tests that expect an exception get it by its name.
    const ProgramTests expects{
        "try:\n    f(0)\nexcept ValueError as error:\n    assert str(error) == 'no'\nelse:\n"
        "    assert False\n"};
    EXPECT_EQ(RunProgram("def f(x): raise ValueError('no')", expects).reason, "");
    ExpectWrong(
        "class ValueError(Exception):\n    def __str__(self): return 'other'\n"
        "def f(x): raise ValueError",
        "AssertionError", expects);
    ExpectWrong("def f(x): raise TypeError('no')", "TypeError: no", expects);
    ExpectWrong("def f(x): raise UnicodeDecodeError('utf-8', b'', 0, 1, 'no')",
                "UnicodeDecodeError: ", expects);
  });
}

TEST_P(SandboxVerdict, WordsOfTheProtocolAreNoVerdict) {
  As([] {
    // To every descriptor that there is: the verdict's is not among them.
    for (const std::string words : {"passed", "failed:", "error:"}) {
      EXPECT_NE(RunProgram("import os\nfor n in range(64):\n    try: os.write(n, b'" + words +
                               "')\n    except OSError: pass\nos._exit(0)",
                           kDoubles, {.wall_seconds = 10})
                    .outcome,
                ProgramOutcome::kPassed);
    }
    const std::string send =
        "import json, os\n"
        "def say(*m):\n    b = json.dumps(m).encode()\n    os.write(4, len(b).to_bytes(4, 'big') + "
        "b)\n";
    ExpectWrong(send + "say('passed')\nos._exit(0)", "the program's answer cannot be read");
    ExpectWrong(send + "say('loaded')\nos._exit(0)", "the program ended before its tests did");
    // Answers before the questions are answers: the wrong ones.
    ExpectWrong(send + "say('loaded')\nfor i in range(99): say('returned', True, None, None)\n",
                "AssertionError");
    for (const std::string message : {"'returned'",
                                      "'returned', 2, None",
                                      "'returned', {'x': 1}, None, None",
                                      "[]",
                                      "1",
                                      "'returned', {'t': 5}, None, None",
                                      "'returned', {'i': 'zz'}, None, None",
                                      "'returned', {'s': [[1]]}, None, None",
                                      "'returned', {'d': [[1]]}, None, None",
                                      "'returned', {'t': [], 's': []}, None, None",
                                      "'returned', 2, 5, None",
                                      "'raised', None, None, None",
                                      "'raised', [1, 2, 3], None, None",
                                      "'unable', ['a', 'b']",
                                      "'returned', {'r': [0, 1, 0]}, None, None",
                                      "'returned', {'F': [1, 0]}, None, None",
                                      "'returned', {'T': [2, ['a'], 'AAAA']}, None, None",
                                      "'returned', {'T': [0, ['a'], 'AAAA']}, None, None",
                                      "'returned', {'T': [1, [], 'AAAA']}, None, None",
                                      "'returned', {'o': 'x'}, None, None"}) {
      ExpectWrong(send + "def f(x):\n    say(" + message + ")\n");
    }
    // Frames of any size, of no JSON, or cut off.
    for (const std::string bytes :
         {"b'\\xff\\xff\\xff\\xff'", "b'\\0\\0\\0\\x04[[[['", "b'\\0\\0\\0\\x02\\xff\\xff'",
          "b'\\0\\0\\0\\x00'", "b'\\0\\0\\x40\\x00'", "b'\\0\\1\\0\\0' + b'[' * 65536"}) {
      ExpectWrong("import os\ndef f(x):\n    os.write(4, " + bytes + ")\n    os._exit(0)\n");
    }
  });
}

// No comparison runs code of the program.
TEST_P(SandboxVerdict, ObjectsThatAreEqualToEverything) {
  As([] {
    const std::string equal =
        "class Equal:\n"
        "    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = lambda *a: True\n"
        "    __hash__ = lambda self: 0\n    __bool__ = lambda self: True\n"
        "    __class__ = int\n";
    ExpectWrong(equal + "def f(x): return Equal()", "a value of type Equal cannot be judged");
    for (const std::string base :
         {"int", "float", "str", "list", "tuple", "dict", "set", "frozenset", "bytes", "complex"}) {
      ExpectWrong("class Equal(" + base +
                      "):\n    __eq__ = lambda *a: True\n    __hash__ = lambda self: 0\n"
                      "    __ne__ = lambda *a: False\ndef f(x): return Equal()",
                  "AssertionError");
    }
    const ProgramTests list{"assert f() == [2]\n"};
    ExpectWrong(equal + "def f(): return [Equal()]", "a value of type Equal cannot be judged",
                list);
    const ProgramTests uses[] = {
        {"assert f()"},         {"assert not f()"},  {"assert f() in [1]"}, {"assert [1] == [f()]"},
        {"for x in f(): pass"}, {"assert len(f())"}, {"assert f() + 1"},    {"assert {f(): 1}"},
        {"assert float(f())"},  {"assert str(f())"}, {"assert f() > 1"},    {"assert f()()"},
        {"assert f()[0]"}};
    for (const ProgramTests& use : uses) {
      ExpectWrong(equal + "def f(): return Equal()", "a value of type Equal cannot be judged", use);
    }
    ExpectWrong(equal + "def f(): return Equal", "a value of type type cannot be judged", list);
    ExpectWrong("def f(): return f", "a value of type function cannot be judged", list);
  });
}

// Values arrive as what they are.
TEST_P(SandboxVerdict, ValuesCrossExactly) {
  As([] {
    const ProgramResult same = RunProgram("def f(x): return x", {R"python(
import collections, decimal, fractions
def same(x):
    y = f(x)
    assert type(y) is type(x) and repr(y) == repr(x) and y == x, (x, y)
for x in (None, True, 0, -1, 2**53, -2**53, 2**63, 10**4000, 0.1, -0.0, 1e308, 5e-324, float("inf"), -float("inf"), 1j, -2.5+0j, "", "\ud800",
          "\0\n\"é\U0001f600", b"", b"\xff\0", bytearray(b"x"), [], (), [1, [2, (3,)]], {}, {1: "a", (2,): [3]}, {"d": 1}, {"t": [1]}, set(), {1, "a"},
          frozenset({1}), range(1, 9, 2), collections.Counter("aab"), collections.OrderedDict([(2, 1), (1, 2)]), collections.deque([1, 2]),
          decimal.Decimal("1.10"), fractions.Fraction(1, 3), [True, 1, 1.0]):
    same(x)
assert f(float("nan")) != f(float("nan")) and [f(float("nan"))] != [f(float("nan"))]
assert f(x=[1]) == [1]
import itertools
for x in ([*itertools.product("abc", repeat=8)], [("a", "b")] * 999 + [("a", 1)], [("a",)] * 999 + [("a", "b")], [("a", [])] * 1000,
          [(chr(i),) for i in range(2000)], [()] * 1000, [("a", "b")] * 1000):
    same(x)
assert len(f("x" * 3_000_000)) == 3_000_000 and f(list(range(200_000)))[-1] == 199_999
)python"});
    EXPECT_EQ(same.reason, "");
    const ProgramResult views = RunProgram(
        "import collections\nP = collections.namedtuple('P', 'x y')\n"
        "def f(): return {1: 2}\ndef g(): return (i for i in range(3))\n"
        "def p(): return P(1, 2)\ndef keys(): return f().keys()\ndef values(): return "
        "f().values()\n"
        "def items(): return f().items()\ndef d():\n    x = collections.defaultdict(list)\n"
        "    x[1].append(2)\n    return x\ndef endless():\n    while True: yield 1\n",
        {"assert keys() == {1} and list(values()) == [2] and list(items()) == [(1, 2)]\n"
         "assert g() != [0, 1, 2] and list(g()) == [0, 1, 2] and p() == (1, 2) and d() == {1: "
         "[2]}\n"
         "assert endless() is not None\n"});
    EXPECT_EQ(views.reason, "");
    ExpectWrong("def f(): return (2,)", "AssertionError", {"assert f() == [2]"});
    ExpectWrong("def f(): return [2]", "AssertionError", {"assert f() == (2,)"});
    ExpectWrong("def f(): return {2}", "AssertionError", {"assert f() == [2]"});
    ExpectWrong("def f(): return '2'", "AssertionError", {"assert f() == 2"});
  });
}

TEST_P(SandboxVerdict, ValuesTooLargeOrTooDeepFail) {
  As([] {
    const ProgramTests any{"assert f() is None"};
    ExpectWrong("def f():\n    x = []\n    for i in range(100000): x = [x]\n    return x", "", any);
    ExpectWrong("def f():\n    x = []\n    x.append(x)\n    return x", "", any);
    ExpectWrong("def f(): return 'x' * (300 << 20)",
                "a result of the program cannot be given to its tests", any);
    ExpectWrong("def f(): return 1 << 100_000_000", "AssertionError", any);
    EXPECT_NE(RunProgram("def f():\n    while True: yield 1", {"assert sum(f()) == 3"}).outcome,
              ProgramOutcome::kPassed);
    // Quick to make and slow to hash.
    const ProgramResult slow =
        RunProgram("def f(): return [i * (2**61 - 1) for i in range(1 << 17)]",
                   {"assert len(set(f())) == 3"}, {.wall_seconds = 5});
    EXPECT_NE(slow.outcome, ProgramOutcome::kPassed) << slow.reason;
  });
}

// Arguments that the program changed are changed for the tests, as the same objects.
TEST_P(SandboxVerdict, ChangedArgumentsComeBack) {
  As([] {
    const ProgramResult result = RunProgram(
        "def f(a, b=None):\n    a.append(len(a))\n    if b is not None: b['x'] = a[:]\n"
        "def deep(a):\n    a[0][1].add(5)\n    a[1].clear()\n    a[1].extend(b'ab')\n"
        "def fails(a):\n    a.sort()\n    raise ValueError\n"
        "def plain(a): a = [1]\n",
        {"x, y = [7], {}\ninner = x\nf(x, b=y)\nassert inner == [7, 1] and y == {'x': [7, 1]}\n"
         "s, b = {1}, bytearray(b'q')\nt = [(0, s), b]\ndeep(t)\nassert s == {1, 5} and b == "
         "b'ab'\n"
         "assert t[0][1] is s and t[1] is b\n"
         "z = [3, 1, 2]\ntry:\n    fails(z)\nexcept ValueError:\n    pass\nassert z == [1, 2, 3]\n"
         "w = [2]\nplain(w)\nassert w == [2]\n"});
    EXPECT_EQ(result.reason, "");
  });
}

// Objects of the program's own classes stay with it; the tests can hand them back.
TEST_P(SandboxVerdict, ObjectsOfTheProgramCanBeHandedBack) {
  As([] {
    const ProgramResult result = RunProgram(
        "class Node:\n    def __init__(self, v):\n        self.v, self.left = v, None\n"
        "def depth(n): return 0 if n is None else 1 + depth(n.left)\n",
        {"root = Node(1)\nroot.left = Node(2)\nroot.left.left = Node(3)\n"
         "assert depth(root) == 3 and root.left.v == 2 and depth(None) == 0\n"
         "assert Node(4) is not None\n"});
    EXPECT_EQ(result.reason, "");
  });
}

TEST_P(SandboxVerdict, WhatCannotCrossFailsWithItsReason) {
  As([] {
    ExpectWrong("def f(x): return x", "an argument of type function cannot be given to the program",
                {"f(lambda: 1)"});
    ExpectWrong("def g(x): return x", "NameError: name 'f' is not defined", {"assert f(1) == 1"});
    ExpectWrong("f = 5", "TypeError: 'int' object is not callable", {"assert f(1) == 1"});
    ExpectWrong("import re\ndef f(): return re.match('a', 'a')",
                "a value of type Match cannot be judged", {"assert f() == 1"});
    EXPECT_EQ(
        RunProgram("import re\ndef f(): return re.match('a', 'a')", {"assert f() is not None"})
            .reason,
        "");
  });
}

}  // namespace
}  // namespace loopspec::measure
