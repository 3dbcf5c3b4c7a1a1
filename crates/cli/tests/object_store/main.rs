//! `--prefix-dir s3://...`: programs that share prefixes through an S3-compatible server at
//! `RUVLLM_S3_ENDPOINT`, which `cargo xtask object-store` starts.

#[allow(dead_code)]
#[path = "../it/program.rs"]
mod program;
#[allow(dead_code)]
#[path = "../it/schema.rs"]
mod schema;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use program::{Run, argument, command, finish, tiny_model};
use ruvllm_kv_cache::prefix::store::{EntryName, EntryStorage};
use ruvllm_prefix_objects::ObjectStorage;
use serde_json::Value;

fn endpoint() -> String {
    std::env::var("RUVLLM_S3_ENDPOINT")
        .expect("the server's address in RUVLLM_S3_ENDPOINT: cargo xtask object-store")
}

fn settings(endpoint: &str) -> [(String, String); 4] {
    let variables = [
        ("AWS_ACCESS_KEY_ID", "name"),
        ("AWS_SECRET_ACCESS_KEY", "hidden"),
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ALLOW_HTTP", "true"),
    ];
    variables.map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// An empty prefix of a bucket, and a key.
struct Place {
    url: String,
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let bucket = format!("{}/models", endpoint());
        let made = std::process::Command::new("python3")
            .args(["-c", "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], method='PUT'))"])
            .arg(bucket)
            .status();
        assert!(made.unwrap().success(), "the bucket");
        let url = format!("s3://models/{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let place = Self { url, folder: tempfile::tempdir().unwrap() };
        std::fs::write(place.key(), [7; 32]).unwrap();
        #[cfg(unix)]
        {
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(place.key(), private).unwrap();
        }
        place
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("key")
    }

    fn storage(&self) -> ObjectStorage {
        ObjectStorage::open(&self.url, settings(&endpoint())).unwrap()
    }

    fn names(&self) -> Vec<EntryName> {
        self.storage().list().unwrap().iter().map(|entry| entry.name).collect()
    }

    /// A run of the program, with the object store unless `more` names another place.
    fn run(&self, endpoint: &str, more: &[&str]) -> Run {
        let (key, prompt) = (self.key(), "Once upon a time there was ".repeat(12));
        let mut arguments = vec!["generate", "--temperature", "0", "-n", "4", "--json"];
        arguments.extend(["--prefix-cache", "on", "--prefix-key", argument(&key)]);
        if !more.contains(&"--prefix-dir") {
            arguments.extend(["--prefix-dir", &self.url]);
        }
        arguments.extend(more);
        arguments.push(&prompt);
        finish(&arguments, command(&arguments).envs(settings(endpoint)).output().unwrap())
    }

    fn generate(&self) -> Value {
        self.run(&endpoint(), &[]).json()
    }
}

#[test]
fn programs_share_prefixes_through_an_object_store() {
    let place = Place::new();
    let first = place.generate();
    assert_eq!(first["cached_tokens"], 0);
    let second = place.generate();
    assert!(second["cached_tokens"].as_u64().unwrap() >= 32, "{second}");
    assert_eq!(second["tokens"], first["tokens"]);
    // Of another model nothing is found, and nothing is removed.
    let names = place.names();
    let tiny = tiny_model();
    let other = place.run(&endpoint(), &["--model", argument(&tiny)]).json();
    assert_eq!(other["cached_tokens"], 0);
    assert!(names.iter().all(|name| place.names().contains(name)));
    // Nor with another key.
    std::fs::write(place.key(), [8; 32]).unwrap();
    assert_eq!(place.generate()["cached_tokens"], 0);
}

#[test]
fn forged_and_swapped_objects_are_computed_again() {
    let place = Place::new();
    let truth = place.generate();
    let storage = place.storage();
    let names = place.names();
    let read = |name| storage.heads(&[name], 64 << 20).remove(0).unwrap().unwrap().bytes;
    let sound: Vec<Vec<u8>> = names.iter().map(|&name| read(name)).collect();
    let write = |name, bytes: &[u8]| storage.write(name, &[bytes], SystemTime::now()).unwrap();
    let again = |fault: &str| {
        let run = place.run(&endpoint(), &[]);
        let (document, warnings) = run.json_and_warnings();
        assert!(warnings.starts_with("warning: ignored s3://") && warnings.contains(fault), "{warnings}");
        assert_eq!(document["tokens"], truth["tokens"]);
        assert_eq!(document["cached_tokens"], 0);
    };
    for (&name, sound) in names.iter().zip(&sound) {
        // Another payload, with its own checksum in the header.
        use sha2::Digest;
        let mut forged = sound.clone();
        let n_tokens = u32::from_le_bytes(*forged[12..].first_chunk().unwrap());
        let payload = 120 + 4 * n_tokens as usize + 32;
        forged[payload..].fill(0);
        let digest = sha2::Sha256::digest(&forged[payload..]);
        forged[88..120].copy_from_slice(&digest);
        write(name, &forged);
    }
    again("has no tag");
    for (&name, sound) in names.iter().zip(&sound) {
        write(name, &sound[..sound.len() / 2]);
    }
    again("bytes instead of");
    let prompt_blocks = names.len();
    assert!(prompt_blocks >= 2, "{names:?}");
    for (&name, sound) in names.iter().zip(sound.iter().cycle().skip(1)) {
        write(name, sound);
    }
    again("holds another prefix than its name says");
    // They were written again, sound.
    assert!(place.generate()["cached_tokens"].as_u64().unwrap() >= 32);
}

#[test]
fn faults_of_place_and_settings_are_one_line() {
    let place = Place::new();
    let url = "s3://models/prefixes";
    let without_key = |url: &str| {
        let arguments = ["generate", "--prefix-cache", "on", "--prefix-dir", url, "-n", "1", "word"];
        finish(&arguments, command(&arguments).envs(settings(&endpoint())).output().unwrap())
    };
    without_key(url).fails_with(1, &[url, "--prefix-key"]);
    without_key("gs://models/prefixes").fails_with(1, &["gs://models/prefixes", "s3://BUCKET/PREFIX"]);
    let fails = |place: &Place, endpoint: &str, url: &str, pieces: &[&str]| {
        place.run(endpoint, &["--prefix-dir", url]).fails_with(1, pieces);
    };
    fails(&place, &endpoint(), "s3:///prefixes", &["s3:///prefixes", "bucket"]);
    fails(
        &place,
        &endpoint(),
        "s3://no-such-bucket/prefixes",
        &["s3://no-such-bucket/prefixes", "NoSuchBucket"],
    );
    fails(&place, "http://127.0.0.1:1", url, &[url, "127.0.0.1:1"]);
    // A server that takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    fails(&place, &address, url, &[url]);
}
