//! Running other programs: a builder whose command line is printed first, and whose failure becomes
//! an error.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Error, Result, Workspace};

/// A command line that can be printed, run, and rerun by hand.
#[derive(Clone, Debug)]
pub struct CommandLine {
    program: OsString,
    args: Vec<OsString>,
    envs: Vec<(&'static str, String)>,
    dir: PathBuf,
}

impl CommandLine {
    /// `program` in the folder `dir`.
    pub fn new(program: impl AsRef<OsStr>, dir: &Path) -> Self {
        Self { program: program.as_ref().into(), args: Vec::new(), envs: Vec::new(), dir: dir.into() }
    }

    /// The cargo that runs this program, in the workspace root.
    pub fn cargo(workspace: &Workspace) -> Self {
        Self::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), workspace.root())
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &'static str, value: &str) -> Self {
        self.envs.push((name, value.to_owned()));
        self
    }

    /// The command in shell syntax.
    pub fn display(&self) -> String {
        let mut words: Vec<String> =
            self.envs.iter().map(|(name, value)| format!("{name}={}", quote(value))).collect();
        let program = Path::new(&self.program);
        let is_cargo = program.file_stem().is_some_and(|stem| stem == "cargo");
        words.push(if is_cargo { "cargo".to_owned() } else { quote(&program.to_string_lossy()) });
        words.extend(self.args.iter().map(|arg| quote(&arg.to_string_lossy())));
        words.join(" ")
    }

    /// Runs with inherited output streams.
    pub fn run(&self) -> Result<()> {
        let status = self.command().status().map_err(self.start_error())?;
        self.check(status, String::new())
    }

    /// Runs and returns stdout; a failure contains stderr.
    pub fn output(&self) -> Result<String> {
        let output = self.command().stdin(Stdio::null()).output().map_err(self.start_error())?;
        self.check(output.status, String::from_utf8_lossy(&output.stderr).trim().to_owned())?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs and returns stderr, for programs that put their measurements there; stdout is dropped.
    pub fn errors(&self) -> Result<String> {
        let output = self
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()
            .map_err(self.start_error())?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        self.check(output.status, stderr.trim().to_owned())?;
        Ok(stderr)
    }

    /// Runs and returns stdout, while stderr (progress) stays visible.
    pub fn output_with_progress(&self) -> Result<String> {
        let output = self
            .command()
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .map_err(self.start_error())?;
        self.check(output.status, String::new())?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs, passes each line of stdout to `on_line` as it arrives, and reports failure at the end.
    pub fn run_lines(&self, mut on_line: impl FnMut(&str)) -> Result<()> {
        let mut child =
            self.command().stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(self.start_error())?;
        if let Some(stdout) = child.stdout.take() {
            let mut reader = BufReader::new(stdout);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                on_line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
                line.clear();
            }
        }
        let status = child.wait().map_err(self.start_error())?;
        self.check(status, String::new())
    }

    /// True if the program starts and succeeds; its output is dropped.
    pub fn succeeds(&self) -> bool {
        self.command()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).current_dir(&self.dir).envs(self.envs.iter().map(|(k, v)| (*k, v)));
        command
    }

    fn start_error(&self) -> impl FnOnce(std::io::Error) -> Error + use<> {
        let command = self.display();
        move |source| Error::Start { command, source }
    }

    fn check(&self, status: std::process::ExitStatus, stderr: String) -> Result<()> {
        if status.success() {
            Ok(())
        } else {
            Err(Error::CommandFailed { command: self.display(), status, stderr })
        }
    }
}

/// Quotes a word for a shell if necessary.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_can_be_pasted_into_a_shell() {
        let command = CommandLine::new("/some/where/cargo", Path::new("."))
            .env("RUSTDOCFLAGS", "-D warnings")
            .args(["doc", "it's", ""]);
        assert_eq!(command.display(), r"RUSTDOCFLAGS='-D warnings' cargo doc 'it'\''s' ''");
    }

    #[test]
    fn a_failing_program_is_an_error_with_its_words() {
        let command = CommandLine::new("sh", Path::new(".")).args(["-c", "echo no >&2; exit 3"]);
        let message = command.output().expect_err("exit status 3").to_string();
        assert!(message.contains("exit status: 3") && message.ends_with("no"), "{message}");
        assert!(!command.succeeds());
    }

    #[test]
    fn lines_come_one_by_one() {
        let mut lines = Vec::new();
        let command = CommandLine::new("sh", Path::new(".")).args(["-c", "printf 'a\\nb'"]);
        command.run_lines(|line| lines.push(line.to_owned())).expect("success");
        assert_eq!(lines, ["a", "b"]);
    }
}
