//! Malformed requests and attempts to smuggle one.

use std::io::Write;
use std::sync::atomic::Ordering;

use crate::support::{TestServer, read_all, read_response};

/// A second request, which must never be seen behind a refused one.
const SECOND: &str = "GET /v1/count HTTP/1.1\r\nhost: a\r\n\r\n";

#[test]
fn smuggled_requests_are_refused_and_the_connection_is_closed() {
    let server = TestServer::start("");
    for head in [
        "POST /v1/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 6\r\n\r\n0\r\n\r\n",
        "POST /v1/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\ncontent-length: 38\r\n\r\n",
        "POST /v1/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\ncontent-length: 0\r\n\r\n",
        "POST /v1/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 0, 0\r\n\r\n",
        "POST /v1/echo HTTP/1.1\r\nhost: a\r\ncontent-length: +0\r\n\r\n",
        "POST /v1/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 0x0\r\n\r\n",
        "POST /v1/echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        "POST /v1/echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/echo HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /v1/echo HTTP/1.1\nhost: a\n\n",
        "GET /v1/echo HTTP/1.1\r\nhost: a\r\nx: 1\nx: 2\r\n\r\n",
        "GET /v1/echo HTTP/1.1\r\nhost: a\r\nx: 1\r\n folded\r\n\r\n",
        "GET /v1/echo HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        "GET /v1/echo HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n",
        "GET /v1/echo HTTP/1.1\r\nhost: a\r\nno colon\r\n\r\n",
    ] {
        let replies = server.exchange(format!("{head}{SECOND}").as_bytes());
        assert!(replies.starts_with("HTTP/1.1 400 "), "{head:?}: {replies:?}");
        assert_eq!(replies.matches("HTTP/1.1 ").count(), 1, "{head:?}: {replies:?}");
    }
    assert_eq!(server.seen.counted.load(Ordering::SeqCst), 0);
}

#[test]
fn nothing_follows_a_body_in_chunks() {
    let server = TestServer::start("");
    let chunks =
        "POST /v1/echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let replies = server.exchange(format!("{chunks}{SECOND}").as_bytes());
    assert!(replies.starts_with("HTTP/1.1 200 ") && replies.ends_with("abc"), "{replies:?}");
    assert!(replies.contains("connection: close"), "{replies:?}");
    assert_eq!(server.seen.counted.load(Ordering::SeqCst), 0);
}

#[test]
fn valid_requests_share_a_connection() {
    let server = TestServer::start("");
    let mut stream = server.connect();
    let post = "POST /v1/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n\n\n\0x";
    stream.write_all(format!("{SECOND}{post}{SECOND}").as_bytes()).unwrap();
    for body in ["counted", "\n\n\0x", "counted"] {
        let response = read_response(&mut stream);
        assert!(response.0.ends_with(&format!("\r\n\r\n{body}")), "{response:?}");
    }
    stream.write_all(SECOND.as_bytes()).unwrap();
    assert_eq!(read_response(&mut stream).status(), 200);
    assert_eq!(server.seen.counted.load(Ordering::SeqCst), 3);
}

#[test]
fn heads_have_a_length_and_a_number_of_headers() {
    let server = TestServer::start("[limits]\nheaders = 10\nheader_bytes = \"2KiB\"");
    let many = "x: 1\r\n".repeat(11);
    let long = format!("x: {}\r\n", "y".repeat(3000));
    for headers in [many, long] {
        let reply = server.exchange(format!("GET /health HTTP/1.1\r\nhost: a\r\n{headers}\r\n").as_bytes());
        assert!(reply.starts_with("HTTP/1.1 431 "), "{reply:?}");
    }
    let long_line = format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "y".repeat(100_000));
    let reply = server.exchange(long_line.as_bytes());
    assert!(reply.starts_with("HTTP/1.1 431 ") || reply.starts_with("HTTP/1.1 414 "), "{reply:?}");
}

#[test]
fn other_protocols_are_refused() {
    let server = TestServer::start("");
    let hello = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00\r\n\r\n";
    for bytes in [&hello[..], b"SSH-2.0-x\r\n\r\n", b"\xff\xfe\xfd\r\n\r\n", b"GET\r\n\r\n"] {
        let reply = server.exchange(bytes);
        assert!(reply.starts_with("HTTP/1.1 400 "), "{bytes:?}: {reply:?}");
    }
    let mut stream = server.connect();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    assert!(!read_all(&mut stream).contains(" 200 "));
}
