//! GGUF adapters as llama.cpp loads them.

use std::path::Path;

use gguf_rs_lite::{Metadata, TensorInfo, TensorType, write_file};

use super::{FactorType, NewAdapter, NewUpdate, failed};
use crate::error::{Error, Result};
use crate::format::gguf::matrix_name;

/// The name of the matrix of an update.
pub(super) fn matrix(update: &NewUpdate) -> Result<String> {
    matrix_name(update.projection, update.layer)
        .ok_or(Error::Unnamed { format: "GGUF", projection: update.projection })
}

pub(super) fn write(adapter: &NewAdapter, path: &Path) -> Result<()> {
    let tensor_type = match adapter.factors {
        FactorType::F32 => TensorType::F32,
        FactorType::F16 => TensorType::F16,
        FactorType::BF16 => TensorType::BF16,
    };
    let (mut infos, mut data) = (Vec::new(), Vec::new());
    for update in &adapter.updates {
        let name = matrix(update)?;
        for (which, [cols, rows], values) in
            [("a", [update.inputs, update.rank], &update.a), ("b", [update.rank, update.outputs], &update.b)]
        {
            let info =
                TensorInfo::new(format!("{name}.lora_{which}"), [cols as u64, rows as u64], tensor_type);
            infos.push(info.map_err(failed(path))?);
            data.push(values);
        }
    }
    let names: Vec<String> = infos.iter().map(|info| info.name.clone()).collect();
    write_file(path, &metadata(adapter), infos, |writer| {
        names
            .iter()
            .zip(data)
            .try_for_each(|(name, values)| writer.write_tensor(name, &adapter.factors.bytes(values)))
    })
    .map_err(failed(path))
}

fn metadata(adapter: &NewAdapter) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("general.type", "adapter");
    metadata.insert("general.architecture", adapter.architecture.as_deref().unwrap_or_default());
    metadata.insert("adapter.type", "lora");
    let mut ranks = adapter.updates.iter().map(|update| update.rank);
    let first = ranks.next().unwrap_or(0);
    // Readers divide alpha by the rank of each matrix and take 0 for a scale of 1.
    let alpha = if ranks.all(|rank| rank == first) { first as f32 } else { 0.0 };
    metadata.insert("adapter.lora.alpha", alpha);
    metadata.insert(
        "general.file_type",
        match adapter.factors {
            FactorType::F32 => 0_u32,
            FactorType::F16 => 1,
            FactorType::BF16 => 32,
        },
    );
    metadata
}
