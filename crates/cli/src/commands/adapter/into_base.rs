//! Merges that are added to the weights of a model.

use std::fs;
use std::path::Path;

use ruvllm_adapters::export::AdapterFormat;
use ruvllm_adapters::merge::{Input, Merge, Method};
use ruvllm_models::HfFolder;
use ruvllm_models::merge::{Folded, Types, write_folder};
use ruvllm_models::quantize::{QuantizeOptions, Recipe, convert, quantize};

use super::result;
use crate::commands::rewrite::Rewrite;
use crate::default_model::ModelChoice;
use crate::error::{Error, Result};

/// Model to which a merge is added, and the file or folder for the result.
pub(super) struct IntoBase<'a> {
    pub(super) base: &'a Path,
    pub(super) output: &'a Path,
    /// Type of all matrices; `None` keeps the type of each.
    pub(super) recipe: Option<Recipe>,
    pub(super) force: bool,
    pub(super) threads: Option<usize>,
}

impl IntoBase<'_> {
    /// Writes the model. Returns its type, its size in bytes and the number of changed matrices;
    /// `None` after Ctrl-C.
    pub(super) fn run(
        &self,
        inputs: &[Input<'_>],
        method: Method,
    ) -> Result<Option<(&'static str, u64, usize)>> {
        // Errors of the merge itself, before those of the file are looked for.
        let base = result::base_model(self.base)?;
        let changed = Merge::new(inputs, method, Some(&base), AdapterFormat::Gguf)?.modules().len();
        let job = Rewrite {
            action: "merge adapters with",
            input: self.base,
            output: self.output,
            force: self.force,
            threads: self.threads,
        };
        let kind = self.recipe.map_or("auto", |recipe| recipe.name());
        if !result::is_gguf(self.output) {
            return Ok(self.folder(&job, inputs, method)?.map(|bytes| (kind, bytes, changed)));
        }
        let checkpoint = ModelChoice::new(Some(self.base)).open()?;
        let written = job.run(|output, pool, progress| {
            let types = if self.recipe.is_some() { Types::F32 } else { Types::Base };
            let folded = Folded::new(&*checkpoint, inputs, method, types, pool)?;
            match self.recipe {
                Some(recipe) => {
                    quantize(&folded, output, recipe, &QuantizeOptions::default(), pool, progress)
                }
                None => convert(&folded, output, None, pool, progress),
            }
        })?;
        Ok(written.map(|(_, bytes)| (kind, bytes, changed)))
    }

    /// Writes a Hugging Face folder; returns the size of its files.
    fn folder(&self, job: &Rewrite<'_>, inputs: &[Input<'_>], method: Method) -> Result<Option<u64>> {
        if !self.base.is_dir() {
            let reason =
                "a folder with safetensors is written from a Hugging Face folder only; let OUT end in .gguf";
            return Err(Error::Conflict { flag: "--into-base", reason: reason.to_owned() });
        }
        let matrices = self.recipe.map(|recipe| result::factor_type(Some(recipe))).transpose()?;
        let folder = HfFolder::open(self.base)
            .map_err(|source| Error::Open { path: self.base.display().to_string(), source })?;
        let written = job.run(|output, pool, progress| {
            write_folder(&folder, inputs, method, output, matrices, pool, progress)
        })?;
        if written.is_none() {
            return Ok(None);
        }
        let failed = |source| Error::ReadFile { path: self.output.to_owned(), source };
        let sizes = fs::read_dir(self.output)
            .and_then(|entries| entries.map(|entry| Ok(entry?.metadata()?.len())).sum());
        sizes.map(Some).map_err(failed)
    }
}
