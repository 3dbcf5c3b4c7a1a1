//! Llama 4: attention within chunks, layers between that see all tokens, experts whose inputs have
//! the weight of the router.

use gguf_rs_lite::{Metadata, Value};
use ruvllm_models::{Checkpoint, Compute, Model, ModelConfig, Scoring, Window};
use serde_json::{Value as Json, json};

use crate::mixtures::{bits, changed, changed_file, folder, form, prompt};
use crate::support::{Copy, Weight, assert_same_tensors, tensors};

fn load(checkpoint: &dyn Checkpoint) -> Model {
    Model::load(checkpoint, &mut |_| ()).expect("it loads")
}

fn logits(model: &Model) -> Vec<u32> {
    bits(model, &Compute::new(1).expect("kernels"), &[(&prompt(4, 60), 17)])
}

#[test]
fn switches_are_those_of_the_configuration() {
    let model = load(&folder("llama4"));
    let decoder = &model.config().decoder;
    let chunked = vec![true, true, true, false, true];
    assert_eq!(decoder.window, Window::Chunked { tokens: 12, chunked });
    let temperature = decoder.attention_temperature.expect("of the fourth layer");
    assert_eq!((temperature.scale, temperature.every), (0.3, 8));
    assert_eq!(temperature.factor(7), 1.0 + 0.3 * 2.0_f32.ln(), "positions count from 1");
    assert!(decoder.unit_head_norms && temperature.unrotated_layers);
    let experts = decoder.experts.as_ref().expect("a mixture");
    assert_eq!(experts.layers, [false, true, false, true, false]);
    assert_eq!((experts.ffn_dim, experts.shared_dim, experts.dense_dim), (16, 16, 40));
    assert!(experts.weighs_inputs && experts.router.scoring == Scoring::SigmoidOfSelected);
    assert!(decoder.unusual_feature().is_some(), "GPUs and fine-tuning refuse it");

    let model = load(&folder("llama4_dense"));
    let config = model.config();
    assert_eq!((&config.decoder.window, config.ffn_dim), (&Window::Full, 48));
    assert!(config.decoder.experts.is_none() && config.decoder.attention_temperature.is_none());
    assert!(config.local_rope.is_none() && config.decoder.unit_head_norms);
}

/// Names, shapes and keys of llama.cpp's converter, which writes no keys of what all published
/// models have.
#[test]
fn files_have_the_tensors_and_keys_of_llama_cpp() {
    let folder = folder("llama4");
    let dims = |name: &str| folder.tensor(name).map(|info| info.dims.clone()).unwrap_or_default();
    for (name, expected) in [
        ("rope_freqs.weight", &[4_u64][..]),
        ("output.weight", &[32, 72]),
        ("blk.0.ffn_gate.weight", &[32, 40]),
        ("blk.0.ffn_down.weight", &[40, 32]),
        ("blk.1.ffn_gate_inp.weight", &[32, 4]),
        ("blk.1.ffn_gate_exps.weight", &[32, 16, 4]),
        ("blk.1.ffn_up_exps.weight", &[32, 16, 4]),
        ("blk.1.ffn_down_exps.weight", &[16, 32, 4]),
        ("blk.1.ffn_gate_shexp.weight", &[32, 16]),
        ("blk.1.ffn_down_shexp.weight", &[16, 32]),
        ("blk.3.attn_q.weight", &[32, 32]),
    ] {
        assert_eq!(dims(name), expected, "{name}");
    }
    let number = |key: &str| folder.metadata().get_u64(&format!("llama4.{key}")).expect("a number");
    for (key, expected) in [
        ("feed_forward_length", 40),
        ("expert_feed_forward_length", 16),
        ("interleave_moe_layer_step", 2),
        ("expert_count", 4),
        ("expert_used_count", 1),
        ("rope.dimension_count", 8),
        ("attention.sliding_window", 12),
        ("attention.temperature_length", 8),
    ] {
        assert_eq!(number(key), Some(expected), "{key}");
    }

    let copy = Copy::of_folder(&form("llama4"));
    for (key, value) in
        [("attention_chunk_size", json!(8192)), ("floor_scale", json!(8192)), ("attn_scale", json!(0.1))]
    {
        copy.set(key, value);
    }
    // As published.
    copy.set("attn_temperature_tuning", json!(4));
    copy.set("no_rope_layers", json!([]));
    copy.edit("config.json", |config| drop(config.remove("layer_types")));
    let usual = copy.open().expect("it opens");
    for key in ["attention.sliding_window", "attention.temperature_scale", "attention.temperature_length"] {
        assert!(usual.metadata().get(&format!("llama4.{key}")).is_none(), "{key}");
    }
    let config = load(&usual).config().clone();
    let temperature = config.decoder.attention_temperature.expect("a temperature");
    assert_eq!((temperature.scale, temperature.every), (0.1, 8192));
    assert_eq!(config.decoder.window.chunk_of_layer(0), Some(8192));
}

