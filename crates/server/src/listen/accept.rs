//! Accept loops, and the end of a listener.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use parking_lot::RwLock;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::ConnectionLimits;
use super::address::{self, Address, Socket};
use super::connection::{self, Peer};
use super::counts::Connections;
#[cfg(feature = "grpc")]
use super::http2;
use super::race::{First, race};
use super::shutdown::{ShutdownHandle, Stage};
use super::tls::Certificate;
use crate::config::Config;
use crate::error::Error;

/// Reply to a client that speaks HTTP to a TLS port.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n\
    content-length: 55\r\n\r\nthis port speaks TLS: use https:// in the URL, not http";

/// First byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;

/// Protocol of the connections of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    /// For gRPC; without the feature no configuration has it.
    Http2,
}

impl Protocol {
    /// Name in TLS handshakes (ALPN).
    fn name(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }

    /// Serves a connection until it ends.
    async fn serve<S>(
        self,
        stream: S,
        peer: Peer,
        routes: Router,
        limits: &ConnectionLimits,
        shutdown: &ShutdownHandle,
    ) where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        match self {
            Self::Http1 => connection::serve(stream, peer, routes, limits, shutdown).await,
            #[cfg(feature = "grpc")]
            Self::Http2 => http2::serve(stream, peer, routes, limits, shutdown).await,
            #[cfg(not(feature = "grpc"))]
            Self::Http2 => {}
        }
    }
}

/// A bound socket.
struct Bound {
    socket: Socket,
    address: Address,
    protocol: Protocol,
    acceptor: Option<TlsAcceptor>,
}

/// Bound sockets and what their connections share.
pub(crate) struct Listener {
    http: Bound,
    grpc: Option<Bound>,
    shared: Arc<Shared>,
}

/// Limits and counts of the connections of all sockets.
struct Shared {
    limits: Arc<RwLock<Arc<ConnectionLimits>>>,
    connections: Arc<Connections>,
}

/// Routes of each socket.
pub(crate) struct Services {
    pub(crate) http: Router,
    /// Routes for gRPC; without them its socket is not accepted at.
    pub(crate) grpc: Option<Router>,
}

impl Listener {
    /// Binds the addresses of a configuration. Needs a runtime.
    ///
    /// # Errors
    /// [`Error::Public`], [`Error::Bind`], [`Error::Tls`].
    pub(crate) fn bind(config: &Config, certificate: Option<&Arc<Certificate>>) -> Result<Self, Error> {
        let bound = |(socket, address), protocol: Protocol| {
            let acceptor = certificate.map(|certificate| certificate.acceptor(protocol.name()));
            Ok::<_, Error>(Bound { socket, address, protocol, acceptor: acceptor.transpose()? })
        };
        let limits = Arc::new(RwLock::new(Arc::new(ConnectionLimits::new(&config.limits))));
        Ok(Self {
            http: bound(address::bind(config)?, Protocol::Http1)?,
            grpc: address::Port::grpc(config)
                .map(|port| bound(address::bind_tcp(config, port)?, Protocol::Http2))
                .transpose()?,
            shared: Arc::new(Shared { limits, connections: Arc::default() }),
        })
    }

    /// Address of the HTTP API.
    pub(crate) fn address(&self) -> &Address {
        &self.http.address
    }

    /// Address of gRPC, if it is served.
    pub(crate) fn grpc_address(&self) -> Option<&Address> {
        self.grpc.as_ref().map(|bound| &bound.address)
    }

    /// Limits of new connections, which may be replaced.
    pub(crate) fn limits(&self) -> Arc<RwLock<Arc<ConnectionLimits>>> {
        Arc::clone(&self.shared.limits)
    }

    /// Reader of the number of open connections.
    pub(crate) fn open_connections(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let connections = Arc::clone(&self.shared.connections);
        move || connections.total() as u64
    }

    /// Serves connections until shutdown is requested, then waits for those that are open.
    pub(crate) async fn run(self, services: Services, shutdown: ShutdownHandle) {
        // Every connection holds a sender; the receiver ends when all are closed.
        let (open, mut all_closed) = mpsc::channel::<()>(1);
        let Shared { limits, connections } = &*self.shared;
        if let (Some(bound), Some(routes)) = (self.grpc, services.grpc) {
            let (shared, shutdown, open) = (Arc::clone(&self.shared), shutdown.clone(), open.clone());
            tokio::spawn(async move { bound.accept_all(&shared, routes, &shutdown, &open).await });
        }
        self.http.accept_all(&self.shared, services.http, &shutdown, &open).await;
        drop(open);
        tracing::info!(connections = connections.total(), "stopped to accept connections");
        let drain = limits.read().drain_timeout;
        let closed = race(all_closed.recv(), shutdown.reached(Stage::Ended));
        if timeout(drain, closed).await.is_err() {
            tracing::warn!(connections = connections.total(), "requests did not end in time");
        }
        shutdown.end();
        all_closed.recv().await;
    }
}

