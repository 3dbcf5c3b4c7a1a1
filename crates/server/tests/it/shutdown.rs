//! The end of a server.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::Ordering;

use ruvllm_server::Server;
use ruvllm_server::config::Config;

use crate::support::{TestServer, eventually, read_all, read_response};

/// A connection with a request that waits.
fn waiting(server: &TestServer) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(b"GET /v1/wait HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    eventually("no request", || server.seen.waiting.load(Ordering::SeqCst) == 1);
    stream
}

#[test]
fn requests_that_run_end_and_no_other_begins() {
    let server = TestServer::start("");
    let mut running = waiting(&server);
    let mut idle = server.connect();
    server.shutdown.request();
    assert_eq!(read_all(&mut idle), "");
    let address = server.tcp();
    eventually("connections are accepted", || TcpStream::connect(address).is_err());
    server.seen.release.send_replace(true);
    let response = read_response(&mut running);
    assert_eq!((response.status(), response.header("connection")), (200, Some("close")));
    server.join();
}

#[test]
fn the_second_request_ends_all_at_once() {
    let server = TestServer::start("[limits]\ndrain_timeout_s = 600");
    let mut running = waiting(&server);
    server.shutdown.request();
    server.shutdown.request();
    assert_eq!(read_all(&mut running), "");
    server.join();
}

#[test]
fn requests_that_do_not_end_in_time_are_ended() {
    let server = TestServer::start("[limits]\ndrain_timeout_s = 0.1");
    let mut running = waiting(&server);
    server.shutdown.drain();
    assert_eq!(read_all(&mut running), "");
    server.join();
}

#[test]
fn addresses_in_use_and_public_ones_are_refused_with_a_remedy() {
    let server = TestServer::start("");
    let bind = |text: &str| {
        let config = Config::from_toml(text).unwrap();
        Server::with_routes(config, axum::Router::new()).err().unwrap().to_string()
    };
    let text = bind(&format!("[listen]\nport = {}", server.tcp().port()));
    assert!(text.contains("127.0.0.1") && text.contains("--port"), "{text}");
    let text = bind("[listen]\nhost = '0.0.0.0'\nport = 0");
    assert!(text.contains("--api-keys") && text.contains("--allow-public"), "{text}");
    let text = bind("[keys]\nfile = '/nonexistent/keys.toml'");
    assert!(text.contains("/nonexistent/keys.toml") && text.contains("ruvllm key new"), "{text}");
}
