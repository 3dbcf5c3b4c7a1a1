//! Layers that are not alike: shared keys and values, heads of two widths, embeddings per layer.
//! The logits are compared in `forms`.

use gguf_rs_lite::{Array, TensorInfo, TensorType, Value};
use ruvllm_kernels::ThreadPool;
use ruvllm_kv_cache::{KvPolicy, KvShape, OtherHeads};
use ruvllm_memory::PoolConfig;
use ruvllm_models::quantize::{InSitu, Recipe};
use ruvllm_models::{Checkpoint, Compute, KvFormat, LogitsRows, Model, PagePool, Segment, Workspace};
use safetensors::Dtype;
use serde_json::json;

use crate::hybrids::check_bits;
use crate::mixtures::{bits, changed, folder, form, prompt};
use crate::support::{Copy, Weight};

fn load(checkpoint: &dyn Checkpoint) -> Model {
    Model::load(checkpoint, &mut |_| ()).expect("it loads")
}

fn pool() -> PagePool {
    PagePool::new(PoolConfig::new(32 << 20)).expect("a pool")
}

#[test]
fn no_bit_depends_on_files_chunks_batches_or_instruction_sets() {
    for name in ["gemma4_shared", "gemma4_alike", "gemma4_keys", "gemma4_moe"] {
        check_bits(name);
    }
}

/// Layers that read the keys and values of others see the rows with logits only.
#[test]
fn rows_without_logits_leave_no_trace() {
    let tokens = prompt(3, 40);
    let other = prompt(4, 9);
    for name in ["gemma4_shared", "gemma4_alike", "gemma3n"] {
        let folder = folder(name);
        let (recipe, threads) = (Recipe::from_name("Q8_0").expect("a recipe"), ThreadPool::single());
        let quantized = InSitu::new(&folder, recipe, &threads);
        for checkpoint in [&folder as &dyn Checkpoint, &quantized.expect("it can be quantized")] {
            let (model, compute) = (load(checkpoint), Compute::new(2).expect("kernels"));
            let all = bits(&model, &compute, &[(&tokens, 40)]);
            let row = model.config().vocab_size;
            let store = model.kv_store(&KvFormat::F32.into(), &pool()).expect("a store");
            let [mut first, mut second] =
                [(), ()].map(|()| model.new_sequence(&store, 40).expect("a sequence"));
            let mut workspace = Workspace::new();
            for (chunk, wanted, rows) in [
                (0..11, LogitsRows::None, &[][..]),
                (11..30, LogitsRows::At(&[0, 3, 4, 17]), &[11, 14, 15, 28]),
                (30..31, LogitsRows::Last, &[30]),
                (31..40, LogitsRows::Tail(2), &[38, 39]),
            ] {
                let beside = Segment::new(&compute, &other[..1], &mut second, LogitsRows::Last);
                let of_first = Segment::new(&compute, &tokens[chunk], &mut first, wanted).expect("room");
                let segments = [beside.expect("room"), of_first];
                let logits = model.forward(&compute, &mut workspace, segments).expect("a step");
                let found: Vec<u32> = logits[row..].iter().map(|logit| logit.to_bits()).collect();
                let expected: Vec<u32> =
                    rows.iter().flat_map(|at| &all[at * row..(at + 1) * row]).copied().collect();
                assert!(found == expected, "{name} {rows:?}");
            }
        }
    }
}

