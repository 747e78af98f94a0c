"""Answers: the same bits as the command line gives, in every form that a prompt can have."""

import json
import pickle
import unittest

from support import BINARY, OURO, PROBLEM, PROMPTS, RAVEN, command, engine

import loopspec
from loopspec import LLM, Engine, SamplingParams

# The same request for both.
SAMPLINGS = [
    ({"temperature": 0.0}, []),
    ({"temperature": 1.0, "seed": 7}, ["--temperature", 1, "--seed", 7]),
    ({"temperature": 0.8, "top_p": 0.9, "top_k": 20, "seed": 3}, ["--temperature", 0.8, "--top-p", 0.9, "--top-k", 20, "--seed", 3]),
    ({"temperature": 1.0, "min_p": 0.05, "seed": 5, "sampler": "coupled"},
     ["--temperature", 1, "--min-p", 0.05, "--seed", 5, "--sampler", "coupled"]),
    ({"temperature": 1.5, "top_n_sigma": 1.5, "seed": 9}, ["--temperature", 1.5, "--top-n-sigma", 1.5, "--seed", 9]),
    ({"temperature": 0.0, "repetition_penalty": 1.3}, ["--repetition-penalty", 1.3]),
    ({"temperature": 1.0, "seed": 4, "regex": "(big|small) [a-z]{1,9}"},
     ["--temperature", 1, "--seed", 4, "--regex", "(big|small) [a-z]{1,9}"]),
]


@unittest.skipUnless(BINARY, "there is no binary to compare with")
class SameAsTheCommandLine(unittest.TestCase):
    def compare(self, model, prompts, **more):
        for fields, options in SAMPLINGS:
            # Ours together, the command's one by one.
            outputs = engine(model).generate(prompts, max_tokens=40, logprobs=2, **fields, **more)
            for prompt, output in zip(prompts, outputs):
                told = command("generate", model, prompt, "--json", "--logprobs", 2, "-n", 40, *options)
                with self.subTest(model=model, prompt=prompt, fields=fields):
                    self.assertEqual(output.text, told["text"])
                    self.assertEqual(output.token_ids, told["token_ids"])
                    self.assertEqual(output.finish_reason, told["finish_reason"])
                    self.assertEqual(len(output.prompt_token_ids), told["prompt_tokens"])
                    self.assertEqual([token.logprob for token in output.tokens], [entry["logprob"] for entry in told["logprobs"]])
                    self.assertEqual([token.top for token in output.tokens],
                                     [[(top["token"], top["logprob"]) for top in entry["top"]] for entry in told["logprobs"]])

    def test_ouro(self):
        self.compare(OURO, PROMPTS[:4])

    def test_raven(self):
        self.compare(RAVEN, PROMPTS[:2])

    def test_chat(self):
        told = command("generate", OURO, "Tell me a story about a cat.", "--chat", "--json", "-n", 60)
        output = engine().chat([{"role": "user", "content": "Tell me a story about a cat."}], max_tokens=60)
        self.assertEqual((output.text, output.token_ids), (told["text"], told["token_ids"]))
        self.assertEqual(engine().chat("Tell me a story about a cat.", max_tokens=60).text, told["text"])

    def test_stop(self):
        told = command("generate", OURO, PROMPTS[0], "--json", "-n", 60, "--stop", ".", "--stop", "zebra")
        output = engine().generate(PROMPTS[0], max_tokens=60, stop=[".", "zebra"])
        self.assertEqual((output.text, output.token_ids), (told["text"], told["token_ids"]))
        self.assertEqual((output.finish_reason, output.outputs[0].stop_reason), ("stop", "."))

    def test_int8_keys(self):
        with Engine(OURO, kv_memory="64MiB", kv_type="int8") as rounded, Engine(OURO, kv_memory="64MiB") as plain:
            self.assertGreater(rounded.metrics["pages"], 1.7 * plain.metrics["pages"])
            outputs = rounded.generate(PROMPTS[:4], max_tokens=40, logprobs=0)
        for prompt, output in zip(PROMPTS, outputs):
            told = command("generate", OURO, prompt, "--json", "--logprobs", 0, "-n", 40, "--kv-type", "int8")
            self.assertEqual([token.logprob for token in output.tokens], [entry["logprob"] for entry in told["logprobs"]])

    def test_keys_by_the_models_plan(self):
        with Engine(OURO, kv_memory="64MiB", kv_type="loops", device="cpu") as planned, Engine(OURO, kv_memory="64MiB", device="cpu") as plain:
            self.assertEqual(planned.kv_type, "loops:int8,r5,r4@64")
            self.assertGreater(planned.metrics["pages"], 2.3 * plain.metrics["pages"])


