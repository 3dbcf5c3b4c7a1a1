//! Gemma 3n: several residual streams, low-rank projections beside attention, gates of which few
//! pass, tables of fewer tokens. The logits are compared in `forms`.

use std::ops::ControlFlow;
use std::sync::Arc;

use gguf_rs_lite::{Array, Gguf, TensorType, Value};
use ruvllm_adapters::{FactorFormat, LoraFile, Part, ScaledAdapter};
use ruvllm_kernels::ThreadPool;
use ruvllm_kernels::quant::WeightFormat;
use ruvllm_kv_cache::KvShape;
use ruvllm_memory::{PoolConfig, Request};
use ruvllm_models::quantize::{QuantizeOptions, QuantizeProgress, Recipe, convert, quantize};
use ruvllm_models::{
    Checkpoint, Compute, KvFormat, LogitsRows, Model, PagePool, ResidualStreams, Segment, Workspace,
};
use safetensors::Dtype;
use serde_json::{Value as Json, json};

use crate::hybrids::check_bits;
use crate::mixtures::{bits, changed, folder, form, prompt};
use crate::support::{Copy, Weight};

const FORMS: [&str; 2] = ["gemma3n", "gemma3n_widths"];

fn load(checkpoint: &dyn Checkpoint) -> Model {
    Model::load(checkpoint, &mut |_| ()).expect("it loads")
}

fn logits(checkpoint: &dyn Checkpoint) -> Vec<u32> {
    bits(&load(checkpoint), &Compute::new(1).expect("kernels"), &[(&prompt(4, 50), 17)])
}

