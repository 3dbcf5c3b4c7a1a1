//! A server over the built-in model with HTTP and gRPC, and a client of both.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use futures_core::Stream;
use ruvllm::{EngineOptions, ModelSource};
use ruvllm_server::auth::{KeyFile, Moment, Scope};
use ruvllm_server::{Config, Error, ModelEntry, Server, ShutdownHandle};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

use crate::proto::generate_event::Event;
use crate::proto::generate_request::Prompt;
use crate::proto::inference_client::InferenceClient;
use crate::proto::{Finish, GenerateEvent, GenerateRequest};

/// Longest wait for a state.
const PATIENCE: Duration = Duration::from_secs(20);

/// Polls until a condition holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A server that runs in a thread, and the runtime of its clients.
pub(crate) struct TestServer {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) shutdown: ShutdownHandle,
    runtime: Arc<Runtime>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl TestServer {
    /// Starts a server on free ports with the settings of a TOML text.
    pub(crate) fn start(settings: &str) -> Self {
        let mut config = Config::from_toml(settings).unwrap();
        config.listen.port = 0;
        config.grpc.port = Some(0);
        Self::of(config)
    }

    pub(crate) fn of(config: Config) -> Self {
        Self::with_options(config, EngineOptions::default())
    }

    /// With options of the engine.
    pub(crate) fn with_options(config: Config, options: EngineOptions) -> Self {
        let source = ModelSource::Static { name: "base".to_owned(), bytes: ruvllm_default_model::gguf() };
        let options = options.with_threads(1).with_kv_budget(64 << 20);
        let server = Server::bind(config, vec![ModelEntry::new("base", source, options)]).unwrap();
        let (http, grpc) = (server.address().tcp().unwrap(), server.grpc_address().unwrap().tcp().unwrap());
        let shutdown = server.shutdown_handle();
        let thread = Some(thread::spawn(move || server.run()));
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { http, grpc, shutdown, runtime: Arc::new(runtime), thread }
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// A connection of its own.
    pub(crate) fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap();
        self.run(endpoint.connect()).unwrap()
    }

    pub(crate) fn client(&self) -> InferenceClient<Channel> {
        InferenceClient::new(self.channel())
    }

    /// Starts a generation.
    pub(crate) fn generate(
        &self,
        request: impl tonic::IntoRequest<GenerateRequest>,
    ) -> Result<Streaming<GenerateEvent>, Status> {
        let mut client = self.client();
        Ok(self.run(client.generate(request))?.into_inner())
    }

    /// A whole generation.
    pub(crate) fn output(
        &self,
        request: impl tonic::IntoRequest<GenerateRequest>,
    ) -> Result<Vec<Output>, Status> {
        let mut events = self.generate(request)?;
        self.run(async {
            let mut outputs: Vec<Output> = Vec::new();
            while let Some(GenerateEvent { choice, event }) = events.message().await? {
                let choice = choice as usize;
                outputs.resize_with(outputs.len().max(choice + 1), Output::default);
                let output = &mut outputs[choice];
                assert!(output.finish.is_none(), "an event after the end of its choice");
                match event.unwrap() {
                    Event::Piece(piece) => {
                        output.text += &piece.text;
                        output.tokens.extend(piece.tokens);
                        output.logprobs.extend(piece.logprobs);
                    }
                    Event::ToolCall(part) => output.call += &part.arguments,
                    Event::Finish(finish) => output.finish = Some(finish),
                }
            }
            Ok(outputs)
        })
    }

    /// A request of the HTTP API; its status and body.
    pub(crate) fn http(&self, method: &str, path: &str, key: &str, body: &Value) -> (u16, String) {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let url = format!("http://{}{path}", self.http);
        let reply = match method {
            "GET" => agent.get(url).header("authorization", format!("Bearer {key}")).call(),
            _ => {
                let request = agent.post(url).header("content-type", "application/json");
                request.header("authorization", format!("Bearer {key}")).send(body.to_string())
            }
        };
        let mut reply = reply.unwrap();
        (reply.status().as_u16(), reply.body_mut().read_to_string().unwrap())
    }

    /// The JSON reply of the HTTP API.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let (status, text) = self.http("POST", path, "", body);
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Value of a sample in `/metrics`; 0 if there is none.
    pub(crate) fn metric(&self, sample: &str) -> f64 {
        let (_, text) = self.http("GET", "/metrics", "", &Value::Null);
        let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.trim().parse().unwrap())
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.shutdown.end();
        if let Some(thread) = self.thread.take()
            && !thread::panicking()
        {
            thread.join().unwrap().unwrap();
        }
    }
}

/// One choice.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<crate::proto::Logprobs>,
    /// Arguments of tool calls.
    pub(crate) call: String,
    pub(crate) finish: Option<Finish>,
}

impl Output {
    pub(crate) fn finish(&self) -> &Finish {
        self.finish.as_ref().unwrap()
    }
}

/// A request for so many tokens after a text.
pub(crate) fn prompt(text: &str, max_tokens: u32) -> GenerateRequest {
    let prompt = Some(Prompt::Text(text.to_owned()));
    GenerateRequest { prompt, max_tokens: Some(max_tokens), ..GenerateRequest::default() }
}

/// A request that runs until it is cancelled.
pub(crate) fn endless() -> GenerateRequest {
    GenerateRequest { ignore_eos: Some(true), max_tokens: None, ..prompt("Once upon a time", 0) }
}

/// A stream of messages that are there.
pub(crate) struct Messages<T>(std::vec::IntoIter<T>);

impl<T> Messages<T> {
    pub(crate) fn new(messages: Vec<T>) -> Self {
        Self(messages.into_iter())
    }
}

impl<T: Unpin> Stream for Messages<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<T>> {
        Poll::Ready(self.0.next())
    }
}

/// A message with a key.
pub(crate) fn with_key<T>(message: T, key: &str) -> Request<T> {
    let mut request = Request::new(message);
    let value: MetadataValue<_> = format!("Bearer {key}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    request
}

/// A keys file.
pub(crate) struct Keys {
    folder: tempfile::TempDir,
    file: KeyFile,
}

impl Keys {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), file: KeyFile::default() }
    }

    /// Adds a key of a tenant of the same name.
    pub(crate) fn add(&mut self, name: &str, scope: Scope) -> String {
        let now = Moment::new(SystemTime::now());
        let secret = self.file.add(name, name, [scope].into_iter().collect(), now, None).unwrap();
        std::fs::write(self.path(), self.file.to_text()).unwrap();
        secret.reveal().to_owned()
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("keys.toml")
    }

    pub(crate) fn settings(&self, rest: &str) -> String {
        format!("[keys]\nfile = '{}'\n{rest}", self.path().display())
    }
}
