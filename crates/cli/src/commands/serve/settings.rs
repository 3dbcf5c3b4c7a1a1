//! Flags that set keys of the server's configuration.

use std::env;
use std::path::PathBuf;

use clap::Args;
use ruvllm_server::Config;
use ruvllm_server::config::Setting;

use crate::error::Result;

/// Options of address, keys and TLS.
#[derive(Debug, Args)]
pub(super) struct SettingsArgs {
    /// Configuration of the server: a TOML file, see docs/server-config.md
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Host name or IP address to listen at [default: 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,

    /// Port to listen at; 0 = a free one [default: 8080]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,

    /// Port for gRPC at the same host; 0 = a free one (builds with the feature `grpc`) [default:
    /// none]
    #[arg(long, value_name = "PORT")]
    grpc_port: Option<u16>,

    /// Exchange computed prompts with other servers over gRPC (keys with the scope `prefixes`)
    #[arg(long)]
    grpc_transfers: bool,

    /// Unix socket to listen at, in place of host and port
    #[arg(long, value_name = "FILE", conflicts_with_all = ["host", "port"])]
    unix: Option<PathBuf>,

    /// API keys: a file of `ruvllm key new` [default: every caller may do everything]
    #[arg(long, value_name = "FILE")]
    api_keys: Option<PathBuf>,

    /// Allow an address that other machines can reach without API keys
    #[arg(long)]
    allow_public: bool,

    /// TLS: PEM file of the certificate and its issuers
    #[arg(long, value_name = "FILE")]
    tls_certificate: Option<PathBuf>,

    /// TLS: PEM file of the private key
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
}

impl SettingsArgs {
    /// The configuration of file, environment and these flags.
    ///
    /// # Errors
    /// [`Error::Server`](crate::error::Error::Server).
    pub(super) fn config(&self) -> Result<Config> {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let settings = [
            ("listen.host", "--host", self.host.clone()),
            ("listen.port", "--port", self.port.map(|port| port.to_string())),
            ("grpc.port", "--grpc-port", self.grpc_port.map(|port| port.to_string())),
            ("grpc.transfers", "--grpc-transfers", self.grpc_transfers.then(|| "true".to_owned())),
            ("listen.unix", "--unix", path(&self.unix)),
            ("listen.allow_public", "--allow-public", self.allow_public.then(|| "true".to_owned())),
            ("keys.file", "--api-keys", path(&self.api_keys)),
            ("tls.certificate", "--tls-certificate", path(&self.tls_certificate)),
            ("tls.key", "--tls-key", path(&self.tls_key)),
        ];
        let flags =
            settings.into_iter().filter_map(|(key, flag, value)| Some(Setting::new(key, flag, value?)));
        let variables = env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let config = Config::load(self.config.as_deref(), variables, flags.collect());
        Ok(config.map_err(ruvllm_server::Error::from)?)
    }
}

/// The configured address as text.
pub(super) fn address(config: &Config) -> String {
    match &config.listen.unix {
        Some(path) => format!("unix:{}", path.display()),
        None => tcp(config, config.listen.port),
    }
}

/// The configured address of gRPC as text; `None` without gRPC.
pub(super) fn grpc_address(config: &Config) -> Option<String> {
    config.grpc.port.map(|port| tcp(config, port))
}

fn tcp(config: &Config, port: u16) -> String {
    let host = &config.listen.host;
    let scheme = if config.tls.certificate.is_some() { "https" } else { "http" };
    match host.contains(':') && !host.starts_with('[') {
        true => format!("{scheme}://[{host}]:{port}"),
        false => format!("{scheme}://{host}:{port}"),
    }
}
