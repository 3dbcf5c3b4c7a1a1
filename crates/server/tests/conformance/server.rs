//! The server of the cases: the built-in model on a free port.

use std::thread;

use ruvllm::{EngineOptions, ModelSource};
use ruvllm_server::config::Config;
use ruvllm_server::{ModelEntry, Server};

use crate::client::Client;

/// Starts the server, which ends with the process, and a client of it.
pub(crate) fn start() -> Client {
    start_with(256 << 20)
}

/// As [`start`], with this budget for keys and values in bytes.
pub(crate) fn start_with(kv_budget: usize) -> Client {
    let config = Config::from_toml("listen.port = 0\n[log]\nlevel = \"error\"").expect("a configuration");
    let options = EngineOptions::default().with_threads(2).with_kv_budget(kv_budget);
    let source = ModelSource::Static { name: "base".to_owned(), bytes: ruvllm_default_model::gguf() };
    let mut entry = ModelEntry::new("base", source, options);
    entry.keep = true;
    let server = Server::bind(config, vec![entry]).expect("a server");
    let url = server.address().to_string();
    thread::spawn(move || server.run());
    Client::new(url)
}
