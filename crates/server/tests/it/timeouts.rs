//! Clients that are slow, silent or gone.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{TestServer, eventually, read_all, read_response};

/// True once the server has closed the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(read) => read == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

#[test]
fn heads_that_trickle_in_are_cut_off() {
    let server = TestServer::start("[limits]\nheader_timeout_s = 0.3\nidle_timeout_s = 600");
    let mut stream = server.connect();
    stream.write_all(b"GET /health HTTP/1.1\r\nx: ").unwrap();
    eventually("the connection stays open", || stream.write_all(b"y").is_err() || is_closed(&mut stream));
}

#[test]
fn idle_connections_are_closed_before_and_after_a_request() {
    let server = TestServer::start("[limits]\nidle_timeout_s = 0.2\nheader_timeout_s = 600");
    assert_eq!(read_all(&mut server.connect()), "");
    let mut stream = server.connect();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    assert_eq!(read_response(&mut stream).status(), 200);
    assert_eq!(read_all(&mut stream), "");
}

#[test]
fn requests_that_run_are_not_idle() {
    let server = TestServer::start("[limits]\nidle_timeout_s = 0.05\nheader_timeout_s = 0.05");
    let mut stream = server.connect();
    stream.write_all(b"GET /v1/wait HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    eventually("no request", || server.seen.waiting.load(Ordering::SeqCst) == 1);
    // Far longer than both timeouts.
    std::thread::sleep(Duration::from_millis(400));
    server.seen.release.send_replace(true);
    assert_eq!(read_response(&mut stream).status(), 200);
}

#[test]
fn slow_readers_are_dropped_with_their_work() {
    let server = TestServer::start("[limits]\nwrite_timeout_s = 0.3");
    let mut stream = server.connect();
    stream.write_all(b"GET /v1/stream HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 64]).unwrap();
    eventually("the stream goes on", || server.seen.streams.load(Ordering::SeqCst) == 0);
}

#[test]
fn work_for_clients_that_are_gone_ends() {
    let server = TestServer::start("");
    let mut stream = server.connect();
    stream.write_all(b"GET /v1/stream HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 64]).unwrap();
    assert_eq!(server.seen.streams.load(Ordering::SeqCst), 1);
    drop(stream);
    eventually("the stream goes on", || server.seen.streams.load(Ordering::SeqCst) == 0);
}

#[test]
fn bodies_that_do_not_arrive_are_answered() {
    let server = TestServer::with_api("[limits]\nbody_timeout_s = 0.2");
    let mut stream = server.connect();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
                content-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(read_response(&mut stream).status(), 408);
}
