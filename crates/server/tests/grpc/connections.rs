//! Clients that leave, do not read or stay idle; TLS; shutdown.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tonic::transport::{Endpoint, Uri};

use crate::proto::inference_client::InferenceClient;
use crate::support::{TestServer, endless, eventually, prompt};

const CANCELLED: &str = r#"ruvllm_requests_total{endpoint="grpc_generate",model="base",outcome="cancelled"}"#;
const RUNNING: &str = r#"ruvllm_requests_running{model="base"}"#;

#[test]
fn a_dropped_stream_ends_its_request() {
    let server = TestServer::start("");
    let mut events = server.generate(endless()).unwrap();
    assert!(server.run(events.message()).unwrap().is_some());
    assert_eq!(server.metric(RUNNING), 1.0);
    drop(events);
    eventually("the request runs on", || server.metric(RUNNING) == 0.0);
    eventually("the call is not counted", || server.metric(CANCELLED) == 1.0);
}

#[test]
fn replies_that_nobody_reads_end_with_their_connection() {
    let server = TestServer::start("[limits]\nwrite_timeout_s = 0.3");
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc)).unwrap();
    // Room for a few events.
    let endpoint = endpoint.initial_stream_window_size(512);
    let channel = server.run(endpoint.connect()).unwrap();
    let mut client = InferenceClient::new(channel);
    let events = server.run(client.generate(endless())).unwrap();
    eventually("the request runs on", || server.metric(CANCELLED) == 1.0);
    drop(events);
}

#[test]
fn idle_connections_are_closed_and_clients_connect_again() {
    let server = TestServer::start("[limits]\nidle_timeout_s = 0.2");
    let mut client = server.client();
    server.run(client.generate(prompt("The sun", 1))).unwrap();
    let open = "ruvllm_connections";
    // The one connection is that of the scrape.
    eventually("the connection is open", || server.metric(open) == 1.0);
    server.run(client.generate(prompt("The sun", 1))).unwrap();
}

#[test]
fn other_protocols_are_refused() {
    let server = TestServer::start("");
    let mut stream = TcpStream::connect(server.grpc).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let mut reply = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut reply);
    assert!(!reply.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&reply));
}

#[test]
fn shutdown_lets_running_streams_end() {
    let server = TestServer::start("");
    let mut events = server.generate(prompt("Once upon a time", 200)).unwrap();
    assert!(server.run(events.message()).unwrap().is_some());
    server.shutdown.drain();
    let mut last = None;
    while let Some(event) = server.run(events.message()).unwrap() {
        last = event.event;
    }
    assert!(matches!(last, Some(crate::proto::generate_event::Event::Finish(_))), "{last:?}");
}

#[test]
fn calls_are_served_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(path("certificate.pem"), made.cert.pem()).unwrap();
    let server = TestServer::start(&format!(
        "[tls]\ncertificate = '{}'\nkey = '{}'",
        path("certificate.pem").display(),
        path("key.pem").display()
    ));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(made.cert.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (connector, address) = (tokio_rustls::TlsConnector::from(Arc::new(config)), server.grpc);
    let connect = tower::service_fn(move |_: Uri| {
        let connector = connector.clone();
        async move {
            let stream = tokio::net::TcpStream::connect(address).await?;
            let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await?;
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    let channel = server.run(endpoint.connect_with_connector(connect)).unwrap();
    let mut client = InferenceClient::new(channel);
    let mut events = server.run(client.generate(prompt("The sun", 2))).unwrap().into_inner();
    assert!(server.run(events.message()).unwrap().is_some());
    // Without TLS there is no connection.
    let plain = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let refused = server.run(async {
        let mut client = InferenceClient::new(plain.connect().await.ok()?);
        client.generate(prompt("The sun", 2)).await.ok()
    });
    assert!(refused.is_none());
}
