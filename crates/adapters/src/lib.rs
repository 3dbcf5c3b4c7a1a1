//! LoRA adapters: small changes to a model that are kept beside its weights.
//!
//! An adapter changes a product `y = W x` to `y = W x + s B A x`, where `A` and `B` have few rows and columns (Hu et al.,
//! arXiv 2106.09685). The weights stay as they are, quantized and mapped, so that sequences with different adapters share them.
//!
//! **What it is:** a [`LoraFile`] is what a PEFT folder or a GGUF adapter holds, checked. An [`Adapter`] is one or several of
//! them made ready for a [`BaseModel`]: factors of one input stacked, scales multiplied in, rows in the order of the model's
//! heads, all in pages of a [`PagePool`](ruvllm_memory::PagePool), so that adapters and caches share one budget. Its
//! [`LowRank`] parts do the two halves of a product.
//!
//! **What it is not:** it knows no tokens, layers' order of work or files of models. What an adapter is applied to is said by
//! the caller.
//!
//! # Example
//! ```no_run
//! use ruvllm_adapters::{Adapter, BaseModel, LoraFile, Part, Site};
//! use ruvllm_memory::{PagePool, Request};
//!
//! /// Two adapters as one; the second counts half.
//! fn both(base: &BaseModel, pool: &PagePool) -> ruvllm_adapters::Result<Adapter> {
//!     let style = LoraFile::open("style-lora".as_ref())?;
//!     let facts = LoraFile::open("facts-lora.gguf".as_ref())?;
//!     let parts = [Part { file: &style, scale: 1.0 }, Part { file: &facts, scale: 0.5 }];
//!     let adapter = Adapter::new(base, &parts, pool, &Request::default())?;
//!     let changed = adapter.at(0, Site::AttentionInput);
//!     println!("{} bytes; the first queries have rank {}", adapter.bytes(), changed.map_or(0, |low_rank| low_rank.rank()));
//!     Ok(adapter)
//! }
//! ```
//!
//! # Parts
//! ```text
//! LoraFile ── Update { projection, layer, A, B }        format/: peft.rs, gguf.rs
//!    └─Part─▶ Adapter ── at(layer, Site) ──▶ LowRank    adapter.rs, low_rank.rs
//! ```

#![forbid(unsafe_code)]

mod adapter;
mod error;
mod file;
mod format;
mod low_rank;
mod place;

pub use crate::adapter::{Adapter, Part};
pub use crate::error::{Error, Result};
pub use crate::file::{LoraFile, Update};
pub use crate::low_rank::LowRank;
pub use crate::place::{BaseModel, Projection, Site};
