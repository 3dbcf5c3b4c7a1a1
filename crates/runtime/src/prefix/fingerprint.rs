//! Fingerprint of a model's weights, part of the key of stored prefixes.

use gguf_rs_lite::Value;
use ruvllm_models::Checkpoint;
use ruvllm_models::quantize::Recipe;
use sha2::{Digest, Sha256};

/// Samples per tensor.
const SAMPLES: usize = 16;

/// Bytes per sample.
const SAMPLE_BYTES: usize = 256;

/// Hexadecimal digits of a digest.
pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 over the metadata without lists (vocabularies do not affect token ids) and over name,
/// type, shape and 16 samples of every tensor. Detects different weights in any layer, except on
/// deliberate collision; hashing all bytes of a large model would take seconds at every start.
/// Weights quantized while loading are determined by checkpoint and recipe.
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
