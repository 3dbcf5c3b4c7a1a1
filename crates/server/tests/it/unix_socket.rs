//! A server at a Unix socket.

use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};

use ruvllm_server::Server;
use ruvllm_server::config::Config;

use crate::support::{TestServer, read_response};

#[test]
fn requests_are_served_and_the_socket_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.sock");
    // A socket that a killed server left.
    drop(UnixListener::bind(&path).unwrap());
    let settings = format!("[listen]\nunix = '{}'", path.display());
    let server = TestServer::start(&settings);
    assert_eq!(server.address.to_string(), format!("unix:{}", path.display()));
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o660);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    assert_eq!(read_response(&mut stream).status(), 200);
    let config = Config::from_toml(&settings).unwrap();
    assert!(Server::with_routes(config, axum::Router::new()).is_err());
    drop(stream);
    server.shutdown.drain();
    server.join();
    assert!(!path.exists());
}
