"""Makes `bert/` and `expected.*`: a tiny BERT with random weights, and what it gives, computed in float64.

    python3 make.py

Needs numpy alone. Nothing of this project computes here: the tokenizer follows the description in the repository of BERT
(Apache-2.0), the model that of Devlin et al., arXiv 1810.04805.
"""

import json
import math
import struct
import unicodedata
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
LAYERS, WIDTH, HEADS, INNER, POSITIONS, TYPES, EPS = 2, 32, 4, 40, 32, 2, 1e-12
MAX_TOKENS = 24

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = """the a of and to in is it was on for with as at by an be this that from or have not are but had his they she which
you one we all were there been has when who will more if no out so up said what its about than into them can time two may
then do first any my now such like our over me even most made after also did many before must through back where much your
because each just those how too good very cat sat mat turtle story told once upon""".split()
SUFFIXES = ["##" + s for s in "s ed ing ly er est ness ment ion al able ful".split()]
CHARACTERS = list("abcdefghijklmnopqrstuvwxyz0123456789.,!?'\"-:;()") + ["##" + c for c in "abcdefghijklmnopqrstuvwxyz0123456789"]
CJK = ["東", "京"]

TEXTS = {
    "short": "The cat sat on the mat.",
    "pieces": "Unbelievably, turtles walked to the 3rd world: story-telling!",
    "accents": "Café naïve ÀÉÎ",
    "other_scripts": "東京 is \U0001f680 новый",
    "empty": "",
    "space": " \t\n ",
    "special": "a [MASK] b [SEP]",
    "long": "Once upon a time there was a turtle, and it was a very good turtle because it had been told many a story. " * 2,
}


def vocabulary():
    tokens = []
    for token in SPECIAL + WORDS + SUFFIXES + CHARACTERS + CJK:
        if token not in tokens:
            tokens.append(token)
    return {token: i for i, token in enumerate(tokens)}


def is_punctuation(c):
    return 33 <= ord(c) <= 47 or 58 <= ord(c) <= 64 or 91 <= ord(c) <= 96 or 123 <= ord(c) <= 126 or unicodedata.category(c)[0] == "P"


def basic_words(text):
    """Lower case without accents, cut at white space, punctuation and CJK characters."""
    out = []
    for c in text:
        category = unicodedata.category(c)
        if c in "\t\n\r" or category == "Zs":
            out.append(" ")
        elif ord(c) in (0, 0xFFFD) or category[0] == "C":
            continue
        elif 0x4E00 <= ord(c) <= 0x9FFF:
            out += [" ", c, " "]
        else:
            out.append(c)
    text = unicodedata.normalize("NFD", "".join(out).lower())
    text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    return "".join(f" {c} " if is_punctuation(c) else c for c in text).split()


def pieces(word, vocab):
    """The longest tokens from the start of a word."""
    if len(word) > 100:
        return [vocab["[UNK]"]]
    out, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            token = ("##" if start else "") + word[start:end]
            if token in vocab:
                out.append(vocab[token])
                start = end
                break
        else:
            return [vocab["[UNK]"]]
    return out


def encode(text, vocab):
    ids = [vocab["[CLS]"]]
    while text:
        at, token = min(((text.find(t), t) for t in SPECIAL if t in text), default=(len(text), ""))
        for word in basic_words(text[:at]):
            ids += pieces(word, vocab)
        if token:
            ids.append(vocab[token])
        text = text[at + len(token):]
    return ids + [vocab["[SEP]"]]


def weights(n_tokens):
    random = np.random.default_rng(20261122)
    tensors = {}

    def normal(name, shape, scale, mean=0.0):
        tensors[name] = (mean + scale * random.standard_normal(shape)).astype(np.float32)

    def norm(name):
        normal(name + ".weight", WIDTH, 0.2, 1.0)
        normal(name + ".bias", WIDTH, 0.2)

    def linear(name, outputs, inputs):
        normal(name + ".weight", (outputs, inputs), 1.5 / math.sqrt(inputs))
        normal(name + ".bias", outputs, 0.3)

    normal("embeddings.word_embeddings.weight", (n_tokens, WIDTH), 1.0)
    normal("embeddings.position_embeddings.weight", (POSITIONS, WIDTH), 0.5)
    normal("embeddings.token_type_embeddings.weight", (TYPES, WIDTH), 0.5)
    norm("embeddings.LayerNorm")
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}."
        for part in ["query", "key", "value"]:
            linear(prefix + "attention.self." + part, WIDTH, WIDTH)
        linear(prefix + "attention.output.dense", WIDTH, WIDTH)
        norm(prefix + "attention.output.LayerNorm")
        linear(prefix + "intermediate.dense", INNER, WIDTH)
        linear(prefix + "output.dense", WIDTH, INNER)
        norm(prefix + "output.LayerNorm")
    linear("pooler.dense", WIDTH, WIDTH)
    return tensors


