//! The server over real sockets: listener, keys and limits.

mod bodies;
mod connections;
mod framing;
mod keys;
mod shutdown;
mod support;
mod timeouts;
mod tls;
#[cfg(unix)]
mod unix_socket;
