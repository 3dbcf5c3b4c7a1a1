"""Requests of a front end in the messages of a server."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

try:
    import messages
    from dynamo.llm.exceptions import InvalidArgument
except ImportError as error:
    raise unittest.SkipTest(f"the packages of requirements.txt are not installed: {error}")

PROTOS, _ = messages.modules()


def made(**fields):
    return messages.generate_request(PROTOS, "base", {"token_ids": [5, 6, 7]} | fields)


class Messages(unittest.TestCase):
    def test_sampling_and_limits_are_passed_on(self):
        found = made(
            sampling_options={"temperature": 0.5, "top_k": -1, "top_p": 0.9, "seed": 7, "repetition_penalty": 1.1, "n": 1},
            stop_conditions={"max_tokens": 9, "ignore_eos": True, "min_tokens": 0},
            output_options={"logprobs": 2, "skip_special_tokens": True})
        self.assertEqual(list(found.tokens.ids), [5, 6, 7])
        self.assertEqual((found.max_tokens, found.ignore_eos, found.seed, found.logprobs), (9, True, 7, 2))
        self.assertFalse(found.HasField("top_k"))
        self.assertAlmostEqual(found.repeat_penalty, 1.1, places=5)

    def test_fields_without_effect_are_refused_by_name(self):
        for name, fields in [
            ("n", dict(sampling_options={"n": 2})), ("best_of", dict(sampling_options={"best_of": 4})),
            ("min_tokens", dict(stop_conditions={"min_tokens": 1})),
            ("regex", dict(sampling_options={"guided_decoding": {"regex": "a+"}})),
            ("prompt_logprobs", dict(output_options={"prompt_logprobs": 0})),
            ("multi_modal_data", dict(multi_modal_data={"image_url": ["x"]})),
            ("prefill_result", dict(prefill_result={"a": 1})), ("logprobs", dict(output_options={"logprobs": 21})),
        ]:
            with self.assertRaisesRegex(InvalidArgument, f"^{name}: "):
                made(**fields)

    def test_a_caller_allows_what_it_deals_with(self):
        request = {"token_ids": [1], "prefill_result": {"a": 1}}
        messages.generate_request(PROTOS, "base", request, allowed={"prefill_result"})

    def test_constraints_are_schemas_and_grammars(self):
        schema = made(sampling_options={"guided_decoding": {"json": {"type": "object"}, "choice": []}})
        self.assertEqual(schema.json_schema, '{"type": "object"}')
        self.assertEqual(made(sampling_options={"guided_decoding": {"grammar": "root ::= x"}}).grammar, "root ::= x")

    def test_pieces_have_the_likeliest_tokens(self):
        top = [PROTOS.TokenLogprob(token=4, logprob=-0.5), PROTOS.TokenLogprob(token=9, logprob=-2.0)]
        piece = PROTOS.Piece(tokens=[4], logprobs=[PROTOS.Logprobs(token=top[0], top=top)])
        found = messages.piece(piece)
        self.assertEqual((found["token_ids"], found["log_probs"]), ([4], [-0.5]))
        self.assertEqual([(one["rank"], one["token_id"]) for one in found["top_logprobs"][0]], [(1, 4), (2, 9)])

    def test_hashes_are_signed(self):
        self.assertEqual([messages.signed(hash) for hash in (1, (1 << 64) - 1, 1 << 63)], [1, -1, -(1 << 63)])


if __name__ == "__main__":
    unittest.main()
