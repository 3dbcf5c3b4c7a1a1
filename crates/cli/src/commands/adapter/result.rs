//! Adapters that commands write: format, type, rank, report.

use std::num::NonZero;
use std::path::Path;
use std::thread;

use ruvllm_adapters::BaseModel;
use ruvllm_adapters::export::{AdapterFormat, FactorType};
use ruvllm_adapters::merge::{Compressed, Rank};
use ruvllm_kernels::ThreadPool;
use ruvllm_models::ModelConfig;
use ruvllm_models::quantize::Recipe;
use serde::Serialize;

use crate::default_model::ModelChoice;
use crate::error::{Error, Result};
use crate::output;

/// Matrix of a result, in the JSON document.
#[derive(Serialize)]
pub(super) struct MatrixDocument {
    pub(super) name: String,
    pub(super) rank: usize,
    pub(super) relative_error: f64,
}

/// The format that a path asks for: GGUF by its extension, else a PEFT folder.
pub(super) fn format_of(path: &Path) -> AdapterFormat {
    match is_gguf(path) {
        true => AdapterFormat::Gguf,
        false => AdapterFormat::Peft,
    }
}

pub(super) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// The type of factors.
///
/// # Errors
/// A type that factors do not have.
pub(super) fn factor_type(recipe: Option<Recipe>) -> Result<FactorType> {
    let Some(recipe) = recipe else { return Ok(FactorType::F32) };
    FactorType::ALL.into_iter().find(|factors| factors.name() == recipe.name()).ok_or_else(|| {
        Error::Conflict {
            flag: "--type",
            reason: format!("an adapter or a safetensors file is F32, F16 or BF16, not {}", recipe.name()),
        }
    })
}

/// Sizes and row order of a model.
pub(super) fn base_model(path: &Path) -> Result<BaseModel> {
    let choice = ModelChoice::new(Some(path));
    let config = ModelConfig::from_checkpoint(&*choice.open()?);
    config.map(|config| config.adapter_base()).map_err(|source| Error::Model { model: choice.name(), source })
}

/// Parses a number between 0 and 1, both excluded.
pub(super) fn relative_error(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|error| *error > 0.0 && *error < 1.0)
        .ok_or_else(|| "expected a number above 0 and below 1".to_owned())
}

/// The rank that `--rank` and `--error` ask for.
pub(super) fn rank(rank: Option<usize>, error: Option<f64>) -> Option<Rank> {
    rank.map(Rank::AtMost).or(error.map(Rank::Error))
}

pub(super) fn pool(threads: Option<usize>) -> Result<ThreadPool> {
    let threads = threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get));
    Ok(ThreadPool::new(threads)?)
}

pub(super) fn matrices(made: &Compressed) -> Vec<MatrixDocument> {
    let names = made.adapter.names();
    let rows = names.into_iter().zip(made.adapter.updates()).zip(&made.deviations);
    rows.map(|((name, update), deviation)| MatrixDocument {
        name,
        rank: update.rank,
        relative_error: deviation.relative(),
    })
    .collect()
}

/// Ranks, errors and size on one line.
pub(super) fn summary(made: &Compressed) -> String {
    let matrices = matrices(made);
    let ranks = || matrices.iter().map(|matrix| matrix.rank);
    let (least, most) = (ranks().min().unwrap_or(0), ranks().max().unwrap_or(0));
    let rank = if least == most { format!("rank {most}") } else { format!("ranks {least} to {most}") };
    let worst = matrices.iter().max_by(|a, b| a.relative_error.total_cmp(&b.relative_error));
    let worst = worst.map_or(String::new(), |worst| {
        format!(" (largest {:.2e}: {})", worst.relative_error, crate::error::printable(&worst.name))
    });
    format!(
        "{}, {rank}, relative error {:.2e}{worst}, {}",
        if matrices.len() == 1 { "1 matrix".to_owned() } else { format!("{} matrices", matrices.len()) },
        made.relative_error(),
        output::bytes(made.adapter.bytes() as u64)
    )
}
