//! Stores over an S3-compatible server at `RUVLLM_S3_ENDPOINT`, which `cargo xtask object-store`
//! starts.

#[path = "../../../kv-cache/tests/it/any_storage.rs"]
mod any_storage;

use std::env;
use std::error::Error as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use any_storage::{PAYLOAD, Storage, key, open, secret, verified};
use ruvllm_kv_cache::prefix::PrefixStore;
use ruvllm_prefix_objects::ObjectStorage;

const BUCKET: &str = "models";

/// Variable with the prefix that a process of its own writes to.
const WRITER: &str = "RUVLLM_S3_WRITER";

fn endpoint() -> String {
    env::var("RUVLLM_S3_ENDPOINT")
        .expect("the server's address in RUVLLM_S3_ENDPOINT: cargo xtask object-store")
}

fn storage_in(bucket: &str, prefix: &str) -> Storage {
    let endpoint = endpoint();
    let variables = [
        ("AWS_ACCESS_KEY_ID", "name"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_ENDPOINT_URL", &endpoint),
        ("AWS_ALLOW_HTTP", "true"),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let storage = ObjectStorage::open(&format!("s3://{bucket}/{prefix}"), variables).expect("a storage");
    // The server is in Python, and shares the machine with other tests.
    Arc::new(storage.with_patience(Duration::from_secs(20)))
}

/// An empty place below the bucket.
fn fresh() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let answer = ureq::put(format!("{}/{BUCKET}", endpoint())).send_empty();
    answer.expect("the bucket, made or there already");
    format!("{}-{}/prefixes", std::process::id(), COUNT.fetch_add(1, Relaxed))
}

#[test]
fn an_s3_server_passes_the_tests_of_every_storage() {
    any_storage::all(&|| storage_in(BUCKET, &fresh()));
}

#[test]
fn a_bucket_that_is_not_there_is_one_error() {
    let storage = storage_in("no-such-bucket", "prefixes");
    let error = PrefixStore::open_storage(storage, 4, 1 << 20, &secret(1)).expect_err("no bucket");
    let cause = error.source().expect("a cause").to_string();
    assert_eq!(error.to_string(), "cannot list s3://no-such-bucket/prefixes");
    assert!(cause.contains("NoSuchBucket") && !cause.contains('\n'), "{cause}");
}

/// Body of the process that [`a_writer_that_is_killed_leaves_whole_entries`] starts and kills.
#[test]
fn writer_process() {
    let Ok(prefix) = env::var(WRITER) else { return };
    let store = open(&storage_in(BUCKET, &prefix), 1);
    for place in store.missing(&key(), &(0..4000).collect::<Vec<u32>>(), 0) {
        store.write(&place, &[&PAYLOAD]).expect("written");
    }
}

#[test]
fn a_writer_that_is_killed_leaves_whole_entries() {
    let prefix = fresh();
    let tokens: Vec<u32> = (0..4000).collect();
    for round in 1..4 {
        let store = open(&storage_in(BUCKET, &prefix), 1);
        let before = store.usage().expect("a listing").0;
        let mut writer = Command::new(env::current_exe().expect("this program"))
            .args(["writer_process", "--exact"])
            .env(WRITER, &prefix)
            .spawn()
            .expect("a process");
        let began = Instant::now();
        while store.usage().expect("a listing").0 < before + 5 * round {
            assert!(began.elapsed() < Duration::from_secs(120), "the writer writes nothing");
            thread::sleep(Duration::from_millis(5));
        }
        writer.kill().expect("killed");
        writer.wait().expect("its end");
        let (n_entries, _) = store.usage().expect("a listing");
        let (n_blocks, warnings) = verified(&store, &tokens);
        assert!(warnings.is_empty(), "{warnings:?}");
        // Blocks are written in the order of the prefix, so all of them are found.
        assert!(n_blocks == n_entries || n_blocks == n_entries + 1, "{n_blocks} of {n_entries}");
    }
}
