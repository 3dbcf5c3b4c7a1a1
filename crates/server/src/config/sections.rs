//! Sections of the configuration with their defaults.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::values::{Bytes, Seconds};

/// `[listen]`: the address that the server accepts connections at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    /// Host name or IP address.
    pub host: String,
    /// TCP port; 0 takes a free one.
    pub port: u16,
    /// Path of a Unix socket, which takes the place of host and port.
    pub unix: Option<PathBuf>,
    /// Allows addresses other than loopback without API keys.
    pub allow_public: bool,
    /// Domain names that a server without keys answers to, besides addresses and local names.
    pub hosts: Vec<String>,
}

impl Default for Listen {
    fn default() -> Self {
        Self { host: "127.0.0.1".to_owned(), port: 8080, unix: None, allow_public: false, hosts: Vec::new() }
    }
}

/// `[grpc]`: gRPC beside HTTP, at the same host with the same certificate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grpc {
    /// TCP port; 0 takes a free one; absent: no gRPC.
    pub port: Option<u16>,
    /// Exchanges prefixes with other servers.
    pub transfers: bool,
}

/// `[tls]`: certificate and private key, both in PEM.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// File of the certificate and those of its issuers.
    pub certificate: Option<PathBuf>,
    /// File of the private key.
    pub key: Option<PathBuf>,
}

/// `[keys]`: API keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeyFiles {
    /// File of `ruvllm key`; without it every caller may do everything.
    pub file: Option<PathBuf>,
}

/// `[limits]`: bounds of connections and requests, the same for every tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Request body.
    pub body_bytes: Bytes,
    /// Request line and headers together.
    pub header_bytes: Bytes,
    /// Headers of a request.
    pub headers: usize,
    /// Nesting of arrays and objects in a request.
    pub json_depth: usize,
    /// Messages of a conversation, prompts or texts to embed of one request.
    pub items: usize,
    /// Choices of all prompts of one request.
    pub choices: usize,
    /// Output tokens of a choice; absent: the context length.
    pub output_tokens: Option<usize>,
    /// Time of a request from its submission to its last token.
    pub request_timeout_s: Seconds,
    /// Time for a TLS handshake, and from a request's first byte to the end of its headers.
    pub header_timeout_s: Seconds,
    /// Time for a request body to arrive.
    pub body_timeout_s: Seconds,
    /// Time that a connection may stay open without a request.
    pub idle_timeout_s: Seconds,
    /// Time that a client may read nothing while output waits for it.
    pub write_timeout_s: Seconds,
    /// Time that running requests have to end at shutdown.
    pub drain_timeout_s: Seconds,
    /// Open connections.
    pub connections: usize,
    /// Open connections of one address (IPv6: of one /64 network).
    pub connections_per_address: usize,
    /// Requests that run or wait; further ones are refused with 503.
    pub requests: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: Bytes(32 << 20),
            header_bytes: Bytes(32 << 10),
            headers: 100,
            json_depth: 64,
            items: 4096,
            choices: 128,
            output_tokens: None,
            request_timeout_s: Seconds::new(600),
            header_timeout_s: Seconds::new(10),
            body_timeout_s: Seconds::new(30),
            idle_timeout_s: Seconds::new(75),
            write_timeout_s: Seconds::new(30),
            drain_timeout_s: Seconds::new(30),
            connections: 4096,
            connections_per_address: 1024,
            requests: 1024,
        }
    }
}

/// Smallest similarity of a task and that of a lesson unless a tenant sets one: with the built-in
/// model 95 % of pairs of unrelated texts are below 0.68 (docs/routing.md).
pub(crate) const MEMORY_SIMILARITY: f32 = 0.7;

/// `[tenants.NAME]`: limits of one tenant; absent ones are unlimited. `[tenants.default]` holds for
/// tenants without a section.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tenant {
    /// Requests per minute, as a token bucket of that size.
    pub requests_per_minute: Option<u32>,
    /// Prompt and output tokens per minute, as a token bucket of that size.
    pub tokens_per_minute: Option<u32>,
    /// Requests that run or wait at once.
    pub concurrent_requests: Option<u32>,
    /// Share of each model's KV-cache budget, above 0 to 1.
    pub kv_share: Option<f64>,
    /// Records requests for feedback, which teaches adapters of this tenant. Needs `[learning]`.
    pub learning: bool,
    /// Lessons per minute, as a token bucket of that size.
    pub lessons_per_minute: Option<u32>,
    /// Allows requests to ask for lessons of this tenant's bank. Needs `[learning]`.
    pub memory: bool,
    /// Smallest cosine similarity of a task and that of a lesson, 0 to 1; absent: 0.7.
    pub memory_similarity: Option<f32>,
}

