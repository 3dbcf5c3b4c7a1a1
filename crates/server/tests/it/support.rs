//! A server with a few routes, and a client that sends bytes.

use std::convert::Infallible;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use http_body::Frame;
use ruvllm::{EngineOptions, ModelSource};
use ruvllm_server::config::Config;
use ruvllm_server::{Address, Error, ModelEntry, ReloadHandle, Server, ShutdownHandle};
use tokio::sync::watch;

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

/// Counts of the routes of [`TestServer::start`], and the gate of `/v1/wait`.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Requests of `/v1/count`.
    pub(crate) counted: Arc<AtomicUsize>,
    /// Bodies of `/v1/stream` that are not over.
    pub(crate) streams: Arc<AtomicUsize>,
    /// Requests of `/v1/wait` that wait.
    pub(crate) waiting: Arc<AtomicUsize>,
    /// True lets the requests of `/v1/wait` go on.
    pub(crate) release: watch::Sender<bool>,
}

/// A server that runs in a thread.
pub(crate) struct TestServer {
    pub(crate) address: Address,
    pub(crate) shutdown: ShutdownHandle,
    pub(crate) reload: ReloadHandle,
    pub(crate) seen: Seen,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl TestServer {
    /// Starts a server on a free port with the settings of a TOML text.
    pub(crate) fn start(settings: &str) -> Self {
        let config = Config::from_toml(settings).unwrap();
        Self::with_config(on_free_port(config))
    }

    pub(crate) fn with_config(config: Config) -> Self {
        let seen = Seen {
            counted: Arc::default(),
            streams: Arc::default(),
            waiting: Arc::default(),
            release: watch::Sender::new(false),
        };
        let routes = routes(&seen);
        Self::of(Server::with_routes(config, routes).unwrap(), seen)
    }

    /// Starts a server with the API over the built-in model.
    pub(crate) fn with_api(settings: &str) -> Self {
        Self::with_api_of(Config::from_toml(settings).unwrap())
    }

    /// As [`TestServer::with_api`].
    pub(crate) fn with_api_of(config: Config) -> Self {
        let config = on_free_port(config);
        let options = EngineOptions::default().with_threads(1).with_kv_budget(64 << 20);
        let bytes = ruvllm_default_model::gguf();
        let source = ModelSource::Static { name: "base".to_owned(), bytes };
        let model = ModelEntry::new("base", source, options);
        let seen = Seen {
            counted: Arc::default(),
            streams: Arc::default(),
            waiting: Arc::default(),
            release: watch::Sender::new(false),
        };
        Self::of(Server::bind(config, vec![model]).unwrap(), seen)
    }

    fn of(server: Server, seen: Seen) -> Self {
        let (address, shutdown, reload) =
            (server.address().clone(), server.shutdown_handle(), server.reload_handle());
        let thread = Some(thread::spawn(move || server.run()));
        Self { address, shutdown, reload, seen, thread }
    }

    pub(crate) fn tcp(&self) -> SocketAddr {
        self.address.tcp().unwrap()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.tcp()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes and reads to the end of the connection.
    pub(crate) fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        read_all(&mut stream)
    }

    /// A request on a connection of its own.
    pub(crate) fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> Response {
        let length = body.len();
        Response(self.exchange(
            format!(
                "{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\n\
                 content-length: {length}\r\n{headers}\r\n{body}"
            )
            .as_bytes(),
        ))
    }

    /// Waits for the end of the server.
    pub(crate) fn join(mut self) {
        self.thread.take().unwrap().join().unwrap().unwrap();
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

fn on_free_port(mut config: Config) -> Config {
    config.listen.port = 0;
    config
}

/// A response as text.
#[derive(Debug)]
pub(crate) struct Response(pub(crate) String);

impl Response {
    pub(crate) fn status(&self) -> u16 {
        self.0.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let (head, _) = self.0.split_once("\r\n\r\n")?;
        head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn error(&self) -> serde_json::Value {
        let body = self.0.split_once("\r\n\r\n").unwrap().1;
        serde_json::from_str::<serde_json::Value>(body).unwrap()["error"].clone()
    }
}

/// Reads until the server closes the connection. A reset counts as its end.
pub(crate) fn read_all(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof) => {
                break;
            }
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads one response with a length, which leaves the connection open.
pub(crate) fn read_response(stream: &mut impl Read) -> Response {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    let head = Response(String::from_utf8(bytes).unwrap());
    let mut body = vec![0; head.header("content-length").map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    Response(head.0 + std::str::from_utf8(&body).unwrap())
}

fn routes(seen: &Seen) -> Router {
    let (counted, streams, wait) = (Arc::clone(&seen.counted), Arc::clone(&seen.streams), seen.clone());
    Router::new()
        .route("/health", get(|| async { "ok" }))
        .route("/metrics", get(|| async { "metrics" }))
        .route("/v1/echo", post(|body: Bytes| async move { body }))
        .route(
            "/v1/count",
            get(move || async move {
                counted.fetch_add(1, Ordering::SeqCst);
                "counted"
            }),
        )
        .route("/v1/stream", get(move || async move { Body::new(Endless::new(streams)) }))
        .route(
            "/v1/wait",
            get(move || async move {
                wait.waiting.fetch_add(1, Ordering::SeqCst);
                let _ = wait.release.subscribe().wait_for(|released| *released).await;
                "released"
            }),
        )
}

/// A body without an end, which counts itself while it lives.
struct Endless(Arc<AtomicUsize>);

impl Endless {
    fn new(count: Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 16 << 10])))))
    }
}
