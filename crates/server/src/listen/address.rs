//! Addresses that a server listens at.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use tokio::net::{TcpListener, TcpSocket};

use crate::config::Config;
use crate::error::Error;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Key and flag of the Unix socket.
const UNIX_SETTING: &str = "listen.unix (--unix)";

/// Address of a server. Its text is the base of URLs for TCP, `unix:PATH` for a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Host and port.
    Tcp {
        /// The address with the port that was chosen.
        address: SocketAddr,
        /// True if connections are encrypted.
        tls: bool,
    },
    /// Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Host and port; `None` for a Unix socket.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp { address, .. } => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { address, tls } => write!(f, "{}://{address}", if *tls { "https" } else { "http" }),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Socket that accepts connections.
pub(super) enum Socket {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixSocket),
}

/// A TCP port and the setting that it comes from.
#[derive(Clone, Copy)]
pub(super) struct Port {
    number: u16,
    setting: &'static str,
}

impl Port {
    fn http(config: &Config) -> Self {
        Self { number: config.listen.port, setting: "listen.port (--port)" }
    }

    /// The port for gRPC; `None` without gRPC.
    pub(super) fn grpc(config: &Config) -> Option<Self> {
        config.grpc.port.map(|number| Self { number, setting: "grpc.port (--grpc-port)" })
    }
}

/// Binds the address of a configuration. Needs a runtime.
///
/// # Errors
/// [`Error::Public`] for an address other than loopback without keys, unless it is allowed;
/// [`Error::Bind`].
pub(super) fn bind(config: &Config) -> Result<(Socket, Address), Error> {
    match &config.listen.unix {
        Some(path) => bind_unix(path),
        None => bind_tcp(config, Port::http(config)),
    }
}

/// Binds a port of the configured host. Needs a runtime.
///
/// # Errors
/// As [`bind`].
pub(super) fn bind_tcp(config: &Config, port: Port) -> Result<(Socket, Address), Error> {
    let addresses = resolve(config, port)?;
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match listen(address).and_then(|socket| Ok((socket.local_addr()?, socket))) {
            Ok((address, socket)) => {
                let tls = config.tls.certificate.is_some();
                return Ok((Socket::Tcp(socket), Address::Tcp { address, tls }));
            }
            Err(error) => failure = error,
        }
    }
    let address = format!("{}:{}", config.listen.host, port.number);
    Err(Error::Bind { address, setting: port.setting, source: failure })
}

/// Checks the addresses of a configuration without binding them.
///
/// # Errors
/// As [`bind`], but for addresses in use.
pub(crate) fn check(config: &Config) -> Result<(), Error> {
    let http = config.listen.unix.is_none().then(|| Port::http(config));
    http.into_iter().chain(Port::grpc(config)).try_for_each(|port| resolve(config, port).map(drop))
}

/// Addresses of the host, all of which may be listened at.
fn resolve(config: &Config, port: Port) -> Result<Vec<SocketAddr>, Error> {
    let listen = &config.listen;
    let host = listen.host.trim_start_matches('[').trim_end_matches(']');
    let Port { number, setting } = port;
    let failed = |source| Error::Bind { address: format!("{host}:{number}"), setting, source };
    let addresses: Vec<SocketAddr> = (host, number).to_socket_addrs().map_err(failed)?.collect();
    let is_open = !config.needs_keys() && !listen.allow_public;
    match addresses.iter().find(|address| !address.ip().to_canonical().is_loopback()) {
        Some(address) if is_open => Err(Error::Public { address: *address }),
        _ => Ok(addresses),
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // On Windows the option would let another program take the port over.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A Unix socket, whose file is removed with it.
#[cfg(unix)]
pub(super) struct UnixSocket {
    pub(super) listener: tokio::net::UnixListener,
    path: PathBuf,
}

#[cfg(unix)]
impl Drop for UnixSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(unix)]
fn bind_unix(path: &std::path::Path) -> Result<(Socket, Address), Error> {
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};

    let address = || format!("unix:{}", path.display());
    let failed = |source| Error::Bind { address: address(), setting: UNIX_SETTING, source };
    // A socket that nobody accepts at is left over from a server that was killed.
    let is_socket = path.symlink_metadata().is_ok_and(|data| data.file_type().is_socket());
    let refuses = || {
        std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    if is_socket && refuses() {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = tokio::net::UnixListener::bind(path).map_err(failed)?;
    let socket = UnixSocket { listener, path: path.to_owned() };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(failed)?;
    Ok((Socket::Unix(socket), Address::Unix(path.to_owned())))
}

#[cfg(not(unix))]
fn bind_unix(path: &std::path::Path) -> Result<(Socket, Address), Error> {
    let address = format!("unix:{}", path.display());
    Err(Error::Bind { address, setting: UNIX_SETTING, source: io::ErrorKind::Unsupported.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<(), Error> {
        check(&Config::from_toml(text).unwrap())
    }

    #[test]
    fn public_addresses_need_keys_or_permission() {
        for host in ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "::ffff:127.0.0.1", "localhost"] {
            checked(&format!("[listen]\nhost = '{host}'")).unwrap_or_else(|error| panic!("{host}: {error}"));
        }
        for host in ["0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1"] {
            let listen = format!("[listen]\nhost = '{host}'\n");
            let error = checked(&listen).unwrap_err().to_string();
            for piece in ["ruvllm key new", "keys.file", "allow_public"] {
                assert!(error.contains(piece), "{error}");
            }
            checked(&format!("{listen}allow_public = true")).unwrap();
            checked(&format!("{listen}[keys]\nfile = 'keys.toml'")).unwrap();
        }
    }

    #[test]
    #[cfg(feature = "grpc")]
    fn the_port_of_grpc_is_as_guarded_beside_a_unix_socket() {
        let error = checked("[listen]\nunix = '/run/s'\nhost = '0.0.0.0'\n[grpc]\nport = 0").unwrap_err();
        assert!(matches!(error, Error::Public { .. }), "{error}");
        checked("[listen]\nunix = '/run/s'\n[grpc]\nport = 0").unwrap();
    }

    #[test]
    fn addresses_are_bases_of_urls() {
        let address = "[::1]:80".parse().unwrap();
        assert_eq!(Address::Tcp { address, tls: true }.to_string(), "https://[::1]:80");
        assert_eq!(Address::Unix("/run/s".into()).to_string(), "unix:/run/s");
    }
}