/// Experts of the folder are gate beside up, transposed.
#[test]
fn experts_are_transposed() {
    let copy = Copy::of_folder(&form("llama4"));
    let weights = copy.weights();
    let stored = |name: &str| {
        let name = format!("model.layers.1.feed_forward.experts.{name}");
        weights.iter().find(|weight| weight.name == name).expect("a tensor").data.clone()
    };
    let (gate_up, down) = (stored("gate_up_proj"), stored("down_proj"));
    let made = tensors(&folder("llama4"));
    let found = |name: &str| {
        let name = format!("blk.1.ffn_{name}_exps.weight");
        &made.iter().find(|(info, _)| info.name == name).expect("a stack").1
    };
    let (gate, up, made_down) = (found("gate"), found("up"), found("down"));
    let value = |bytes: &[u8], index: usize| [bytes[2 * index], bytes[2 * index + 1]];
    for (expert, input, inner) in (0..4)
        .flat_map(|expert| (0..32).flat_map(move |input| (0..16).map(move |inner| (expert, input, inner))))
    {
        let row = (expert * 32 + input) * 32;
        let place = (expert * 16 + inner) * 32 + input;
        assert_eq!(value(gate, place), value(&gate_up, row + inner));
        assert_eq!(value(up, place), value(&gate_up, row + 16 + inner));
        assert_eq!(
            value(made_down, (expert * 32 + input) * 16 + inner),
            value(&down, (expert * 16 + inner) * 32 + input)
        );
    }
}

/// The form `llama4` with a matrix per expert, as llm-compressor writes them.
fn single_experts() -> Copy {
    let copy = Copy::of_folder(&form("llama4"));
    let (joint, mut weights): (Vec<_>, Vec<_>) =
        copy.weights().into_iter().partition(|weight| weight.name.contains(".experts."));
    for weight in joint {
        let (stem, name) = weight.name.rsplit_once('.').expect("a name");
        let [_, columns, all_rows] = weight.shape[..] else { panic!("{:?}", weight.shape) };
        let parts = if name == "down_proj" { &["down_proj"][..] } else { &["gate_proj", "up_proj"] };
        let rows = all_rows / parts.len();
        for (expert, data) in weight.data.chunks(2 * columns * all_rows).enumerate() {
            for (part, name) in parts.iter().enumerate() {
                let value = |row: usize, column: usize| {
                    let index = column * all_rows + part * rows + row;
                    [data[2 * index], data[2 * index + 1]]
                };
                let data = (0..rows).flat_map(|row| (0..columns).flat_map(move |column| value(row, column)));
                weights.push(Weight {
                    name: format!("{stem}.{expert}.{name}.weight"),
                    dtype: weight.dtype,
                    shape: vec![rows, columns],
                    data: data.collect(),
                });
            }
        }
    }
    copy.write("model.safetensors", &weights);
    copy
}

