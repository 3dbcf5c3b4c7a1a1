//! Judge by a program: evidence as JSON on its standard input, the judgement on its output.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::{Evidence, Judge, Judgement};
use crate::error::{Error, Result};

/// Bytes of output that are read.
const MAX_OUTPUT: u64 = 64 << 10;

/// Pause between two looks at a running program.
const POLL: Duration = Duration::from_millis(5);

/// Program that reads `{"task", "response", "exit_code"}` and writes
/// `{"verdict": "success" | "failure" | "partial" | "unknown", "quality": 0 to 1 or null,
/// "reason": "..."}`; `quality` and `reason` may be absent.
///
/// It runs without a shell. At the time limit the program is killed, not its children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandJudge {
    /// Program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Time limit.
    pub timeout: Duration,
}

impl CommandJudge {
    fn error(&self, reason: impl std::fmt::Display) -> Error {
        Error::Judge(format!("{}: {reason}", self.program.display()))
    }

    /// Output of the program with this input.
    fn run(&self, input: Vec<u8>) -> Result<Vec<u8>> {
        let deadline = Instant::now() + self.timeout;
        let mut child = Command::new(&self.program)
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| self.error(error))?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(self.error("has no pipes"));
        };
        // A program need not read its input; the write then fails, and the output decides.
        thread::spawn(move || stdin.write_all(&input));
        let (sender, output) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let result = stdout.take(MAX_OUTPUT + 1).read_to_end(&mut bytes).map(|_| bytes);
            // The receiver is gone after the time limit.
            let _ = sender.send(result);
        });
        let left = deadline.saturating_duration_since(Instant::now());
        let output = output.recv_timeout(left);
        let too_long = matches!(&output, Ok(Ok(bytes)) if bytes.len() as u64 > MAX_OUTPUT);
        if too_long || output.is_err() {
            kill(&mut child);
        }
        let output = match output {
            Ok(Ok(_)) if too_long => return Err(self.error(format!("wrote more than {MAX_OUTPUT} bytes"))),
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => return Err(self.error(error)),
            Err(_) => return Err(self.error(format!("took longer than {:?}", self.timeout))),
        };
        loop {
            match child.try_wait().map_err(|error| self.error(error))? {
                Some(status) if status.success() => return Ok(output),
                Some(status) => return Err(self.error(format!("failed: {status}"))),
                None if Instant::now() < deadline => thread::sleep(POLL),
                None => {
                    kill(&mut child);
                    return Err(self.error(format!("took longer than {:?}", self.timeout)));
                }
            }
        }
    }
}

/// Ends a program and collects it; one that ended by itself is no error.
fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

impl Judge for CommandJudge {
    fn judge(&self, evidence: &Evidence<'_>) -> Result<Judgement> {
        let input = serde_json::to_vec(evidence).map_err(|error| self.error(error))?;
        let output = self.run(input)?;
        let judgement: Output = serde_json::from_slice(&output)
            .map_err(|error| self.error(format!("wrote no judgement: {error}")))?;
        if judgement.quality.is_some_and(|quality| !(0.0..=1.0).contains(&quality)) {
            return Err(self.error("wrote a quality that is not 0 to 1"));
        }
        Ok(Judgement {
            verdict: judgement.verdict,
            quality: judgement.quality,
            reason: judgement.reason.unwrap_or_default(),
        })
    }
}

/// Output of a program.
#[derive(serde::Deserialize)]
struct Output {
    verdict: crate::bank::Verdict,
    quality: Option<f32>,
    reason: Option<String>,
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::bank::Verdict;

    fn judge(script: &str, timeout: Duration) -> Result<Judgement> {
        let args = vec!["-c".to_owned(), script.to_owned()];
        let judge = CommandJudge { program: "/bin/sh".into(), args, timeout };
        judge.judge(&Evidence { task: "count", response: "three\n", exit_code: Some(0) })
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_program_reads_the_evidence_and_decides() {
        let script = r#"if grep -q '"response":"three\\n"'; then echo '{"verdict":"success","quality":0.5}';
            else echo '{"verdict":"failure","reason":"not found"}'; fi"#;
        let judgement = judge(script, LONG).unwrap();
        assert_eq!((judgement.verdict, judgement.quality), (Verdict::Success, Some(0.5)));
    }

    #[test]
    fn a_program_that_reads_nothing_may_decide() {
        let judgement = judge(r#"exec <&-; echo '{"verdict":"partial"}'"#, LONG).unwrap();
        assert_eq!(judgement.verdict, Verdict::Partial);
    }

    #[test]
    fn failures_of_the_program_are_errors() {
        for (script, expected) in [
            ("exit 3", "exit status: 3"),
            ("echo fine", "no judgement"),
            (r#"echo '{"verdict":"success","quality":7}'"#, "0 to 1"),
            ("cat /dev/zero", "more than 65536 bytes"),
        ] {
            let error = judge(script, LONG).expect_err(script).to_string();
            assert!(error.contains(expected), "{script}: {error}");
        }
        let error = judge("exec sleep 60", Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("took longer than 50ms"), "{error}");
        let missing = CommandJudge { program: "/no/such/judge".into(), args: vec![], timeout: LONG };
        assert!(missing.judge(&Evidence { task: "", response: "", exit_code: None }).is_err());
    }
}
