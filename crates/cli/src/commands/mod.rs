//! One module per command: flags, implementation, text and JSON output.

pub(crate) mod adapter;
pub(crate) mod bench;
pub(crate) mod calibrate_kv;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod detokenize;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod eval;
pub(crate) mod generate;
mod gpu_report;
pub(crate) mod inspect;
pub(crate) mod load;
pub(crate) mod man;
pub(crate) mod offer;
pub(crate) mod quantize;
mod rewrite;
pub(crate) mod run;
pub(crate) mod session;
mod setup;
pub(crate) mod show;
pub(crate) mod store;
pub(crate) mod template;
pub(crate) mod tokenize;
pub(crate) mod witness;
