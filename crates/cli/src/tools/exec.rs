//! Calls run by a command: its name as argument, its arguments on standard input.

use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use ruvllm::{CancelToken, ToolCall};

use crate::error::one_line;
use crate::output;

/// Most bytes of a result; the rest of the command's output is dropped.
const RESULT_BYTES: u64 = 64 << 10;
/// Interval at which a running command is looked at.
const POLL: Duration = Duration::from_millis(10);
/// Time to read the output of a command that has ended: a process that it started may hold the pipe
/// open.
const REST: Duration = Duration::from_millis(500);

/// Consent to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmation {
    /// Each call is asked for at the terminal.
    Ask,
    /// All calls are run.
    Always,
}

/// Runs calls with a command.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) command: PathBuf,
    pub(crate) timeout: Duration,
    pub(crate) confirmation: Confirmation,
}

impl Executor {
    /// Result of a call for the model: the command's standard output, or the reason that there is
    /// none.
    pub(crate) fn run(&mut self, call: &ToolCall, cancel: &CancelToken) -> Result<String, String> {
        if self.confirmation == Confirmation::Ask && !self.ask(call, cancel) {
            return Err("the user has refused the call".to_owned());
        }
        let cannot = |error: std::io::Error| format!("cannot run {}: {error}", self.command.display());
        let mut child = Command::new(&self.command)
            .arg(&call.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        let result = self.follow(&mut child, call, cancel);
        if result.is_err() {
            // It may have ended: then there is nothing to kill.
            let _ = child.kill();
        }
        let _ = child.wait();
        result
    }

    /// Writes the arguments, reads the output and waits for the end.
    fn follow(&self, child: &mut Child, call: &ToolCall, cancel: &CancelToken) -> Result<String, String> {
        let (mut stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let arguments = call.arguments.clone();
        // From threads, so that a full pipe stops neither side. A command need not read its input.
        thread::spawn(move || stdin.as_mut().map(|stdin| stdin.write_all(arguments.as_bytes())));
        let (sender, output) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = stdout.map_or(Ok(0), |mut stdout| {
                (&mut stdout).take(RESULT_BYTES).read_to_end(&mut bytes)?;
                // A pipe that is closed early would end the command with a signal.
                std::io::copy(&mut stdout, &mut std::io::sink())
            });
            let _ = sender.send(read.map(|_| bytes));
        });
        let started = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error.to_string()),
                _ => {}
            }
            if cancel.is_cancelled() {
                return Err("the call was cancelled".to_owned());
            }
            if started.elapsed() >= self.timeout {
                let limit = self.timeout.as_secs_f64();
                return Err(format!("the command has not ended within {limit} s and was stopped"));
            }
            thread::sleep(POLL);
        };
        let bytes = match output.recv_timeout(REST) {
            Ok(read) => read.map_err(|error| error.to_string())?,
            Err(_) => return Err("the output of the command has no end".to_owned()),
        };
        let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        if status.success() {
            return Ok(text);
        }
        Err(format!("the command has failed ({status}): {text}").trim_end_matches([':', ' ']).to_owned())
    }

    /// Asks at the terminal; `a` answers for all later calls.
    fn ask(&mut self, call: &ToolCall, cancel: &CancelToken) -> bool {
        let command = self.command.display();
        output::note(&format!("[{command} {} <<< {}]", call.name, call.arguments));
        let answer = DefaultEditor::new().and_then(|mut editor| editor.readline("run this? [y/N/a(ll)] "));
        match answer {
            Ok(answer) => match answer.trim().to_ascii_lowercase().as_str() {
                "y" | "yes" => true,
                "a" | "all" => {
                    self.confirmation = Confirmation::Always;
                    true
                }
                _ => false,
            },
            Err(ReadlineError::Interrupted) => {
                cancel.cancel();
                false
            }
            Err(ReadlineError::Eof) => false,
            Err(error) => {
                output::warn(&one_line(&error));
                false
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use ruvllm::ToolCallFormat;

    use super::*;

    fn call() -> ToolCall {
        let parser = ruvllm::ToolCallParser::new(ToolCallFormat::FunctionTag);
        parser.parse("<function=greet>{\"name\": \"Ann\"}</function>").calls.remove(0)
    }

    fn run(script: &str, timeout: Duration, cancel: &CancelToken) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let command = folder.path().join("tool");
        fs::write(&command, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&command, fs::Permissions::from_mode(0o700)).unwrap();
        loop {
            let command = command.clone();
            let result =
                Executor { command, timeout, confirmation: Confirmation::Always }.run(&call(), cancel);
            // A child that another test forks meanwhile holds the file open for writing until it
            // executes its own program.
            if !result.as_ref().is_err_and(|error| error.contains("Text file busy")) {
                return result;
            }
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn name_and_arguments_reach_the_command() {
        let result = run("echo \"$1 $#\"; cat", LONG, &CancelToken::new());
        assert_eq!(result.unwrap(), "greet 1\n{\"name\": \"Ann\"}");
        assert_eq!(run("exit 0", LONG, &CancelToken::new()).unwrap(), "");
    }

    #[test]
    fn failures_have_a_reason() {
        let cancel = CancelToken::new();
        let failed = run("echo no network; exit 3", LONG, &cancel).unwrap_err();
        assert!(failed.contains('3') && failed.ends_with(": no network"), "{failed}");
        let slow = run("exec sleep 60", Duration::from_millis(50), &cancel).unwrap_err();
        assert!(slow.contains("0.05 s"), "{slow}");
        let mut absent = Executor {
            command: PathBuf::from("/no/such/command"),
            timeout: LONG,
            confirmation: Confirmation::Always,
        };
        assert!(absent.run(&call(), &cancel).unwrap_err().contains("/no/such/command"));
        cancel.cancel();
        assert!(run("exec sleep 60", LONG, &cancel).unwrap_err().contains("cancelled"));
    }

    #[test]
    fn long_output_is_cut() {
        let result = run("yes | head -c 1000000", LONG, &CancelToken::new());
        assert!(result.is_ok_and(|text| text.len() <= RESULT_BYTES as usize));
    }
}
