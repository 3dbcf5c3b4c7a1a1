//! The decoder against independent references and against itself, through the public API only.

mod adapter_final;
mod adapter_kv;
mod adapters;
mod configuration;
mod determinism;
mod families;
mod fixtures;
mod gates;
mod kv;
mod logits;
mod merge;
mod mutated;
mod quantized;
mod reference;
mod requests;
