//! `cargo xtask family-goldens`: models with random configurations, compared with transformers.
//!
//! The committed goldens are a few models of each family; published configurations have more
//! combinations than can be committed. A Python program draws configurations and weights, writes
//! folders as transformers does, and computes logits; the folders are computed here too, also with
//! the PEFT adapters beside them. Each difference becomes a test of `ruvllm-models`.

mod families;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_adapters::{FactorFormat, LoraFile, Part, ScaledAdapter};
use ruvllm_memory::{PagePool, PoolConfig, Request};
use ruvllm_models::{
    Checkpoint, Compute, Encoder, EncoderText, EncoderWorkspace, HfFolder, KvFormat, LogitsRows, Model,
    Segment, Workspace as Buffers, is_encoder,
};
use ruvllm_text::TokenId;
use serde::Deserialize;

use xtask::Workspace;
use xtask::process::CommandLine;

pub(crate) use self::families::FAMILIES;
use crate::{Error, Result};

/// The Python program.
const MAKE: &str = "tools/src/family_goldens/make.py";

/// Tolerated error of a logit. The float32 error of transformers itself is up to 3e-4 in most
/// models.
const TOLERANCE: f64 = 5e-4;

/// Tolerated error as a share of the logits' deviation, if larger: at deviation 14 the float32
/// error of transformers is up to 9e-4.
const RELATIVE_TOLERANCE: f64 = 1e-4;

/// Prompt tokens per pass, so that later passes read keys and values from the cache.
const CHUNK: usize = 37;

/// KV budget of one prompt.
const KV_BYTES: usize = 64 << 20;

/// Output of the Python program.
#[derive(Deserialize)]
struct Made {
    /// Version of transformers.
    version: String,
    models: Vec<Golden>,
}

/// One model.
#[derive(Deserialize)]
struct Golden {
    folder: String,
    family: String,
    /// The configuration as drawn.
    draw: String,
    ids: Vec<TokenId>,
    /// Tokens of the first text of a pair; all of them where there is one text.
    first: usize,
}

/// Results of one family's models.
#[derive(Default)]
struct Outcome {
    models: usize,
    /// Number of models compared with an adapter as well.
    adapters: usize,
    /// Largest error of models within the tolerance.
    largest: f64,
    faults: Vec<String>,
}

/// Draws `models` models of each of `families`, or of all if there are none, from `seed`, compares
/// logits, and prints a table. The models stay in `target/`.
///
/// # Errors
/// A Python without transformers, and any model that is refused here or differs.
pub(crate) fn family_goldens(
    workspace: &Workspace,
    python: &Path,
    families: &[String],
    (models, seed): (usize, u64),
) -> Result<()> {
    let folder = workspace.path("target/family-goldens");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(Error::io("empty", &folder))?;
    }
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    let (models, seed) = (models.to_string(), seed.to_string());
    let of_all = [workspace.path(MAKE), folder.clone(), PathBuf::from(models), PathBuf::from(seed)];
    let command =
        CommandLine::new(python, Path::new(".")).args(of_all).args(families.iter().map(PathBuf::from));
    command.run()?;
    let path = folder.join("models.json");
    let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let made: Made =
        serde_json::from_str(&text).map_err(|source| Error::Json { command: command.display(), source })?;

    let mut outcomes: BTreeMap<&str, Outcome> = BTreeMap::new();
    for golden in &made.models {
        let outcome = outcomes.entry(&golden.family).or_default();
        outcome.models += 1;
        let model = folder.join(&golden.folder);
        outcome.note(golden, compare(&model, None, &golden.ids, golden.first));
        let adapter = model.join("adapter");
        if adapter.exists() {
            outcome.adapters += 1;
            outcome.note(golden, compare(&model, Some(&adapter), &golden.ids, golden.first));
        }
    }
    report(&made.version, &outcomes)
}

/// Distance of two lists of logits.
struct Difference {
    /// The largest error.
    error: f64,
    /// The standard deviation of the expected ones.
    deviation: f64,
}

impl Outcome {
    /// Counts a comparison.
    fn note(&mut self, golden: &Golden, result: std::result::Result<Difference, String>) {
        let fault = match result {
            Ok(Difference { error, deviation }) if error <= TOLERANCE.max(RELATIVE_TOLERANCE * deviation) => {
                self.largest = self.largest.max(error);
                return;
            }
            Ok(Difference { error, deviation }) => format!("differs by {error:.1e} of {deviation:.1}"),
            Err(fault) => fault,
        };
        self.faults.push(format!("{}: {fault}: {}", golden.folder, golden.draw));
    }
}

fn report(version: &str, outcomes: &BTreeMap<&str, Outcome>) -> Result<()> {
    println!(
        "transformers {version}\n\n| family | models | with adapters | largest error | different |\n|---|---:|---:|---:|---:|"
    );
    for (family, Outcome { models, adapters, largest, faults }) in outcomes {
        println!("| {family} | {models} | {adapters} | {largest:.1e} | {} |", faults.len());
    }
    let faults: Vec<&str> =
        outcomes.values().flat_map(|outcome| &outcome.faults).map(String::as_str).collect();
    if faults.is_empty() { Ok(()) } else { Err(Error::GoldensDiffer { faults: faults.join("\n") }) }
}

