//! Prediction heads (multi-token prediction) beside what a reference computes
//! (`tests/data/prediction`), in files and folders, and bad input.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Array, Gguf, TensorInfo, TensorType, Value};
use ruvllm_kernels::{Isa, Kernels, ThreadPool};
use ruvllm_models::quantize::{InSitu, QuantizeOptions, Recipe, quantize};
use ruvllm_models::{
    Checkpoint, Compute, Error, HfFolder, ImportanceMatrix, KvFormat, LogitsRows, Model, PagePool,
    ParameterCounts, Segment, Sequence, Workspace,
};
use safetensors::SafeTensors;
use serde_json::json;

use crate::mixtures::{changed_of, folder as trunk, gguf_of, prompt};
use crate::support::{Copy, Weight, tensors};

const HEADS: [&str; 5] = ["qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseek3"];

/// Largest error of a state or logit, of a deviation of about 1.
const TOLERANCE: f64 = 2e-5;

/// Positions from one to the next that the reference has.
const EVERY: usize = 3;

fn form(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/prediction").join(name)
}

fn folder(name: &str) -> HfFolder {
    HfFolder::open(form(name)).expect("the folder opens")
}

fn load(checkpoint: &dyn Checkpoint) -> Model {
    Model::load(checkpoint, &mut |_| ()).expect("it loads")
}

fn pool() -> PagePool {
    PagePool::new(ruvllm_memory::PoolConfig::new(32 << 20)).expect("a pool")
}

fn sequence(model: &Model) -> Sequence {
    let store = model.kv_store(&KvFormat::F32.into(), &pool()).expect("a store");
    model.new_sequence(&store, 64).expect("a sequence")
}

fn head_sequence(model: &Model) -> Sequence {
    let head = model.prediction_head().expect("a head");
    let store = head.kv_store(&KvFormat::F32.into(), &pool()).expect("a store");
    head.new_sequence(&store, 64).expect("a sequence")
}

/// States and logits of a head.
#[derive(Debug, Default, PartialEq)]
struct Found {
    hidden: Vec<f32>,
    head_hidden: Vec<f32>,
    head_logits: Vec<f32>,
    drafts: Vec<u32>,
    draft_hidden: Vec<f32>,
    draft_logits: Vec<f32>,
}

impl Found {
    /// Runs a model and its head over tokens, `chunk` at a time, then the head over two drafts.
    fn of(model: &Model, compute: &Compute, ids: &[u32], chunk: usize) -> Self {
        let (mut found, mut workspace) = (Self::default(), Workspace::new());
        let mut cache = sequence(model);
        for tokens in ids.chunks(chunk) {
            let segment = Segment::new(compute, tokens, &mut cache, LogitsRows::None).expect("room");
            let segment = segment.with_hidden(usize::MAX);
            assert!(model.forward(compute, &mut workspace, [segment]).expect("a step").is_empty());
            found.hidden.extend_from_slice(workspace.hidden());
        }
        let (width, n_pairs) = (model.config().model_dim, ids.len() - 1);
        let mut cache = head_sequence(model);
        let states = found.hidden[..n_pairs * width].chunks(chunk * width);
        for (tokens, states) in ids[1..].chunks(chunk).zip(states) {
            let segment = Segment::new(compute, tokens, &mut cache, LogitsRows::All).expect("room");
            let logits = model.predict(compute, &mut workspace, [segment], states).expect("a step");
            found.head_logits.extend_from_slice(logits);
            found.head_hidden.extend_from_slice(workspace.hidden());
        }
        let mut state = found.head_hidden[(n_pairs - 1) * width..].to_vec();
        for _ in 0..2 {
            let token =
                compute.kernels.argmax(workspace.logits().rchunks(model.config().vocab_size).next().unwrap());
            let token = [token.expect("a token") as u32];
            let segment = Segment::new(compute, &token, &mut cache, LogitsRows::Last).expect("room");
            let logits = model.predict(compute, &mut workspace, [segment], &state).expect("a step");
            found.draft_logits.extend_from_slice(logits);
            state = workspace.hidden().to_vec();
            found.draft_hidden.extend_from_slice(&state);
            found.drafts.push(token[0]);
        }
        found
    }
}

