//! Reference data (see `tests/data/README.md`) and short ways to run a model over it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, Metadata, TensorInfo, TensorType, Writer};
use ruvllm_adapters::ScaledAdapter;
use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_memory::{PagePool, PoolConfig};
use ruvllm_models::{Compute, Error, KvFormat, LogitsRows, Model, Segment, Sequence, Workspace};
use ruvllm_text::TokenId;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// The tiny models in full precision.
pub(crate) const TINY: [&str; 8] =
    ["llama", "llama_yarn", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"];

pub(crate) fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(relative)
}

pub(crate) fn gguf(relative: &str) -> Gguf {
    Gguf::open(path(relative)).expect("the fixture opens")
}

pub(crate) fn model(relative: &str) -> Model {
    Model::load(&gguf(relative), &mut |_| ()).expect("the fixture loads")
}

/// The tensors of a file: name, dimensions (columns first), type and data.
pub(crate) type Tensors = Vec<(String, Vec<u64>, TensorType, Vec<u8>)>;

/// A copy of `source` in memory with its metadata and tensors changed.
pub(crate) fn rewrite(source: &Gguf, change: impl FnOnce(&mut Metadata, &mut Tensors)) -> Gguf {
    let mut metadata = source.metadata().clone();
    let mut tensors: Tensors = source
        .tensors()
        .map(|info| {
            let data = source.data(info).expect("its data").as_bytes().to_vec();
            (info.name.clone(), info.dims.clone(), info.tensor_type, data)
        })
        .collect();
    change(&mut metadata, &mut tensors);
    let infos = tensors.iter().map(|(name, dims, tensor_type, _)| {
        TensorInfo::new(name.clone(), dims.clone(), *tensor_type).expect("a valid tensor")
    });
    let mut writer = Writer::new(Vec::new(), &metadata, infos).expect("a valid header");
    for (name, _, _, data) in &tensors {
        writer.write_tensor(name, data).expect("data of the declared size");
    }
    Gguf::from_owner(writer.finish().expect("a complete file")).expect("a valid file")
}

/// Gives the keys of architecture `from` to architecture `to`.
pub(crate) fn become_architecture(metadata: &mut Metadata, from: &str, to: &str) {
    let keys: Vec<String> = metadata.iter().map(|(key, _)| key.to_owned()).collect();
    for key in keys {
        if let Some(suffix) = key.strip_prefix(from).filter(|suffix| suffix.starts_with('.')) {
            let value = metadata.remove(&key).expect("it is there");
            metadata.insert(format!("{to}{suffix}"), value);
        }
    }
    metadata.insert("general.architecture", to);
}

/// The best kernels of this machine, one thread.
pub(crate) fn compute() -> Compute {
    Compute::new(1).expect("kernels are available")
}

/// Thread counts of `all_computes`: one to so many.
pub(crate) const THREADS: usize = 3;

/// Every available instruction set with one, two and three threads.
pub(crate) fn all_computes() -> Vec<Compute> {
    let mut computes = Vec::new();
    for kernels in Kernels::available() {
        for threads in 1..=THREADS {
            computes.push(Compute::with(kernels, ThreadPool::new(threads).expect("threads start")));
        }
    }
    computes
}

/// One `expected.json` and `expected.safetensors`.
pub(crate) struct Expected {
    pub(crate) json: Value,
    tensors: BTreeMap<String, Vec<f64>>,
}

impl Expected {
    pub(crate) fn read(folder: &str) -> Self {
        let json = std::fs::read(path(&format!("{folder}/expected.json"))).expect("expected.json");
        let bytes = std::fs::read(path(&format!("{folder}/expected.safetensors"))).expect("the tensors");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let tensors = file
            .iter()
            .filter(|(_, view)| view.dtype() == Dtype::F64)
            .map(|(name, view)| {
                let values =
                    view.data().as_chunks::<8>().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect();
                (name.to_owned(), values)
            })
            .collect();
        Self { json: serde_json::from_slice(&json).expect("valid JSON"), tensors }
    }

