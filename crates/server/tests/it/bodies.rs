//! Bodies that no handler should see.

use std::io::Write;

use crate::support::{Response, TestServer, read_all};

const PATH: &str = "/v1/chat/completions";

fn head(length: &str) -> String {
    format!("POST {PATH} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{length}\r\n\r\n")
}

#[test]
fn bodies_of_100_mb_are_refused_while_they_are_sent() {
    let server = TestServer::with_api("");
    let chunk = vec![b' '; 1 << 20];
    for (length, before, after) in
        [("content-length: 104857600", "", ""), ("transfer-encoding: chunked", "100000\r\n", "\r\n")]
    {
        let mut stream = server.connect();
        stream.write_all(head(length).as_bytes()).unwrap();
        for _ in 0..100 {
            // The server may stop to read.
            let sent = stream
                .write_all(before.as_bytes())
                .and_then(|()| stream.write_all(&chunk))
                .and_then(|()| stream.write_all(after.as_bytes()));
            if sent.is_err() {
                break;
            }
        }
        let response = Response(read_all(&mut stream));
        assert_eq!(response.status(), 413, "{length}: {response:?}");
    }
}

#[test]
fn deep_and_broken_json_is_refused() {
    let server = TestServer::with_api("[limits]\njson_depth = 16");
    let deep = |levels: usize| format!("{{\"x\": {}1{}}}", "[".repeat(levels), "]".repeat(levels));
    for (body, code) in
        [(deep(10_000), "invalid_json"), (deep(16), "invalid_json"), ("{".to_owned(), "invalid_json")]
    {
        let response = server.request("POST", PATH, "", &body);
        assert_eq!((response.status(), response.error()["code"].as_str()), (400, Some(code)));
    }
    // Depth 16 is allowed; the fault is that messages are missing.
    let response = server.request("POST", PATH, "", &deep(15));
    assert_eq!(response.status(), 400);
    assert_ne!(response.error()["code"], "invalid_json");
}

#[test]
fn invalid_utf8_is_refused() {
    let server = TestServer::with_api("");
    let mut stream = server.connect();
    let body = b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}";
    let head = head(&format!("connection: close\r\ncontent-length: {}", body.len()));
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let response = Response(read_all(&mut stream));
    assert_eq!(response.status(), 400, "{response:?}");
    assert_eq!(response.error()["type"], "invalid_request_error");
}
