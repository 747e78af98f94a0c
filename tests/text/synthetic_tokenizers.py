"""Small tokenizer.json files that together use every part and option a tokenizer.json may have."""
import itertools
import string

MARK = "\u2581"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
            r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]

MERGES = [
    ("t", "h"), ("th", "e"), ("a", "n"), ("an", "d"), ("i", "n"), ("e", "r"), ("l", "l"), ("1", "2"), ("0", "0"),
    (" ", " "), ("  ", "  "), (" ", "the"), (MARK, "t"), (MARK, "the"), (MARK, MARK), (MARK, "a"), ("o", "n"), ("'", "s"),
    ("\u00e9", "t"), ("\u4f60", "\u597d"), ("s", "s"), ("\n", "\n"), ("=", "="), ("x", "y"),
]


def byte_alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    result, extra = {}, 256
    for byte in range(256):
        if byte in printable:
            result[byte] = chr(byte)
        else:
            result[byte] = chr(extra)
            extra += 1
    return result


def added(content, special=False, normalized=False, lstrip=False, rstrip=False, single_word=False, number=0):
    return {"id": number, "content": content, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip,
            "normalized": normalized, "special": special}


def text_model(fallback=False, merges_as_lists=True, characters=None, drop=(), **options):
    """BPE over characters."""
    characters = characters or (string.printable + "\u00e9\u00e8\u00fc\u00df\u4f60\u597d\u3053\u0301\u0130" + MARK)
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    if fallback:
        for byte in range(256):
            if byte not in drop:
                vocab[f"<0x{byte:02X}>"] = len(vocab)
    for c in characters:
        vocab.setdefault(c, len(vocab))
    merges = [(a, b) for a, b in MERGES if a in vocab or any(a == x + y for x, y in MERGES)]
    kept = []
    for a, b in merges:
        if a in vocab and b in vocab:
            vocab.setdefault(a + b, len(vocab))
            kept.append((a, b))
    lists = [[a, b] for a, b in kept]
    strings = [f"{a} {b}" for a, b in kept if " " not in a + b]
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": fallback, "ignore_merges": False,
            "vocab": vocab, "merges": lists if merges_as_lists else strings, **options}


def byte_model(**options):
    """BPE over the byte-level alphabet."""
    letters = byte_alphabet()
    vocab = {}
    for c in letters.values():
        vocab[c] = len(vocab)
    merges = []
    spell = lambda text: "".join(letters[b] for b in text.encode())
    for word in [" the", "and", "in", "er", "ing", " a", "ll", "123", "\n\n", "    ", "\u4f60\u597d", "\u00e9", "'re", "==", "\u20ac"]:
        symbols = list(spell(word))
        while len(symbols) > 1:
            pair = symbols[0] + symbols[1]
            if [symbols[0], symbols[1]] not in merges:
                merges.append([symbols[0], symbols[1]])
            vocab.setdefault(pair, len(vocab))
            symbols[:2] = [pair]
    vocab[spell(" whole word")] = len(vocab)
    vocab[spell("whole")] = len(vocab)
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges, **options}


def tokenizer(model, normalizer=None, pre_tokenizer=None, post_processor=None, decoder=None, tokens=()):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(tokens), "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": decoder, "model": model}