#[test]
fn single_experts_are_those_of_one_tensor() {
    let copy = single_experts();
    let single = copy.open().expect("it opens");
    assert_same_tensors(&single, &folder("llama4"));
    assert!(logits(&load(&single)) == logits(&load(&folder("llama4"))));
    // As a part of a larger model.
    let mut weights = copy.weights();
    weights.iter_mut().for_each(|weight| weight.name = format!("language_model.{}", weight.name));
    copy.write("model.safetensors", &weights);
    assert_same_tensors(&copy.open().expect("it opens"), &folder("llama4"));
}

#[test]
fn missing_and_mixed_experts_are_named() {
    let refused = |change: &dyn Fn(&mut Vec<Weight>)| {
        let copy = single_experts();
        let mut weights = copy.weights();
        change(&mut weights);
        copy.write("model.safetensors", &weights);
        copy.open().map(|_| ()).expect_err("refused").to_string()
    };
    let joint = |layer: usize, name: &str| {
        let name = format!("model.layers.{layer}.feed_forward.experts.{name}");
        let weights = Copy::of_folder(&form("llama4")).weights();
        weights.into_iter().find(|weight| weight.name == name).expect("a tensor")
    };
    let single = "model.layers.3.feed_forward.experts.0.gate_proj.weight";
    for name in ["gate_up_proj", "down_proj"] {
        assert_eq!(
            refused(&|weights| weights.push(joint(3, name))),
            format!(
                "tensor `model.layers.3.feed_forward.experts.{name}` holds all experts of a layer, and `{single}` a \
                 single one: remove those of one form"
            )
        );
    }
    for name in ["2.up_proj", "3.down_proj", "0.gate_proj"] {
        let name = format!("model.layers.1.feed_forward.experts.{name}.weight");
        let error = refused(&|weights| weights.retain(|weight| weight.name != name));
        assert_eq!(error, format!("tensor `{name}` is missing"));
    }
    let none =
        refused(&|weights| weights.retain(|weight| !weight.name.contains("layers.3.feed_forward.experts.")));
    assert_eq!(none, "tensor `model.layers.3.feed_forward.experts.gate_up_proj` is missing");
    let renamed = |from: &str, to: &str| {
        refused(&|weights| {
            let weight = weights.iter_mut().find(|weight| weight.name == from).expect("a tensor");
            weight.name = to.to_owned();
        })
    };
    for number in ["4", "03", "+3"] {
        let name = format!("model.layers.1.feed_forward.experts.{number}.up_proj.weight");
        let error = renamed("model.layers.1.feed_forward.experts.3.up_proj.weight", &name);
        assert!(error.contains("experts.3.up_proj.weight` is missing") || error.contains(&name), "{error}");
    }
}

#[test]
fn text_parts_of_larger_models_compute_the_same() {
    let expected = logits(&load(&folder("llama4")));
    let copy = Copy::of_folder(&form("llama4"));
    copy.edit("config.json", |config| {
        let text = std::mem::take(config);
        config.insert("architectures".into(), json!(["Llama4ForConditionalGeneration"]));
        config.insert("model_type".into(), json!("llama4"));
        config.insert("text_config".into(), Json::Object(text));
        config.insert(
            "vision_config".into(),
            json!({"model_type": "llama4_vision_model", "hidden_act": "gelu"}),
        );
    });
    let mut weights = copy.weights();
    weights.iter_mut().for_each(|weight| weight.name = format!("language_model.{}", weight.name));
    let mut vision = weights[0].clone();
    vision.name = "vision_model.patch_embedding.linear.weight".into();
    weights.push(vision);
    copy.write("model.safetensors", &weights);
    assert!(logits(&load(&copy.open().expect("it opens"))) == expected);
}