/// Layers without keys and values of their own take no memory; others that of their heads.
#[test]
fn the_cache_keeps_what_layers_write() {
    let model = load(&folder("gemma4_shared"));
    let (config, shape) = (model.config(), model.config().kv_shape());
    let others = OtherHeads { n_layers: 2, n_kv_heads: 1, head_dim: 8 };
    assert_eq!(shape, KvShape { others: Some(others), ..KvShape::new(3, 1, 16) });
    assert_eq!([0, 1, 2, 3, 4, 5].map(|layer| config.cache_layer(layer)), [1, 0, 2, 2, 0, 0]);
    assert_eq!(config.decoder.layers.kv_sources, [0, 1, 2, 2, 1, 1]);
    let pool = pool();
    let store = |policy: &str| model.kv_store(&policy.parse::<KvPolicy>().expect("a policy"), &pool);
    assert_eq!(store("f16").expect("a store").sequence_bytes(32), 32 * 2 * 2 * (16 + 8 + 8));
    store("tiered:hot=32,hot_format=f32,sink=0,warm=f16,cold=off").expect("a store");
    let refused = store("nuq3").map(|_| ()).expect_err("heads of two widths").to_string();
    assert!(refused.contains("heads alike in all layers"), "{refused}");

    let alike = load(&folder("gemma4_alike"));
    assert_eq!(alike.config().kv_shape(), KvShape::new(2, 2, 16));
    let keys = load(&folder("gemma4_keys"));
    let others = OtherHeads { n_layers: 2, n_kv_heads: 4, head_dim: 8 };
    assert_eq!(keys.config().kv_shape(), KvShape { others: Some(others), ..KvShape::new(4, 1, 16) });
}

/// Every KV format keeps greedy results finite in all widths, and `tiered` moves blocks of both.
#[test]
fn kv_formats_hold_both_widths() {
    let (tokens, compute) = (prompt(5, 200), Compute::new(1).expect("kernels"));
    let model = load(&folder("gemma4_keys"));
    let exact = bits(&model, &compute, &[(&tokens, 50)]);
    let row = model.config().vocab_size;
    for policy in ["f16", "bf16", "tiered:hot=32,hot_format=f32,sink=0,warm=f16,cold=off"] {
        let store = model.kv_store(&policy.parse::<KvPolicy>().expect("a policy"), &pool()).expect(policy);
        let mut cache = model.new_sequence(&store, 200).expect("a sequence");
        let mut workspace = Workspace::new();
        for chunk in tokens.chunks(50) {
            let segment = Segment::new(&compute, chunk, &mut cache, LogitsRows::Last).expect("room");
            model.forward(&compute, &mut workspace, [segment]).expect("a step");
            cache.migrate(&compute.kernels, &compute.pool, usize::MAX);
        }
        let expected = exact[exact.len() - row..].iter().map(|&bits| f32::from_bits(bits));
        let errors = workspace.logits().iter().zip(expected).map(|(found, exact)| (found - exact).abs());
        let error = errors.fold(0.0, f32::max);
        assert!(error > 0.0 && error < 0.2, "{policy}: {error}");
    }
}

/// Folders name the heads of layers without a window in a field, or layer by layer.
#[test]
fn both_forms_of_configurations_say_the_same() {
    for (name, fields) in [
        ("gemma4_shared", json!({"global_head_dim": 16})),
        ("gemma4_keys", json!({"global_head_dim": 16, "num_global_key_value_heads": 1})),
    ] {
        let copy = Copy::of_folder(&form(name));
        copy.edit("config.json", |config| {
            let config = match config.get_mut("text_config") {
                Some(text) => text.as_object_mut().expect("an object"),
                None => config,
            };
            config.remove("per_layer_config").expect("it is there");
            config.extend(fields.as_object().expect("fields").clone());
        });
        let (found, expected) = (copy.open().expect("it opens"), folder(name));
        let keys = |folder: &dyn Checkpoint| {
            let own = folder.metadata().iter().filter(|(key, _)| key.starts_with("gemma4."));
            own.map(|(key, value)| format!("{key} = {value:?}")).collect::<Vec<_>>()
        };
        assert_eq!(keys(&found), keys(&expected), "{name}");
    }
}

