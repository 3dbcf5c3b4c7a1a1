//! Errors of `cargo xtask`.

use std::path::PathBuf;

/// Result with this package's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No `Cargo.toml` with a `[workspace]` table in the current folder or above it.
    #[error("no workspace found in {} or above it", start.display())]
    NoWorkspace {
        /// Start of the search.
        start: PathBuf,
    },
    /// A file could not be read, written or listed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Failed action: `read`, `write`, `list`...
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A program could not be started.
    #[error("cannot start `{command}`")]
    Start {
        /// The command line.
        command: String,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A program ran and reported failure.
    #[error("`{command}` failed ({status}){}{stderr}", if stderr.is_empty() { "" } else { ":\n" })]
    CommandFailed {
        /// The command line.
        command: String,
        /// Exit status.
        status: std::process::ExitStatus,
        /// Text on stderr, if that was captured.
        stderr: String,
    },
    /// A program's output is not the expected JSON document.
    #[error("the output of `{command}` is not the expected JSON")]
    Json {
        /// The command line.
        command: String,
        /// Error of the JSON parser.
        #[source]
        source: serde_json::Error,
    },
    /// A program's JSON output lacks a field.
    #[error("the output of `{command}` has no {field}")]
    MissingField {
        /// The command line.
        command: String,
        /// The missing field.
        field: String,
    },
    /// One step of `cargo xtask ci` or `test` failed.
    #[error("step `{step}` failed; rerun it with: {rerun}")]
    Step {
        /// The step's name.
        step: &'static str,
        /// A command line that runs this step alone.
        rerun: String,
        /// Error of the step.
        #[source]
        source: Box<Error>,
    },
    /// Some steps of `cargo xtask ci --full` failed.
    #[error("{failed}")]
    Steps {
        /// Messages of the steps.
        failed: String,
    },
    /// No fuzz target has the requested name.
    #[error("no fuzz target `{name}`; known: {known}")]
    NoFuzzTarget {
        /// The requested name.
        name: String,
        /// The targets.
        known: String,
    },
    /// A model checker ran no model.
    #[error("`{command}` ran no test")]
    NothingRan {
        /// The command line.
        command: String,
    },
    /// One or more test executables failed.
    #[error("{failed} of {total} test executables failed: {names}")]
    TestsFailed {
        /// Number of failed executables.
        failed: usize,
        /// Number of executables that ran.
        total: usize,
        /// Names of the failed executables.
        names: String,
    },
    /// `cross-test` lacks a tool.
    #[error("{missing}; `cargo xtask setup --cross` installs what is missing")]
    CrossTools {
        /// The missing tools.
        missing: String,
    },
    /// `platforms` lacks a tool.
    #[error("{platform} cannot be checked: {missing}")]
    PlatformTools {
        /// The platform.
        platform: &'static str,
        /// The missing tool and what installs it.
        missing: String,
    },
    /// The program behaved differently on another platform.
    #[error("{step} under wine: {found}")]
    PlatformSession {
        /// The command.
        step: &'static str,
        /// Its output.
        found: String,
    },
    /// `web` lacks a tool.
    #[error("{missing} not found; `cargo xtask setup --web` installs what is missing")]
    WebTools {
        /// The missing tools.
        missing: &'static str,
    },
    /// A server did not accept connections.
    #[error("nothing accepts connections at {url} after the start of `{command}`")]
    NotServed {
        /// The address.
        url: String,
        /// The command line that should serve it.
        command: String,
    },
    /// An emulated CPU did not run the kernels of its instruction set.
    #[error("the emulated {cpu} ran kernels for `{found}` instead of `{expected}`")]
    CrossLevel {
        /// The CPU.
        cpu: &'static str,
        /// Its instruction set.
        expected: &'static str,
        /// Instruction set that the tests reported.
        found: String,
    },
    /// A decision record does not have the required form.
    #[error("{file}: {problem}")]
    AdrFormat {
        /// The record's file name.
        file: String,
        /// Fault and remedy.
        problem: String,
    },
    /// Some conformance checks failed; each was printed.
    #[error("{failed} of {total} conformance checks do not hold")]
    AdrChecks {
        /// Number of failed checks.
        failed: usize,
        /// Number of checks that ran.
        total: usize,
    },
    /// Committed data differs from the committed checksums; each difference was printed.
    #[error("{differences} differences to {list}; if they are intended: cargo xtask fixtures --update")]
    Fixtures {
        /// Number of files that are missing, changed or not listed.
        differences: usize,
        /// The list of checksums.
        list: &'static str,
    },
    /// Violations of the tree's form; each was printed.
    #[error("{count} violations of the tree's form (CONTRIBUTING.md)")]
    Untidy {
        /// The number of violations.
        count: usize,
    },
    /// An example compiles packages that are not in its list.
    #[error("{folder} compiles packages that no list allows: {names}")]
    ExtraPackages {
        /// The example's folder.
        folder: &'static str,
        /// The packages.
        names: String,
    },
    /// A generated table is out of date.
    #[error("the table of {page} is out of date; write it with: {command}")]
    StaleTable {
        /// The page.
        page: &'static str,
        /// The command line.
        command: &'static str,
    },
    /// The committed module of the core pack is not what its sources give.
    #[error("{} is not what its sources give: build it with `cargo xtask core-pack`", path.display())]
    CorePack {
        /// The module.
        path: PathBuf,
    },
    /// The stated minimum Rust version differs from the tested one.
    #[error("minimum Rust version: {problem}")]
    RustVersion {
        /// Fault, with the file.
        problem: String,
    },
    /// A sanitizer did not report a planted fault.
    #[error("the planted fault `{fault}` was not reported: the sanitizer is blind; look with: {command}")]
    BlindSanitizer {
        /// The fault's name.
        fault: &'static str,
        /// The command line that commits it.
        command: String,
    },
    /// The comparison with another implementation did not run.
    #[error("the test {test} did not run and pass; look with: {command}")]
    NoAgreement {
        /// The test's name.
        test: &'static str,
        /// The command line that should have run it.
        command: String,
    },
    /// `setup` could not install a missing part.
    #[error("missing: {missing}; install with: {install}")]
    Setup {
        /// The missing parts.
        missing: String,
        /// The command line that installs it.
        install: String,
    },
    /// No client has the requested name.
    #[error("no client `{name}`; known: {known}")]
    NoClient {
        /// The requested name.
        name: String,
        /// The clients.
        known: String,
    },
    /// A script reported a feature that is no row of the table.
    #[error("the feature `{name}` is not in features.json")]
    NoFeature {
        /// The feature.
        name: String,
    },
    /// Checks of clients failed, or none ran; each was printed.
    #[error("{failed} of {total} checks of clients failed")]
    ClientChecks {
        /// Number of failed checks.
        failed: usize,
        /// Number of checks that ran.
        total: usize,
    },
    /// The server did not start, or does not answer any more.
    #[error("the server does not answer; its log is {}", log.display())]
    ServerSilent {
        /// Log of the server.
        log: PathBuf,
    },
    /// A comparison with the program was asked of a server at an address.
    #[error("the program is needed for this comparison: use --server instead of --url")]
    NoProgram,
    /// A document lacks a marker pair.
    #[error("{} has no `{marker}` marker pair", path.display())]
    NoMarker {
        /// The document.
        path: PathBuf,
        /// The marker's name.
        marker: String,
    },
}

impl Error {
    /// Wraps an I/O error with the action and the path.
    pub fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
