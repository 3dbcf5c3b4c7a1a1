//! Compact files of adapters with random factors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm::FactorFormat;
use ruvllm::crates::adapters::export::{AdapterFormat, FactorType, NewAdapter, NewUpdate};
use ruvllm::crates::adapters::{AdapterStore, BaseModel, LoraFile, Part, Projection};
use ruvllm_testkit::Random;

use crate::Failure;
use crate::args::Args;

/// Files in a temporary folder.
pub(crate) struct Files {
    paths: Vec<PathBuf>,
    /// Bytes of one adapter in F16.
    pub(crate) bytes: usize,
    _folder: tempfile::TempDir,
}

impl Files {
    pub(crate) fn write(base: &Arc<BaseModel>, args: &Args) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let store = AdapterStore::new(folder.path().join("adapters"));
        let source = folder.path().join("source");
        let (mut paths, mut bytes) = (Vec::new(), 0);
        for seed in 0..args.files {
            adapter(base, args, seed as u64)?.write(&source, true)?;
            let file = LoraFile::open(&source)?;
            let stored =
                store.add(&format!("file-{seed}"), base, &[Part { file: &file, scale: 1.0 }], "", false)?;
            bytes = stored.file.bytes(FactorFormat::F16).unwrap_or(0);
            paths.push(stored.file.path().to_owned());
        }
        Ok(Self { paths, bytes, _folder: folder })
    }

    pub(crate) fn path(&self, index: usize) -> &Path {
        &self.paths[index]
    }

    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }
}

fn adapter(base: &BaseModel, args: &Args, seed: u64) -> Result<NewAdapter, Failure> {
    let mut random = Random::new(seed);
    let mut updates = Vec::new();
    for layer in 0..base.n_layers {
        for &projection in args.modules.projections() {
            let (inputs, outputs) = match projection {
                Projection::Query => (base.model_dim, base.query_dim),
                Projection::Key | Projection::Value => (base.model_dim, base.kv_dim),
                Projection::AttentionOutput => (base.query_dim, base.model_dim),
                Projection::Down => (base.ffn_dim, base.model_dim),
                _ => (base.model_dim, base.ffn_dim),
            };
            let mut factor = |n: usize, size: f32| (0..n).map(|_| random.normal() * size).collect();
            updates.push(NewUpdate {
                projection,
                layer,
                peft_name: None,
                rank: args.rank,
                inputs,
                outputs,
                a: factor(args.rank * inputs, 1.0 / (inputs as f32).sqrt()),
                b: factor(args.rank * outputs, 0.1 / (args.rank as f32).sqrt()),
            });
        }
    }
    Ok(NewAdapter::new(AdapterFormat::Peft, None, FactorType::F16, updates)?)
}
