//! Work per token, from the model's file: operations of prefill, bytes read by decode.

use std::path::Path;

use gguf_rs_lite::{Gguf, Metadata, TensorType};

use super::kv::Kv;
use crate::{Error, Result};

/// Sizes of a decoder, from which operations and bytes follow. Of a mixture, those of as many
/// experts as a token has; products of states are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ModelFacts {
    pub(super) file_bytes: u64,
    /// True if most weights are of a type with int8 products.
    pub(super) is_quantized: bool,
    /// Values of the matrices used for every token.
    layer_values: u64,
    layer_bytes: u64,
    /// Values of the output matrix, used only for the last token of a prompt.
    head_values: u64,
    head_bytes: u64,
    /// Query values per token over all layers; then key plus value elements.
    query_width: u64,
    kv_width: u64,
}

impl ModelFacts {
    /// Reads the header of `path`.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let model = Gguf::open(path).map_err(|source| Error::ReadModel { path: path.to_owned(), source })?;
        let mut facts = Self { file_bytes: model.file_bytes(), ..Self::default() };
        let mut float_values = 0;
        let has_head = model.tensor("output.weight").is_some();
        let (used, count) = experts(model.metadata()).unwrap_or((1, 1));
        for tensor in model.tensors() {
            let active = |all: u64| if tensor.name.contains("_exps.") { all / count * used } else { all };
            let is_matrix = tensor.dims.len() > 1;
            let is_head = tensor.name == if has_head { "output.weight" } else { "token_embd.weight" };
            if is_head {
                (facts.head_values, facts.head_bytes) = (tensor.elements(), tensor.bytes());
            } else if tensor.name.starts_with("blk.") {
                facts.layer_bytes += active(tensor.bytes());
                if is_matrix {
                    facts.layer_values += active(tensor.elements());
                }
            }
            if is_matrix && matches!(tensor.tensor_type, TensorType::F32 | TensorType::F16 | TensorType::BF16)
            {
                float_values += active(tensor.elements());
            }
        }
        facts.is_quantized = float_values < facts.layer_values.div_ceil(2);
        (facts.query_width, facts.kv_width) = attention_widths(model.metadata()).unwrap_or_default();
        Ok(facts)
    }

    /// Operations (two per multiply-add) of a prompt of `tokens` after `depth` tokens: matrices and
    /// attention.
    pub(super) fn prefill_ops(&self, tokens: usize, depth: usize) -> f64 {
        let n = tokens as f64;
        let matrices = 2.0 * (self.layer_values as f64 * n + self.head_values as f64);
        // A query attends to itself and all earlier tokens; score and weighted sum take four
        // operations per dimension.
        let pairs = n * depth as f64 + n * (n + 1.0) / 2.0;
        matrices + 4.0 * self.query_width as f64 * pairs
    }

    /// Bytes read by `tokens` decoded tokens after `depth` tokens: all weights once per token, and
    /// the KV cache.
    pub(super) fn decode_bytes(&self, tokens: usize, depth: usize, kv: Kv) -> f64 {
        let n = tokens as f64;
        let keys = n * depth as f64 + n * (n + 1.0) / 2.0;
        (self.layer_bytes + self.head_bytes) as f64 * n
            + self.kv_width as f64 * kv.bytes_per_value(depth) * keys
    }

    /// A model of a gigabyte.
    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        Self {
            file_bytes: 1_100_000_000,
            is_quantized: true,
            layer_values: 900_000_000,
            layer_bytes: 900_000_000,
            head_values: 100_000_000,
            head_bytes: 100_000_000,
            query_width: 32_768,
            kv_width: 16_384,
        }
    }
}

/// Experts of a token, and of a layer; `None` without experts.
fn experts(metadata: &Metadata) -> Option<(u64, u64)> {
    let architecture = metadata.get_str("general.architecture").ok()??;
    let number = |key: &str| metadata.get_u64(&format!("{architecture}.{key}")).ok().flatten();
    Some((number("expert_used_count")?, number("expert_count").filter(|&count| count > 0)?))
}