impl Bound {
    /// Accepts connections until shutdown is requested, then closes the socket.
    async fn accept_all(
        self,
        shared: &Shared,
        routes: Router,
        shutdown: &ShutdownHandle,
        open: &mpsc::Sender<()>,
    ) {
        let mut backoff = Backoff::default();
        while let First::Left(accepted) = race(self.accept(), shutdown.reached(Stage::Draining)).await {
            match accepted {
                Ok(accepted) => {
                    backoff = Backoff::default();
                    self.spawn(accepted, shared, &routes, shutdown, open);
                }
                Err(error) => {
                    if let Some(wait) = backoff.after(&error) {
                        tracing::warn!(error = %error, wait = ?wait, "cannot accept a connection");
                        race(sleep(wait), shutdown.reached(Stage::Draining)).await;
                    }
                }
            }
        }
    }

    async fn accept(&self) -> io::Result<Accepted> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok(Accepted::Tcp(stream, address.ip()))
            }
            #[cfg(unix)]
            Socket::Unix(socket) => socket.listener.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
        }
    }

    /// Serves a connection in a task of its own, if the limits allow it.
    fn spawn(
        &self,
        accepted: Accepted,
        shared: &Shared,
        routes: &Router,
        shutdown: &ShutdownHandle,
        open: &mpsc::Sender<()>,
    ) {
        let limits = Arc::clone(&shared.limits.read());
        let peer = accepted.peer();
        let seat = match shared.connections.enter(peer.0, &limits) {
            Ok(seat) => seat,
            Err(limit) => {
                tracing::warn!(limit, "refused a connection");
                return;
            }
        };
        let (routes, shutdown, open) = (routes.clone(), shutdown.clone(), open.clone());
        let (protocol, acceptor) = (self.protocol, self.acceptor.clone());
        tokio::spawn(async move {
            let _open = (seat, open);
            match (accepted, acceptor) {
                (Accepted::Tcp(stream, _), None) => {
                    let _ = stream.set_nodelay(true);
                    protocol.serve(stream, peer, routes, &limits, &shutdown).await;
                }
                (Accepted::Tcp(stream, _), Some(acceptor)) => {
                    let _ = stream.set_nodelay(true);
                    let handshake = timeout(limits.header_timeout, handshake(stream, &acceptor));
                    if let First::Left(Ok(Some(stream))) =
                        race(handshake, shutdown.reached(Stage::Draining)).await
                    {
                        protocol.serve(stream, peer, routes, &limits, &shutdown).await;
                    }
                }
                #[cfg(unix)]
                (Accepted::Unix(stream), _) => {
                    protocol.serve(stream, peer, routes, &limits, &shutdown).await;
                }
            }
        });
    }
}

/// An accepted connection.
enum Accepted {
    Tcp(TcpStream, IpAddr),
    #[cfg(unix)]
    Unix(tokio::net::UnixStream),
}

impl Accepted {
    fn peer(&self) -> Peer {
        match self {
            Self::Tcp(_, address) => Peer(Some(*address)),
            #[cfg(unix)]
            Self::Unix(_) => Peer(None),
        }
    }
}

/// Opens TLS; `None` for a client that does not.
async fn handshake(
    mut stream: TcpStream,
    acceptor: &TlsAcceptor,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    let mut first = [0];
    if stream.peek(&mut first).await.ok()? == 1 && first[0] != HANDSHAKE {
        let _ = stream.write_all(PLAIN_HTTP).await;
        let _ = stream.shutdown().await;
        // Unread bytes would reset the connection and with it the reply.
        let mut scratch = [0; 4096];
        while tokio::io::AsyncReadExt::read(&mut stream, &mut scratch).await.is_ok_and(|read| read > 0) {}
        return None;
    }
    let opened = acceptor.accept(stream).await;
    opened.inspect_err(|error| tracing::debug!(error = %error, "a TLS handshake failed")).ok()
}

/// Pauses after failures to accept. Without file descriptors every attempt fails at once, and the
/// loop would use a core for nothing.
#[derive(Debug, Default)]
struct Backoff {
    failures: u32,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_secs(1);

    /// Time to wait after an error; `None` for one of that connection alone.
    fn after(&mut self, error: &io::Error) -> Option<Duration> {
        use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
        if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted) {
            return None;
        }
        let wait = Self::FIRST.saturating_mul(1 << self.failures.min(10)).min(Self::LONGEST);
        self.failures += 1;
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_without_file_descriptors() {
        let mut backoff = Backoff::default();
        let lost = io::Error::from(io::ErrorKind::ConnectionAborted);
        assert_eq!(backoff.after(&lost), None);
        let waits: Vec<_> =
            (0..40).filter_map(|_| backoff.after(&io::Error::other("too many open files"))).collect();
        assert_eq!((waits[0], waits[1]), (Backoff::FIRST, Backoff::FIRST * 2));
        assert!(waits.is_sorted() && waits[39] == Backoff::LONGEST);
    }

    #[test]
    fn the_reply_to_plain_http_has_its_length() {
        let text = std::str::from_utf8(PLAIN_HTTP).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
    }
}
