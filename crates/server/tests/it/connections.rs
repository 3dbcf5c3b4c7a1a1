//! Numbers of connections.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::{TestServer, eventually, read_response};

fn is_served(stream: &mut TcpStream) -> bool {
    let sent = stream.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut byte = [0];
    sent.is_ok() && stream.read(&mut byte).is_ok_and(|read| read == 1)
}

#[test]
fn connections_beyond_the_limits_are_closed_and_the_others_served() {
    for limit in ["connections", "connections_per_address"] {
        let server = TestServer::start(&format!("[limits]\n{limit} = 4"));
        let mut open: Vec<_> = (0..4).map(|_| server.connect()).collect();
        for stream in &mut open {
            assert!(is_served(stream), "{limit}");
        }
        assert!(!is_served(&mut server.connect()), "{limit}");
        open.pop();
        eventually("no place is free", || is_served(&mut server.connect()));
    }
}

#[test]
fn idle_connections_do_not_keep_others_out() {
    let server = TestServer::start("[limits]\nconnections = 400\nconnections_per_address = 400");
    let idle: Vec<_> = (0..300).map(|_| server.connect()).collect();
    let mut stream = server.connect();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    assert_eq!(read_response(&mut stream).status(), 200);
    assert_eq!(idle.len(), 300);
}