/// Published weights have keys and values of layers that never use them.
#[test]
fn keys_of_layers_that_read_others_are_left_out() {
    let compute = Compute::new(1).expect("kernels");
    let tokens = prompt(1, 30);
    let run = |model: &Model| bits(model, &compute, &[(&tokens, 30)]);
    let expected = run(&load(&folder("gemma4_shared")));
    let copy = Copy::of_folder(&form("gemma4_shared"));
    let mut weights = copy.weights();
    for (part, shape) in [("k_proj", vec![8, 32]), ("v_proj", vec![8, 32]), ("k_norm", vec![8])] {
        let name = format!("model.language_model.layers.3.self_attn.{part}.weight");
        let data = vec![0x3c; 2 * shape.iter().product::<usize>()];
        weights.push(Weight { name, dtype: Dtype::F16, shape, data });
    }
    copy.write("model.safetensors", &weights);
    assert_eq!(run(&load(&copy.open().expect("it opens"))), expected);
    let model = changed("gemma4_shared", |_, tensors| {
        for (part, dims) in [("attn_k", vec![32, 8]), ("attn_v", vec![32, 8]), ("attn_k_norm", vec![8])] {
            let values: u64 = dims.iter().product();
            let info = TensorInfo::new(format!("blk.3.{part}.weight"), dims, TensorType::F32);
            tensors.push((info.expect("a tensor"), vec![0; 4 * values as usize]));
        }
    });
    assert_eq!(run(&model.expect("it loads")), expected);
}

