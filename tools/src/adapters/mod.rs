//! LoRA adapters of the built-in model: their training, and what they and their merges do to
//! perplexity.

mod quality;
mod train;

pub(crate) use quality::{AdapterQualityArgs, adapter_quality};
pub(crate) use train::{TrainAdapterArgs, train_adapter};
