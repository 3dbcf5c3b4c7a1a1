//! Description, prefixes and load of a model.

use std::collections::HashSet;

use ruvllm_server::auth::Scope;
use tonic::{Code, Streaming};

use crate::proto::generate_request::Prompt;
use crate::proto::model_event::Event;
use crate::proto::worker_client::WorkerClient;
use crate::proto::{
    BlocksStored, DescribeModelRequest, GenerateRequest, ModelEvent, TokenIds, WatchModelRequest,
};
use crate::support::{Keys, TestServer, with_key};

/// Tokens of a block.
const BLOCK: usize = 32;

fn generate(server: &TestServer, ids: Vec<u32>) {
    let prompt = Some(Prompt::Tokens(TokenIds { ids }));
    let request = GenerateRequest { prompt, max_tokens: Some(2), ..GenerateRequest::default() };
    server.output(request).unwrap();
}

fn watch(server: &TestServer) -> Streaming<ModelEvent> {
    let mut client = WorkerClient::new(server.channel());
    server.run(client.watch_model(WatchModelRequest::default())).unwrap().into_inner()
}

/// The next event that is no load.
fn change(server: &TestServer, events: &mut Streaming<ModelEvent>) -> Event {
    loop {
        match server.run(events.message()).unwrap().unwrap().event.unwrap() {
            Event::Load(_) => {}
            event => return event,
        }
    }
}

fn stored(server: &TestServer, events: &mut Streaming<ModelEvent>) -> BlocksStored {
    match change(server, events) {
        Event::Stored(stored) => stored,
        event => panic!("{event:?}"),
    }
}

#[test]
fn a_model_is_described() {
    let server = TestServer::start("");
    let mut client = WorkerClient::new(server.channel());
    let found = server.run(client.describe_model(DescribeModelRequest::default())).unwrap().into_inner();
    assert_eq!((&found.model[..], found.context_length, found.block_tokens), ("base", 4096, 32));
    assert_eq!((found.fingerprint.len(), found.has_prefix_cache, &found.kv_policy[..]), (32, true, "f16"));
    // 8 layers of 4 heads of 64 values, keys and values in f16: 512 KiB each, if the model is that.
    assert!((100..10_000).contains(&found.total_blocks) && found.max_running > 0, "{found:?}");
    let other = DescribeModelRequest { model: Some("other".to_owned()) };
    assert_eq!(server.run(client.describe_model(other)).unwrap_err().code(), Code::NotFound);
}

#[test]
fn stored_blocks_are_told_in_order_with_their_tokens() {
    let server = TestServer::start("");
    let mut events = watch(&server);
    let first = server.run(events.message()).unwrap().unwrap().event.unwrap();
    let Event::Load(load) = first else { panic!("{first:?}") };
    assert_eq!((load.running, load.waiting, load.used_blocks), (0, 0, 0));
    assert!(matches!(change(&server, &mut events), Event::Cleared(_)));
    let long: Vec<u32> = (100..100 + 2 * BLOCK as u32).collect();
    generate(&server, long.clone());
    let begin = stored(&server, &mut events);
    assert_eq!((begin.parent, begin.hashes.len(), &begin.tokens), (None, 2, &long));
    let other = [&long[..BLOCK], &[7; BLOCK]].concat();
    generate(&server, other.clone());
    let branch = stored(&server, &mut events);
    assert_eq!(
        (branch.parent, branch.hashes.len(), &branch.tokens[..]),
        (Some(begin.hashes[0]), 1, &other[BLOCK..])
    );
    // A watch that comes later is told of all blocks.
    let mut late = watch(&server);
    assert!(matches!(change(&server, &mut late), Event::Cleared(_)));
    let mut all = HashSet::new();
    while all.len() < 3 {
        all.extend(stored(&server, &mut late).hashes);
    }
    assert_eq!(all, begin.hashes.iter().chain(&branch.hashes).copied().collect());
}

#[test]
fn a_watch_ends_with_the_server_and_needs_a_key_for_metrics() {
    let mut keys = Keys::new();
    let (metrics, inference) = (keys.add("metrics", Scope::Metrics), keys.add("other", Scope::Inference));
    let server = TestServer::start(&keys.settings("[limits]\ndrain_timeout_s = 600"));
    let mut client = WorkerClient::new(server.channel());
    let request = WatchModelRequest::default();
    assert_eq!(server.run(client.watch_model(request.clone())).unwrap_err().code(), Code::Unauthenticated);
    let denied = server.run(client.watch_model(with_key(request.clone(), &inference))).unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    let mut events = server.run(client.watch_model(with_key(request, &metrics))).unwrap().into_inner();
    assert!(matches!(change(&server, &mut events), Event::Cleared(_)));
    server.shutdown.drain();
    let end = loop {
        match server.run(events.message()) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("an end without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::Unavailable);
}
