//! Fingerprint of a model's weights, part of the key of stored prefixes.

use gguf_rs_lite::Value;
use ruvllm_models::Checkpoint;
use ruvllm_models::quantize::Recipe;
use sha2::{Digest, Sha256};

/// Places of a tensor that are looked at.
const SAMPLES: usize = 16;

/// Bytes at each place.
const SAMPLE_BYTES: usize = 256;

/// The digits of a digest.
pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A hash of the metadata without its lists (vocabularies, which token ids do not depend on), and
/// of the name, type, shape and 16 places of every tensor. Files that differ in the weights of any
/// layer differ here, unless somebody makes them on purpose; all bytes of a large model would take
/// seconds at every start. Weights that are quantized while they are loaded follow from those of
/// the checkpoint and the recipe.
pub(crate) fn fingerprint(checkpoint: &dyn Checkpoint, quantized: Option<Recipe>) -> [u8; 32] {
    let mut hash = Sha256::new();
    if let Some(recipe) = quantized {
        hash.update(format!("quantized={};", recipe.name()));
    }
    for (key, value) in checkpoint.metadata().iter().filter(|(_, value)| !matches!(value, Value::Array(_))) {
        hash.update(format!("{key}={value:?};"));
    }
    for tensor in checkpoint.tensors() {
        hash.update(format!("{tensor:?}"));
        let Ok(data) = checkpoint.data(tensor) else { continue };
        let bytes = data.as_ref();
        for sample in 0..SAMPLES {
            let start = (bytes.len().saturating_sub(SAMPLE_BYTES)) * sample / (SAMPLES - 1);
            hash.update(&bytes[start..bytes.len().min(start + SAMPLE_BYTES)]);
        }
    }
    hash.finalize().into()
}