class Prompts(unittest.TestCase):
    def test_one_is_an_output_and_many_are_a_list(self):
        output = engine().generate(PROMPTS[0], max_tokens=12)
        self.assertIsInstance(output, loopspec.RequestOutput)
        self.assertEqual(output.prompt, PROMPTS[0])
        self.assertEqual(str(output), output.text)
        self.assertEqual([one.text for one in engine().generate([PROMPTS[0]], max_tokens=12)], [output.text])
        self.assertEqual(engine().generate([]), [])

    def test_forms_of_a_prompt(self):
        import numpy

        ids = engine().encode(PROMPTS[0])
        text = engine().generate(PROMPTS[0], max_tokens=12).text
        for prompt in (ids, tuple(ids), numpy.array(ids), list(numpy.array(ids)), {"prompt": PROMPTS[0]}, {"prompt_token_ids": ids}):
            with self.subTest(prompt=prompt):
                self.assertEqual(engine().generate(prompt, max_tokens=12).text, text)
        many = engine().generate([PROMPTS[0], ids, {"prompt_token_ids": ids}, numpy.array(ids)], max_tokens=12)
        self.assertEqual([output.text for output in many], [text] * 4)
        self.assertEqual([output.text for output in engine().generate(numpy.array([ids, ids]), max_tokens=12)], [text] * 2)
        said = [{"role": "user", "content": "Hello"}]
        self.assertEqual([output.text for output in engine().generate([said, said], max_tokens=12)],
                         [engine().chat(said, max_tokens=12).text] * 2)

    def test_more_than_the_queue_holds(self):
        with Engine(OURO, max_queued=8, threads=1) as small:
            outputs = small.generate([f"{index} cats and" for index in range(60)], max_tokens=6)
            alone = [small.generate(f"{index} cats and", max_tokens=6).text for index in (0, 17, 59)]
        self.assertEqual([outputs[index].text for index in (0, 17, 59)], alone)

    def test_parameters_for_each_prompt(self):
        outputs = engine().generate(PROMPTS[:2], [SamplingParams(max_tokens=5), SamplingParams(max_tokens=9)], ignore_eos=True)
        self.assertEqual([len(output.token_ids) for output in outputs], [5, 9])

    def test_many_choices(self):
        output = engine().generate(PROMPTS[0], n=3, temperature=1, seed=11, max_tokens=16)
        self.assertEqual([choice.index for choice in output.outputs], [0, 1, 2])
        self.assertEqual(len({choice.text for choice in output.outputs}), 3)
        again = engine().generate(PROMPTS[0], n=3, temperature=1, seed=output.seed, max_tokens=16)
        self.assertEqual([choice.text for choice in again.outputs], [choice.text for choice in output.outputs])

    def test_decodings_and_depths_give_the_same_text(self):
        with Engine(OURO, depths=[(1, 2), (2,), ()], threads=1) as several:
            self.assertEqual(several.depths, [[1, 2], [2], []])
            texts = {several.generate(PROBLEM, max_tokens=48, **how).text
                     for how in ({}, {"depths": (2,)}, {"depths": ()}, {"decoding": "ar"}, {"decoding": "lookup"})}
        self.assertEqual(len(texts), 1)

    def test_scores_of_the_prompt(self):
        output = engine().generate(PROMPTS[0], prompt_logprobs=1, max_tokens=0)
        self.assertEqual([token.id for token in output.prompt_logprobs], output.prompt_token_ids[1:])
        self.assertTrue(all(token.logprob <= 0 and len(token.top) == 1 for token in output.prompt_logprobs))
        self.assertIsNone(engine().generate(PROMPTS[0], max_tokens=1).prompt_logprobs)

    def test_llm_has_the_shape_of_vllms(self):
        with LLM(OURO, threads=1) as llm:
            outputs = llm.generate(PROMPTS[0], SamplingParams(max_tokens=8))
            self.assertEqual(outputs[0].outputs[0].text, engine().generate(PROMPTS[0], max_tokens=8).text)
            self.assertEqual(llm.generate([PROMPTS[0]], sampling_params=SamplingParams(max_tokens=8))[0].text, outputs[0].text)
            self.assertIsInstance(llm.chat("Hello", max_tokens=4), list)

    def test_results_can_be_pickled(self):
        output = engine().generate(PROMPTS[0], max_tokens=6, logprobs=2, prompt_logprobs=0)
        again = pickle.loads(pickle.dumps(output))
        self.assertEqual(again, output)
        self.assertEqual(again.tokens[2].top, output.tokens[2].top)
        params = SamplingParams(temperature=0.5)
        self.assertEqual(pickle.loads(pickle.dumps(params)), params)

    def test_cumulative_logprob(self):
        output = engine().generate(PROMPTS[0], max_tokens=6, logprobs=0)
        self.assertEqual(output.outputs[0].cumulative_logprob, sum(token.logprob for token in output.tokens))
        self.assertIsNone(engine().generate(PROMPTS[0], max_tokens=6).outputs[0].cumulative_logprob)