    pub(crate) fn tensor(&self, name: &str) -> &[f64] {
        self.tensors.get(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub(crate) fn prompts(&self) -> &[Value] {
        self.json["prompts"].as_array().expect("prompts")
    }

    /// The ids of the prompt called `name`.
    pub(crate) fn prompt(&self, name: &str) -> Vec<TokenId> {
        let prompt = self.prompts().iter().find(|prompt| prompt["name"] == name).expect("the prompt");
        ids(&prompt["ids"])
    }
}

pub(crate) fn ids(json: &Value) -> Vec<TokenId> {
    json.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as TokenId).collect()
}

pub(crate) fn text(json: &Value) -> &str {
    json.as_str().expect("a string")
}

/// An empty sequence in memory of its own.
pub(crate) fn new_cache(model: &Model, format: KvFormat, capacity: usize) -> Result<Sequence, Error> {
    let pool =
        PagePool::new(PoolConfig { page_bytes: 512 << 10, ..PoolConfig::new(32 << 20) }).expect("a pool");
    model.new_sequence(&model.kv_store(&format.into(), &pool)?, capacity)
}

/// Logits of all tokens, the prompt fed in chunks of `chunk` tokens.
pub(crate) fn all_logits(
    model: &Model,
    compute: &Compute,
    kv: KvFormat,
    tokens: &[TokenId],
    chunk: usize,
) -> Vec<f32> {
    in_chunks(model, compute, (kv, &[]), tokens, chunk)
}

/// As [`all_logits`], with adapters and keys and values in F32.
pub(crate) fn adapted_logits(
    model: &Model,
    compute: &Compute,
    adapters: &[ScaledAdapter],
    tokens: &[TokenId],
    chunk: usize,
) -> Vec<f32> {
    in_chunks(model, compute, (KvFormat::F32, adapters), tokens, chunk)
}

fn in_chunks(
    model: &Model,
    compute: &Compute,
    (kv, adapters): (KvFormat, &[ScaledAdapter]),
    tokens: &[TokenId],
    chunk: usize,
) -> Vec<f32> {
    let mut cache = new_cache(model, kv, tokens.len()).expect("a cache");
    let mut workspace = Workspace::new();
    let mut all = Vec::new();
    for tokens in tokens.chunks(chunk) {
        let segment = Segment::new(compute, tokens, &mut cache, LogitsRows::All).expect("room");
        let step = model.forward(compute, &mut workspace, [segment.with_adapters(adapters)]);
        all.extend_from_slice(step.expect("a step"));
    }
    assert_eq!(cache.len(), tokens.len());
    all
}

/// `n_tokens` greedy tokens after `prompt`.
pub(crate) fn greedy(
    model: &Model,
    compute: &Compute,
    kv: KvFormat,
    prompt: &[TokenId],
    n_tokens: usize,
) -> Vec<TokenId> {
    let mut cache = new_cache(model, kv, prompt.len() + n_tokens).expect("a cache");
    let mut workspace = Workspace::new();
    let mut output = Vec::new();
    let mut next = prompt.to_vec();
    while output.len() < n_tokens {
        let segment = Segment::new(compute, &next, &mut cache, LogitsRows::Last).expect("room");
        let logits = model.forward(compute, &mut workspace, [segment]).expect("a step");
        let token = compute.kernels.argmax(logits).expect("finite logits") as TokenId;
        output.push(token);
        next = vec![token];
    }
    output
}

/// Largest absolute difference; NaN counts as infinite.
pub(crate) fn max_abs_error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let errors = found.iter().zip(expected).map(|(&found, &expected)| (f64::from(found) - expected).abs());
    errors.fold(0.0, |max, error| if error.is_nan() { f64::INFINITY } else { max.max(error) })
}

/// Bit patterns, so that comparisons are exact and NaN equals itself.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
