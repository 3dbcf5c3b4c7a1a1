//! Requests and replies against the real server: every case of `cases/*.json`.
//!
//! A file has a `path`, a `body` that its cases extend, and the cases: what they add to the body,
//! the `status`, and expectations by JSON pointer ([`expect`]). Cases with `stream` read
//! server-sent events: expectations about `first`, `last` and `every` event, and the joined `text`.
//! All cases run at the same time, so that each meets others in its batches.

mod case;
mod client;
mod expect;
mod load;
mod server;

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use self::case::{Case, File};

/// Requests that are sent at the same time.
const CLIENTS: usize = 8;

/// Least number of cases.
const LEAST_CASES: usize = 200;

#[test]
fn every_case_gets_its_reply() {
    let server = server::start();
    let mut cases: Vec<Case> = Vec::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/cases");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let file: File =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        cases.extend(file.cases(path.file_stem().unwrap().to_str().unwrap()));
    }
    assert!(cases.len() >= LEAST_CASES, "{} cases", cases.len());
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(reason) = case.run(&server) {
                        failures.lock().unwrap().push(format!("{}: {reason}", case.name));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), cases.len(), failures.join("\n"));
}
