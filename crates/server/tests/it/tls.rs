//! TLS, its certificate and clients without it.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::support::{TestServer, read_all, read_response};

/// Writes a new certificate and its key; the certificate as a client knows it.
fn certify(folder: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let pem = made.cert.pem();
    std::fs::write(folder.join("certificate.pem"), &pem).unwrap();
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn server(folder: &Path) -> TestServer {
    let path = |name: &str| folder.join(name).display().to_string();
    TestServer::start(&format!(
        "[tls]\ncertificate = '{}'\nkey = '{}'",
        path("certificate.pem"),
        path("key.pem")
    ))
}

/// Sends a request over TLS; `None` if the client does not trust the certificate.
fn status(server: &TestServer, trusted: &CertificateDer<'static>) -> Option<u16> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream: StreamOwned<ClientConnection, TcpStream> = StreamOwned::new(connection, server.connect());
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").ok()?;
    Some(read_response(&mut stream).status())
}

#[test]
fn requests_are_served_over_tls_and_certificates_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let first = certify(folder.path());
    let server = server(folder.path());
    assert!(server.address.to_string().starts_with("https://127.0.0.1:"));
    assert_eq!(status(&server, &first), Some(200));
    let second = certify(folder.path());
    assert_eq!(status(&server, &second), None);
    server.reload.reload().unwrap();
    assert_eq!((status(&server, &second), status(&server, &first)), (Some(200), None));
    std::fs::write(folder.path().join("key.pem"), "no key").unwrap();
    assert!(server.reload.reload().unwrap_err().to_string().contains("key.pem"));
    assert_eq!(status(&server, &second), Some(200));
}

#[test]
fn plain_http_at_a_tls_port_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    certify(folder.path());
    let server = server(folder.path());
    let reply = server.exchange(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 400 ") && reply.contains("https://"), "{reply:?}");
}

#[test]
fn handshakes_that_are_broken_or_slow_end() {
    let folder = tempfile::tempdir().unwrap();
    certify(folder.path());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let server = TestServer::start(&format!(
        "[limits]\nheader_timeout_s = 0.2\n[tls]\ncertificate = '{}'\nkey = '{}'",
        path("certificate.pem"),
        path("key.pem")
    ));
    for bytes in [&b""[..], b"\x16\x03\x01", b"\x16\x03\x01\x00\x05\xff\xff\xff\xff\xff"] {
        let mut stream = server.connect();
        stream.write_all(bytes).unwrap();
        assert!(!read_all(&mut stream).contains("HTTP"), "{bytes:?}");
    }
}
