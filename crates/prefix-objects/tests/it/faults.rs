//! An object store whose server hangs, refuses, cuts off answers or sends other bytes.

use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm_kv_cache::prefix::PrefixStore;
use ruvllm_kv_cache::prefix::store::Stored;
use ruvllm_prefix_objects::ObjectStorage;

use crate::any_storage::{self, PAYLOAD, Storage, key, open, put, secret, verified};
use crate::server::{Fault, Server};

/// Patience with servers that fail.
const PATIENCE: Duration = Duration::from_millis(300);

fn storage_at(endpoint: &str) -> Storage {
    patient_storage_at(endpoint, PATIENCE)
}

fn patient_storage_at(endpoint: &str, patience: Duration) -> Storage {
    let variables = [
        ("AWS_ACCESS_KEY_ID", "name"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ALLOW_HTTP", "true"),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let storage = ObjectStorage::open("s3://models/prefixes", variables).expect("a storage");
    Arc::new(storage.with_patience(patience))
}

#[test]
fn a_server_that_works_passes_the_tests_of_every_storage() {
    let servers = std::cell::RefCell::new(Vec::new());
    // This server tells one time of writing for all.
    any_storage::without_times(&|| {
        let server = Server::start();
        // Other tests run on the same machine.
        let storage = patient_storage_at(&server.endpoint, Duration::from_secs(20));
        servers.borrow_mut().push(server);
        storage
    });
}

#[test]
fn faults_of_the_server_are_misses_and_one_warning_each() {
    let tokens: Vec<u32> = (0..40).collect();
    for fault in [
        Fault::Hang,
        Fault::Status(403),
        Fault::Status(500),
        Fault::Status(503),
        Fault::CutOff,
        Fault::Flood,
        Fault::Garbage,
        Fault::Redirect,
    ] {
        let server = Server::start();
        let storage = storage_at(&server.endpoint);
        let store = open(&storage, 1);
        put(&store, &tokens);
        server.fail(fault);
        let (n_blocks, warnings) = verified(&store, &tokens);
        assert_eq!((n_blocks, warnings.len()), (0, 1), "{fault:?}: {warnings:?}");
        let warning = warnings[0].to_string();
        assert!(warning.starts_with("ignored s3://models/prefixes/"), "{warning}");
        assert!(!warning.contains(['\n', '\r']) && warning.len() < 600, "{warning}");
        assert!(!warning.contains("secret"), "{warning}");
        assert!(store.statistics().is_paused, "{fault:?}");
        let requests = server.requests();
        let place = store.format().places(&key(), &[9; 4]).next().expect("a block");
        assert_eq!(store.write(&place, &[&PAYLOAD]).expect("no error"), Stored::Paused);
        assert_eq!((verified(&store, &tokens).0, server.requests()), (0, requests));
        // Nothing was lost or removed because of the fault.
        server.fail(Fault::None);
        assert_eq!(verified(&open(&storage, 1), &tokens).0, 10, "{fault:?}");
    }
}

#[test]
fn an_answer_that_is_cut_off_between_lookup_and_reading_is_no_payload() {
    let server = Server::start();
    let storage = storage_at(&server.endpoint);
    let store = open(&storage, 1);
    put(&store, &[1, 2, 3, 4]);
    for fault in [Fault::CutOff, Fault::Hang, Fault::Status(404), Fault::Status(500)] {
        let store = open(&storage, 1);
        let found = store.find(&key(), &[1, 2, 3, 4, 0], 0);
        server.fail(fault);
        store.load(&found.chain[0], &mut [&mut [0; PAYLOAD.len()]]).expect_err("no payload");
        server.fail(Fault::None);
    }
    server.alter(|object| *object.last_mut().expect("a payload") ^= 1);
    let (n_blocks, warnings) = verified(&store, &[1, 2, 3, 4]);
    assert_eq!((n_blocks, warnings.len(), warnings[0].is_removed), (0, 1, true));
    assert!(warnings[0].to_string().contains("the checksum of the payload is wrong"), "{warnings:?}");
}

#[test]
fn a_server_that_fails_at_the_start_is_one_error() {
    let open = |storage: Storage| {
        let error = PrefixStore::open_storage(storage, 4, 1 << 20, &secret(1)).expect_err("no listing");
        assert_eq!(error.to_string(), "cannot list s3://models/prefixes");
        error.source().expect("a cause").to_string()
    };
    let server = Server::start();
    let storage = || storage_at(&server.endpoint);
    server.fail(Fault::Status(403));
    let cause = open(storage());
    assert!(cause.contains("403") && !cause.contains('\n'), "{cause}");
    server.fail(Fault::Hang);
    let began = Instant::now();
    let cause = open(storage());
    assert!(cause.contains("no answer within 1.5s"), "{cause} after {:?}", began.elapsed());
    // A port that nobody listens on.
    let cause = open(storage_at("http://127.0.0.1:1"));
    assert!(cause.contains("127.0.0.1:1"), "{cause}");
}

#[test]
fn a_worker_that_is_dropped_does_not_wait_for_a_server_that_hangs() {
    let server = Server::start();
    let storage = storage_at(&server.endpoint);
    let store = open(&storage, 1);
    server.fail(Fault::Hang);
    assert_eq!(verified(&store, &[1, 2, 3, 4]).0, 0);
    // Ends although requests are on the way: the test would not end otherwise.
    drop((store, storage));
}