/// The tokens and the numbers of the reference.
struct Reference {
    ids: Vec<u32>,
    drafts: Vec<u32>,
    bytes: Vec<u8>,
}

impl Reference {
    fn of(name: &str) -> Self {
        let bytes = fs::read(form(name).join("expected.safetensors")).expect("the reference");
        let ids = |key: &str| {
            let file = SafeTensors::deserialize(&bytes).expect("a valid file");
            let data = file.tensor(key).expect("the tensor").data();
            data.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect()
        };
        Self { ids: ids("ids"), drafts: ids("drafts"), bytes: bytes.clone() }
    }

    /// Largest difference between the values of a tensor and every so many rows of those found.
    fn error(&self, key: &str, found: &[f32], every: usize) -> f64 {
        let file = SafeTensors::deserialize(&self.bytes).expect("a valid file");
        let tensor = file.tensor(key).expect("the tensor");
        let expected = tensor.data().as_chunks::<8>().0.iter().map(|&bytes| f64::from_le_bytes(bytes));
        let rows = found.chunks_exact(tensor.shape()[1]).step_by(every).flatten();
        assert_eq!(rows.clone().count(), expected.len(), "{key}");
        let errors = rows.zip(expected).map(|(&found, expected)| (f64::from(found) - expected).abs());
        errors.fold(0.0, |max, error| if error.is_nan() { f64::INFINITY } else { max.max(error) })
    }

    fn assert_near(&self, name: &str, found: &Found) {
        assert_eq!(found.drafts, self.drafts, "{name}");
        for (key, found, every) in [
            ("hidden", &found.hidden, EVERY),
            ("head_hidden", &found.head_hidden, EVERY),
            ("head_logits", &found.head_logits, EVERY),
            ("draft_hidden", &found.draft_hidden, 1),
            ("draft_logits", &found.draft_logits, 1),
        ] {
            let error = self.error(key, found, every);
            println!("{name} {key}: {error:.1e}");
            assert!(error <= TOLERANCE, "{name}: {key} differs by {error}");
        }
    }
}

#[test]
fn heads_compute_what_the_reference_computes_in_any_chunks() {
    let compute = Compute::new(1).expect("kernels");
    for name in HEADS {
        let (model, reference) = (load(&folder(name)), Reference::of(name));
        let whole = Found::of(&model, &compute, &reference.ids, 64);
        reference.assert_near(name, &whole);
        for chunk in [7, 1] {
            assert!(Found::of(&model, &compute, &reference.ids, chunk) == whole, "{name} by {chunk}");
        }
    }
}

#[test]
fn heads_of_files_compute_the_bits_of_their_folders() {
    let ids = prompt(3, 30);
    for name in HEADS {
        let temporary = tempfile::tempdir().expect("a folder");
        let gguf = gguf_of(&folder(name), temporary.path());
        let (of_folder, of_file) = (load(&folder(name)), load(&gguf));
        let expected = Found::of(&of_folder, &Compute::new(1).expect("kernels"), &ids, 64);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let kernels = Kernels::for_isa(isa).expect("an available one");
            let compute = Compute::with(kernels, ThreadPool::new(2).expect("threads"));
            assert!(Found::of(&of_file, &compute, &ids, 11) == expected, "{name} {isa}");
        }
        let head = of_file.prediction_head().expect("a head");
        let bytes = head.weight_bytes();
        let of_head = gguf.tensors().filter(|info| info.name.starts_with("blk.2.")).map(TensorInfo::bytes);
        assert_eq!(bytes.shared + bytes.private, of_head.sum::<u64>(), "{name}: {bytes:?}");
        assert!(bytes.private < bytes.shared / 5, "{name}: {bytes:?}");
        assert_eq!(head.kv_shape().n_layers, 1, "{name}");
    }
}

