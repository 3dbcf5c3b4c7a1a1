//! Modified folders of the tiny models, expected outputs, and logits of backends.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ruvllm::{
    CandleBackend, CandleOptions, Engine, EngineOptions, Error, InferenceBackend, KvPolicy, ModelSource,
    TokenId,
};
use ruvllm_testkit::model_data;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};
use tempfile::TempDir;

/// Model families of the backend.
pub(crate) const FAMILIES: [&str; 5] = ["llama", "mistral", "qwen2", "phi3", "gemma2"];

fn data(name: &str) -> PathBuf {
    model_data("tiny").join(name)
}

/// The folder of a tiny model.
pub(crate) fn folder(name: &str) -> PathBuf {
    data(name).join("hf")
}

pub(crate) fn candle(folder: &Path) -> CandleBackend {
    CandleBackend::load(folder, &CandleOptions::default()).expect("candle loads it")
}

pub(crate) fn refusal(folder: &Path) -> Error {
    CandleBackend::load(folder, &CandleOptions::default()).expect_err("this is not for candle")
}

/// The engine with F32 keys and values and the other backend's context.
pub(crate) fn native(folder: &Path, context: usize) -> Engine {
    let options = EngineOptions::default()
        .with_threads(1)
        .with_kv("f32".parse::<KvPolicy>().expect("a policy"))
        .with_context(context);
    Engine::load(&ModelSource::Path(folder.into()), &options, &mut |_| ()).expect("the engine loads it")
}

/// A modifiable copy of a tiny model's folder.
pub(crate) struct Variant(TempDir);

impl Variant {
    pub(crate) fn of(name: &str) -> Self {
        let copy = Self(tempfile::tempdir().expect("a folder"));
        for entry in fs::read_dir(folder(name)).expect("the folder") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("a copy");
        }
        copy
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Changes `config.json`.
    pub(crate) fn edit(self, change: impl FnOnce(&mut Map<String, Value>)) -> Self {
        let path = self.path().join("config.json");
        let mut map: Map<String, Value> =
            serde_json::from_slice(&fs::read(&path).expect("the file")).expect("an object");
        change(&mut map);
        fs::write(path, serde_json::to_vec(&map).expect("JSON")).expect("written");
        self
    }

    /// Sets fields of `config.json`.
    pub(crate) fn with(self, fields: Value) -> Self {
        let Value::Object(fields) = fields else { panic!("an object") };
        self.edit(|map| map.extend(fields))
    }

    /// Writes the weights as `n_shards` files with an index, their tensors changed.
    pub(crate) fn reshard(self, n_shards: usize, change: impl Fn(&mut Vec<Weight>)) -> Self {
        let single = self.path().join("model.safetensors");
        let bytes = fs::read(&single).expect("the weights");
        let file = SafeTensors::deserialize(&bytes).expect("a valid file");
        let mut weights: Vec<Weight> = file.iter().map(Weight::new).collect();
        weights.sort_by(|a, b| a.name.cmp(&b.name));
        change(&mut weights);
        fs::remove_file(single).expect("removed");
        let mut index = Map::new();
        for (shard, weights) in weights.chunks(weights.len().div_ceil(n_shards)).enumerate() {
            let name = format!("model-{shard:05}.safetensors");
            let views = weights.iter().map(|weight| {
                let view = TensorView::new(weight.dtype, weight.shape.clone(), &weight.data).expect("a view");
                (weight.name.as_str(), view)
            });
            let bytes = safetensors::serialize(views, None).expect("a file");
            fs::write(self.path().join(&name), bytes).expect("written");
            index.extend(weights.iter().map(|weight| (weight.name.clone(), Value::from(name.clone()))));
        }
        let index = serde_json::json!({ "weight_map": index });
        fs::write(self.path().join("model.safetensors.index.json"), index.to_string()).expect("written");
        self
    }
}

/// A tensor of a weight file.
pub(crate) struct Weight {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<u8>,
}

