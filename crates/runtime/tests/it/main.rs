//! Integration tests of the public API, on tiny models with random weights and on the default
//! model.

mod adapters;
mod backend;
mod backend_heads;
mod batching;
mod bench;
mod calibrate;
mod choices;
mod common;
mod compare;
mod conversation;
mod doors;
mod embed;
mod evaluate;
mod fields;
mod generate;
mod greedy_tokens;
mod hybrid;
mod importance;
mod layer_kinds;
mod learning;
mod load;
mod logprobs;
mod named_adapters;
mod passkey;
mod precision;
mod prediction_heads;
mod prefix;
mod prefix_events;
mod prefix_transfer;
mod pressure;
mod prompt_logprobs;
mod rerank;
mod rerank_decoder;
mod row_kernels;
mod sessions;
mod speculation;
mod stream;
#[cfg(feature = "structured-output")]
mod structured;
mod tenants;
mod thinking;
#[cfg(feature = "structured-output")]
mod tools;
mod tuning;
mod usage;
