//! Forms of the families that published configurations have beside those of `tests/data/tiny`:
//! logits beside those that transformers computes (`tests/data/forms`).

use std::fs;
use std::path::{Path, PathBuf};

use ruvllm_kernels::ThreadPool;
use ruvllm_kernels::rope::RopeScaling;
use ruvllm_models::quantize::{InSitu, Recipe};
use ruvllm_models::{
    Checkpoint, Compute, HfFolder, KvFormat, LogitsRows, Model, PagePool, Segment, Window, Workspace,
};
use safetensors::SafeTensors;
use serde_json::json;

use crate::support::Copy;

/// Largest error of a logit: what float32 costs transformers itself is up to 3e-4.
pub(crate) const TOLERANCE: f64 = 5e-4;

/// Positions from one to the next that there are logits of.
const EVERY: usize = 5;

fn form(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/forms").join(name)
}

fn open(name: &str) -> HfFolder {
    HfFolder::open(form(name)).expect("the folder opens")
}

/// Results of the reference.
struct Reference {
    /// The prompt.
    ids: Vec<u32>,
    /// Logits at every fifth position.
    logits: Vec<f64>,
    /// The likeliest tokens behind the prompt, each behind those before it; `None` where the
    /// reference cannot read the folder again.
    greedy: Option<Vec<u32>>,
}

impl Reference {
    fn read(folder: &Path) -> Self {
        let bytes = fs::read(folder.join("expected.safetensors")).expect("the logits");
        let file = SafeTensors::deserialize(&bytes).expect("a valid file");
        let ids = |name| -> Option<Vec<u32>> {
            let numbers = file.tensor(name).ok()?.data().as_chunks::<4>().0;
            Some(numbers.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect())
        };
        let logits = file.tensor("logits").expect("the tensor").data().as_chunks::<8>().0;
        let logits = logits.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect();
        Self { ids: ids("ids").expect("the prompt"), logits, greedy: ids("greedy") }
    }
}

/// Folders of forms with their names.
fn forms() -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(form("")).expect("the forms").map(|entry| entry.expect("an entry"));
    let folders = entries.filter(|entry| entry.path().is_dir());
    folders.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).collect()
}

/// Largest error of a logit when the prompt of a folder is put in `chunk` tokens at a time.
pub(crate) fn error(checkpoint: &dyn Checkpoint, folder: &Path, chunk: usize) -> f64 {
    let Reference { ids, logits: expected, .. } = Reference::read(folder);
    let model = Model::load(checkpoint, &mut |_| ()).expect("it loads");
    let compute = Compute::new(1).expect("kernels");
    let pool = PagePool::new(ruvllm_memory::PoolConfig::new(32 << 20)).expect("a pool");
    let store = model.kv_store(&KvFormat::F32.into(), &pool).expect("a store");
    let mut cache = model.new_sequence(&store, ids.len()).expect("a cache");
    let mut workspace = Workspace::new();
    let mut found = Vec::new();
    for tokens in ids.chunks(chunk) {
        let segment = Segment::new(&compute, tokens, &mut cache, LogitsRows::All).expect("room");
        found.extend_from_slice(model.forward(&compute, &mut workspace, [segment]).expect("a step"));
    }
    let rows = found.chunks_exact(model.config().vocab_size).step_by(EVERY).flatten();
    assert_eq!(rows.clone().count(), expected.len(), "{}", folder.display());
    let errors = rows.zip(&expected).map(|(&found, &expected)| (f64::from(found) - expected).abs());
    errors.fold(0.0, |max, error| if error.is_nan() { f64::INFINITY } else { max.max(error) })
}

#[test]
fn logits_are_those_of_the_reference() {
    let forms = forms();
    assert_eq!(forms.len(), 52, "forms");
    for (name, path) in forms {
        let (folder, pool) = (open(&name), ThreadPool::single());
        // Products of weights of 4 bits round their inputs to 8: the values of the weights count.
        let dequantized = name.ends_with("_mxfp4").then(|| {
            InSitu::new(&folder, Recipe::from_name("F32").expect("a recipe"), &pool).expect("types")
        });
        let checkpoint = dequantized.as_ref().map_or(&folder as &dyn Checkpoint, |dequantized| dequantized);
        for chunk in [EVERY * 8, 7, 1] {
            let error = error(checkpoint, &path, chunk);
            println!("{name} by {chunk}: {error:.1e}");
            assert!(error <= TOLERANCE, "{name} by {chunk}: logits differ by {error}");
        }
    }
}

