//! Merging: reference results, properties of the methods, decomposition, written adapters, and what
//! is refused.

mod bad_input;
mod goldens;
mod properties;
mod written;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ruvllm_adapters::export::{AdapterFormat, FactorType, NewAdapter, NewUpdate};
use ruvllm_adapters::merge::{Compressed, Input, Merge, Method, Rank};
use ruvllm_adapters::{BaseModel, Error, LoraFile, Projection};
use ruvllm_kernels::ThreadPool;
use ruvllm_testkit::Random;

const QUERY: (Projection, usize) = (Projection::Query, 0);

/// An adapter that PEFT saved, for the tiny Llama.
fn peft(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/lora").join(name)
}

fn open(path: &Path) -> LoraFile {
    LoraFile::open(path).expect("the adapter opens")
}

fn pool() -> ThreadPool {
    ThreadPool::new(2).expect("threads")
}

/// The tiny Llama, whose adapters are in [`peft`].
fn tiny_llama() -> BaseModel {
    BaseModel {
        architecture: "llama".to_owned(),
        n_layers: 3,
        model_dim: 64,
        query_dim: 64,
        kv_dim: 32,
        head_dim: 16,
        ffn_dim: 176,
        vocab_size: 570,
        interleaved_heads: true,
        joint_attention: false,
        joint_feed_forward: false,
    }
}

fn equal<'a>(files: &[&'a LoraFile]) -> Vec<Input<'a>> {
    files.iter().map(|&file| Input { file, weight: 1.0 }).collect()
}

fn merge<'a>(inputs: &[Input<'a>], method: Method) -> Result<Merge<'a>, Error> {
    Merge::new(inputs, method, None, AdapterFormat::Peft)
}

fn adapter(merge: &Merge<'_>, rank: Rank) -> Compressed {
    merge
        .adapter(rank, FactorType::F32, &pool(), &mut |_, _| ControlFlow::Continue(()))
        .expect("the merge succeeds")
}

/// Dense delta of an update.
fn product(update: &NewUpdate) -> Vec<f64> {
    let (rank, inputs) = (update.rank, update.inputs);
    let mut out = Vec::new();
    for row in update.b.chunks_exact(rank) {
        for column in 0..inputs {
            let terms =
                row.iter().enumerate().map(|(i, &b)| f64::from(b) * f64::from(update.a[i * inputs + column]));
            out.push(terms.sum());
        }
    }
    out
}

fn norm(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// Index of a module of a merge.
fn index(merge: &Merge<'_>, place: (Projection, usize)) -> usize {
    merge.modules().position(|module| (module.projection, module.layer) == place).expect("the module")
}

fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.normal()).collect()
}

/// A PEFT folder with random factors of the query projections of some layers, of a rank each.
fn folder(path: &Path, [inputs, outputs]: [usize; 2], ranks: &[usize], seed: u64) -> LoraFile {
    let update = |(layer, &rank): (usize, &usize)| NewUpdate {
        projection: Projection::Query,
        layer,
        peft_name: None,
        rank,
        inputs,
        outputs,
        a: random(rank * inputs, seed + 2 * layer as u64),
        b: random(outputs * rank, seed + 2 * layer as u64 + 1),
    };
    let updates = ranks.iter().enumerate().map(update).collect();
    NewAdapter::new(AdapterFormat::Peft, None, FactorType::F32, updates)
        .and_then(|adapter| adapter.write(path, false))
        .expect("the folder is written");
    open(path)
}
