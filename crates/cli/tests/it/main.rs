//! End-to-end tests of the `ruvllm` program, through the built binary only.

mod adapter_files;
mod adapter_gates;
mod adapter_store;
mod adapters;
mod agents;
mod bad_use;
mod bank;
mod bench;
mod calibrate_kv;
mod chat;
mod chat_terminal;
mod choices;
mod completions;
mod config;
mod console;
mod convert;
mod device;
mod doctor;
mod documents;
mod embed;
mod eval;
mod eval_kl;
mod failures;
mod families;
mod generate;
mod golden;
#[cfg(target_os = "linux")]
mod hostile;
mod imatrix;
mod inspect;
mod interrupt;
mod keys;
mod loading;
mod output_language;
mod pack;
#[cfg(unix)]
mod prefix_key;
mod program;
mod quantize;
#[cfg(unix)]
mod readme;
mod references;
mod rerank;
mod run;
mod schema;
#[cfg(unix)]
mod serve;
// The store's own tests use the rest of it.
#[allow(dead_code)]
#[path = "../../../hub/tests/it/server.rs"]
mod server;
mod sessions;
mod sona;
mod sona_curriculum;
mod sona_distill;
#[cfg(unix)]
mod sona_reward;
mod store;
mod template;
mod terminal_output;
mod thinking;
mod tokens;
mod tools;
mod usage;
mod witness;