/// The two best logits are at least 2e-4 apart everywhere, more than the largest error.
#[test]
fn greedy_continuations_are_those_of_the_reference() {
    let (compute, mut seen) = (Compute::new(1).expect("kernels"), 0);
    for (name, path) in forms() {
        let Reference { ids: mut tokens, greedy: Some(expected), .. } = Reference::read(&path) else {
            continue;
        };
        let model = Model::load(&open(&name), &mut |_| ()).expect("it loads");
        let pool = PagePool::new(ruvllm_memory::PoolConfig::new(32 << 20)).expect("a pool");
        let store = model.kv_store(&KvFormat::F32.into(), &pool).expect("a store");
        let mut cache = model.new_sequence(&store, tokens.len() + expected.len()).expect("a cache");
        let (mut workspace, mut found) = (Workspace::new(), Vec::new());
        while found.len() < expected.len() {
            let segment = Segment::new(&compute, &tokens, &mut cache, LogitsRows::Last).expect("room");
            let logits = model.forward(&compute, &mut workspace, [segment]).expect("a step");
            let next = compute.kernels.argmax(logits).expect("finite") as u32;
            found.push(next);
            tokens = vec![next];
        }
        assert_eq!(found, expected, "{name}");
        seen += 1;
    }
    assert_eq!(seen, 51, "all forms but that of MXFP4");
}