def sequence(kind, *parts):
    key = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders",
           "post_processor": "processors"}[kind]
    return {"type": "Sequence", key: list(parts)}


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def metaspace(scheme="always", cut=True):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": cut}


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def template(*single, **special):
    names = {"bos": "<s>", "eos": "</s>"}
    parts = [{"Sequence": {"id": "A", "type_id": 0}} if p == "$A" else {"SpecialToken": {"id": names.get(p, p), "type_id": 0}}
             for p in single]
    tokens = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}, "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]},
              "many": {"id": "many", "ids": [1, 2, 3], "tokens": ["<s>", "</s>", "x"]}}
    pair = parts + [{"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": parts, "pair": pair, "special_tokens": tokens}


LLAMA_DECODER = sequence("decoder", replace({"String": MARK}, " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                         {"type": "Strip", "content": " ", "start": 1, "stop": 0})
SPECIALS = [added("<unk>", special=True), added("<s>", special=True), added("</s>", special=True)]


def models():
    yield "plain", tokenizer(text_model())
    yield "legacy-merges", tokenizer(text_model(merges_as_lists=False))
    legacy = text_model()
    del legacy["type"], legacy["ignore_merges"], legacy["byte_fallback"]
    yield "model-without-type", tokenizer(legacy)
    for fuse in (False, True):
        yield f"unk-fuse-{fuse}", tokenizer(text_model(unk_token="<unk>", fuse_unk=fuse, characters="abcdehntilr " + MARK))
        yield f"unk-fuse-{fuse}-split", tokenizer(text_model(unk_token="<unk>", fuse_unk=fuse, characters="abcdehntilr "),
                                                  pre_tokenizer={"type": "WhitespaceSplit"})
        yield f"fallback-fuse-{fuse}", tokenizer(text_model(True, unk_token="<unk>", fuse_unk=fuse), decoder=LLAMA_DECODER,
                                                 tokens=SPECIALS)
        yield f"fallback-partial-{fuse}", tokenizer(
            text_model(True, drop=range(0x80, 0xA0), unk_token="<unk>", fuse_unk=fuse, characters="the and"),
            decoder=LLAMA_DECODER)
    yield "no-unk-few-characters", tokenizer(text_model(characters="thean d" + MARK))
    yield "ignore-merges-text", tokenizer(text_model(ignore_merges=True), pre_tokenizer={"type": "Whitespace"})
    yield "ignore-merges-bytes", tokenizer(byte_model(ignore_merges=True), pre_tokenizer=byte_level(), decoder=byte_level())
    yield "dropout-zero", tokenizer(byte_model(dropout=0.0), pre_tokenizer=byte_level(), decoder=byte_level())
    affixed = {"<unk>": 0}
    for c in string.ascii_letters:
        for form in (c, "##" + c, c + "</w>", "##" + c + "</w>"):
            affixed[form] = len(affixed)
    affixed["th"] = len(affixed)
    affixed["the</w>"] = len(affixed)
    affixed["##nd</w>"] = len(affixed)
    yield "prefix-and-suffix", tokenizer(
        {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": "##",
         "end_of_word_suffix": "</w>", "fuse_unk": False, "vocab": affixed,
         "merges": [["t", "##h"], ["th", "##e</w>"], ["##n", "##d</w>"]]}, pre_tokenizer={"type": "Whitespace"})
    missing = byte_model()
    for c in ("\u0120", "A", "\u00e3"):
        missing["vocab"].pop(c, None)
        missing["merges"] = [m for m in missing["merges"] if c not in m[0] + m[1]]
    yield "byte-level-with-holes", tokenizer(missing, pre_tokenizer=byte_level(), decoder=byte_level())


def pre_tokenizers():
    for behavior, invert in itertools.product(BEHAVIORS, (False, True)):
        for name, pattern in (("string", {"String": "an"}), ("space", {"String": " "}), ("regex", {"Regex": r"\s+|\d"}),
                              ("word", {"Regex": r"\w+"}), ("empty", {"Regex": "x*"})):
            yield f"split-{name}-{behavior}-{invert}", tokenizer(text_model(), pre_tokenizer=split(pattern, behavior, invert))
    for name, regex in (("gpt2", GPT2), ("llama3", LLAMA3), ("qwen2", QWEN2), ("gpt4o", GPT4O), ("deepseek", DEEPSEEK)):
        yield f"words-{name}", tokenizer(
            byte_model(), pre_tokenizer=sequence("pre_tokenizer", split({"Regex": regex}), byte_level(regex=False)),
            decoder=byte_level())
        yield f"words-{name}-removed", tokenizer(
            byte_model(), decoder=byte_level(),
            pre_tokenizer=sequence("pre_tokenizer", split({"Regex": regex}, "Removed", True), byte_level(regex=False)))
    odd = {"possessive-interval": r"\p{N}{1,3}+|\p{L}{2}?", "ruby-multiline": r"(?m:a.)|^t", "boundary": r"\bthe\b|\B1",
           "nested-brackets": r"[a[bc]\p{Nd}]+", "posix": r"[[:alpha:]]+|[[:punct:]]", "negated": r"[^\S\n]+|[\W]",
           "properties": r"\p{Han}+|\p{Letter}+|\p{^L}", "hex": r"\h+|\v|\u00e9", "lookbehind": r"(?<=\s)\S|(?<!a)n",
           "upper-bound": r"[0-9]{,2}x|[\s\S]{4}", "digits": r"\d{1,3}(?=(?:\d{3})*\b)", "case": r"(?i)THE|\u00df|k",
           "spaces": r"\s", "words-w": r"\w", "d": r"\d", "not-w": r"\W+", "alnum": r"[[:alnum:]]+|[[:space:]]{2}"}
    for name, regex in odd.items():
        yield f"regex-{name}", tokenizer(byte_model(), decoder=byte_level(), pre_tokenizer=sequence(
            "pre_tokenizer", split({"Regex": regex}, "Isolated"), byte_level(regex=False)))
    for behavior in BEHAVIORS:
        yield f"punctuation-{behavior}", tokenizer(text_model(), pre_tokenizer={"type": "Punctuation", "behavior": behavior})
    for individual in (False, True):
        yield f"digits-{individual}", tokenizer(byte_model(), decoder=byte_level(), pre_tokenizer=sequence(
            "pre_tokenizer", {"type": "Digits", "individual_digits": individual}, byte_level()))
    for kind in ("Whitespace", "WhitespaceSplit", "Punctuation"):
        yield kind.lower(), tokenizer(byte_model(), decoder=byte_level(),
                                      pre_tokenizer=sequence("pre_tokenizer", {"type": kind}, byte_level(regex=False)))
    for prefix, regex in itertools.product((False, True), (False, True)):
        yield f"byte-level-{prefix}-{regex}", tokenizer(byte_model(), pre_tokenizer=byte_level(prefix, regex),
                                                        post_processor=byte_level(), decoder=byte_level(),
                                                        tokens=[added("<x>"), added("[N]", normalized=True)])
    yield "byte-level-then-split", tokenizer(byte_model(), decoder=byte_level(), pre_tokenizer=sequence(
        "pre_tokenizer", byte_level(True), split({"String": "\u0120"}, "MergedWithNext"), byte_level(False, False)))
    for scheme, cut in itertools.product(("always", "first", "never"), (False, True)):
        yield f"metaspace-{scheme}-{cut}", tokenizer(
            text_model(True, unk_token="<unk>"), pre_tokenizer=metaspace(scheme, cut), tokens=SPECIALS + [added("<x>")],
            decoder=metaspace(scheme, cut))
    yield "metaspace-first-after-words", tokenizer(
        text_model(), pre_tokenizer=sequence("pre_tokenizer", {"type": "Punctuation"}, metaspace("first")),
        decoder=metaspace("first"), tokens=[added("<x>", rstrip=True)])
    for name, normalizer in (("strip", {"type": "Strip", "strip_left": True, "strip_right": False}),
                             ("nfd", {"type": "NFD"}), ("prepend", {"type": "Prepend", "prepend": "a b"}),
                             ("replace", replace({"String": "t"}, "xyz")), ("accents", {"type": "StripAccents"}),
                             ("remove", replace({"Regex": "^."}, ""))):
        yield f"metaspace-first-{name}", tokenizer(
            text_model(), normalizer=normalizer, pre_tokenizer=sequence("pre_tokenizer", metaspace("first", False), metaspace("first")))
    yield "metaspace-legacy", tokenizer(
        text_model(), pre_tokenizer={"type": "Metaspace", "replacement": MARK, "str_rep": MARK, "add_prefix_space": True},
        decoder={"type": "Metaspace", "replacement": MARK, "add_prefix_space": True})


def normalizers():
    for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"):
        yield kind.lower(), tokenizer(byte_model(), normalizer={"type": kind}, pre_tokenizer=byte_level(), decoder=byte_level(),
                                      tokens=[added("[N\u00c9W]", normalized=True), added("<X>")])
    for left, right in itertools.product((False, True), (False, True)):
        yield f"strip-{left}-{right}", tokenizer(byte_model(), pre_tokenizer=byte_level(), decoder=byte_level(), normalizer={
            "type": "Strip", "strip_left": left, "strip_right": right}, tokens=[added("<x>")])
    yield "accents", tokenizer(byte_model(), pre_tokenizer=byte_level(), decoder=byte_level(), normalizer=sequence(
        "normalizer", {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}))
    for name, pattern, content in (("string", {"String": "an"}, "<>"), ("regex", {"Regex": r"\s+"}, " "), ("delete", {"Regex": "[aeiou]"}, ""),
                                   ("group", {"Regex": "(t)(h)"}, "$2$1"), ("digits", {"Regex": r"\d"}, "0")):
        yield f"replace-{name}", tokenizer(byte_model(), pre_tokenizer=byte_level(), decoder=byte_level(),
                                           normalizer=replace(pattern, content), tokens=[added("band", normalized=True)])
    yield "llama2", tokenizer(text_model(True, unk_token="<unk>", fuse_unk=True), tokens=SPECIALS, decoder=LLAMA_DECODER,
                              normalizer=sequence("normalizer", {"type": "Prepend", "prepend": MARK}, replace({"String": " "}, MARK)),
                              post_processor=template("bos", "$A"))
    yield "gemma", tokenizer(text_model(True, unk_token="<unk>", fuse_unk=True), normalizer=replace({"String": " "}, MARK),
                             pre_tokenizer=split({"String": " "}, "MergedWithPrevious"), tokens=SPECIALS + [added("\n\n"), added(MARK * 2)],
                             post_processor=template("bos", "$A"),
                             decoder=sequence("decoder", replace({"String": MARK}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}))


def added_tokens():
    for lstrip, rstrip, single_word, normalized in itertools.product((False, True), repeat=4):
        flags = {"lstrip": lstrip, "rstrip": rstrip, "single_word": single_word, "normalized": normalized}
        yield f"added-{lstrip}-{rstrip}-{single_word}-{normalized}", tokenizer(
            byte_model(), normalizer={"type": "Lowercase"}, pre_tokenizer=byte_level(), decoder=byte_level(),
            tokens=[added("<X>", **flags), added("the", **flags), added("AND", special=True, **flags), added("<X>y", number=9),
                    added(" x", **flags), added("\u00c9t\u00e9", **flags)])
    yield "added-known", tokenizer(byte_model(), pre_tokenizer=byte_level(), decoder=byte_level(),
                                   tokens=[added("e", number=500), added("zz", number=7), added("zz", special=True, rstrip=True),
                                           added("\u00e9", special=True), added("\u0120the", normalized=True)])
    yield "added-normalized-prepend", tokenizer(
        text_model(), normalizer={"type": "Prepend", "prepend": MARK}, pre_tokenizer={"type": "Whitespace"},
        tokens=[added("the", normalized=True, special=True), added("and", normalized=True), added("<x>")])
    yield "added-overlap", tokenizer(text_model(), tokens=[added("ab"), added("abc"), added("bcd"), added("  "), added("   ", special=True),
                                                           added("a b", lstrip=True, rstrip=True), added("c")])


def post_processors():
    for name, parts in (("bos", ("bos", "$A")), ("both", ("bos", "$A", "eos")), ("many", ("many", "$A", "eos", "many")), ("twice", ("$A", "bos", "$A"))):
        yield f"template-{name}", tokenizer(text_model(), post_processor=template(*parts), tokens=SPECIALS)
    yield "template-sequence", tokenizer(byte_model(), pre_tokenizer=byte_level(True), decoder=byte_level(),
                                         post_processor=sequence("post_processor", byte_level(True), template("bos", "$A")))


def decoders():
    parts = {"fuse": {"type": "Fuse"}, "fallback": {"type": "ByteFallback"}, "metaspace": metaspace(),
             "metaspace-never": metaspace("never"), "replace": replace({"String": "an"}, "<"), "replace-long": replace({"String": "the"}, ""),
             "replace-regex": replace({"Regex": r"\s+"}, "_"), "strip-left": {"type": "Strip", "content": " ", "start": 2, "stop": 0},
             "strip-letter": {"type": "Strip", "content": "t", "start": 1, "stop": 0}, "bytes": byte_level()}
    for name, part in parts.items():
        yield f"decode-{name}", tokenizer(text_model(True), decoder=part, tokens=SPECIALS)
    for first, second in itertools.permutations(parts, 2):
        yield f"decode-{first}-{second}", tokenizer(text_model(True), decoder=sequence("decoder", parts[first], parts[second]), tokens=SPECIALS)
    # Stripping more from the end of a token than it holds stops the library: the template makes sure of a long one.
    yield "decode-strip-right", tokenizer(text_model(True), post_processor=template("$A", "many"), tokens=SPECIALS, decoder=sequence(
        "decoder", {"type": "Fuse"}, {"type": "Strip", "content": ">", "start": 0, "stop": 3}))


def all_tokenizers():
    for group in (models, pre_tokenizers, normalizers, added_tokens, post_processors, decoders):
        yield from group()