/// `[learning]`: adapters that learn from the feedback of tenants.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Learning {
    /// Folder of requests, feedback and what was learned; without it nothing learns.
    pub folder: Option<PathBuf>,
    /// Largest share of the time that lessons of a model take while it answers, above 0 to 1;
    /// absent: 0.01.
    pub share: Option<f64>,
    /// Largest share of one CPU that the consolidation of lessons takes, 0 to 1; 0: none. Absent:
    /// 0.1.
    pub background_share: Option<f64>,
    /// New lessons of an adapter from which on they are consolidated. Absent: 64.
    pub consolidation_lessons: Option<u64>,
}

/// `[tuning]`: settings of each model's step loop that follow the load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tuning {
    /// Moves the largest batch and prefill chunk by measured gains; decisions are logged.
    pub enabled: bool,
    /// Moves the longest draft of speculative decoding too.
    pub drafts: bool,
}

/// `[cors]`: origins whose pages may call the server from a browser.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cors {
    /// Origins such as `https://chat.example.org`, or `*` for all.
    pub origins: Vec<String>,
}

/// Handling of records when the queue of the witness log is full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FullQueue {
    /// Requests wait until there is room.
    #[default]
    Wait,
    /// Records are dropped and counted.
    Drop,
}

/// `[witness]`: the log of who asked what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Witness {
    /// Folder of the log; without it there is none.
    pub folder: Option<PathBuf>,
    /// Records that wait to be written.
    pub queue: usize,
    /// Handling of a full queue: `wait` or `drop`.
    pub full_queue: FullQueue,
    /// Syncs each batch to the disk.
    pub fsync: bool,
    /// Records prompts and outputs as text, not only as hashes.
    pub text: bool,
    /// Size after which a new file is begun.
    pub rotate_bytes: Bytes,
    /// File of the Ed25519 key that signs checkpoints.
    pub key: Option<PathBuf>,
}

impl Default for Witness {
    fn default() -> Self {
        Self {
            folder: None,
            queue: 10_000,
            full_queue: FullQueue::Wait,
            fsync: false,
            text: false,
            rotate_bytes: Bytes(64 << 20),
            key: None,
        }
    }
}

/// `[[models]]`: a model that requests can name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// Name in requests; absent: the last part of the path.
    pub name: Option<String>,
    /// Further names in requests; `*` stands for every name that no model has.
    pub aliases: Vec<String>,
    /// GGUF file, folder, or name of a pulled model; absent: the built-in model.
    pub path: Option<String>,
    /// Context length in tokens; absent: the model's.
    pub context: Option<usize>,
    /// KV-cache type, as `--kv`.
    pub kv: Option<String>,
    /// Memory budget of the KV cache.
    pub kv_budget: Option<Bytes>,
    /// Threads; absent: one for each core.
    pub threads: Option<usize>,
    /// LoRA adapters: name in requests and compact file, or name in the store of adapters.
    pub adapters: BTreeMap<String, String>,
    /// Draft for speculative decoding, as `--draft`.
    pub draft: Option<String>,
    /// Loads the model at the start and keeps it; else its first request loads it, and it is
    /// unloaded when `memory_limit` needs its room.
    pub keep: bool,
}

/// `[folders]`: folders that requests can reach files in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Folders {
    /// Adapters that `/v1/adapters` may load; absent: those of the configuration alone.
    pub adapters: Option<PathBuf>,
    /// Sessions of callers; absent: sessions stay in memory.
    pub sessions: Option<PathBuf>,
    /// Time after which changed sessions are written.
    pub sessions_interval_s: Seconds,
}

impl Default for Folders {
    fn default() -> Self {
        Self { adapters: None, sessions: None, sessions_interval_s: Seconds::new(10) }
    }
}

/// `[metrics]`: metrics for Prometheus.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Labels requests and tokens with their tenant: time series for each tenant.
    pub tenants: bool,
}

/// Form of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// One line for a person.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Least severity of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Failures of the server.
    Error,
    /// Also what needs attention.
    Warn,
    /// Also a line per request.
    #[default]
    Info,
    /// Also connections and their ends.
    Debug,
}

/// `[log]`: log lines on standard error.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// `text` or `json`.
    pub format: LogFormat,
    /// `error`, `warn`, `info` or `debug`.
    pub level: LogLevel,
}
