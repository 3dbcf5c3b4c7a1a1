//! The live view, and its end with the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use http_body::Body as _;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::Served;
use crate::config::Config;
use crate::listen::Address;
use crate::server::Server;
use crate::testing::{request, run};

/// Data of the next server-sent event.
async fn next_event(body: &mut Body) -> Option<Bytes> {
    let mut body = std::pin::pin!(body);
    let frame = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await;
    frame.map(|frame| frame.unwrap().into_data().unwrap())
}

fn event_data(event: &Bytes) -> Value {
    let text = std::str::from_utf8(event).unwrap();
    serde_json::from_str(text.strip_prefix("data: ").unwrap().trim_end()).unwrap()
}

#[test]
fn live_figures_come_until_the_client_leaves() {
    let served = Served::new();
    run(async {
        let open = || served.router.clone().oneshot(request("GET", "/v1/live", None));
        let (first, second) = (open().await.unwrap(), open().await.unwrap());
        let mut body = first.into_body();
        let event = event_data(&next_event(&mut body).await.unwrap());
        assert_eq!(event["models"], json!([{"id": "base", "loaded": false}]));
        assert_eq!(event.get("connections"), None);
        drop(second);
        let prompt = json!({"prompt": "Once upon a time", "max_tokens": 4});
        let reply = served.router.clone().oneshot(request("POST", "/v1/completions", Some(prompt))).await;
        assert_eq!(reply.unwrap().status(), 200);
        // The second event after the load has rates.
        let mut model = Value::Null;
        while model["batch"].is_null() {
            model = event_data(&next_event(&mut body).await.unwrap())["models"][0].clone();
        }
        assert_eq!((&model["loaded"], &model["waiting"]), (&json!(true), &json!(0)));
        for pointer in [
            "/steps",
            "/running",
            "/tokens_per_s",
            "/prefill_tokens_per_s",
            "/kv/pages_total",
            "/kv/pages_used",
            "/kv/page_bytes",
            "/kv/tiers/0/bytes",
            "/kv/tiers/0/blocks",
            "/prefix/lookups",
            "/prefix/hits",
            "/prefix/hit_tokens",
            "/prefix/tree_tokens",
            "/prefix/nodes",
            "/prefix/tree/0/tokens",
            "/prefix/tree/0/refs",
            "/adapters/hot",
            "/adapters/warm",
            "/adapters/cold",
            "/speculation/drafted",
            "/speculation/accepted",
        ] {
            assert!(model.pointer(pointer).is_some_and(Value::is_number), "{pointer} in {model:#}");
        }
        drop(body);
        let deadline = Instant::now() + Duration::from_secs(20);
        while served.app.live.viewers() > 0 {
            assert!(Instant::now() < deadline, "the sampler keeps viewers that are gone");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn shutdown_ends_the_live_view() {
    let served = Served::new();
    run(async {
        let open = || served.router.clone().oneshot(request("GET", "/v1/live", None));
        let mut body = open().await.unwrap().into_body();
        assert!(next_event(&mut body).await.is_some());
        served.app.live.close();
        while next_event(&mut body).await.is_some() {}
        assert_eq!(open().await.unwrap().status(), 503);
    });
}

#[test]
fn a_server_counts_connections_and_ends_its_viewers() {
    let config = Config::from_toml("[listen]\nport = 0\n[limits]\ndrain_timeout_s = 600").unwrap();
    let server = Server::bind(config, Vec::new()).unwrap();
    let Address::Tcp { address, .. } = *server.address() else { panic!("a TCP address") };
    let shutdown = server.shutdown_handle();
    let running = std::thread::spawn(move || server.run());
    let open = |path: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        BufReader::new(stream)
    };
    let mut viewer = open("/v1/live");
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(viewer.read_line(&mut line).unwrap() > 0, "no event");
    }
    let event: Value = serde_json::from_str(line["data: ".len()..].trim_end()).unwrap();
    assert_eq!((&event["connections"], &event["models"]), (&json!(1), &json!([])));
    let mut reply = String::new();
    open("/metrics").read_to_string(&mut reply).unwrap();
    assert!(reply.contains("content-type: application/openmetrics-text"), "{reply}");
    assert!(reply.contains("\nruvllm_connections 2.0\n"), "{reply}");
    shutdown.drain();
    viewer.read_to_string(&mut reply).unwrap();
    running.join().unwrap().unwrap();
}