fn done(_: QuantizeProgress<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn no_bit_depends_on_files_chunks_batches_or_instruction_sets() {
    FORMS.into_iter().for_each(check_bits);
}

#[test]
fn switches_are_those_of_the_configuration() {
    let model = load(&folder("gemma3n"));
    let (config, decoder) = (model.config(), &model.config().decoder);
    let streams = |decoder: &ruvllm_models::DecoderSpec| {
        let ResidualStreams { count, active, .. } = decoder.streams.expect("several streams");
        (count, active)
    };
    assert_eq!((streams(decoder), decoder.attention_scale), ((4, 0), 1.0));
    assert_eq!(decoder.layers.kv_sources, [0, 1, 2, 3, 3, 2, 3]);
    assert_eq!(config.kv_shape(), KvShape::new(4, 2, 8));
    let cutoffs: Vec<Option<f32>> = (0..7).map(|layer| decoder.gate_cutoff(layer)).collect();
    let expected = [Some(1.281_551_6), Some(0.674_489_74), None, Some(-0.524_400_53), None, Some(0.0), None];
    assert_eq!(cutoffs, expected);
    let local = config.local_rope.clone().expect("another base").rope.expect("rotated");
    assert_eq!((config.rope.base, local.base), (20_000.0, 500.0));
    assert!(decoder.unusual_feature().is_some_and(|feature| feature == "several residual streams"));

    let model = load(&folder("gemma3n_widths"));
    let decoder = &model.config().decoder;
    assert_eq!((streams(decoder), &decoder.layers.ffn_dims[..]), ((3, 1), &[48, 32, 40][..]));
    assert_eq!(decoder.gate_cutoffs, [f32::NEG_INFINITY; 3]);
}

/// Published models are multimodal, and their configurations in the form of transformers 4.
#[test]
fn published_folders_compute_what_plain_ones_do() {
    let copy = Copy::of_folder(&form("gemma3n"));
    let mut weights = copy.weights();
    for weight in &mut weights {
        weight.name = weight.name.replacen("model.", "model.language_model.", 1);
    }
    for part in
        ["vision_tower.timm_model.conv_stem.conv", "audio_tower.conformer.0.norm", "embed_audio.embedding"]
    {
        let name = format!("model.{part}.weight");
        weights.push(Weight { name, dtype: Dtype::F16, shape: vec![3], data: vec![0; 6] });
    }
    copy.write("model.safetensors", &weights);
    copy.edit("config.json", |config| {
        config.remove("rope_parameters");
        config.insert("rope_theta".into(), json!(20_000.0));
        config.insert("rope_local_base_freq".into(), json!(500.0));
        config.insert("rope_scaling".into(), Json::Null);
        config.insert("intermediate_size".into(), json!(48));
        let text = std::mem::take(config);
        config.insert("architectures".into(), json!(["Gemma3nForConditionalGeneration"]));
        config.insert("model_type".into(), "gemma3n".into());
        config.insert("text_config".into(), text.into());
        config.insert("vision_config".into(), json!({"model_type": "gemma3n_vision"}));
    });
    let opened = copy.open().expect("it opens");
    assert!(opened.is_multimodal());
    assert_eq!(logits(&opened), logits(&folder("gemma3n")));
    let keys = |checkpoint: &dyn Checkpoint| {
        let own = checkpoint.metadata().iter().filter(|(key, _)| key.starts_with("gemma3n."));
        own.map(|(key, value)| format!("{key} = {value:?}")).collect::<Vec<_>>()
    };
    assert_eq!(keys(&opened), keys(&folder("gemma3n")));
}

/// Names, shapes and keys of llama.cpp's converter and reader.
#[test]
fn files_have_the_tensors_and_keys_of_llama_cpp() {
    let folder = folder("gemma3n");
    let dims = |name: &str| folder.tensor(name).map(|info| info.dims.clone()).unwrap_or_default();
    for (name, expected) in [
        ("altup_proj.weight", &[32_u64, 32, 3][..]),
        ("altup_unembd_proj.weight", &[32, 32, 3]),
        ("per_layer_token_embd.weight", &[56, 56]),
        ("per_layer_model_proj.weight", &[32, 56]),
        ("per_layer_proj_norm.weight", &[8]),
        ("blk.6.altup_correct_coef.weight", &[4, 4]),
        ("blk.6.altup_correct_scale.weight", &[32]),
        ("blk.6.altup_predict_coef.weight", &[4, 16]),
        ("blk.6.altup_router.weight", &[32, 4]),
        ("blk.6.altup_router_norm.weight", &[32]),
        ("blk.6.laurel_l.weight", &[32, 6]),
        ("blk.6.laurel_r.weight", &[6, 32]),
        ("blk.6.laurel_post_norm.weight", &[32]),
        ("blk.6.attn_k.weight", &[32, 16]),
        ("blk.6.attn_v.weight", &[32, 16]),
        ("blk.6.attn_k_norm.weight", &[8]),
    ] {
        assert_eq!(dims(name), expected, "{name}");
    }
    for part in ["altup_correct_coef", "altup_predict_coef"] {
        let info = folder.tensor(&format!("blk.0.{part}.weight")).expect("the tensor");
        assert_eq!(info.tensor_type, TensorType::F32, "{part}");
    }
    let value = |key: &str| folder.metadata().get(&format!("gemma3n.{key}")).cloned();
    assert_eq!(value("altup.num_inputs"), Some(4_u32.into()));
    assert_eq!(value("altup.active_idx"), Some(0_u32.into()));
    assert_eq!(value("attention.shared_kv_layers"), Some(3_u32.into()));
    assert_eq!(value("embedding_length_per_layer_input"), Some(8_u32.into()));
    assert_eq!(value("attention.sliding_window"), Some(9_u32.into()));
    assert_eq!(value("rope.freq_base_swa"), Some(500_f32.into()));
    let windowed = vec![true, true, false, true, true, false, true];
    assert_eq!(value("attention.sliding_window_pattern"), Some(windowed.into()));
    let Some(Value::Array(Array::F32(cutoffs))) = value("activation_sparsity_scale") else {
        panic!("a list")
    };
    assert_eq!((cutoffs.len(), cutoffs[2]), (7, f32::NEG_INFINITY));
}

/// Readers want keys and values of every layer: those of the folder, or else zeros.
#[test]
fn unused_keys_are_kept_and_made_up() {
    let expected = logits(&folder("gemma3n"));
    let made = folder("gemma3n");
    let info = made.tensor("blk.5.attn_v.weight").expect("it is made up").clone();
    assert!(made.data(&info).expect("zeros").as_ref().iter().all(|&byte| byte == 0));
    let copy = Copy::of_folder(&form("gemma3n"));
    let mut weights = copy.weights();
    for (part, shape) in [("k_proj", vec![16, 32]), ("v_proj", vec![16, 32]), ("k_norm", vec![8])] {
        let name = format!("model.layers.5.self_attn.{part}.weight");
        let data = vec![0x3c; 2 * shape.iter().product::<usize>()];
        weights.push(Weight { name, dtype: Dtype::F16, shape, data });
    }
    copy.write("model.safetensors", &weights);
    let kept = copy.open().expect("it opens");
    assert!(kept.data(&info).expect("data").as_ref().iter().all(|&byte| byte == 0x3c));
    assert_eq!(logits(&kept), expected);
    // Files may lack them.
    let without = changed("gemma3n", |_, tensors| {
        tensors
            .retain(|(info, _)| !info.name.starts_with("blk.5.attn_k") && info.name != "blk.4.attn_v.weight");
    });
    let compute = Compute::new(1).expect("kernels");
    let without = without.expect("it loads");
    assert_eq!(bits(&without, &compute, &[(&prompt(4, 50), 17)]), expected);
}

fn floats(info_type: TensorType, bytes: &[u8]) -> Vec<f32> {
    let format = ruvllm_models::weight_format(info_type).expect("a known type");
    let mut values = vec![0.0; bytes.len() / format.block_bytes() * format.block_len()];
    format.dequantize(bytes, &mut values);
    values
}

/// Tokens behind the table of embeddings per layer have its first row; files have it in full.
#[test]
fn converted_files_have_tables_of_all_tokens() {
    let (folder, temporary) = (folder("gemma3n"), tempfile::tempdir().expect("a folder"));
    let (path, pool) = (temporary.path().join("model.gguf"), ThreadPool::new(2).expect("threads"));
    // The form has no tokenizer.
    let view = WithoutTokenizer(&folder);
    convert(&view, &path, None, &pool, &mut done).expect("written");
    let file = Gguf::open(&path).expect("it opens");
    let table = file.tensor("per_layer_token_embd.weight").expect("the table").clone();
    assert_eq!(table.dims, [56, 72]);
    let rows = floats(table.tensor_type, Checkpoint::data(&file, &table).expect("data").as_ref());
    let stored = folder.tensor("per_layer_token_embd.weight").expect("the table");
    assert!(rows[..56 * 56] == floats(stored.tensor_type, folder.data(stored).expect("data").as_ref()));
    assert!(rows[56 * 56..].chunks(56).all(|row| row == &rows[..56]));
    assert_eq!(logits(&file), logits(&folder));

    let small = temporary.path().join("small.gguf");
    let recipe = Recipe::from_name("Q8_0").expect("a recipe");
    quantize(&view, &small, recipe, &QuantizeOptions::default(), &pool, &mut done).expect("written");
    let small = Gguf::open(&small).expect("it opens");
    let kept = |info: &&gguf_rs_lite::TensorInfo| {
        ["altup", "laurel", "per_layer_model_proj"].iter().any(|part| info.name.contains(part))
    };
    for info in small.tensors().filter(|info| info.dims.len() > 1) {
        // Rows of 8 values, or of 48 and 56, are no whole blocks of 32.
        let is_kept = kept(&info) || info.dims[0] % 32 != 0;
        let floats = [TensorType::F32, TensorType::F16].contains(&info.tensor_type);
        assert_eq!(floats, is_kept, "{}: {}", info.name, info.tensor_type.name());
    }
    load(&small);
}

/// A checkpoint whose files have no vocabulary.
struct WithoutTokenizer<'a>(&'a dyn Checkpoint);

