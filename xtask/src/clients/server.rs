//! The server under test: one that runs already, or a child with a configuration of its own.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use super::ServerArgs;
use crate::process::CommandLine;
use crate::{Error, Result, Workspace, fixtures};

/// Gauge of running requests.
pub(super) const RUNNING: &str = "ruvllm_requests_running";

/// Counter of generated tokens.
pub(super) const GENERATED: &str = "ruvllm_output_tokens_total";

/// The model of the configuration.
pub(super) const MODEL_FILE: &str = "models/base-q8_0.gguf";

/// KV-cache type of the configuration.
pub(super) const KV: &str = "f16";

/// The embedding model of the configuration: random weights.
const ENCODER: &str = "crates/models/tests/data/encoder/bert";

/// Requests per minute of the limited tenant: a bucket that a client empties, and refills in
/// seconds.
const LIMIT: u32 = 20;

/// Time for loading the model.
const START: Duration = Duration::from_secs(120);

const KEY: &str = "rk-clients-of-the-matrix";
const LIMITED_KEY: &str = "rk-clients-with-a-low-limit";

/// A server.
pub(super) struct Server {
    /// Address without `/v1`.
    pub(super) url: String,
    /// Host and port of gRPC; empty without it.
    pub(super) grpc: String,
    /// Key without limits.
    pub(super) key: String,
    /// Key of the limited tenant.
    pub(super) limited_key: String,
    /// Name of the model.
    pub(super) model: String,
    /// Name of the embedding model.
    pub(super) embedding_model: String,
    /// Gauge of running requests.
    pub(super) gauge: String,
    /// Counter of generated tokens.
    pub(super) counter: String,
    child: Option<Running>,
}

/// A server that ends with this value.
struct Running {
    child: Child,
    program: PathBuf,
    address: String,
    grpc: String,
    log: PathBuf,
}

impl Server {
    /// Program of a child.
    pub(super) fn program(&self) -> Result<&Path> {
        self.child.as_ref().map(|child| child.program.as_path()).ok_or(Error::NoProgram)
    }

    /// An error unless a child still answers.
    pub(super) fn check_alive(&self) -> Result<()> {
        match &self.child {
            Some(running) if !is_healthy(&running.address) => {
                Err(Error::ServerSilent { log: running.log.clone() })
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only where the server has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server of `--url`, or a new one with its files in `folder`.
pub(super) fn start(workspace: &Workspace, folder: &Path, args: &ServerArgs) -> Result<Server> {
    if let Some(url) = &args.url {
        return Ok(Server {
            url: url.trim_end_matches('/').to_owned(),
            grpc: args.grpc.clone(),
            key: args.key.clone(),
            limited_key: args.limited_key.clone(),
            model: args.model.clone(),
            embedding_model: args.model.clone(),
            gauge: args.gauge.clone(),
            counter: args.counter.clone(),
            child: None,
        });
    }
    let program = match &args.server {
        Some(program) => fs::canonicalize(program).map_err(Error::io("find", program))?,
        None => grpc_program(workspace)?,
    };
    let running = spawn(workspace, folder, program)?;
    Ok(Server {
        url: format!("http://{}", running.address),
        grpc: running.grpc.clone(),
        key: KEY.to_owned(),
        limited_key: LIMITED_KEY.to_owned(),
        model: "base".to_owned(),
        embedding_model: "encoder".to_owned(),
        gauge: args.gauge.clone(),
        counter: args.counter.clone(),
        child: Some(running),
    })
}

/// Builds the program with gRPC.
pub(crate) fn grpc_program(workspace: &Workspace) -> Result<PathBuf> {
    CommandLine::cargo(workspace)
        .args([
            "build",
            "--package",
            "ruvllm-cli",
            "--features",
            "grpc",
            "--locked",
            "--quiet",
            "--target-dir",
            "target",
        ])
        .run()?;
    Ok(workspace.path("target/debug/ruvllm"))
}

/// Starts a server on free ports and waits until it answers.
fn spawn(workspace: &Workspace, folder: &Path, program: PathBuf) -> Result<Running> {
    let (port, grpc) = (free_port()?, free_port()?);
    let keys = folder.join("keys.toml");
    write(&keys, &key_file())?;
    let config = folder.join("server.toml");
    write(&config, &configuration(workspace, port, grpc, &keys))?;
    let log = folder.join("server.log");
    let output = File::create(&log).map_err(Error::io("create", &log))?;
    let mut command = Command::new(&program);
    command.arg("serve").arg("--config").arg(&config);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    let shown = format!("{} serve --config {}", program.display(), config.display());
    let child = command.spawn().map_err(|source| Error::Start { command: shown, source })?;
    let (address, grpc) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{grpc}"));
    let mut running = Running { child, program, address, grpc, log };
    let end = Instant::now() + START;
    while !is_healthy(&running.address) {
        let ended = running.child.try_wait().is_ok_and(|status| status.is_some());
        if ended || Instant::now() > end {
            return Err(Error::ServerSilent { log: running.log.clone() });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(running)
}

/// A port that is free now.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::io("open", "127.0.0.1:0"))?;
    listener.local_addr().map(|address| address.port()).map_err(Error::io("open", "127.0.0.1:0"))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Error::io("write", path))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // The server warns of keys that others can read.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(Error::io("write", path))?;
    }
    Ok(())
}

/// Configuration of the server.
fn configuration(workspace: &Workspace, port: u16, grpc: u16, keys: &Path) -> String {
    let path = |relative: &str| workspace.path(relative).display().to_string();
    format!(
        "[listen]\nport = {port}\n\n\
         [grpc]\nport = {grpc}\n\n\
         [keys]\nfile = {keys:?}\n\n\
         [tenants.limited]\nrequests_per_minute = {LIMIT}\n\n\
         [[models]]\nname = \"base\"\npath = {model:?}\nkv = {KV:?}\nkeep = true\n\n\
         [[models]]\nname = \"encoder\"\npath = {encoder:?}\n",
        keys = keys.display().to_string(),
        model = path(MODEL_FILE),
        encoder = path(ENCODER),
    )
}

/// Keys file with both keys.
fn key_file() -> String {
    let entry = |name: &str, tenant: &str, secret: &str| {
        format!(
            "[[keys]]\nname = {name:?}\ntenant = {tenant:?}\nhash = \"sha256:{}\"\n\
             scopes = [\"inference\", \"adapters\", \"sessions\", \"metrics\", \"admin\"]\n\
             created = 2026-01-01T00:00:00Z\n\n",
            fixtures::hex(&Sha256::digest(secret))
        )
    };
    entry("clients", "clients", KEY) + &entry("limited", "limited", LIMITED_KEY)
}

/// True if `GET /health` has status 200.
fn is_healthy(address: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        write!(stream, "GET /health HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        Ok(reply.starts_with("HTTP/1.1 200"))
    };
    ask().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_and_keys_are_toml() {
        let workspace = Workspace::at("/some \"where\"");
        let config: toml::Table =
            configuration(&workspace, 80, 81, Path::new("/keys")).parse().expect("a configuration");
        assert_eq!(config["models"][0]["path"].as_str(), Some("/some \"where\"/models/base-q8_0.gguf"));
        let keys: toml::Table = key_file().parse().expect("keys");
        assert_eq!(keys["keys"].as_array().map(Vec::len), Some(2));
        assert!(!key_file().contains(KEY), "the key itself");
    }
}
