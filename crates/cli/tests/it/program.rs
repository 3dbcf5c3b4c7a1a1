//! Running the program, and checks that hold for every run.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::schema;

/// The program, isolated from the environment of the tests.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ruvllm"));
    // A store that does not exist, not that of the user who runs the tests.
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-store");
    command
        .args(arguments)
        .env_remove("RUVLLM_MODEL")
        .env("RUVLLM_HOME", home)
        .env("RUVLLM_CONFIG", "")
        .stdin(Stdio::null());
    if cfg!(feature = "gpu") {
        // Compiled kernels, not in the cache of the user who runs the tests.
        command.env("XDG_CACHE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"));
    }
    // Without it Vulkan drivers write to standard error, which must be empty.
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        command.env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"));
    }
    command
}

/// A finished run.
#[derive(Debug)]
pub(crate) struct Run {
    arguments: Vec<String>,
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs the program to its end with nothing on standard input.
pub(crate) fn run(arguments: &[&str]) -> Run {
    finish(arguments, command(arguments).output().unwrap())
}

/// Starts the program with pipes for standard input, output and error.
pub(crate) fn start(arguments: &[&str]) -> Child {
    command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs the program to its end with `input` on standard input.
pub(crate) fn run_with_input(arguments: &[&str], input: &[u8]) -> Run {
    let mut child = start(arguments);
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // From another thread, so that neither side waits with full pipes. A program that does not read
    // its input closes the pipe, which is no error here.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    finish(arguments, output)
}

/// Run with this output.
pub(crate) fn finish(arguments: &[&str], output: Output) -> Run {
    Run {
        arguments: arguments.iter().map(|&text| text.to_owned()).collect(),
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Run {
    /// True if the exit code is 0.
    pub(crate) fn succeeded(&self) -> bool {
        self.code == Some(0)
    }

    /// JSON document of a success, checked against the command's schema, and standard error.
    #[track_caller]
    pub(crate) fn json_and_warnings(&self) -> (Value, &str) {
        assert_eq!(self.code, Some(0), "{self:?}");
        let document = json_document(&self.stdout);
        schema::check(&self.arguments, &document);
        (document, &self.stderr)
    }

    /// Exit code, standard output and standard error.
    pub(crate) fn parts(&self) -> (Option<i32>, &str, &str) {
        (self.code, &self.stdout, &self.stderr)
    }

    /// Standard output and standard error of a success.
    #[track_caller]
    pub(crate) fn text_and_notes(&self) -> (&str, &str) {
        assert_eq!(self.code, Some(0), "{self:?}");
        (&self.stdout, &self.stderr)
    }

    /// Standard output of a success. Piped, the program writes no progress and no logs.
    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        assert_eq!(self.stderr, "", "{:?} wrote to standard error", self.arguments);
        &self.stdout
    }

    /// JSON document of a success, checked against the command's schema: one line, nothing else.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let document = json_document(self.text());
        schema::check(&self.arguments, &document);
        document
    }

    /// Error line of a failure with `code`; standard output must be empty, or with `--json` the
    /// document of the same failure.
    #[track_caller]
    pub(crate) fn failure(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:?}");
        if self.arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json")
        {
            self.error_document();
        } else {
            assert!(self.stdout.is_empty(), "{self:?}");
        }
        let line = self.stderr.strip_suffix('\n').unwrap_or_else(|| panic!("no line: {self:?}"));
        assert!(!line.contains('\n'), "more than one line: {self:?}");
        assert!(line.starts_with("error: "), "{self:?}");
        // The list of families is the longest.
        assert!(line.len() < 400, "too long for a person: {self:?}");
        line
    }

    /// Object `error` of a failure's JSON document; its message is that of the line on standard
    /// error.
    #[track_caller]
    pub(crate) fn error_document(&self) -> Value {
        let document = json_document(&self.stdout);
        schema::check_as("error", &document);
        let error = &document["error"];
        assert_eq!(fields(error), ["kind", "message", "hint"]);
        let message = error["message"].as_str().unwrap();
        assert!(self.stderr.contains(&format!("error: {message}")), "{self:?}");
        error.clone()
    }

    /// Checks that the run failed with `code` and one line that contains every piece.
    #[track_caller]
    pub(crate) fn fails_with(&self, code: i32, pieces: &[&str]) {
        let line = self.failure(code);
        for piece in pieces {
            assert!(line.contains(piece), "{piece:?} is not in {line:?}");
        }
    }
}

/// Parses one JSON document on one line.
#[track_caller]
pub(crate) fn json_document(text: &str) -> Value {
    let line = text.strip_suffix('\n').expect("the document ends its line");
    assert!(!line.contains('\n'), "more than one line");
    serde_json::from_str(line).unwrap()
}

/// Names of an object's fields, in order.
#[track_caller]
pub(crate) fn fields(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Fields of a measurement without the commit, which is absent outside of a repository.
pub(crate) fn without_commit(fields: Vec<&str>) -> Vec<&str> {
    fields.into_iter().filter(|name| *name != "commit").collect()
}

/// A list of ids.
#[track_caller]
pub(crate) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

/// A file of this crate's test data.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// A file of the repository.
pub(crate) fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name).canonicalize().unwrap()
}

/// A path as an argument.
#[track_caller]
pub(crate) fn argument(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The tiny Llama with random weights.
pub(crate) fn tiny_model() -> PathBuf {
    repository("crates/models/tests/data/tiny/llama/model-F32.gguf")
}

/// The shipped default model as a file.
pub(crate) fn default_model() -> PathBuf {
    repository("models/base-q8_0.gguf")
}

/// Reference results of the default model.
pub(crate) fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(data("base-expected.json")).unwrap()).unwrap()
}

/// The tensor `logits` of a file: (shape, values).
#[track_caller]
pub(crate) fn read_logits(path: &Path) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.names(), ["logits"]);
    let tensor = file.tensor("logits").unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32);
    let values = tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    (tensor.shape().to_vec(), values)
}
