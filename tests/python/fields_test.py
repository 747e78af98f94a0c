"""The fields of `SamplingParams` against the engine's own tables: none is forgotten, none is made up."""

import ast
import dataclasses
import inspect
import pathlib
import unittest

from support import BINARY, command_text

from loopspec import SamplingParams, _core, _params

# What Request has, and Python asks for in another way: Engine.trace, and what the scheduler's limits are for.
ELSEWHERE = {"trace", "max_rows", "group", "guesses"}
# What Python has and the tables have not: texts, lists and names among a few.
OWN = {"logit_bias", "seed", "stop", "stop_token_ids", "skip_special_tokens", "chat_template_kwargs", "decoding", "depths", "sampler"}


class Tables(unittest.TestCase):
    def test_every_field_is_an_argument(self):
        fields = {field.name: field for field in dataclasses.fields(SamplingParams)}
        tables = set(_core.sampling_fields) | (set(_core.request_fields) - ELSEWHERE)
        self.assertEqual(set(fields) - OWN, tables | set(_core.grammar_fields))
        for name, (kind, _, _) in _core.sampling_fields.items():
            self.assertEqual(fields[name].type, f"{kind} | None")
            self.assertIsNone(fields[name].default)
            self.assertIsInstance(getattr(_core.Sampling(), name), int if kind == "int" else float)

    def test_keyword_arguments_have_the_types_of_the_fields(self):
        """FilterFields and ParamFields, which only type checkers see."""
        source = ast.parse(pathlib.Path(inspect.getfile(_params)).read_text(encoding="utf-8"))

        def annotated(name):
            [found] = [node for node in ast.walk(source) if isinstance(node, ast.ClassDef) and node.name == name]
            return {node.target.id: ast.unparse(node.annotation) for node in found.body if isinstance(node, ast.AnnAssign)}

        filters = annotated("FilterFields")
        self.assertEqual({**filters, **annotated("ParamFields")}, annotated("SamplingParams"))
        self.assertEqual(set(filters), set(_core.sampling_filters))

    def test_every_field_is_described(self):
        described = SamplingParams.__doc__
        for field in dataclasses.fields(SamplingParams):
            self.assertRegex(described, rf"(?m)^    ([a-z_]+, )*{field.name}(, [a-z_]+)*:", field.name)

    def test_ranges(self):
        for name, limits in _core.request_fields.items():
            if limits is None or name in ELSEWHERE:
                continue
            with self.subTest(name=name), self.assertRaisesRegex(ValueError, f"^{name} is "):
                SamplingParams(**{name: limits[0] - 1})
        for name, (kind, low, _) in _core.sampling_fields.items():
            with self.subTest(name=name), self.assertRaisesRegex(TypeError, f"^{name} is 'much'"):
                SamplingParams(**{name: "much"})

    @unittest.skipUnless(BINARY, "there is no binary to compare with")
    def test_every_field_is_an_option_with_the_same_sentence(self):
        shown = command_text("generate", "--help")
        manual = command_text("man")
        for name, (_, _, sentence) in _core.sampling_fields.items():
            option = "--" + name.replace("_", "-")
            self.assertIn(option + " ", shown)
            self.assertIn(sentence, shown)
            self.assertIn(option.replace("-", "\\-"), manual)
        for name, sentence in _core.grammar_fields.items():
            self.assertIn("--" + name.replace("_", "-") + " ", shown)
            self.assertIn(sentence, shown)


if __name__ == "__main__":
    unittest.main()
