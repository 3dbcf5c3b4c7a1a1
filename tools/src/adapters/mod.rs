//! LoRA adapters of the built-in model: their training.

mod train;

pub(crate) use train::{TrainAdapterArgs, train_adapter};
