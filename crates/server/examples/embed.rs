//! The server inside another program:
//! `cargo run --release -p ruvllm-server --example embed -- MODEL.gguf [PORT]`.

use ruvllm::{EngineOptions, ModelSource};
use ruvllm_server::config::Config;
use ruvllm_server::{ModelEntry, Server};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().ok_or("usage: embed MODEL.gguf [PORT]")?;
    let port = args.next().unwrap_or_else(|| "8080".to_owned());
    let config = Config::from_toml(&format!("listen.port = {port}"))?;
    let mut entry = ModelEntry::new("default", ModelSource::from(model), EngineOptions::default());
    entry.keep = true;
    let server = Server::bind(config, vec![entry])?.with_signals()?;
    eprintln!("listening at {}", server.address());
    server.run()?;
    Ok(())
}