/// Two sequences of the head in one pass, one of them a chunk whose last state alone is kept.
#[test]
fn batches_of_the_head_change_no_bit() {
    let compute = Compute::new(2).expect("kernels");
    for name in HEADS {
        let (model, ids, other) = (load(&folder(name)), prompt(3, 20), prompt(4, 9));
        let width = model.config().model_dim;
        let alone = Found::of(&model, &compute, &ids, 64);
        let hidden: Vec<f32> =
            [&alone.hidden[..12 * width], &Found::of(&model, &compute, &other, 64).hidden[..8 * width]]
                .concat();
        let (mut first, mut second) = (head_sequence(&model), head_sequence(&model));
        let mut workspace = Workspace::new();
        let segments = [
            Segment::new(&compute, &ids[1..13], &mut first, LogitsRows::None).expect("room").with_hidden(1),
            Segment::new(&compute, &other[1..], &mut second, LogitsRows::Last).expect("room"),
        ];
        let logits = model.predict(&compute, &mut workspace, segments, &hidden).expect("a step");
        assert_eq!(logits.len(), model.config().vocab_size, "{name}");
        assert_eq!(workspace.hidden().len(), 2 * width, "{name}");
        assert!(workspace.hidden()[..width] == alone.head_hidden[11 * width..12 * width], "{name}");
        let segment = Segment::new(&compute, &ids[13..14], &mut first, LogitsRows::Last).expect("room");
        let state = &alone.hidden[12 * width..13 * width];
        let logits = model.predict(&compute, &mut workspace, [segment], state).expect("a step");
        let vocab_size = model.config().vocab_size;
        assert!(logits == &alone.head_logits[12 * vocab_size..13 * vocab_size], "{name}");
    }
}