#[test]
fn chunks_temperatures_and_routers_change_logits() {
    let usual = logits(&load(&folder("llama4")));
    let with = |key: &str, value: Value| {
        let key = format!("llama4.{key}");
        logits(&changed("llama4", |metadata, _| drop(metadata.insert(key, value))).expect("it loads"))
    };
    // Borders of chunks within and between blocks of 32 tokens.
    let by_length = [12_u32, 16, 32, 59, 60].map(|length| with("attention.sliding_window", length.into()));
    assert!(by_length[0] == usual);
    for pair in by_length.windows(2) {
        assert!(pair[0] != pair[1]);
    }
    assert!(by_length[4] == with("attention.sliding_window", 200_u32.into()), "all tokens are of one chunk");
    let first_chunk = 12 * 72;
    assert!(by_length[4][..first_chunk] == usual[..first_chunk], "the first chunk sees what it saw");
    for (key, value) in [
        ("attention.temperature_scale", Value::F32(0.0)),
        ("attention.temperature_length", 9_u32.into()),
        ("expert_gating_func", 1_u32.into()),
        ("attention.sliding_window", 0_u32.into()),
    ] {
        assert!(with(key, value) != usual, "{key}");
    }
}

#[test]
fn norms_follow_from_the_number_of_experts() {
    let has_norms = |count: u32| {
        let file = changed_file("llama4", |metadata, _| drop(metadata.insert("llama4.expert_count", count)));
        ModelConfig::from_checkpoint(&file).expect("valid").decoder.unit_head_norms
    };
    assert!(has_norms(16) && has_norms(127) && !has_norms(128));
    let copy = Copy::of_folder(&form("llama4"));
    copy.set("use_qk_norm", json!(false));
    let refused = copy.open().expect_err("no key for it").to_string();
    assert!(refused.contains("use_qk_norm") && refused.contains("128 experts"), "{refused}");
}

#[test]
fn other_chunks_layers_and_scalings_are_refused() {
    for (key, value, expected) in [
        ("no_rope_layers", json!([1, 1, 0, 1, 1]), "0 for the last of every 4 of 5 layers"),
        ("no_rope_layers", json!([1, 1, 1, 0]), "no_rope_layers"),
        ("layer_types", json!(["full_attention", "full_attention"]), "layer_types"),
        ("attention_chunk_size", json!(0), "attention_chunk_size"),
        ("attention_chunk_size", Json::Null, "the tokens of a chunk"),
        ("attn_scale", json!(-0.1), "attn_scale"),
        ("floor_scale", json!(0), "floor_scale"),
        ("moe_layers", json!([1, 2]), "layers of 5 at equal distances"),
        ("moe_layers", json!(["1"]), "moe_layers"),
        ("moe_layers", json!([0, 1, 2, 3, 4]), "layers.0.feed_forward.down_proj.weight"),
        ("num_experts_per_tok", json!(5), "num_experts_per_tok"),
        ("intermediate_size", json!(24), "feed_forward"),
        ("intermediate_size_mlp", json!(24), "feed_forward"),
    ] {
        let copy = Copy::of_folder(&form("llama4"));
        copy.set(key, value);
        let refused = copy.open().expect_err(key).to_string();
        assert!(refused.contains(expected), "{key}: {refused}");
    }
    let copy = Copy::of_folder(&form("llama4"));
    copy.edit("config.json", |config| {
        config.remove("no_rope_layers");
        config.insert("no_rope_layer_interval".into(), json!(2));
    });
    assert!(copy.open().is_err_and(|error| error.to_string().contains("no_rope_layer_interval")));

    let refused = |change: &dyn Fn(&mut Metadata)| {
        changed("llama4", |metadata, _| change(metadata)).map(|_| ()).expect_err("refused")
    };
    let error = refused(&|metadata| {
        metadata.insert("llama4.rope.scaling.type", "yarn");
        metadata.insert("llama4.rope.scaling.factor", 4.0_f32);
    });
    assert_eq!(
        error,
        "metadata key `llama4.rope.scaling.type` is `yarn`, expected `none` or `linear` for heads that are normed \
         behind RoPE"
    );
    for (key, value, expected) in [
        ("interleave_moe_layer_step", 0_u32, "a whole number from 1 to 5"),
        ("interleave_moe_layer_step", 6, "a whole number from 1 to 5"),
        ("interleave_moe_layer_step", 1, "blk.0.ffn_"),
        ("attention.temperature_length", 0, "from 1 to"),
    ] {
        let error = refused(&|metadata| drop(metadata.insert(format!("llama4.{key}"), value)));
        assert!(error.contains(expected), "{key}: {error}");
    }
}