def hidden_states(ids, tensors, n_layers=LAYERS, n_heads=HEADS, eps=EPS):
    """States behind the last layer, [tokens, width], in float64."""
    w = lambda name: tensors[name].astype(np.float64)
    erf = np.vectorize(math.erf)

    def norm(x, name):
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + eps) * w(name + ".weight") + w(name + ".bias")

    def linear(x, name):
        return x @ w(name + ".weight").T + w(name + ".bias")

    x = w("embeddings.word_embeddings.weight")[ids]
    x = x + w("embeddings.position_embeddings.weight")[: len(ids)] + w("embeddings.token_type_embeddings.weight")[0]
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(n_layers):
        prefix = f"encoder.layer.{layer}."
        heads = lambda part: linear(x, prefix + "attention.self." + part).reshape(len(ids), n_heads, -1).transpose(1, 0, 2)
        q, k, v = heads("query"), heads("key"), heads("value")
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        attended = (scores @ v).transpose(1, 0, 2).reshape(x.shape)
        x = norm(x + linear(attended, prefix + "attention.output.dense"), prefix + "attention.output.LayerNorm")
        inner = linear(x, prefix + "intermediate.dense")
        inner = inner * 0.5 * (1.0 + erf(inner / math.sqrt(2.0)))
        x = norm(x + linear(inner, prefix + "output.dense"), prefix + "output.LayerNorm")
    return x


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.tobytes()
        kind = {"float32": "F32", "float64": "F64"}[values.dtype.name]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_json(name, value):
    path = HERE / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def tokenizer_json(vocab):
    special = lambda token: {"id": vocab[token], "content": token, "single_word": False, "lstrip": False,
                             "rstrip": False, "normalized": False, "special": True}
    piece = lambda token: {"SpecialToken": {"id": token, "type_id": 0}}
    return {
        "version": "1.0",
        # As published files have it; it must not count.
        "truncation": {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [special(token) for token in SPECIAL],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [piece("[CLS]"), {"Sequence": {"id": "A", "type_id": 0}}, piece("[SEP]")],
            "pair": [piece("[CLS]"), {"Sequence": {"id": "A", "type_id": 0}}, piece("[SEP]"),
                     {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [vocab[t]], "tokens": [t]} for t in ["[CLS]", "[SEP]"]},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocab},
    }


def main():
    vocab = vocabulary()
    tensors = weights(len(vocab))
    (HERE / "bert").mkdir(exist_ok=True)
    write_safetensors(HERE / "bert/model.safetensors", tensors)
    write_json("bert/config.json", {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": WIDTH,
        "intermediate_size": INNER, "layer_norm_eps": EPS, "max_position_embeddings": POSITIONS,
        "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "pad_token_id": 0,
        "position_embedding_type": "absolute", "type_vocab_size": TYPES, "vocab_size": len(vocab)})
    write_json("bert/tokenizer.json", tokenizer_json(vocab))
    write_json("bert/tokenizer_config.json", {
        "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]",
        "do_lower_case": True, "tokenizer_class": "BertTokenizer"})
    modules = "sentence_transformers.models."
    write_json("bert/modules.json", [
        {"idx": 0, "name": "0", "path": "", "type": modules + "Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": modules + "Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": modules + "Normalize"}])
    write_json("bert/sentence_bert_config.json", {"max_seq_length": MAX_TOKENS, "do_lower_case": False})
    write_json("bert/1_Pooling/config.json", {
        "word_embedding_dimension": WIDTH, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False})

    cases, states = [], {}
    for name, text in TEXTS.items():
        ids = encode(text, vocab)
        kept = ids if len(ids) <= MAX_TOKENS else ids[: MAX_TOKENS - 1] + ids[-1:]
        cases.append({"name": name, "text": text, "ids": ids, "truncated": len(ids) > MAX_TOKENS})
        states[name] = hidden_states(kept, tensors)
    write_json("expected.json", {"max_tokens": MAX_TOKENS, "cases": cases})
    write_safetensors(HERE / "expected.safetensors", states)


if __name__ == "__main__":
    main()
