//! Adapters in GGUF files: `general.type` is `adapter`, `adapter.type` is `lora`, and a tensor
//! `NAME.weight` of the model has its factors in `NAME.weight.lora_a` and `NAME.weight.lora_b`.
//! Source: llama.cpp, `convert_lora_to_gguf.py`.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};
use ruvllm_kernels::quant::WeightFormat;

use super::refused::refused;
use crate::error::{Error, Result};
use crate::file::{Factor, LoraFile, Update};
use crate::place::{Projection, RowOrder};

/// The types that factors are stored in.
const FORMATS: [(TensorType, WeightFormat); 4] = [
    (TensorType::F32, WeightFormat::F32),
    (TensorType::F16, WeightFormat::F16),
    (TensorType::BF16, WeightFormat::BF16),
    (TensorType::Q8_0, WeightFormat::Q8_0),
];

/// Of several names of a projection, the first is written.
const PROJECTIONS: [(&str, Projection); 12] = [
    ("attn_q", Projection::Query),
    ("attn_k", Projection::Key),
    ("attn_v", Projection::Value),
    ("attn_qkv", Projection::QueryKeyValue),
    ("attn_output", Projection::AttentionOutput),
    ("ffn_gate", Projection::Gate),
    ("ffn_up", Projection::Up),
    ("ffn_down", Projection::Down),
    ("output", Projection::Logits),
    ("ffn_gate_shexp", Projection::Gate),
    ("ffn_up_shexp", Projection::Up),
    ("ffn_down_shexp", Projection::Down),
];

pub(crate) fn open(path: &Path) -> Result<LoraFile> {
    let gguf = Gguf::open(path).map_err(|source| unreadable(path, source))?;
    read(path, &gguf).map_err(|error| error.in_file(path))
}

fn read(path: &Path, gguf: &Gguf) -> Result<LoraFile> {
    let metadata = gguf.metadata();
    let text = |key| metadata.get_str(key).map_err(|source| unreadable(path, source));
    if text("general.type")? != Some("adapter") {
        return Err(Error::Model);
    }
    match text("adapter.type")? {
        Some("lora") => {}
        other => {
            return Err(Error::Unsupported {
                what: format!("adapter.type is {}", other.unwrap_or("missing")),
            });
        }
    }
    if metadata.contains("adapter.alora.invocation_tokens") {
        return Err(Error::Unsupported { what: "it begins behind certain tokens only (aLoRA)".to_owned() });
    }
    let alpha = metadata.get_f32("adapter.lora.alpha").map_err(|source| unreadable(path, source))?;
    let mut factors: BTreeMap<&str, [Option<&TensorInfo>; 2]> = BTreeMap::new();
    for info in gguf.tensors() {
        let (base, which) = match (info.name.strip_suffix(".lora_a"), info.name.strip_suffix(".lora_b")) {
            (Some(base), _) => (base, 0),
            (_, Some(base)) => (base, 1),
            _ => return Err(Error::UnexpectedTensor { name: info.name.clone() }),
        };
        factors.entry(base).or_default()[which] = Some(info);
    }
    let mut updates = Vec::with_capacity(factors.len());
    for (name, pair) in factors {
        let [Some(a), Some(b)] = pair else { return Err(Error::Half { name: name.to_owned() }) };
        let place = place(name).ok_or_else(|| refused(name))?;
        let factors = (factor(gguf, path, a)?, factor(gguf, path, b)?);
        // Without an alpha the product counts as it is.
        let scale = |rank| alpha.filter(|&alpha| alpha != 0.0).map_or(1.0, |alpha| alpha / rank as f32);
        updates.push(Update::new(name, place, factors, scale)?);
    }
    let architecture = text("general.architecture")?.map(str::to_owned);
    LoraFile::new(path, updates, RowOrder::Gguf, architecture)
}

fn unreadable(path: &Path, source: gguf_rs_lite::Error) -> Error {
    Error::Gguf { path: path.to_owned(), source: Box::new(source) }
}

/// The matrix of a name like `blk.3.attn_q.weight`.
pub(crate) fn place(name: &str) -> Option<(Projection, usize)> {
    let name = name.strip_suffix(".weight")?;
    let (layer, part) = match name.strip_prefix("blk.") {
        Some(rest) => {
            let (layer, part) = rest.split_once('.')?;
            (Some(layer.parse().ok()?), part)
        }
        None => (None, name),
    };
    let &(_, projection) = PROJECTIONS.iter().find(|(known, _)| *known == part)?;
    match (projection, layer) {
        (Projection::Logits, None) => Some((projection, 0)),
        (Projection::Logits, Some(_)) | (_, None) => None,
        (_, Some(layer)) => Some((projection, layer)),
    }
}

/// The name of a matrix, as `blk.3.attn_q.weight`. A joint gate and up projection has that of up.
pub(crate) fn matrix_name(projection: Projection, layer: usize) -> Option<String> {
    let stored = if projection == Projection::GateUp { Projection::Up } else { projection };
    let &(part, _) = PROJECTIONS.iter().find(|(_, known)| *known == stored)?;
    Some(match projection {
        Projection::Logits => format!("{part}.weight"),
        _ => format!("blk.{layer}.{part}.weight"),
    })
}

fn factor(gguf: &Gguf, path: &Path, info: &TensorInfo) -> Result<Factor> {
    let format = FORMATS.iter().find(|(known, _)| *known == info.tensor_type).map(|&(_, format)| format);
    let Some(format) = format else {
        return Err(Error::TensorType { name: info.name.clone(), found: info.tensor_type.name().to_owned() });
    };
    let &[cols, rows] = info.dims.as_slice() else {
        return Err(Error::NotAMatrix { name: info.name.clone() });
    };
    let data = gguf.data(info).map_err(|source| unreadable(path, source))?;
    // The reader has held the data, which are in memory, to the shape.
    Ok(Factor { format, rows: rows as usize, cols: cols as usize, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_gguf_lead_to_matrices() {
        let known = [
            ("blk.0.attn_q.weight", Some((Projection::Query, 0))),
            ("blk.31.ffn_down.weight", Some((Projection::Down, 31))),
            ("output.weight", Some((Projection::Logits, 0))),
            ("token_embd.weight", None),
            ("blk.0.output.weight", None),
            ("attn_q.weight", None),
            ("blk.x.attn_q.weight", None),
            ("blk.0.attn_q", None),
            ("blk.0.attn_norm.weight", None),
        ];
        for (name, expected) in known {
            assert_eq!(place(name), expected, "{name}");
        }
    }
}
