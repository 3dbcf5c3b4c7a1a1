//! Reward by a program that runs for the whole training: an answer as a line of JSON on its
//! standard input, the reward as a line of its output.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

/// Maximum length of a line of output in bytes.
const LINE: u64 = 64 << 10;
/// Lines of output that wait to be read, at most.
const WAITING: usize = 1024;
/// Characters of a line in a message.
const SHOWN: usize = 200;
/// Time for the program to end after the end of its input.
const REST: Duration = Duration::from_secs(1);
/// Interval at which an ending program is looked at.
const POLL: Duration = Duration::from_millis(5);

/// Failures of a reward command. Answers are counted from 1 over the whole run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum RewardError {
    /// The command has no words.
    #[error("--reward is empty; name a program and its arguments")]
    Empty,
    /// The program cannot be started.
    #[error("--reward: cannot run {program}")]
    Start {
        /// The program.
        program: String,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The program has ended.
    #[error("--reward: {program} has ended ({status}) without a reward for answer {number}: {answer}")]
    Ended {
        /// The program.
        program: String,
        /// Its exit status.
        status: String,
        /// Number of the answer.
        number: u64,
        /// Line of the answer, shortened.
        answer: String,
    },
    /// A line of output is not a reward.
    #[error(
        "--reward: {program} wrote `{line}` for answer {number}; expected a finite number or {{\"reward\": NUMBER}}"
    )]
    NoNumber {
        /// The program.
        program: String,
        /// The line, shortened.
        line: String,
        /// Number of the answer.
        number: u64,
    },
    /// A line of output belongs to no answer.
    #[error("--reward: {program} wrote `{line}` after {number} rewards, which is one line too many")]
    Extra {
        /// The program.
        program: String,
        /// The line, shortened.
        line: String,
        /// Rewards before it.
        number: u64,
    },
    /// There was no line within the time limit.
    #[error(
        "--reward: no reward for answer {number} within {seconds} s: {answer}; {program} must write and flush a line \
         for each line that it reads, or raise --reward-timeout"
    )]
    Timeout {
        /// The program.
        program: String,
        /// The time limit.
        seconds: f32,
        /// Number of the answer.
        number: u64,
        /// Line of the answer, shortened.
        answer: String,
    },
    /// The output cannot be read.
    #[error("--reward: cannot read the output of {program}")]
    Read {
        /// The program.
        program: String,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
}

/// A running reward command. It is started without a shell; its standard error is that of this
/// process.
pub(super) struct RewardCommand {
    program: String,
    child: Child,
    /// Lines for its input; `None` once that has ended.
    input: Option<Sender<String>>,
    output: Receiver<std::io::Result<String>>,
    timeout: Duration,
    /// Rewards read.
    done: u64,
}

/// The line of a reward; other fields are ignored.
#[derive(Deserialize)]
struct RewardLine {
    reward: f64,
}

impl RewardCommand {
    /// Starts a command: words separated by white space, the first one the program.
    pub(super) fn start(command: &str, timeout: Duration) -> Result<Self, RewardError> {
        let mut words = command.split_whitespace();
        let program = words.next().ok_or(RewardError::Empty)?.to_owned();
        let mut command = Command::new(&program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C at the terminal ends the step and saves the state; the program must live until
        // then, so it is in a process group of its own.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let failed = |source| RewardError::Start { program: program.clone(), source };
        let mut child = command.spawn().map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (input, lines) = mpsc::channel::<String>();
        // From threads, so that a full pipe stops neither side.
        thread::spawn(move || {
            let Some(mut stdin) = stdin else { return };
            for line in lines {
                // The program has closed its input; its output, or the lack of it, tells.
                if stdin.write_all(line.as_bytes()).and_then(|()| stdin.write_all(b"\n")).is_err() {
                    return;
                }
            }
        });
        let (sender, output) = mpsc::sync_channel(WAITING);
        thread::spawn(move || stdout.map(|stdout| read_lines(stdout, &sender)));
        Ok(Self { program, child, input: Some(input), output, timeout, done: 0 })
    }

    /// Rewards of some answers, given as lines of JSON.
    pub(super) fn rewards(&mut self, answers: &[String]) -> Result<Vec<f64>, RewardError> {
        match self.output.try_recv() {
            Ok(Ok(line)) => {
                let (program, line) = (self.program.clone(), shown(&line));
                return Err(RewardError::Extra { program, line, number: self.done });
            }
            Ok(Err(source)) => return Err(RewardError::Read { program: self.program.clone(), source }),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        for answer in answers {
            // Without a reader of these lines there is no reward, which is the error.
            let _ = self.input.as_ref().map(|input| input.send(answer.clone()));
        }
        answers.iter().map(|answer| self.reward(answer)).collect()
    }

    /// The next reward.
    fn reward(&mut self, answer: &str) -> Result<f64, RewardError> {
        let (program, number) = (self.program.clone(), self.done + 1);
        let line = match self.output.recv_timeout(self.timeout) {
            Ok(Ok(line)) => line,
            Ok(Err(source)) => return Err(RewardError::Read { program, source }),
            Err(RecvTimeoutError::Timeout) => {
                let seconds = self.timeout.as_secs_f32();
                return Err(RewardError::Timeout { program, seconds, number, answer: shown(answer) });
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.wait().map_or_else(|| "it closed its output".to_owned(), |s| s.to_string());
                return Err(RewardError::Ended { program, status, number, answer: shown(answer) });
            }
        };
        self.done = number;
        parse(&line).ok_or_else(|| RewardError::NoNumber { program, line: shown(&line), number })
    }

    /// Exit status, waiting a moment for it.
    fn wait(&mut self) -> Option<std::process::ExitStatus> {
        let deadline = Instant::now() + REST;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => thread::sleep(POLL),
                _ => return None,
            }
        }
    }
}