impl Weight {
    fn new((name, view): (&str, TensorView<'_>)) -> Self {
        let (shape, data) = (view.shape().to_vec(), view.data().to_vec());
        Self { name: name.to_owned(), dtype: view.dtype(), shape, data }
    }

    /// Cuts F32 values down to BF16.
    pub(crate) fn cut_to_bf16(&mut self) {
        assert_eq!(self.dtype, Dtype::F32, "{}", self.name);
        self.data = self.data.as_chunks::<4>().0.iter().flat_map(|bytes| [bytes[2], bytes[3]]).collect();
        self.dtype = Dtype::BF16;
    }
}

/// Reference outputs of a tiny model, computed with independent software.
pub(crate) struct Expected {
    json: Value,
    tensors: BTreeMap<String, Vec<f64>>,
}

/// A prompt with its expected outputs.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) tokens: Vec<TokenId>,
    /// Positions with expected logits.
    pub(crate) positions: Vec<usize>,
    /// Expected logits, computed in F64: `[positions, vocab_size]`.
    pub(crate) logits: Vec<f64>,
    pub(crate) greedy: Vec<TokenId>,
}

impl Expected {
    pub(crate) fn of(name: &str) -> Self {
        let json = fs::read(data(name).join("expected.json")).expect("expected.json");
        let bytes = fs::read(data(name).join("expected.safetensors")).expect("the tensors");
        let file = SafeTensors::deserialize(&bytes).expect("a valid file");
        let values = |view: &TensorView<'_>| {
            view.data().as_chunks::<8>().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect()
        };
        let doubles = file.iter().filter(|(_, view)| view.dtype() == Dtype::F64);
        let tensors = doubles.map(|(name, view)| (name.to_owned(), values(&view))).collect();
        Self { json: serde_json::from_slice(&json).expect("JSON"), tensors }
    }

    /// The prompts with the results of a variant of the weights.
    pub(crate) fn cases(&self, variant: &str) -> Vec<Case> {
        let numbers = |list: &Value| -> Vec<u64> {
            list.as_array().expect("a list").iter().map(|n| n.as_u64().expect("a number")).collect()
        };
        let ids = |list: &Value| numbers(list).into_iter().map(|id| id as TokenId).collect();
        let case = |prompt: &Value| {
            let results = &prompt["variants"][variant];
            let tensor = results["logits_f64_tensor"].as_str().expect("a name");
            Case {
                name: prompt["name"].as_str().expect("a name").to_owned(),
                tokens: ids(&prompt["ids"]),
                positions: numbers(&prompt["positions"]).into_iter().map(|at| at as usize).collect(),
                logits: self.tensors.get(tensor).expect("the tensor").clone(),
                greedy: ids(&results["greedy"]),
            }
        };
        self.json["prompts"].as_array().expect("prompts").iter().map(case).collect()
    }
}

/// Logits after each of `tokens`, `[tokens, vocab_size]`: the first `at_once` in one pass (only its
/// last row, others zero), the rest one by one.
pub(crate) fn logits(backend: &dyn InferenceBackend, tokens: &[TokenId], at_once: usize) -> Vec<f32> {
    let mut session = backend.session(tokens.len()).expect("a sequence");
    let (first, rest) = tokens.split_at(at_once);
    let vocab_size = backend.config().vocab_size;
    let mut all = vec![0.0; (at_once.max(1) - 1) * vocab_size];
    for pass in std::iter::once(first).chain(rest.chunks(1)).filter(|pass| !pass.is_empty()) {
        all.extend_from_slice(session.forward(pass).expect("logits"));
    }
    assert_eq!((session.len(), all.len()), (tokens.len(), tokens.len() * vocab_size));
    all
}

/// Largest absolute difference; NaN counts as infinite.
pub(crate) fn max_abs_error(found: &[f32], expected: impl IntoIterator<Item = f64>) -> f64 {
    let pairs = found.iter().zip(expected);
    let errors = pairs.map(|(&found, expected)| (f64::from(found) - expected).abs());
    errors.fold(0.0, |max, error| if error.is_nan() { f64::INFINITY } else { max.max(error) })
}

/// The largest difference of two backends' logits after the first `at_once` of `tokens` and after
/// each further one.
pub(crate) fn difference(
    a: &dyn InferenceBackend,
    b: &dyn InferenceBackend,
    tokens: &[TokenId],
    at_once: usize,
) -> f64 {
    let (a, b) = (logits(a, tokens, at_once), logits(b, tokens, at_once));
    assert_eq!(a.len(), b.len());
    max_abs_error(&a, b.into_iter().map(f64::from))
}