impl Checkpoint for WithoutTokenizer<'_> {
    fn metadata(&self) -> &gguf_rs_lite::Metadata {
        self.0.metadata()
    }

    fn file_metadata(&self) -> ruvllm_models::Result<gguf_rs_lite::Metadata> {
        Ok(self.0.metadata().clone())
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = &gguf_rs_lite::TensorInfo> + '_> {
        self.0.tensors()
    }

    fn tensor(&self, name: &str) -> Option<&gguf_rs_lite::TensorInfo> {
        self.0.tensor(name)
    }

    fn data(&self, tensor: &gguf_rs_lite::TensorInfo) -> ruvllm_models::Result<ruvllm_models::TensorBytes> {
        self.0.data(tensor)
    }

    fn padding_rows(&self, tensor: &gguf_rs_lite::TensorInfo) -> u64 {
        self.0.padding_rows(tensor)
    }

    fn file_bytes(&self) -> u64 {
        self.0.file_bytes()
    }

    fn gguf_version(&self) -> Option<u32> {
        None
    }

    fn tokenizer(&self) -> ruvllm_models::Result<ruvllm_text::tokenizer::Tokenizer> {
        self.0.tokenizer()
    }
}

/// Each switch changes the logits.
#[test]
fn every_part_counts() {
    let expected = logits(&folder("gemma3n"));
    let compute = Compute::new(1).expect("kernels");
    let run =
        |model: Result<Model, String>| bits(&model.expect("it loads"), &compute, &[(&prompt(4, 50), 17)]);
    for part in [
        "altup_proj.weight",
        "altup_unembd_proj.weight",
        "blk.5.altup_correct_coef.weight",
        "blk.5.altup_correct_scale.weight",
        "blk.5.altup_predict_coef.weight",
        "blk.5.altup_router.weight",
        "blk.5.laurel_l.weight",
        "blk.0.laurel_post_norm.weight",
    ] {
        let zeroed = changed("gemma3n", |_, tensors| {
            let (_, data) = tensors.iter_mut().find(|(info, _)| info.name == part).expect("the tensor");
            data.fill(0);
        });
        assert_ne!(run(zeroed), expected, "{part}");
    }
    for (key, value) in [
        ("altup.active_idx", Value::from(2_u32)),
        ("final_logit_softcapping", 0_f32.into()),
        ("activation_sparsity_scale", Value::Array(Array::F32(vec![f32::NEG_INFINITY; 7]))),
    ] {
        let other = changed("gemma3n", |metadata, _| drop(metadata.insert(format!("gemma3n.{key}"), value)));
        assert_ne!(run(other), expected, "{key}");
    }
}