/// `gemma4_shared` has layers behind the last keys and values; products of `Q8_0` round inputs.
#[test]
fn kept_hidden_states_change_no_bit_of_logits() {
    let (compute, ids, retyped) = (Compute::new(2).expect("kernels"), prompt(5, 30), ThreadPool::single());
    for name in ["qwen35", "gemma4_shared", "deepseek3", "phimoe"] {
        let folder = trunk(name);
        let recipe = Recipe::from_name("Q8_0").expect("a recipe");
        let quantized = InSitu::new(&folder, recipe, &retyped).expect("types");
        for model in [load(&folder), load(&quantized)] {
            let mut workspace = Workspace::new();
            let mut cache = sequence(&model);
            let segment = Segment::new(&compute, &ids, &mut cache, LogitsRows::All).expect("room");
            let states = model.hidden_states(&compute, &mut workspace, [segment]).expect("a step").to_vec();
            assert!(workspace.hidden().is_empty());
            let mut cache = sequence(&model);
            let segment = Segment::new(&compute, &ids, &mut cache, LogitsRows::All).expect("room");
            let logits = model.forward(&compute, &mut workspace, [segment]).expect("a step").to_vec();
            assert!(workspace.hidden().is_empty(), "none asked for");
            let (width, vocab_size) = (model.config().model_dim, model.config().vocab_size);
            let row = |values: &[f32], row: usize, width: usize| values[row * width..][..width].to_vec();
            for (rows, scored, tail, kept) in [
                (LogitsRows::None, &[][..], 0, &[][..]),
                (LogitsRows::None, &[], 2, &[8, 9]),
                (LogitsRows::Last, &[9], 1, &[9]),
                (LogitsRows::Last, &[9], 3, &[7, 8, 9]),
                (LogitsRows::Tail(4), &[6, 7, 8, 9], 2, &[6, 7, 8, 9]),
                (LogitsRows::At(&[0, 1, 4, 7]), &[0, 1, 4, 7], 0, &[0, 1, 4, 7]),
                (LogitsRows::At(&[0, 1, 4, 7]), &[0, 1, 4, 7], 1, &[0, 1, 4, 7, 9]),
                (LogitsRows::At(&[0, 1, 4, 7]), &[0, 1, 4, 7], 2, &[0, 1, 4, 7, 8, 9]),
                (LogitsRows::At(&[1, 7, 8]), &[1, 7, 8], 5, &[1, 5, 6, 7, 8, 9]),
                (LogitsRows::At(&[1, 8]), &[1, 8], usize::MAX, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
            ] {
                let (mut cache, mut beside) = (sequence(&model), sequence(&model));
                let before = Segment::new(&compute, &ids[..12], &mut cache, LogitsRows::None).expect("room");
                model.forward(&compute, &mut workspace, [before]).expect("a step");
                let segments = [
                    Segment::new(&compute, &ids[..3], &mut beside, LogitsRows::Last).expect("room"),
                    Segment::new(&compute, &ids[12..22], &mut cache, rows).expect("room").with_hidden(tail),
                ];
                let found = model.forward(&compute, &mut workspace, segments).expect("a step");
                let of = |values: &[f32], rows: &[usize], width: usize| -> Vec<f32> {
                    let rows = [2].into_iter().chain(rows.iter().map(|&row| row + 12));
                    rows.flat_map(|at| row(values, at, width)).collect()
                };
                let what = format!("{name}: {rows:?} and {tail}");
                assert!(found == of(&logits, scored, vocab_size), "{what}: logits");
                let expected = if tail > 0 { of(&states, kept, width) } else { Vec::new() };
                assert!(workspace.hidden() == expected, "{what}: states");
                if !scored.is_empty() {
                    assert!(workspace.final_hidden() == of(&states, scored, width), "{what}: scored states");
                }
            }
        }
    }
}

#[test]
fn files_without_the_tensors_of_a_head_load_without_it() {
    let (compute, ids) = (Compute::new(1).expect("kernels"), prompt(2, 12));
    let logits = |model: &Model| {
        let mut cache = sequence(model);
        let segment = Segment::new(&compute, &ids, &mut cache, LogitsRows::All).expect("room");
        model.forward(&compute, &mut Workspace::new(), [segment]).expect("a step").to_vec()
    };
    for name in HEADS {
        let expected = logits(&load(&folder(name)));
        for beginning in ["blk.2.nextn.", "blk.2."] {
            let stripped = changed_of(&folder(name), |_, tensors| {
                tensors.retain(|(info, _)| !info.name.starts_with(beginning));
            });
            let stripped = stripped.expect("it loads");
            assert!(stripped.prediction_head().is_none(), "{name}");
            assert!(logits(&stripped) == expected, "{name}");
        }
        // Folders that were saved by transformers lack it too.
        let copy = Copy::of_folder(&form(name));
        let kept = |weight: &Weight| !weight.name.starts_with("mtp.") && !weight.name.contains(".layers.2.");
        let weights: Vec<Weight> = copy.weights().into_iter().filter(kept).collect();
        copy.write("model.safetensors", &weights);
        let stripped = load(&copy.open().expect("it opens"));
        assert!(stripped.prediction_head().is_none() && logits(&stripped) == expected, "{name}");
    }
    let model = load(&trunk("qwen35"));
    let mut cache = sequence(&model);
    let segment = Segment::new(&compute, &ids, &mut cache, LogitsRows::Last).expect("room");
    let refused = model.predict(&compute, &mut Workspace::new(), [segment], &[]).map(|_| ());
    assert!(matches!(refused, Err(Error::NoPredictionHead)), "{refused:?}");
}

#[test]
fn heads_with_missing_or_misshapen_tensors_are_refused() {
    for name in HEADS {
        let parts: Vec<String> = folder(name)
            .tensors()
            .map(|info| info.name.clone())
            .filter(|name| {
                name.starts_with("blk.2.") && !name.contains("shared_head") && !name.contains("embed_tokens")
            })
            // Biases follow the file, and so do norms of heads in GLM.
            .filter(|tensor| {
                !(tensor.ends_with(".bias") || name == "glm4moe" && tensor.contains("attn_q_norm"))
            })
            .collect();
        assert!(parts.len() > 10, "{name}");
        for part in parts {
            let without =
                changed_of(&folder(name), |_, tensors| tensors.retain(|(info, _)| info.name != part));
            assert_eq!(without.map(|_| ()), Err(format!("tensor `{part}` is missing")), "{name}");
        }
        for part in ["eh_proj", "enorm", "hnorm"] {
            let part = format!("blk.2.nextn.{part}.weight");
            let misshapen = changed_of(&folder(name), |_, tensors| {
                let (info, data) = tensors.iter_mut().find(|(info, _)| info.name == part).expect("a tensor");
                let mut dims = info.dims.clone();
                dims[0] -= 1;
                *info = TensorInfo::new(part.clone(), dims, info.tensor_type).expect("valid");
                data.truncate(info.bytes() as usize);
            });
            let refused = misshapen.map(|_| ()).expect_err(&part);
            assert!(refused.contains(&format!("tensor `{part}` has shape")), "{refused}");
        }
    }
    let beyond = changed_of(&folder("glm4moe"), |metadata, _| {
        metadata.insert("glm4moe.nextn_predict_layers", 3_u32);
    });
    assert!(beyond.map(|_| ()).expect_err("as many as layers").contains("from 0 to 2"));
}

/// Messages have the names of the folder.
#[test]
fn heads_of_folders_with_missing_or_misshapen_tensors_are_refused() {
    for (name, part) in [
        ("qwen35", "mtp.fc.weight"),
        ("qwen35", "mtp.pre_fc_norm_embedding.weight"),
        ("qwen35", "mtp.layers.0.self_attn.k_norm.weight"),
        ("qwen35moe", "mtp.layers.0.mlp.experts.3.up_proj.weight"),
        ("qwen3next", "mtp.layers.0.mlp.gate.weight"),
        ("glm4moe", "model.layers.2.eh_proj.weight"),
        ("glm4moe", "model.layers.2.mlp.experts.0.down_proj.weight"),
        ("deepseek3", "model.layers.2.hnorm.weight"),
        ("deepseek3", "model.layers.2.self_attn.kv_b_proj.weight"),
    ] {
        let refused = |change: &dyn Fn(&mut Vec<Weight>)| {
            let copy = Copy::of_folder(&form(name));
            let mut weights = copy.weights();
            change(&mut weights);
            copy.write("model.safetensors", &weights);
            copy.open().map(|_| ()).expect_err(part).to_string()
        };
        let found = refused(&|weights| weights.retain(|weight| weight.name != part));
        assert_eq!(found, format!("tensor `{part}` is missing"), "{name}");
        let found = refused(&|weights| {
            let weight = weights.iter_mut().find(|weight| weight.name == part).expect("a tensor");
            let rows = weight.shape[0];
            weight.data.truncate(weight.data.len() / rows * (rows - 1));
            weight.shape[0] -= 1;
        });
        assert!(found.contains(&format!("tensor `{part}` has shape")), "{name}: {found}");
    }
    let copy = Copy::of_folder(&form("qwen35"));
    let mut weights = copy.weights();
    let mut other = weights.iter().find(|weight| weight.name == "mtp.norm.weight").expect("a norm").clone();
    other.name = "mtp.other.weight".into();
    weights.push(other);
    copy.write("model.safetensors", &weights);
    assert!(copy.open().is_err_and(|error| error.to_string().contains("`mtp.other.weight` is not part")));
    // A configuration may say that there is none.
    copy.set("mtp_num_hidden_layers", json!(0));
    assert!(load(&copy.open().expect("it opens")).prediction_head().is_none());
}

/// The first of several layers is the head.
#[test]
fn further_prediction_layers_are_left_out() {
    let (compute, ids) = (Compute::new(1).expect("kernels"), prompt(2, 12));
    let expected = Found::of(&load(&folder("qwen35")), &compute, &ids, 5);
    let two = changed_of(&folder("qwen35"), |metadata, tensors| {
        metadata.insert("qwen35.block_count", 4_u32);
        metadata.insert("qwen35.nextn_predict_layers", 2_u32);
        let layers = Value::Array(Array::Bool(vec![true, false, false, false]));
        metadata.insert("qwen35.attention.recurrent_layers", layers);
        let name = "blk.3.nextn.eh_proj.weight";
        tensors.push((TensorInfo::new(name, [1], TensorType::F32).expect("valid"), vec![0; 4]));
    });
    assert!(Found::of(&two.expect("it loads"), &compute, &ids, 5) == expected);
    let copy = Copy::of_folder(&form("qwen35"));
    copy.set("mtp_num_hidden_layers", json!(2));
    let mut weights = copy.weights();
    let mut other = weights.iter().find(|weight| weight.name == "mtp.norm.weight").expect("a norm").clone();
    other.name = "mtp.layers.1.input_layernorm.weight".into();
    weights.push(other);
    copy.write("model.safetensors", &weights);
    assert!(Found::of(&load(&copy.open().expect("it opens")), &compute, &ids, 5) == expected);
}

#[test]
fn wrong_inputs_of_a_head_are_errors_and_commit_nothing() {
    let (compute, model) = (Compute::new(1).expect("kernels"), load(&folder("qwen35")));
    let (mut cache, mut of_model) = (head_sequence(&model), sequence(&model));
    let mut workspace = Workspace::new();
    let segment = Segment::new(&compute, &[5, 6], &mut cache, LogitsRows::Last).expect("room");
    let error = model.predict(&compute, &mut workspace, [segment], &[0.0; 63]).map(|_| ()).expect_err("63");
    let expected = "63 values of hidden states for 2 tokens, the prediction head needs 64";
    assert_eq!(error.to_string(), expected);
    let segment = Segment::new(&compute, &[72], &mut cache, LogitsRows::Last).expect("room");
    let error = model.predict(&compute, &mut workspace, [segment], &[0.0; 32]).map(|_| ()).expect_err("72");
    assert!(matches!(error, Error::TokenOutOfRange { token: 72, .. }), "{error}");
    assert_eq!(cache.len(), 0);
    let segment = Segment::new(&compute, &[5], &mut of_model, LogitsRows::Last).expect("room");
    let error = model.predict(&compute, &mut workspace, [segment], &[0.0; 32]).map(|_| ());
    assert!(matches!(error, Err(Error::CacheShape { .. })), "{error:?}");
    let head = model.prediction_head().expect("a head");
    let store = head.kv_store(&KvFormat::F32.into(), &pool()).expect("a store");
    let error = head.new_sequence(&store, 1 << 20).map(|_| ());
    assert!(matches!(error, Err(Error::CacheCapacity { .. })), "{error:?}");
}

#[test]
fn heads_are_quantized_with_the_model_by_their_own_importance() {
    let (compute, ids) = (Compute::new(1).expect("kernels"), prompt(2, 20));
    for name in ["qwen35", "glm4moe"] {
        let folder = folder(name);
        let model = load(&folder);
        let mut workspace = Workspace::new();
        workspace.observe_inputs();
        let (mut cache, mut of_head) = (sequence(&model), head_sequence(&model));
        let segment =
            Segment::new(&compute, &ids, &mut cache, LogitsRows::All).expect("room").with_hidden(20);
        model.forward(&compute, &mut workspace, [segment]).expect("a step");
        let of_model = |importance: &ImportanceMatrix| importance.means("blk.0.ffn_down.weight");
        let (width, mut hidden) = (model.config().model_dim, workspace.hidden().to_vec());
        hidden.truncate(19 * width);
        let segment = Segment::new(&compute, &ids[1..], &mut of_head, LogitsRows::All).expect("room");
        model.predict(&compute, &mut workspace, [segment], &hidden).expect("a step");
        let with_head = ImportanceMatrix::new(&workspace.take_input_squares(), &folder, "prompt", (1, 20));
        let without = crate::mixtures::importance(&folder, &compute, &ids);
        assert!(of_model(&with_head).is_some() && of_model(&with_head) == of_model(&without), "{name}");
        let eh_proj = with_head.means("blk.2.nextn.eh_proj.weight").expect("an entry");
        assert!(eh_proj.len() == 2 * width && eh_proj.iter().all(|&mean| mean > 0.0), "{name}");
        assert_eq!(with_head.means("blk.2.nextn.shared_head_head.weight").is_some(), name == "glm4moe");
        assert!(
            with_head.means("blk.2.attn_q.weight").is_some()
                && without.means("blk.2.attn_q.weight").is_none()
        );
        let temporary = tempfile::tempdir().expect("a folder");
        let gguf = gguf_of(&folder, temporary.path());
        let mut files = Vec::new();
        for (file, importance) in [("with.gguf", &with_head), ("without.gguf", &without)] {
            let path = temporary.path().join(file);
            let options = QuantizeOptions { pure: true, importance: Some(importance), ..Default::default() };
            let recipe = Recipe::from_name("Q4_0").expect("a recipe");
            let pool = ThreadPool::single();
            quantize(&gguf, &path, recipe, &options, &pool, &mut |_| ControlFlow::Continue(())).expect(name);
            let small = Gguf::open(&path).expect("it opens");
            let eh_proj = small.tensor("blk.2.nextn.eh_proj.weight").expect("the head").clone();
            assert_eq!(eh_proj.tensor_type, TensorType::Q4_0, "{name}");
            assert!(load(&small).prediction_head().is_some(), "{name}");
            files.push(small.data("blk.2.nextn.eh_proj.weight").expect("data").as_bytes().to_vec());
        }
        assert_ne!(files[0], files[1], "{name}: rounded by importance");
    }
}

/// A head computes no token of the model.
#[test]
fn heads_are_no_active_parameters() {
    for name in HEADS {
        let folder = folder(name);
        let counts = ParameterCounts::of(&folder);
        let stripped = Copy::of_folder(&form(name));
        let kept = |weight: &Weight| !weight.name.starts_with("mtp.") && !weight.name.contains(".layers.2.");
        let weights: Vec<Weight> = stripped.weights().into_iter().filter(kept).collect();
        stripped.write("model.safetensors", &weights);
        let without = ParameterCounts::of(&stripped.open().expect("it opens"));
        assert!(counts.total > without.total, "{name}");
        assert_eq!(counts.active, without.active, "{name}");
    }
}

/// llama.cpp's converter made the files (`make.py convert`).
#[test]
fn files_of_llama_cpp_have_the_tensors_and_keys_of_folders() {
    for name in ["qwen35", "glm4moe"] {
        let converted = Gguf::open(form(name).join("converted.gguf")).expect("it opens");
        let folder = folder(name);
        for key in ["block_count", "nextn_predict_layers", "leading_dense_block_count", "expert_count"] {
            let key = format!("{name}.{key}");
            assert_eq!(folder.metadata().get(&key), converted.metadata().get(&key), "{key}");
        }
        let (mut found, mut expected) = (tensors(&folder), tensors(&converted));
        found.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        expected.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        assert_eq!(found.len(), expected.len(), "{name}");
        for ((found, data), (expected, reference)) in found.iter().zip(&expected) {
            let dims =
                |info: &TensorInfo| info.dims.iter().copied().filter(|&dim| dim > 1).collect::<Vec<_>>();
            let key = |info: &TensorInfo| (info.name.clone(), dims(info), info.tensor_type);
            assert_eq!(key(found), key(expected), "{name}");
            // The converter adds one to norms, and takes exponentials, in F16 as the folder has.
            if found.name.ends_with("norm.weight") || found.name.ends_with("ssm_a") {
                for (found, expected) in floats(data).zip(floats(reference)) {
                    assert!((found - expected).abs() <= 5e-4 * expected.abs(), "{name}: {found} {expected}");
                }
            } else {
                assert!(data == reference, "{name} {}: other bytes", found.name);
            }
        }
        load(&converted);
        let with_its_keys = changed_of(&folder, |metadata, _| metadata.clone_from(converted.metadata()));
        let (compute, ids) = (Compute::new(1).expect("kernels"), prompt(2, 20));
        let of = |model: &Model| Found::of(model, &compute, &ids, 64);
        assert!(of(&with_its_keys.expect("it loads")) == of(&load(&folder)), "{name}");
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes))
}
