"""Writes the folder that a front end needs for a GGUF file: configuration, tokenizer, chat template.

    python3 tokenizer_folder.py model.gguf FOLDER

For byte-level BPE with the pre-tokenizer `qwen2`, as the built-in model has it. For other models,
download these files from the model's page. Needs the packages `gguf` and `tokenizers`.
"""

import argparse
import json
import sys
from pathlib import Path

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

PRE_TOKENIZER = "qwen2"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Types of GGUF: control tokens are special, user-defined ones are matched and shown.
CONTROL, USER_DEFINED = 3, 4


def value(reader, name, default=None):
    """A value of the metadata."""
    field = reader.get_field(name)
    return default if field is None else field.contents()


def tokenizer(reader, path):
    """The tokenizer of a file."""
    kind, pre = value(reader, "tokenizer.ggml.model"), value(reader, "tokenizer.ggml.pre")
    if (kind, pre) != ("gpt2", PRE_TOKENIZER):
        sys.exit(f"{path} has the tokenizer {kind} with the pre-tokenizer {pre}; known is gpt2 with {PRE_TOKENIZER}")
    tokens, types = value(reader, "tokenizer.ggml.tokens"), value(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in value(reader, "tokenizer.ggml.merges")]
    found = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges))
    found.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    found.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types):
        added = AddedToken(token, normalized=False, special=kind == CONTROL)
        if kind == CONTROL:
            found.add_special_tokens([added])
        elif kind == USER_DEFINED:
            found.add_tokens([added])
    return found, tokens


def write(path, folder):
    """Writes the files of `path` into `folder`."""
    reader = GGUFReader(path)
    found, tokens = tokenizer(reader, path)
    architecture = value(reader, "general.architecture")
    end = value(reader, "tokenizer.ggml.eos_token_id")
    folder.mkdir(parents=True, exist_ok=True)
    found.save(str(folder / "tokenizer.json"))
    template = value(reader, "tokenizer.chat_template")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokens[end], "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template} if template else settings))
    of = lambda name: value(reader, f"{architecture}.{name}")
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": architecture, "vocab_size": len(tokens),
        "max_position_embeddings": of("context_length"), "hidden_size": of("embedding_length"),
        "num_hidden_layers": of("block_count"), "num_attention_heads": of("attention.head_count"),
        "num_key_value_heads": of("attention.head_count_kv"), "intermediate_size": of("feed_forward_length"),
        "eos_token_id": end, "bos_token_id": value(reader, "tokenizer.ggml.bos_token_id"),
    }))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    write(args.file, args.folder)


if __name__ == "__main__":
    main()