#[test]
fn configurations_of_other_models_are_refused() {
    for (field, value, expected) in [
        ("altup_num_inputs", json!(1), "`altup_num_inputs` is 1, expected a whole number from 2 to 8"),
        ("altup_num_inputs", json!(9), "from 2 to 8"),
        ("altup_num_inputs", json!(5), "`model.layers.0.altup.correction_coefs.weight` has shape [4, 4]"),
        ("altup_num_inputs", json!(3), "expected [3, 3]"),
        ("altup_active_idx", json!(4), "`altup_active_idx` is 4, expected a whole number from 0 to 3"),
        ("altup_correct_scale", json!(false), "altup_correct_scale"),
        ("laurel_rank", json!(7), "laurel.linear_left"),
        ("activation_sparsity_pattern", json!([0.5]), "for each of 7 layers"),
        ("activation_sparsity_pattern", json!([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), "0 or a number from"),
        ("num_kv_shared_layers", json!(7), "from 0 to 6"),
        ("num_kv_shared_layers", json!(6), "the last layer of its kind"),
        ("intermediate_size", json!([48, 48]), "a width for each of 7 layers"),
        ("intermediate_size", json!([]), "widths from 1"),
        ("intermediate_size", json!([48, 48, 48, 48, 48, 48, 32]), "layers.6.mlp"),
        ("vocab_size_per_layer_input", json!(73), "at most 72"),
        ("vocab_size_per_layer_input", json!(60), "embed_tokens_per_layer"),
        ("hidden_size_per_layer_input", json!(6), "embed_tokens_per_layer"),
        ("final_logit_softcapping", json!(-1), "final_logit_softcapping"),
    ] {
        let copy = Copy::of_folder(&form("gemma3n"));
        copy.set(field, value.clone());
        let refused = copy.open().map(|_| ()).expect_err(field).to_string();
        assert!(refused.contains(expected), "{field} {value}: {refused}");
    }
    // `null` is no cap, and an absent field the usual one.
    let copy = Copy::of_folder(&form("gemma3n"));
    let cap = |copy: &Copy| load(&copy.open().expect("it opens")).config().decoder.logits_soft_cap;
    assert_eq!(cap(&copy), Some(20.0));
    copy.set("final_logit_softcapping", Json::Null);
    assert_eq!(cap(&copy), None);
    copy.edit("config.json", |config| drop(config.remove("final_logit_softcapping")));
    assert_eq!(cap(&copy), Some(30.0));
}

#[test]
fn weights_of_other_models_are_refused() {
    for part in [
        "altup_projections.1.weight",
        "altup_unembed_projections.2.weight",
        "layers.6.altup.prediction_coefs.weight",
        "layers.6.altup.correction_coefs.weight",
        "layers.6.altup.correct_output_scale",
        "layers.6.altup.modality_router.weight",
        "layers.6.altup.router_norm.weight",
        "layers.6.laurel.linear_left.weight",
        "layers.6.laurel.linear_right.weight",
        "layers.6.laurel.post_laurel_norm.weight",
        "layers.3.self_attn.k_proj.weight",
    ] {
        let copy = Copy::of_folder(&form("gemma3n"));
        let mut weights = copy.weights();
        weights.retain(|weight| !weight.name.ends_with(part));
        copy.write("model.safetensors", &weights);
        let found = copy.open().map(|_| ()).expect_err(part).to_string();
        assert!(found.contains(part) && found.contains("missing"), "{found}");

        let copy = Copy::of_folder(&form("gemma3n"));
        let mut weights = copy.weights();
        let weight = weights.iter_mut().find(|weight| weight.name.ends_with(part)).expect("a tensor");
        let row = weight.data.len() / weight.shape[0];
        weight.data.extend(vec![0; row]);
        weight.shape[0] += 1;
        copy.write("model.safetensors", &weights);
        let found = copy.open().map(|_| ()).expect_err(part).to_string();
        assert!(found.contains(part), "{found}");
    }
    let found = changed("gemma3n", |_, tensors| tensors.retain(|(info, _)| info.name != "altup_proj.weight"));
    assert_eq!(found.map(|_| ()), Err("tensor `altup_proj.weight` is missing".to_owned()));
    for (key, value, expected) in [
        ("altup.num_inputs", Value::from(5_u32), "altup_proj.weight"),
        ("altup.num_inputs", 0_u32.into(), "from 2 to 8"),
        ("altup.active_idx", 4_u32.into(), "from 0 to 3"),
        ("attention.shared_kv_layers", 7_u32.into(), "from 0 to 6"),
        ("activation_sparsity_scale", Value::Array(Array::F32(vec![0.0; 6])), "an array of 7"),
        ("activation_sparsity_scale", Value::Array(Array::F32(vec![f32::NAN; 7])), "finite numbers, or -inf"),
        ("embedding_length_per_layer_input", 0_u32.into(), "per_layer_token_embd.weight"),
    ] {
        let found = changed("gemma3n", |metadata, _| drop(metadata.insert(format!("gemma3n.{key}"), value)));
        let found = found.map(|_| ()).expect_err(key);
        assert!(found.contains(expected), "{key}: {found}");
    }
    let found = changed("gemma3n", |metadata, _| drop(metadata.remove("gemma3n.attention.shared_kv_layers")));
    assert!(found.map(|_| ()).is_err_and(|error| error.contains("shared_kv_layers` is missing")));
}

/// A LoRA of attention and of networks in some layers: beside the weights and in them. Layers that
/// read the keys and values of others ignore updates of their own.
#[test]
fn adapters_change_what_their_weights_would() {
    const RANK: usize = 2;
    let temporary = tempfile::tempdir().expect("a folder");
    let targets = [
        (1, "self_attn.q_proj", 32, 32),
        (1, "self_attn.k_proj", 16, 32),
        (1, "self_attn.v_proj", 16, 32),
        (1, "self_attn.o_proj", 32, 32),
        (1, "mlp.gate_proj", 48, 32),
        (5, "self_attn.q_proj", 32, 32),
        (5, "self_attn.k_proj", 16, 32),
        (5, "self_attn.o_proj", 32, 32),
        (5, "mlp.up_proj", 48, 32),
        (5, "mlp.down_proj", 32, 48),
    ];
    let factor = |seed: usize, len: usize| -> Vec<f32> {
        (0..len).map(|i| ((seed * 31 + i * 37) % 101) as f32 / 404.0 - 0.125).collect()
    };
    let copy = Copy::of_folder(&form("gemma3n"));
    let (mut merged, mut stored) = (copy.weights(), Vec::new());
    for (seed, (layer, part, rows, cols)) in targets.into_iter().enumerate() {
        let (a, b) = (factor(seed, RANK * cols), factor(seed + 50, rows * RANK));
        for (end, values, shape) in [("lora_A", &a, vec![RANK, cols]), ("lora_B", &b, vec![rows, RANK])] {
            let name = format!("base_model.model.model.layers.{layer}.{part}.{end}.weight");
            let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            stored.push(Weight { name, dtype: Dtype::F32, shape, data });
        }
        let name = format!("model.layers.{layer}.{part}.weight");
        let Some(weight) = merged.iter_mut().find(|weight| weight.name == name) else { continue };
        let mut values = vec![0.0; rows * cols];
        WeightFormat::F16.dequantize(&weight.data, &mut values);
        for (at, value) in values.iter_mut().enumerate() {
            let (row, col) = (at / cols, at % cols);
            let update: f32 = (0..RANK).map(|i| b[row * RANK + i] * a[i * cols + col]).sum();
            *value += 1.5 * update;
        }
        weight.dtype = Dtype::F32;
        weight.data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    }
    copy.write("model.safetensors", &merged);
    let adapter = Copy::of_folder(temporary.path());
    adapter.write("adapter_model.safetensors", &stored);
    let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": 3, "bias": "none", "target_modules":
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]});
    std::fs::write(adapter.path("adapter_config.json"), config.to_string()).expect("written");

    let plain = load(&folder("gemma3n"));
    let adapted = {
        let file = LoraFile::open(&adapter.path("")).expect("the adapter opens");
        let pool = PagePool::new(PoolConfig::new(32 << 20)).expect("a pool");
        let part = Part { file: &file, scale: 1.0 };
        let adapter = plain.adapter(&[part], FactorFormat::F32, &pool, &Request::default()).expect("it fits");
        adapted_logits(&plain, &[Arc::new(adapter).into()])
    };
    let (merged, plain) =
        (adapted_logits(&load(&copy.open().expect("it opens")), &[]), adapted_logits(&plain, &[]));
    let largest = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(largest(&adapted, &plain) > 0.1, "it changes something");
    assert!(largest(&adapted, &merged) < 5e-4, "{}", largest(&adapted, &merged));
}

fn adapted_logits(model: &Model, adapters: &[ScaledAdapter]) -> Vec<f32> {
    let (compute, tokens) = (Compute::new(1).expect("kernels"), prompt(6, 40));
    let pool = PagePool::new(PoolConfig::new(32 << 20)).expect("a pool");
    let store = model.kv_store(&KvFormat::F32.into(), &pool).expect("a store");
    let mut cache = model.new_sequence(&store, tokens.len()).expect("a sequence");
    let (mut workspace, mut found) = (Workspace::new(), Vec::new());
    for chunk in tokens.chunks(13) {
        let segment = Segment::new(&compute, chunk, &mut cache, LogitsRows::Last).expect("room");
        let segment = segment.with_adapters(adapters);
        found.extend_from_slice(model.forward(&compute, &mut workspace, [segment]).expect("a step"));
    }
    found
}