class Grammars(unittest.TestCase):
    SCHEMA = {"type": "object", "properties": {"b": {"enum": [1, 2]}, "a": {"type": "boolean"}}, "required": ["b", "a"],
              "additionalProperties": False}

    def test_forms_of_a_schema(self):
        class Model:  # as pydantic's
            @classmethod
            def model_json_schema(cls):
                return self.SCHEMA

        for schema in (self.SCHEMA, json.dumps(self.SCHEMA), Model):
            output = engine(OURO).generate("A record:", json_schema=schema, max_tokens=200)
            with self.subTest(schema=schema):
                self.assertEqual(output.finish_reason, "stop")
                value = json.loads(output.text)
                self.assertEqual(list(value), ["b", "a"])  # the schema's order
                self.assertIn(value["b"], (1, 2))

    def test_regex_and_grammar(self):
        self.assertRegex(engine(OURO).generate("A cat is", regex="(big|small)[.]").text, "^(big|small)[.]$")
        self.assertEqual(engine(OURO).generate("A cat is", grammar='root ::= "x" [y]').text, "xy")

    def test_refusals(self):
        for fields, words in (({"json_schema": {"type": "object", "minProperties": 3}}, "minProperties"), ({"regex": "("}, "group"),
                              ({"regex": "a", "grammar": 'root ::= "a"'}, "second grammar"), ({"regex": "a", "ignore_eos": True}, "ignore_eos")):
            with self.subTest(fields=fields), self.assertRaisesRegex(ValueError, words):
                engine(OURO).generate("x", **fields)
        with self.assertRaisesRegex(TypeError, "^json_schema is 5"):
            engine(OURO).generate("x", json_schema=5)


class Text(unittest.TestCase):
    def test_there_and_back(self):
        for text in ("Hello, world!", "naïve café 你好 🙂\n\ttabs", ""):
            self.assertEqual(engine().decode(engine().encode(text, add_special_tokens=False)), text)
        ids = engine().encode("Tom")
        self.assertEqual(engine().decode(ids[0]), engine().decode(ids[:1]))
        self.assertEqual(b"".join(map(engine().token_bytes, engine().encode("naïve", add_special_tokens=False))).decode(), "naïve")

    def test_chat_template(self):
        said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        prompt = engine().apply_chat_template(said)
        self.assertIn("Be brief.", prompt)
        shorter = engine().apply_chat_template(said, add_generation_prompt=False)
        self.assertTrue(prompt.startswith(shorter) and len(prompt) > len(shorter))
        ids = engine().apply_chat_template(said, tokenize=True)
        self.assertEqual(engine().chat(said, max_tokens=8).prompt_token_ids, ids)
        self.assertEqual(engine().decode(ids, skip_special_tokens=False), prompt)

    def test_special_tokens_of_users_stay_text(self):
        ids = engine().apply_chat_template([{"role": "user", "content": engine().eos_token}], tokenize=True)
        plain = engine().apply_chat_template([{"role": "user", "content": "x"}], tokenize=True)
        count = [sum(token in engine().eos_token_ids for token in some) for some in (ids, plain)]
        self.assertEqual(count[0], count[1])


class Facts(unittest.TestCase):
    def test_of_the_demo_model(self):
        facts = engine()
        self.assertEqual((facts.model, facts.recurrence, facts.recurrences[-1]), (OURO, 4, 4))
        self.assertEqual(facts.device, "cpu")
        self.assertIn(facts.dtype, ("f32", "bf16"))
        self.assertEqual(round(facts.parameters / 1e6, 1), 13.8)
        self.assertGreater(facts.vocab_size, 1000)
        self.assertGreater(facts.context, 100)
        self.assertIn("messages", facts.chat_template)
        self.assertTrue(facts.eos_token_ids)
        self.assertEqual(facts.default_sampling["temperature"], 0)
        self.assertIn("ouro-demo", repr(facts))
        self.assertGreater(facts.metrics["pages"], 0)

    def test_statistics(self):
        statistics = engine().generate(PROMPTS[0], max_tokens=20, ignore_eos=True).statistics
        self.assertEqual(statistics.decoded_tokens, 20)
        self.assertEqual(sum(statistics.accepted) + statistics.fallback, 20)
        self.assertGreater(statistics.tokens_per_second, 0)


if __name__ == "__main__":
    unittest.main()
