//! The GPU backend on the best adapter, software adapters included, against float64 references and
//! the engine.
//!
//! Without an adapter the tests print a line and pass, unless `RUVLLM_GPU_REQUIRED` is set.

mod adapter_sites;
mod adapters;
mod ahead;
mod batches;
mod combined;
mod differing;
mod draft_models;
mod drafts;
mod families;
mod heads;
mod kv;
mod layers;
mod memory;
mod mixtures;
mod parts;
mod prediction_heads;
mod prefixes;
mod quantized;
mod refused;
mod sequences;
mod state_drafts;
mod state_prefixes;
mod states;
mod support;
