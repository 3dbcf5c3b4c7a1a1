"""Writes small models of every family with drawn configurations and random weights, and what transformers computes.

    python3 make.py OUT MODELS SEED [FAMILY..]

Without a FAMILY, models of all; those of a family are the same beside others as alone. Needs torch, transformers (4.57 or later) and safetensors. OUT gets a folder for each model, in it the model as
`save_pretrained` writes it and `reference.f32`, the logits of all tokens (of encoders the hidden states, of rerankers the logit
of the text); and `models.json`, a list of {folder, family, draw, ids, first}: of a pair of texts, the first has so many tokens. What
transformers itself refuses is drawn anew. Where there is PEFT, decoders also get a LoRA
adapter in the folder `adapter`, with a `reference.f32` of its own.
"""

import json
import math
import random
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

try:
    import peft
except ImportError:
    peft = None

# The draws stand beside this file, in a tree that keeps no compiled files.
sys.dont_write_bytecode = True
import decoders
import encoders
import mixtures
import states
from draws import maybe, pick

TOKENS = [3, 40, 150]
DRAWS_PER_MODEL = 20

FAMILIES = dict(
    llama=decoders.llama, mistral=decoders.mistral, mistral3=decoders.mistral3, ministral3=decoders.ministral3, qwen2=decoders.qwen2,
    qwen3=decoders.qwen3, phi3=decoders.phi3, gemma=decoders.gemma, gemma2=decoders.gemma2, gemma3=decoders.gemma3,
    gemma3n=decoders.gemma3n, gemma4=decoders.gemma4, glm4=decoders.glm4, smollm3=decoders.smollm3, granite=decoders.granite, olmo2=decoders.olmo2,
    olmo3=decoders.olmo3, exaone4=decoders.exaone4,
    mixtral=mixtures.mixtral, qwen2moe=mixtures.qwen2moe, qwen3moe=mixtures.qwen3moe, olmoe=mixtures.olmoe, gpt_oss=mixtures.gpt_oss,
    granitemoe=mixtures.granitemoe, glm4moe=mixtures.glm4moe, llama4=mixtures.llama4, phimoe=mixtures.phimoe,
    deepseek2=mixtures.deepseek2, deepseek3=mixtures.deepseek3, mistral4=mixtures.mistral4,
    granitehybrid=states.granitehybrid, qwen35=states.qwen35, qwen35moe=states.qwen35moe, qwen3next=states.qwen3next, lfm2=states.lfm2,
    nemotron=states.nemotron, falcon_h1=states.falcon_h1,
    bert=encoders.encoder("Bert", 0), roberta=encoders.encoder("Roberta", 1), xlm_roberta=encoders.encoder("XLMRoberta", 1),
    distilbert=encoders.distilbert, modernbert=encoders.modernbert, nomic=encoders.nomic, embeddinggemma=encoders.embeddinggemma,
    cross_encoder=encoders.cross_encoder, qwen3_reranker=encoders.qwen3_reranker)

# Families whose norms are stored less one.
PLUS_ONE = {"gemma", "gemma2", "gemma3", "embeddinggemma", "qwen35", "qwen35moe", "qwen3next"}
# Families of which adapters here change logits at most: those of latents, of layers with a state,
# and of layers that are not alike.
NOT_ADAPTED = {"gemma4", "deepseek2", "deepseek3", "mistral4", "qwen35", "qwen35moe", "qwen3next", "lfm2", "nemotron", "falcon_h1",
               "qwen3_reranker"}
# Ids of `no` and `yes`.
ANSWERS = (11, 7)


def build(class_name, fields):
    model_class = getattr(transformers, class_name)
    config = model_class.config_class.from_dict(dict(fields))
    config._attn_implementation = "eager"
    # Products of experts in float64, which fused kernels refuse.
    config._experts_implementation = "eager"
    return model_class(config).eval()


def fill(model, family, generator):
    """Wider weights than a fresh model has, so that no part of it is without effect."""
    def values_of(name, values):
        if values.dim() > 1:
            if name.endswith("modality_router.weight"):
                # Norms of its input are divided by the width of the model.
                return values * 16.0 * 1.3 / math.sqrt(values.shape[-1])
            values = values * ((0.3 if "gemma" in family else 1.0) if "embed" in name else 1.3 / math.sqrt(values.shape[-1]))
            # Logits near each other, which the masks of the router tell apart.
            return 6.0 * values[:1] + 0.15 * values if family == "phimoe" and name.endswith("router.weight") else values
        if name.endswith(("A_log", "dt_bias")):
            # States that decay over a few tokens in some heads, and over many in others.
            return 1.2 * values - 1.5
        if name.endswith("sinks"):
            return 2.0 * values
        if "norm" in name.lower() and name.endswith("weight"):
            return (0.0 if family in PLUS_ONE and "linear_attn" not in name else 1.0) + 0.2 * values
        if name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
            return 1.0 + 0.2 * values
        return (0.1 if name.endswith("e_score_correction_bias") else 0.3) * values

    drawn = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(("layer_scalar", "e_score_correction_bias"))]
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *drawn]:
            tensor.copy_(values_of(name, torch.randn(tensor.shape, generator=generator)))


def compute(model, family, ids, first):
    """Logits, hidden states, or the logit of a pair of texts, the first of `first` tokens. In float64 but for what transformers
    itself casts to float32."""
    model = model.double()
    if family == "cross_encoder":
        types = (torch.arange(ids.shape[1]) >= first).long()[None]
        return model(ids, token_type_ids=types).logits[0]
    if family == "qwen3_reranker":
        no, yes = model(ids, use_cache=False).logits[0, -1, list(ANSWERS)]
        return (yes - no)[None]
    if hasattr(model, "lm_head") and "MaskedLM" not in type(model).__name__:
        return model(ids, use_cache=False).logits[0]
    inner = getattr(model, model.base_model_prefix) if "MaskedLM" in type(model).__name__ else model
    return inner(ids).last_hidden_state[0]