#[test]
fn windows_are_in_the_layers_that_the_configuration_says() {
    for (name, tokens, layers) in [
        ("gemma2_without_caps", 12, &[false, true, true][..]),
        ("gemma3_every_third", 10, &[true, true, false, true]),
        ("qwen2_windows_above", 9, &[false, true, true]),
        ("qwen3_listed_windows", 9, &[true, false, true]),
        ("gpt_oss", 12, &[true, false]),
        ("gpt_oss_mxfp4", 12, &[false, true, true]),
    ] {
        let model = Model::load(&open(name), &mut |_| ()).expect("it loads");
        match &model.config().decoder.window {
            Window::Mixed { tokens: found, windowed } => {
                assert_eq!((*found, windowed.as_slice()), (tokens, layers), "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// An absent field and `null` have different meanings.
#[test]
fn absent_and_null_are_two_things() {
    let window = |copy: &Copy| {
        let model = Model::load(&copy.open().expect("it opens"), &mut |_| ()).expect("it loads");
        model.config().decoder.window.of_layer(0)
    };
    let copy = Copy::of("mistral");
    copy.edit("config.json", |config| drop(config.remove("sliding_window")));
    assert_eq!(window(&copy), Some(4096));
    copy.set("sliding_window", json!(null));
    assert_eq!(window(&copy), None);
    // In the text part of a larger model too.
    let copy = Copy::of_folder(&form("mistral3"));
    assert_eq!(window(&copy), None);
    copy.edit("config.json", |config| {
        drop(config["text_config"].as_object_mut().and_then(|text| text.remove("sliding_window")));
    });
    assert_eq!(window(&copy), Some(4096));

    for (name, usual) in [("phi3", 1e-5), ("qwen2", 1e-6)] {
        let copy = Copy::of(name);
        copy.edit("config.json", |config| drop(config.remove("rms_norm_eps")));
        let model = Model::load(&copy.open().expect("it opens"), &mut |_| ()).expect("it loads");
        assert_eq!(model.config().norm_eps, usual, "{name}");
    }

    let caps = |copy: &Copy| {
        let model = Model::load(&copy.open().expect("it opens"), &mut |_| ()).expect("it loads");
        (model.config().decoder.attention_soft_cap, model.config().decoder.logits_soft_cap)
    };
    let copy = Copy::of("gemma2");
    copy.edit("config.json", |config| {
        config.retain(|key, _| !key.ends_with("_softcapping"));
    });
    assert_eq!(caps(&copy), (Some(50.0), Some(30.0)));
    copy.set("attn_logit_softcapping", json!(null));
    assert_eq!(caps(&copy), (None, Some(30.0)));
}

/// transformers 5 says it in both places, and need not mean it in the inner one.
#[test]
fn weights_tell_where_two_places_disagree_about_the_output_matrix() {
    let copy = Copy::of_folder(&form("mistral3"));
    let has_output = |copy: &Copy| copy.open().expect("it opens").tensor("output.weight").is_some();
    assert!(has_output(&copy));
    let say = |outer: bool, inner: bool| {
        copy.edit("config.json", |config| {
            config.insert("tie_word_embeddings".into(), outer.into());
            config["text_config"]["tie_word_embeddings"] = inner.into();
        });
    };
    say(true, false);
    assert!(has_output(&copy));
    let weights: Vec<_> =
        copy.weights().into_iter().filter(|weight| !weight.name.ends_with("lm_head.weight")).collect();
    copy.write("model.safetensors", &weights);
    assert!(!has_output(&copy));
    say(false, false);
    assert!(copy.open().is_err_and(|error| error.to_string().contains("lm_head.weight")));
}

/// transformers computes Nemotron-H with the output matrix of the file, also where the
/// configuration says that there is none.
#[test]
fn an_output_matrix_of_nemotron_counts_whatever_the_configuration_says() {
    for tied in [true, false] {
        let copy = Copy::of_folder(&form("nemotron_h"));
        copy.set("tie_word_embeddings", json!(tied));
        assert!(error(&copy.open().expect("it opens"), &form("nemotron_h"), 40) <= TOLERANCE, "{tied}");
        let weights: Vec<_> =
            copy.weights().into_iter().filter(|weight| weight.name != "lm_head.weight").collect();
        copy.write("model.safetensors", &weights);
        let missing = copy.open().map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(missing.err(), (!tied).then(|| "tensor `lm_head.weight` is missing".to_owned()));
    }
}

/// A scaling that is added by hand makes the context longer, whatever else the file says.
#[test]
fn the_context_of_yarn_is_the_scaled_one() {
    let copy = Copy::of("qwen2");
    copy.set("rope_scaling", json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}));
    let opened = copy.open().expect("it opens");
    assert_eq!(opened.metadata().get_u64("qwen2.context_length").ok(), Some(Some(2048)));
}

#[test]
fn layers_without_rotation_are_those_of_the_family() {
    for (name, still) in
        ["smollm3", "exaone4", "llama4"].map(|name| (name, [false, false, false, true, false]))
    {
        let model = Model::load(&open(name), &mut |_| ()).expect("it loads");
        let local = model.config().local_rope.clone().expect("layers of their own");
        assert_eq!((local.rope, local.layers.as_slice()), (None, still.as_slice()), "{name}");
    }
    for name in ["exaone4_full", "llama4_dense", "olmo2", "granite"] {
        let model = Model::load(&open(name), &mut |_| ()).expect("it loads");
        assert_eq!(model.config().local_rope, None, "{name}");
    }
    let model = Model::load(&open("olmo3"), &mut |_| ()).expect("it loads");
    let (config, local) = (model.config(), model.config().local_rope.clone().expect("unscaled layers"));
    let rope = local.rope.expect("rotated");
    assert_eq!((rope.base, rope.scaling), (config.rope.base, RopeScaling::None));
    assert!(matches!(config.rope.scaling, RopeScaling::Yarn { .. }), "{:?}", config.rope);
    assert_eq!(local.layers, [true, true, true, false, true]);
}

#[test]
fn configurations_that_files_have_no_keys_for_are_refused() {
    for (name, change, expected) in [
        ("smollm3", json!({"no_rope_layers": [1, 1, 0, 1, 1]}), "no_rope_layers"),
        ("smollm3", json!({"no_rope_layers": null, "no_rope_layer_interval": 3}), "no_rope_layer_interval"),
        ("smollm3", json!({"use_sliding_window": true}), "use_sliding_window"),
        ("exaone4", json!({"sliding_window_pattern": "LGL"}), "sliding_window_pattern"),
        ("granite", json!({"residual_multiplier": -1.0}), "residual_multiplier"),
        (
            "olmo3",
            json!({"rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 2e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }}),
            "rope_parameters",
        ),
    ] {
        let copy = Copy::of_folder(&form(name));
        for (key, value) in change.as_object().expect("fields") {
            copy.set(key, value.clone());
        }
        let refused = copy.open().expect_err(name).to_string();
        assert!(refused.contains(expected), "{name}: {refused}");
    }
    let copy = Copy::of_folder(&form("exaone4"));
    copy.set("sliding_window_pattern", json!("LLLG"));
    assert!(copy.open().is_ok());
}