#[test]
fn configurations_of_other_layers_are_refused() {
    let kinds = |kinds: [&str; 6]| {
        kinds.map(|kind| if kind == "s" { "sliding_attention" } else { "full_attention" }).to_vec()
    };
    let (whole, windows) = (kinds(["f", "f", "f", "s", "f", "f"]), kinds(["s", "s", "s", "s", "f", "s"]));
    for (field, value, expected) in [
        (
            "num_kv_shared_layers",
            json!(6),
            "`num_kv_shared_layers` is 6, expected a whole number from 0 to 5",
        ),
        ("num_kv_shared_layers", json!(5), "the last layer of its kind"),
        ("layer_types", json!(whole), "the last layer of its kind"),
        ("layer_types", json!(windows), "the last `full_attention`"),
        ("layer_types", json!(null), "`layer_types` is missing"),
        ("per_layer_config", json!({"1": {"head_dim": 16}}), "the same heads in all layers"),
        ("per_layer_config", json!({"0": {"head_dim": 16}}), "of layers without a window"),
        (
            "per_layer_config",
            json!({"1": {"head_dim": 15}, "4": {"head_dim": 15}, "5": {"head_dim": 15}}),
            "an even width",
        ),
        ("hidden_size_per_layer_input", json!(8), "embed_tokens_per_layer"),
        ("hidden_size_per_layer_input", json!(0), "embed_tokens_per_layer"),
        ("vocab_size_per_layer_input", json!(70), "vocab_size_per_layer_input"),
        ("use_double_wide_mlp", json!(false), "layers.3.mlp"),
        ("use_bidirectional_attention", json!("all"), "use_bidirectional_attention"),
        ("rope_parameters", json!(null), "rope_parameters"),
        (
            "rope_parameters",
            json!({
                "full_attention": {"rope_type": "proportional", "factor": 2.0, "rope_theta": 2e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            }),
            "rope_parameters.full_attention.factor",
        ),
        (
            "rope_parameters",
            json!({
                "full_attention": {"rope_type": "proportional", "rope_theta": 2e4},
                "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
            }),
            "rope_parameters.sliding_attention.rope_type",
        ),
    ] {
        let copy = Copy::of_folder(&form("gemma4_shared"));
        copy.edit("config.json", |config| {
            let text = config["text_config"].as_object_mut().expect("an object");
            drop(text.insert(field.to_owned(), value));
        });
        let refused = copy.open().map(|_| ()).expect_err(field).to_string();
        assert!(refused.contains(expected), "{field}: {refused}");
    }
}

#[test]
fn weights_of_other_layers_are_refused() {
    let refused = |name: &str, change: &dyn Fn(&mut Vec<Weight>)| {
        let copy = Copy::of_folder(&form(name));
        let mut weights = copy.weights();
        change(&mut weights);
        copy.write("model.safetensors", &weights);
        copy.open().map(|_| ()).expect_err("refused").to_string()
    };
    for (name, part) in [
        ("gemma4_shared", "embed_tokens_per_layer.weight"),
        ("gemma4_shared", "per_layer_model_projection.weight"),
        ("gemma4_shared", "per_layer_projection_norm.weight"),
        ("gemma4_shared", "layers.2.self_attn.k_proj.weight"),
        ("gemma4_shared", "layers.1.self_attn.v_proj.weight"),
        ("gemma4_shared", "layers.3.self_attn.q_norm.weight"),
        ("gemma4_shared", "layers.5.per_layer_input_gate.weight"),
        ("gemma4_shared", "layers.5.per_layer_projection.weight"),
        ("gemma4_shared", "layers.0.post_per_layer_input_norm.weight"),
        ("gemma4_shared", "layers.0.layer_scalar"),
        ("gemma4_keys", "layers.2.self_attn.v_proj.weight"),
        ("gemma4_keys", "layers.3.self_attn.k_norm.weight"),
        ("gemma4_moe", "layers.1.router.scale"),
        ("gemma4_moe", "layers.1.router.per_expert_scale"),
        ("gemma4_moe", "layers.2.post_feedforward_layernorm_1.weight"),
        ("gemma4_moe", "layers.2.pre_feedforward_layernorm_2.weight"),
        ("gemma4_moe", "layers.0.experts.down_proj"),
    ] {
        let found = refused(name, &|weights| weights.retain(|weight| !weight.name.ends_with(part)));
        assert!(found.contains(part), "{name}: {found}");
        let found = refused(name, &|weights| {
            let weight = weights.iter_mut().find(|weight| weight.name.ends_with(part)).expect("a tensor");
            let row = weight.data.len() / weight.shape[0];
            weight.data.extend(vec![0; row]);
            weight.shape[0] += 1;
        });
        assert!(found.contains(part), "{name}: {found}");
    }
    // Where values are keys, there is no projection to them.
    let found = refused("gemma4_keys", &|weights| {
        let weight = weights.iter().find(|weight| weight.name.ends_with("layers.1.self_attn.k_proj.weight"));
        let weight = weight.expect("a tensor");
        weights.push(Weight { name: weight.name.replace("k_proj", "v_proj"), ..weight.clone() });
    });
    assert!(found.contains("layers.1.self_attn.v_proj"), "{found}");
}

#[test]
fn keys_of_other_layers_are_refused() {
    let refused = |name: &str, key: &str, value: Value| {
        changed(name, |metadata, _| drop(metadata.insert(format!("gemma4.{key}"), value))).expect_err(key)
    };
    let numbers = |numbers: &[i32]| Value::Array(Array::I32(numbers.to_vec()));
    let flags = |flags: &[bool]| Value::Array(Array::Bool(flags.to_vec()));
    for (key, value, expected) in [
        ("attention.shared_kv_layers", 6_u32.into(), "from 0 to 5"),
        ("attention.shared_kv_layers", 5_u32.into(), "layer 1 reads the last layer without a window"),
        ("attention.shared_kv_layers", 2_u32.into(), "`blk.3.attn_k.weight` is missing"),
        ("attention.sliding_window_pattern", flags(&[true; 6]), "at least one sees all tokens"),
        ("attention.key_length_swa", 7_u32.into(), "an even number"),
        ("attention.key_length_swa", 16_u32.into(), "value_length_swa"),
        ("attention.value_length_swa", 16_u32.into(), "8, that of the keys"),
        ("rope.dimension_count_swa", 9_u32.into(), "from 1 to 8"),
        ("embedding_length_per_layer_input", 8_u32.into(), "per_layer_token_embd.weight"),
        ("embedding_length_per_layer_input", 0_u32.into(), "per_layer_token_embd.weight"),
        ("feed_forward_length", numbers(&[48; 5]), "an array of 6"),
        ("feed_forward_length", numbers(&[48, 48, 48, 0, 96, 96]), "from 1 to"),
        ("feed_forward_length", numbers(&[48; 6]), "blk.3.ffn_gate.weight"),
        ("expert_count", 4_u32.into(), "expert_used_count"),
    ] {
        let found = refused("gemma4_shared", key, value);
        assert!(found.contains(expected), "{key}: {found}");
    }
    for (value, expected) in [
        (numbers(&[4, 1, 2, 1]), "one number of heads"),
        (numbers(&[4, 3, 4, 3]), "a divisor of the 4 attention heads"),
        (numbers(&[4, 1, 4]), "an array of 4"),
    ] {
        let found = refused("gemma4_keys", "attention.head_count_kv", value);
        assert!(found.contains(expected), "{found}");
    }
    for part in ["blk.4.inp_gate.weight", "per_layer_proj_norm.weight", "blk.2.attn_v.weight"] {
        let found = changed("gemma4_shared", |_, tensors| tensors.retain(|(info, _)| info.name != part));
        assert_eq!(found.map(|_| ()), Err(format!("tensor `{part}` is missing")));
    }
    // Files may leave a layer's factor out: it is 1.
    let without = |tensors: &mut Vec<(TensorInfo, Vec<u8>)>| {
        tensors.retain(|(info, _)| !info.name.ends_with("layer_output_scale.weight"));
    };
    changed("gemma4_shared", |_, tensors| without(tensors)).expect("it loads");
}

/// GPU executor, candle and training ask for it.
#[test]
fn others_are_told_what_they_cannot_compute() {
    for name in ["gemma4_shared", "gemma4_alike", "gemma4_keys"] {
        assert!(load(&folder(name)).config().decoder.unusual_feature().is_some(), "{name}");
    }
}

/// Files of llama.cpp's converter have gate and up of an expert in one tensor.
#[test]
fn joint_stacks_are_their_parts() {
    let compute = Compute::new(1).expect("kernels");
    let tokens = prompt(1, 30);
    let run = |model: &Model| bits(model, &compute, &[(&tokens, 30)]);
    let expected = run(&load(&folder("gemma4_moe")));
    let joint = changed("gemma4_moe", |_, tensors| {
        for layer in 0..3 {
            let mut take = |part: &str| {
                let name = format!("blk.{layer}.{part}.weight");
                let at = tensors.iter().position(|(info, _)| info.name == name).expect("a stack");
                tensors.remove(at)
            };
            let ((info, gate), (_, up)) = (take("ffn_gate_exps"), take("ffn_up_exps"));
            let [cols, rows, n] = info.dims[..] else { panic!("{info:?}") };
            let one = gate.len() / n as usize;
            let data =
                gate.chunks(one).zip(up.chunks(one)).flat_map(|(gate, up)| [gate, up].concat()).collect();
            let name = format!("blk.{layer}.ffn_gate_up_exps.weight");
            let info = TensorInfo::new(name, [cols, 2 * rows, n], info.tensor_type).expect("a tensor");
            tensors.push((info, data));
        }
    });
    assert_eq!(run(&joint.expect("it loads")), expected);
    // Factors of experts may be absent: they are 1.
    let without = changed("gemma4_moe", |_, tensors| {
        tensors.retain(|(info, _)| !info.name.ends_with("ffn_down_exps.scale"));
    });
    assert_ne!(run(&without.expect("it loads")), expected);
    for part in ["ffn_gate_inp.scale", "post_ffw_norm_2.weight", "ffn_up_exps.weight"] {
        let name = format!("blk.1.{part}");
        let found = changed("gemma4_moe", |_, tensors| tensors.retain(|(info, _)| info.name != name));
        assert_eq!(found.map(|_| ()), Err(format!("tensor `{name}` is missing")));
    }
}