/// Query values and key plus value elements of one token over all layers; `None` where the file
/// does not say.
fn attention_widths(metadata: &Metadata) -> Option<(u64, u64)> {
    let architecture = metadata.get_str("general.architecture").ok()??;
    let number = |key: &str| metadata.get_u64(&format!("{architecture}.{key}")).ok().flatten();
    let (layers, heads) = (number("block_count")?, number("attention.head_count")?);
    let layers = layers / number("full_attention_interval").unwrap_or(1).max(1);
    let kv_heads = number("attention.head_count_kv").unwrap_or(heads);
    let head_dim = match number("attention.key_length") {
        Some(head_dim) => head_dim,
        None => number("embedding_length")?.checked_div(heads)?,
    };
    Some((layers * heads * head_dim, layers * kv_heads * head_dim * 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_rs_lite::{TensorInfo, write_file};

    #[test]
    fn facts_come_from_the_header() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("m.gguf");
        let write = |metadata: &Metadata, tensors: Vec<TensorInfo>| {
            let sizes: Vec<(String, usize)> =
                tensors.iter().map(|tensor| (tensor.name.clone(), tensor.bytes() as usize)).collect();
            write_file(&path, metadata, tensors, |writer| {
                sizes.iter().try_for_each(|(name, bytes)| writer.write_tensor(name, &vec![0; *bytes]))
            })
            .expect("a file");
            ModelFacts::read(&path).expect("facts")
        };
        let mut metadata: Metadata = [("general.architecture", "llama")].into_iter().collect();
        for (key, value) in [("block_count", 1u32), ("attention.head_count", 4), ("embedding_length", 64)] {
            metadata.insert(format!("llama.{key}"), value);
        }
        metadata.insert("llama.attention.head_count_kv", 2u32);
        let tensors = [
            TensorInfo::new("token_embd.weight", [64, 10], TensorType::F16).expect("a tensor"),
            TensorInfo::new("blk.0.attn_norm.weight", [64], TensorType::F32).expect("a tensor"),
            TensorInfo::new("blk.0.ffn_up.weight", [64, 32], TensorType::Q8_0).expect("a tensor"),
        ];
        let facts = write(&metadata, tensors.to_vec());
        assert!(facts.is_quantized);
        // 2 per value of the matrix, the head once (tied embeddings), 4 x 64 x (1 + 2) pairs of
        // queries and keys.
        assert_eq!(facts.prefill_ops(2, 0), 2.0 * (2048.0 * 2.0 + 640.0) + 4.0 * 64.0 * 3.0);
        // 64 rows of 34 bytes, the norm, the head; two KV heads of 16, keys and values, half
        // precision.
        let weights = 64.0 * 34.0 + 256.0 + 1280.0;
        assert_eq!(facts.decode_bytes(1, 10, Kv::F16), weights + 64.0 * 2.0 * 11.0);

        // Beside it two of eight experts.
        for (key, value) in [("expert_count", 8u32), ("expert_used_count", 2)] {
            metadata.insert(format!("llama.{key}"), value);
        }
        let mut tensors = tensors.to_vec();
        tensors
            .push(TensorInfo::new("blk.0.ffn_up_exps.weight", [64, 32, 8], TensorType::Q8_0).expect("one"));
        let mixture = write(&metadata, tensors);
        assert_eq!(mixture.prefill_ops(2, 0), facts.prefill_ops(2, 0) + 2.0 * 2.0 * 4096.0);
        let experts = 2.0 * 32.0 * 68.0;
        assert_eq!(mixture.decode_bytes(1, 10, Kv::F16), facts.decode_bytes(1, 10, Kv::F16) + experts);
    }

    #[test]
    fn a_missing_file_is_an_error_with_its_path() {
        let error = ModelFacts::read(Path::new("/no/model.gguf")).expect_err("no such file").to_string();
        assert!(error.contains("/no/model.gguf"), "{error}");
    }
}
