"""Makes tiny rerankers with random weights of 16 bits, and the logits that transformers computes for pairs of texts in float64.

    python3 make.py
    python3 make.py convert LLAMA_CPP

Needs torch, transformers 5.24 and sentencepiece. The second form writes `converted.gguf` beside the folders with the
converter of a llama.cpp checkout. It leaves out the pooler of BERT, as it does with published files.
"""

import base64
import json
import shutil
import sys
import tempfile
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).parent
TOKENS = 40
SIZES = dict(hidden_size=32, intermediate_size=40, num_attention_heads=4, num_hidden_layers=2, num_labels=1)

PAIRS = [
    ("where did the cat sit", "The cat sat on the mat."),
    ("where did the cat sit", "A turtle told a story about the world."),
    ("where did the cat sit", ""),
    ("how many people said no", "Café naïve: 東京 is new, it was said. 3 of them said no!"),
    ("cat", "[SEP] markers within a text are text [CLS]"),
    ("a very good story", "Once upon a time there was a turtle, and it was a very good turtle because it had been told many a story. " * 3),
]
CORPUS = [text for pair in PAIRS for text in pair if text] + """the cat sat on the mat and looked at the turtle
a story that was told once upon a time about the world and its people
how many of them said no and where did they go after the first day
it is new and very good because each of them made it with their own hands""".split("\n")


def bert(folder):
    """The vocabulary of `encoder/bert`."""
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(HERE.parent / "encoder/bert" / name, folder / name)
    size = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    return transformers.BertForSequenceClassification, transformers.BertConfig(
        vocab_size=size, max_position_embeddings=TOKENS, type_vocab_size=2, pad_token_id=0, **SIZES)


def xlm_roberta(folder):
    """A unigram vocabulary by sentencepiece with a small table of characters, in the order of ids of XLM-RoBERTa."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    with tempfile.TemporaryDirectory() as work:
        rules = Path(work) / "rules.tsv"
        # NFKC of some characters, in hexadecimal.
        rules.write_text("A0\t20\nFB01\t66 69\nFF21\t41\n3000\t20\n2163\t49 56\n")
        (Path(work) / "corpus").write_text("\n".join(CORPUS))
        sentencepiece.SentencePieceTrainer.train(
            input=f"{work}/corpus", model_prefix=f"{work}/m", vocab_size=85, model_type="unigram",
            normalization_rule_tsv=str(rules), character_coverage=1.0, minloglevel=2)
        trained = sentencepiece.SentencePieceProcessor(model_file=f"{work}/m.model")
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString(Path(f"{work}/m.model").read_bytes())
    # Ids of the original: <s>, <pad>, </s>, <unk>, then the pieces, then <mask>.
    pieces = [(trained.id_to_piece(i), trained.get_score(i)) for i in range(3, trained.vocab_size())]
    vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)] + pieces + [("<mask>", 0.0)]
    special = lambda id, lstrip=False: {"id": id, "content": vocab[id][0], "single_word": False, "lstrip": lstrip, "rstrip": False,
                                        "normalized": False, "special": True}
    token = lambda text, kind=0: {"SpecialToken": {"id": text, "type_id": kind}}
    text = lambda name: {"Sequence": {"id": name, "type_id": 0}}
    definition = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [special(i) for i in range(4)] + [special(len(vocab) - 1, True)],
        "normalizer": {"type": "Precompiled",
                       "precompiled_charsmap": base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [token("<s>"), text("A"), token("</s>")],
            "pair": [token("<s>"), text("A"), token("</s>"), token("</s>"), text("B"), token("</s>")],
            "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in [("<s>", 0), ("</s>", 2)]}},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": False},
    }
    (folder / "tokenizer.json").write_text(json.dumps(definition, ensure_ascii=False, indent=1) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "unk_token": "<unk>",
        "pad_token": "<pad>", "mask_token": "<mask>", "tokenizer_class": "XLMRobertaTokenizer"}, indent=1) + "\n")
    return transformers.XLMRobertaForSequenceClassification, transformers.XLMRobertaConfig(
        vocab_size=len(vocab), max_position_embeddings=TOKENS + 2, type_vocab_size=1, pad_token_id=1, bos_token_id=0,
        eos_token_id=2, **SIZES)


def make(name, build, seed):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    cls, config = build(folder)
    config._attn_implementation = "eager"
    model = cls(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for key, parameter in model.named_parameters():
        scale, mean = (0.2, 1.0) if key.endswith("LayerNorm.weight") else (0.2, 0.0)
        if parameter.dim() == 2:
            scale = 1.0 if "embeddings" in key else 1.5 / parameter.shape[1] ** 0.5
        values = mean + scale * torch.randn(parameter.shape, generator=generator)
        parameter.data = values.to(torch.float16).to(torch.float64)
    save_file({key: value.to(torch.float16).contiguous() for key, value in model.state_dict().items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = [cls.__name__]
    config.save_pretrained(folder)
    pair = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    pair.no_padding()
    # Splits markers within texts; the template still adds its own.
    pair.encode_special_tokens = True
    cases = []
    for query, document in PAIRS:
        pair.enable_truncation(TOKENS, strategy="only_second")
        encoded = pair.encode(query, document)
        pair.no_truncation()
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([encoded.ids]), token_type_ids=torch.tensor([encoded.type_ids])).logits
        cases.append(dict(query=query, document=document, ids=encoded.ids, types=encoded.type_ids,
                          truncated=len(pair.encode(query, document).ids) > TOKENS, logit=logits.item()))
    (folder / "expected.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")


def convert(llama_cpp, name):
    sys.path[:0] = [llama_cpp, f"{llama_cpp}/gguf-py"]
    import gguf
    from conversion import bert as converters

    cls = {"bert": converters.BertModel, "xlm_roberta": converters.XLMRobertaModel}[name]
    # The pre-tokenizer's name is found by a digest of a published vocabulary.
    cls.get_vocab_base_pre = lambda self, tokenizer: "default"
    cls(HERE / name, gguf.LlamaFileType.MOSTLY_F16, HERE / name / "converted.gguf").write()


def main():
    if sys.argv[1:2] == ["convert"]:
        for name in ["bert", "xlm_roberta"]:
            convert(sys.argv[2], name)
        return
    make("bert", bert, 1)
    make("xlm_roberta", xlm_roberta, 2)


if __name__ == "__main__":
    main()