def name_answers(folder):
    """Makes a folder of a language model that of a reranker, with a prompt for both texts."""
    content = "{{ messages | selectattr('role', 'equalto', '%s') | map(attribute='content') | first }}"
    (folder / "chat_template.jinja").write_text(" ".join(content % role for role in ["query", "document"]))
    modules = [dict(idx=0, name="0", path="", type="Transformer"), dict(idx=1, name="1", path="1_LogitScore", type="LogitScore")]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_LogitScore").mkdir()
    no, yes = ANSWERS
    (folder / "1_LogitScore/config.json").write_text(json.dumps(dict(false_token_id=no, true_token_id=yes)))


def separate_experts(folder):
    """Rewrites a folder of Llama 4 with a matrix per expert in the place of one transposed tensor."""
    separate = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        head, _, part = name.partition(".experts.")
        if not part:
            separate[name] = tensor
            continue
        parts = ["gate_proj", "up_proj"] if part == "gate_up_proj" else [part]
        for expert, matrix in enumerate(tensor):
            for own, rows in zip(parts, matrix.T.chunk(len(parts))):
                separate[f"{head}.experts.{expert}.{own}.weight"] = rows.contiguous()
    save_file(separate, folder / "model.safetensors", metadata=dict(format="pt"))


def is_mixture(model):
    return any(".experts." in name for name in model.state_dict())


def keeps_state(model):
    """Adapters of the attention of such models are refused."""
    return any(".mamba." in name for name in model.state_dict())


def adapt(model, family, draw, generator):
    """Puts a LoRA into a decoder: some of its matrices, ranks and scales of their own for some of them."""
    leaves = sorted({name.rpartition(".")[2] for name, module in model.named_modules()
                     if isinstance(module, torch.nn.Linear) and "vision" not in name and "projector" not in name})
    if is_mixture(model) or family == "granitehybrid":
        # The names of others are those of experts as well, which adapters do not change here.
        leaves = [leaf for leaf in leaves if leaf in ("q_proj", "k_proj", "v_proj", "o_proj", "lm_head")]
    if family == "gemma3n":
        # Networks of several widths take no adapters.
        widths = {module.out_features for name, module in model.named_modules() if name.endswith("gate_proj")}
        networks = ("gate_proj", "up_proj", "down_proj") if len(widths) == 1 else ()
        leaves = [leaf for leaf in leaves if leaf in ("q_proj", "k_proj", "v_proj", "o_proj", "lm_head", *networks)]
    targets = draw.sample(leaves, draw.randint(1, len(leaves)))
    pattern = lambda values: {pick(draw, leaf, f"layers.0.*{leaf}"): pick(draw, *values)
                              for leaf in targets if maybe(draw, 0.3)}
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=pick(draw, 1, 2, 5, 16), lora_alpha=pick(draw, 1, 8, 13), use_rslora=maybe(draw, 0.3),
        rank_pattern=pattern([1, 3, 8]), alpha_pattern=pattern([2, 9]), target_modules=targets,
        exclude_modules=".*(vision|projector).*" if family == "mistral3" else None)
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                values = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(values * (0.03 if "lora_B" in name else 1 / math.sqrt(parameter.shape[-1])))
    return adapted


def make(out, family, number, draw):
    folder = out / f"{family}-{number}"
    class_name, fields = FAMILIES[family](draw)
    model = build(class_name, fields)
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    fill(model, family, generator)
    # Of Granite and Phi, that form has been published by nobody.
    stacked = is_mixture(model) and not family.startswith(("granite", "phi")) and maybe(draw, 0.3)
    model.save_pretrained(folder, **(dict(save_original_format=False) if stacked else {}))
    if stacked and family == "llama4":
        # Its experts are always in one tensor, but for folders of quantizers.
        separate_experts(folder)
    if family == "qwen3_reranker":
        name_answers(folder)
    vocabulary = fields.get("text_config", fields)["vocab_size"]
    ids = torch.randint(3, vocabulary, (1, pick(draw, *TOKENS)), generator=generator)
    first = ids.shape[1]
    if family == "cross_encoder" and fields["type_vocab_size"] == 2:
        first = draw.randint(1, first)
    with torch.no_grad():
        reference = compute(model, family, ids, first)
    reference.numpy().astype("<f4").tofile(folder / "reference.f32")
    is_decoder = class_name.endswith(("ForCausalLM", "ForConditionalGeneration"))
    if peft and is_decoder and family not in NOT_ADAPTED and not keeps_state(model):
        model = model.float()
        adapted = adapt(model, family, draw, generator)
        adapted.save_pretrained(folder / "adapter")
        with torch.no_grad():
            compute(model, family, ids, first).numpy().astype("<f4").tofile(folder / "adapter" / "reference.f32")
    return dict(folder=folder.name, family=family, draw=json.dumps(fields), ids=ids[0].tolist(), first=first)


def main():
    out, models, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    made = []
    for family in sys.argv[4:] or FAMILIES:
        draw = random.Random(f"{seed} {family}")
        for number in range(models):
            for _ in range(DRAWS_PER_MODEL):
                try:
                    made.append(make(out, family, number, draw))
                    break
                # Classes that this version lacks, configurations that it refuses: of many types.
                except Exception as error:
                    refusal = error
            else:
                print(f"{family}: no more than {number} models: {refusal}", file=sys.stderr)
                break
    (out / "models.json").write_text(json.dumps(dict(version=transformers.__version__, models=made)))


main()