impl Drop for RewardCommand {
    /// Ends the input; a program that goes on after it is killed.
    fn drop(&mut self) {
        self.input = None;
        if self.wait().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sends the lines of the output until its end.
fn read_lines(stdout: ChildStdout, sender: &SyncSender<std::io::Result<String>>) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let read = (&mut reader).take(LINE).read_until(b'\n', &mut line);
        let line = match read {
            Ok(0) => return,
            Ok(_) => Ok(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned()),
            Err(error) => Err(error),
        };
        let is_end = line.is_err();
        if sender.send(line).is_err() || is_end {
            return;
        }
    }
}

/// The finite number of a line: plain, or the field `reward` of an object.
fn parse(line: &str) -> Option<f64> {
    let plain = line.trim().parse().ok();
    let value = plain.or_else(|| Some(serde_json::from_str::<RewardLine>(line).ok()?.reward));
    value.filter(|value| value.is_finite())
}

/// A line for a message: shortened, without control characters.
fn shown(line: &str) -> String {
    let mut shown: String = line.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().nth(SHOWN).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewards_are_finite_numbers() {
        for (line, expected) in
            [("1", 1.0), (" -0.5 ", -0.5), (r#"{"reward": 2, "why": "x"}"#, 2.0), ("1e3", 1e3)]
        {
            assert_eq!(parse(line), Some(expected), "{line}");
        }
        for line in ["", "NaN", "inf", "yes", "{}", r#"{"reward": null}"#, r#"{"reward": 1e999}"#, "1 2"] {
            assert_eq!(parse(line), None, "{line}");
        }
        assert_eq!(shown("a\tb"), "a b");
        assert_eq!(shown(&"x".repeat(500)).len(), SHOWN + 3);
    }

    #[cfg(unix)]
    mod programs {
        use std::fs;

        use super::*;

        const LONG: Duration = Duration::from_secs(60);

        /// Rewards of two answers, twice.
        fn run(script: &str, timeout: Duration) -> Result<Vec<f64>, RewardError> {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("reward.sh");
            fs::write(&path, script).expect("a script");
            let command = format!("/bin/sh {}", path.display());
            let mut command = RewardCommand::start(&command, timeout)?;
            let mut rewards = command.rewards(&["ab".to_owned(), "c".to_owned()])?;
            // Time for a line too many to arrive.
            thread::sleep(Duration::from_millis(50));
            rewards.extend(command.rewards(&["def".to_owned(), String::new()])?);
            Ok(rewards)
        }

        #[test]
        fn a_line_for_each_answer() {
            let script = "n=0; while read -r line; do n=$((n + 1)); echo \"$n${#line}\"; done";
            assert_eq!(run(script, LONG).expect("rewards"), [12.0, 21.0, 33.0, 40.0]);
        }

        #[test]
        fn failures_name_the_answer() {
            for (script, expected) in [
                ("read -r a; echo 1; exit 3", "(exit status: 3) without a reward for answer 2: c"),
                ("read -r a; echo 1; echo good", "wrote `good` for answer 2"),
                ("echo NaN", "wrote `NaN` for answer 1"),
                ("echo 1; echo 2; echo 3; cat > /dev/null", "wrote `3` after 2 rewards"),
                ("exec <&-; exit 0", "(exit status: 0) without a reward for answer 1"),
            ] {
                let error = run(script, LONG).expect_err(script).to_string();
                assert!(error.contains(expected), "{script}: {error}");
            }
            let error = run("exec sleep 60", Duration::from_millis(50)).expect_err("slow").to_string();
            assert!(error.contains("within 0.05 s: ab") && error.contains("--reward-timeout"), "{error}");
            assert!(matches!(RewardCommand::start("/no/such/program", LONG), Err(RewardError::Start { .. })));
            assert!(matches!(RewardCommand::start("  ", LONG), Err(RewardError::Empty)));
        }
    }
}
