//! Accept loop, and the end of a listener.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use parking_lot::RwLock;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::ConnectionLimits;
use super::address::{self, Address, Socket};
use super::connection::{Peer, serve};
use super::counts::Connections;
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

/// A bound socket and what its connections share.
pub(crate) struct Listener {
    socket: Socket,
    address: Address,
    acceptor: Option<TlsAcceptor>,
    limits: Arc<RwLock<Arc<ConnectionLimits>>>,
    connections: Arc<Connections>,
}

impl Listener {
    /// Binds the address of a configuration. Needs a runtime.
    ///
    /// # Errors
    /// [`Error::Public`], [`Error::Bind`], [`Error::Tls`].
    pub(crate) fn bind(config: &Config, certificate: Option<&Arc<Certificate>>) -> Result<Self, Error> {
        let acceptor = certificate.map(Certificate::acceptor).transpose()?;
        let (socket, address) = address::bind(config)?;
        let limits = Arc::new(RwLock::new(Arc::new(ConnectionLimits::new(&config.limits))));
        Ok(Self { socket, address, acceptor, limits, connections: Arc::default() })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Limits of new connections, which may be replaced.
    pub(crate) fn limits(&self) -> Arc<RwLock<Arc<ConnectionLimits>>> {
        Arc::clone(&self.limits)
    }

    /// Reader of the number of open connections.
    pub(crate) fn open_connections(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let connections = Arc::clone(&self.connections);
        move || connections.total() as u64
    }

    /// Serves connections until shutdown is requested, then waits for those that are open.
    pub(crate) async fn run(self, routes: Router, shutdown: ShutdownHandle) {
        // Every connection holds a sender; the receiver ends when all are closed.
        let (open, mut all_closed) = mpsc::channel::<()>(1);
        let mut backoff = Backoff::default();
        while let First::Left(accepted) = race(self.accept(), shutdown.reached(Stage::Draining)).await {
            match accepted {
                Ok(accepted) => {
                    backoff = Backoff::default();
                    self.spawn(accepted, &routes, &shutdown, &open);
                }
                Err(error) => {
                    if let Some(wait) = backoff.after(&error) {
                        tracing::warn!(error = %error, wait = ?wait, "cannot accept a connection");
                        race(sleep(wait), shutdown.reached(Stage::Draining)).await;
                    }
                }
            }
        }
        drop(open);
        let (socket, limits, connections) = (self.socket, self.limits, self.connections);
        drop(socket);
        tracing::info!(connections = connections.total(), "stopped to accept connections");
        let drain = limits.read().drain_timeout;
        let closed = race(all_closed.recv(), shutdown.reached(Stage::Ended));
        if timeout(drain, closed).await.is_err() {
            tracing::warn!(connections = connections.total(), "requests did not end in time");
        }
        shutdown.end();
        all_closed.recv().await;
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
    fn spawn(&self, accepted: Accepted, routes: &Router, shutdown: &ShutdownHandle, open: &mpsc::Sender<()>) {
        let limits = Arc::clone(&self.limits.read());
        let peer = accepted.peer();
        let seat = match self.connections.enter(peer.0, &limits) {
            Ok(seat) => seat,
            Err(limit) => {
                tracing::warn!(limit, "refused a connection");
                return;
            }
        };
        let (routes, shutdown, open) = (routes.clone(), shutdown.clone(), open.clone());
        let acceptor = self.acceptor.clone();
        tokio::spawn(async move {
            let _open = (seat, open);
            match (accepted, acceptor) {
                (Accepted::Tcp(stream, _), None) => {
                    let _ = stream.set_nodelay(true);
                    serve(stream, peer, routes, &limits, &shutdown).await;
                }
                (Accepted::Tcp(stream, _), Some(acceptor)) => {
                    let _ = stream.set_nodelay(true);
                    let handshake = timeout(limits.header_timeout, handshake(stream, &acceptor));
                    if let First::Left(Ok(Some(stream))) =
                        race(handshake, shutdown.reached(Stage::Draining)).await
                    {
                        serve(stream, peer, routes, &limits, &shutdown).await;
                    }
                }
                #[cfg(unix)]
                (Accepted::Unix(stream), _) => serve(stream, peer, routes, &limits, &shutdown).await,
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