/// Difference of a folder's logits (encoders: hidden states; rerankers: the logit of the pair) from
/// the goldens of the model or its adapter.
fn compare(
    folder: &Path,
    adapter: Option<&Path>,
    ids: &[TokenId],
    first: usize,
) -> std::result::Result<Difference, String> {
    let path = adapter.unwrap_or(folder).join("reference.f32");
    let bytes = fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let reference: Vec<f32> =
        bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let found = compute(folder, adapter, ids, first).map_err(|error| error.to_string())?;
    if found.len() != reference.len() {
        return Err(format!("{} values instead of {}", found.len(), reference.len()));
    }
    let errors = found.iter().zip(&reference).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs());
    let error =
        errors.fold(0.0, |max, error| if error.is_nan() { f64::INFINITY } else { f64::max(max, error) });
    let n = reference.len() as f64;
    let moment = |power: i32| reference.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / n;
    Ok(Difference { error, deviation: (moment(2) - moment(1).powi(2)).max(0.0).sqrt() })
}

fn compute(
    folder: &Path,
    adapter: Option<&Path>,
    ids: &[TokenId],
    first: usize,
) -> std::result::Result<Vec<f32>, Box<dyn std::error::Error>> {
    let folder = HfFolder::open(folder)?;
    let compute = Compute::new(1)?;
    if is_encoder(folder.metadata()) {
        let encoder = Encoder::load(&folder, &mut |_| ())?;
        if encoder.has_head() {
            let pair = EncoderText { tokens: ids, second_type: first };
            return Ok(encoder.scores(&compute, &mut EncoderWorkspace::new(), &[pair])?);
        }
        return Ok(encoder.forward(&compute, &mut EncoderWorkspace::new(), &[ids])?.to_vec());
    }
    let model = Model::load(&folder, &mut |_| ())?;
    let pool = PagePool::new(PoolConfig::new(KV_BYTES))?;
    let adapters = match adapter {
        Some(path) => {
            let part = Part { file: &LoraFile::open(path)?, scale: 1.0 };
            let adapter = model.adapter(&[part], FactorFormat::F32, &pool, &Request::default())?;
            vec![ScaledAdapter::from(Arc::new(adapter))]
        }
        None => Vec::new(),
    };
    let mut cache = model.new_sequence(&model.kv_store(&KvFormat::F32.into(), &pool)?, ids.len())?;
    let mut buffers = Buffers::new();
    let mut logits = Vec::new();
    for tokens in ids.chunks(CHUNK) {
        let segment = Segment::new(&compute, tokens, &mut cache, LogitsRows::All)?;
        let segments = [segment.with_adapters(&adapters)];
        match model.rank_head() {
            Some(head) => {
                let states = model.hidden_states(&compute, &mut buffers, segments)?;
                logits = vec![head.logit(&states[states.len() - model.config().model_dim..])];
            }
            None => logits.extend_from_slice(model.forward(&compute, &mut buffers, segments)?),
        }
    }
    Ok(logits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_found() {
        let workspace = Workspace::find().expect("the workspace");
        let form = workspace.path("crates/models/tests/data/forms/gemma");
        let folder = tempfile::tempdir().expect("a folder");
        for file in ["config.json", "model.safetensors"] {
            fs::copy(form.join(file), folder.path().join(file)).expect("a copy");
        }
        let ids = [5, 9, 60];
        assert!(
            compare(folder.path(), None, &ids, ids.len()).is_err_and(|fault| fault.contains("reference.f32"))
        );
        let mut reference = compute(folder.path(), None, &ids, ids.len()).expect("logits");
        let error = |reference: &[f32]| {
            let bytes: Vec<u8> = reference.iter().flat_map(|logit| logit.to_le_bytes()).collect();
            fs::write(folder.path().join("reference.f32"), bytes).expect("written");
            compare(folder.path(), None, &ids, ids.len()).map(|difference| difference.error)
        };
        assert_eq!(error(&reference), Ok(0.0));
        reference[100] += 0.25;
        assert!(error(&reference).is_ok_and(|error| (error - 0.25).abs() < 1e-5));
        reference[0] = f32::NAN;
        assert_eq!(error(&reference), Ok(f64::INFINITY));
        assert_eq!(error(&reference[1..]), Err("216 values instead of 215".to_owned()));
    }

    #[test]
    fn families_are_those_of_the_python_program() {
        let workspace = Workspace::find().expect("the workspace");
        let program = fs::read_to_string(workspace.path(MAKE)).expect("the program");
        let (_, table) = program.split_once("FAMILIES = dict(").expect("the table");
        let (table, _) = table.split_once("\n\n").expect("its end");
        let words = table.split([' ', '\n', ',']);
        let names: Vec<&str> = words.filter_map(|word| Some(word.split_once('=')?.0)).collect();
        assert_eq!(names, FAMILIES);
    }

    #[test]
    fn a_table_without_faults_is_a_success() {
        let agrees = || Outcome { models: 1, adapters: 0, largest: 1e-6, faults: Vec::new() };
        let differs = || Outcome { faults: vec!["qwen2-0: differs".to_owned()], ..agrees() };
        assert!(report("5", &BTreeMap::from([("qwen2", agrees())])).is_ok());
        let error = report("5", &BTreeMap::from([("llama", agrees()), ("qwen2", differs())]));
        assert_eq!(error.map_err(|error| error.to_string()), Err("qwen2-0: differs".to_owned()));
    }
}
