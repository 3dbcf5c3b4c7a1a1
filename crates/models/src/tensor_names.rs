//! Names of tensors: layers, embeddings, and the one that makes the logits.

use gguf_rs_lite::TensorInfo;

/// Name of the token embedding, `[vocab_size, model_dim]`.
pub(crate) const EMBEDDING: &str = "token_embd.weight";

/// Name of the table of embeddings per layer, `[vocab_size, n_layers * input_dim]`.
pub(crate) const LAYER_INPUTS: &str = "per_layer_token_embd.weight";

/// Name of the output matrix; without it, the embedding is the output matrix too.
pub(crate) const OUTPUT: &str = "output.weight";

/// Name of the tensor that makes the logits.
pub(crate) fn output_name<'a>(mut tensors: impl Iterator<Item = &'a TensorInfo>) -> &'static str {
    if tensors.any(|tensor| tensor.name == OUTPUT) { OUTPUT } else { EMBEDDING }
}

/// The layer in a name `blk.LAYER.`.
pub(crate) fn layer_of(name: &str) -> Option<u64> {
    let (layer, _) = name.strip_prefix("blk.")?.split_once('.')?;
    // A number that no file can have as many layers as counts as none, so that it can be counted up
    // from.
    layer.parse().ok().filter(|&layer| layer < u64::from(u32::MAX))
}
