//! Connections: addresses, TLS, timeouts, limits and shutdown (ADR-0064).

mod accept;
mod address;
mod connection;
mod counts;
mod guarded;
mod head;
#[cfg(feature = "grpc")]
mod http2;
mod peak;
mod phase;
mod race;
mod shutdown;
mod tls;

use std::time::Duration;

pub(crate) use self::accept::{Listener, Services};
pub use self::address::Address;
pub(crate) use self::address::check;
pub use self::connection::Peer;
pub(crate) use self::peak::Peak;
pub use self::shutdown::ShutdownHandle;
pub(crate) use self::tls::Certificate;
use crate::config::Limits;

/// Limits of connections.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionLimits {
    header_bytes: usize,
    headers: usize,
    header_timeout: Duration,
    idle_timeout: Duration,
    write_timeout: Duration,
    drain_timeout: Duration,
    connections: usize,
    connections_per_address: usize,
}

impl ConnectionLimits {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            header_bytes: limits.header_bytes.len(),
            headers: limits.headers,
            header_timeout: limits.header_timeout_s.duration(),
            idle_timeout: limits.idle_timeout_s.duration(),
            write_timeout: limits.write_timeout_s.duration(),
            drain_timeout: limits.drain_timeout_s.duration(),
            connections: limits.connections,
            connections_per_address: limits.connections_per_address,
        }
    }
}
