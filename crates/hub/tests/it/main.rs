//! Pulling from a hub on this machine: what it should do, what goes wrong on the way, what is
//! refused.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ruvllm_hub::{Hub, HubSettings, Pulled, Result, Store};
use tempfile::TempDir;

use crate::server::FakeHub;

mod interruptions;
mod pull;
mod refusals;
mod server;
mod store;

/// A store in a folder of its own, and a hub.
struct Place {
    hub: FakeHub,
    store: Store,
    settings: HubSettings,
    _folder: TempDir,
}

impl Place {
    /// A hub with these files and an empty store. The settings make tests short: small pieces,
    /// short waits.
    fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let hub = FakeHub::start(files);
        let folder = tempfile::tempdir().unwrap();
        let mut settings = HubSettings::new(hub.endpoint()).unwrap();
        settings.connections = 4;
        settings.piece_bytes = 100_000;
        settings.attempts = 3;
        settings.first_wait = Duration::from_millis(1);
        settings.longest_wait = Duration::from_secs(2);
        settings.silence = Duration::from_secs(5);
        Self { hub, store: Store::new(folder.path().join("store")), settings, _folder: folder }
    }

    fn client(&self) -> Hub {
        Hub::new(self.settings.clone()).unwrap()
    }

    fn pull(&self, reference: &str) -> Result<Pulled> {
        self.store.pull(&self.client(), &reference.parse().unwrap(), None, &mut |_| ControlFlow::Continue(()))
    }

    fn pull_as(&self, reference: &str, name: &str) -> Result<Pulled> {
        let reference = reference.parse().unwrap();
        self.store.pull(&self.client(), &reference, Some(name), &mut |_| ControlFlow::Continue(()))
    }

    /// Files below the folder of model files, as paths below it, in order.
    fn files(&self) -> Vec<String> {
        let top = self.store.root().join("files");
        let mut found = Vec::new();
        let mut folders = vec![top.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                } else {
                    found.push(entry.path().strip_prefix(&top).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        found.sort();
        found
    }

    /// The one partial file.
    fn partial(&self) -> PathBuf {
        let files = self.files();
        let name = files.iter().find(|name| name.ends_with(".part")).expect("a partial file");
        self.store.root().join("files").join(name)
    }
}

/// Contents of a file.
#[track_caller]
fn contents(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}
