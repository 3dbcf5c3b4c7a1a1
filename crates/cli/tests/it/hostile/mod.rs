//! Hostile files through the built program: templates, vocabularies, adapters, hubs, stores and
//! prefix folders. Every run ends by itself with an exit code and a line, in 256 MiB of memory and
//! 5 s of CPU time.
//!
//! The program of these tests is not optimized; `docs/security.md` has the figures of a release.

mod files;
mod folders;
mod hub;
mod measure;
mod templates;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gguf_rs_lite::{Error, Gguf, Metadata, write_file};
use tempfile::TempDir;

use crate::program::{command, tiny_model};
use measure::measured;

/// Expected end of a run.
#[derive(Clone, Copy)]
enum Expected {
    /// Exit code 1, and one line that contains this text.
    Error(&'static str),
    /// Exit code 0, with this text or nothing on standard error.
    Success(&'static str),
}

/// Folder of hostile files.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Writes the tiny model with other metadata.
    fn model(&self, name: &str, change: impl FnOnce(&mut Metadata)) -> PathBuf {
        let (gguf, path) = (Gguf::open(tiny_model()).unwrap(), self.path(name));
        let mut metadata = gguf.metadata().clone();
        change(&mut metadata);
        write_file::<Error>(&path, &metadata, gguf.tensors().cloned(), |writer| {
            while let Some(tensor) = writer.next_tensor().cloned() {
                writer.write_tensor(&tensor.name, gguf.data(&tensor.name)?.as_ref())?;
            }
            Ok(())
        })
        .unwrap();
        path
    }
}

/// Runs the program and checks the end and the limits.
#[track_caller]
fn check(case: &str, arguments: &[&str], expected: Expected) -> String {
    check_command(case, &command(arguments), Path::new("/dev/null"), expected)
}

/// As [`check`], with variables and standard input.
#[track_caller]
fn check_command(case: &str, command: &Command, input: &Path, expected: Expected) -> String {
    let run = measured(command, input);
    match expected {
        Expected::Error(piece) => {
            run.fails_with(case, piece);
            String::new()
        }
        Expected::Success(piece) => run.succeeds_with(case, piece).to_owned(),
    }
}
