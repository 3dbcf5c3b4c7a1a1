//! `chat` at a pseudo-terminal: streaming, Ctrl-C, Ctrl-D, blocks, history. Linux only, with
//! `setsid` of util-linux: the program gets a controlling terminal, so that Ctrl-C reaches it as
//! from a keyboard.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

/// Prompt of the line editor.
const PROMPT: &str = "> ";

/// Question before a tool call runs.
const ASKED: &str = "run this? [y/N/a(ll)] ";

/// Columns of the terminal.
const COLUMNS: &str = "60";

const CTRL_C: &str = "\u{3}";
const CTRL_D: &str = "\u{4}";

/// The program at a terminal.
struct Terminal {
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
    child: Child,
}

impl Terminal {
    /// Starts `chat` with its state in a folder of the test.
    fn start(state: &Path, arguments: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let peer = ioctl_tiocgptpeer(&master, flags).unwrap();
        let stdio = || Stdio::from(peer.try_clone().unwrap());
        let size = Command::new("stty").args(["cols", COLUMNS, "rows", "20"]).stdin(stdio()).status();
        assert!(size.unwrap().success());
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", env!("CARGO_BIN_EXE_ruvllm"), "chat", "--temperature", "0"])
            .args(arguments)
            .env("XDG_STATE_HOME", state)
            .env("TERM", "xterm")
            .env_remove("RUVLLM_MODEL")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .unwrap();
        drop(peer);
        let keyboard = File::from(master);
        let mut reader = keyboard.try_clone().unwrap();
        let (sender, screen) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reads fail once the program has closed the terminal.
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { keyboard, screen, seen: String::new(), child }
    }

    /// Waits until `text` has been shown, and drops the output up to its end.
    #[track_caller]
    fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("{text:?} was not shown, but {:?}", self.seen),
            }
        }
    }

    /// Waits until `n` more bytes have been shown, and drops them.
    #[track_caller]
    fn wait_for_bytes(&mut self, n: usize) {
        while self.seen.len() < n {
            let bytes = self.screen.recv_timeout(Duration::from_secs(60)).expect("more is shown");
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
        self.seen.clear();
    }

    /// Answers questions with these keys until the prompt is shown.
    #[track_caller]
    fn answer_until_prompt(&mut self, keys: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match (self.seen.find(ASKED), self.seen.find(PROMPT)) {
                (Some(asked), prompt) if prompt.is_none_or(|prompt| asked < prompt) => {
                    self.wait_for(ASKED);
                    self.press(keys);
                }
                (_, Some(_)) => return drop(self.wait_for(PROMPT)),
                _ => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let bytes = self.screen.recv_timeout(left).expect("more is shown");
                    self.seen.push_str(&String::from_utf8_lossy(&bytes));
                }
            }
        }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the prompt, types a line and waits until the editor has shown it.
    #[track_caller]
    fn enter(&mut self, line: &str) {
        self.wait_for(PROMPT);
        self.press(&format!("{line}\r"));
        self.wait_for("\n");
    }

    #[track_caller]
    fn exit_code(mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the program did not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn history(state: &Path) -> PathBuf {
    state.join("ruvllm/chat-history")
}

#[test]
fn ctrl_c_stops_the_answer_and_the_conversation_goes_on() {
    let state = tempfile::tempdir().unwrap();
    // Without the end tokens only Ctrl-C ends the answer.
    let mut terminal =
        Terminal::start(state.path(), &["--logit-bias", "0=-inf", "--logit-bias", "2=-inf", "-n", "4000"]);
    terminal.enter("Once upon a time");
    terminal.wait_for_bytes(40);
    terminal.press(CTRL_C);
    terminal.wait_for("[stopped]");
    terminal.enter("/stats");
    terminal.wait_for("cancelled");
    terminal.enter("/set logit_bias off");
    terminal.enter("/reset");
    terminal.enter("What is the capital of France?");
    terminal.wait_for("The capital of France is Paris.");
    terminal.enter("/exit");
    assert_eq!(terminal.exit_code(), Some(0));
}

#[test]
fn ctrl_c_twice_at_an_empty_prompt_leaves() {
    let state = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(state.path(), &[]);
    // In a line with text, Ctrl-C only clears the line.
    terminal.wait_for(PROMPT);
    terminal.press("some words");
    terminal.wait_for("words");
    terminal.press(CTRL_C);
    terminal.wait_for(PROMPT);
    terminal.press(CTRL_C);
    terminal.wait_for("[Ctrl-C again or Ctrl-D leaves]");
    terminal.wait_for(PROMPT);
    terminal.press(CTRL_C);
    assert_eq!(terminal.exit_code(), Some(130));
}

#[test]
fn ctrl_d_leaves_and_the_history_is_private() {
    let state = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(state.path(), &["-n", "1"]);
    terminal.enter("/set top_k 7");
    terminal.enter("/hepl");
    terminal.wait_for("error: there is no command /hepl");
    terminal.wait_for(PROMPT);
    // A block is one message, whatever its lines contain.
    terminal.press("\"\"\"\r/exit\r\"\"\"\r");
    terminal.wait_for("[cut off: /set max_tokens N allows more]");
    terminal.wait_for(PROMPT);
    terminal.press(CTRL_D);
    assert_eq!(terminal.exit_code(), Some(0));
    let file = history(state.path());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    let lines = fs::read_to_string(&file).unwrap();
    assert!(lines.contains("/set top_k 7\n/hepl\n"), "{lines:?}");
    assert_eq!(lines.lines().count(), 4, "a head and three entries: {lines:?}");

    // The next conversation has the history: Ctrl-P steps back entry by entry.
    let mut terminal = Terminal::start(state.path(), &[]);
    terminal.wait_for(PROMPT);
    terminal.press("\u{10}\u{10}\u{10}");
    terminal.wait_for("/set top_k 7");
    terminal.press("\r");
    terminal.wait_for(PROMPT);
    terminal.press(CTRL_D);
    assert_eq!(terminal.exit_code(), Some(0));
}

#[test]
fn words_wrap_at_the_edge_of_the_terminal() {
    let state = tempfile::tempdir().unwrap();
    let question = "Tell me a long story about a cat.";
    let flags = ["chat", "--temperature", "0", "-n", "80"];
    let piped = crate::program::run_with_input(&flags, format!("{question}\n").as_bytes());
    let (piped, _) = piped.text_and_notes();
    assert!(piped.lines().any(|line| line.len() > 60), "no line to wrap: {piped:?}");

    let mut terminal = Terminal::start(state.path(), &["-n", "80"]);
    terminal.enter(question);
    let shown = terminal.wait_for(PROMPT);
    let shown = shown.split('\u{1b}').next().unwrap().replace('\r', "");
    let answer = shown.trim_end().trim_end_matches("[cut off: /set max_tokens N allows more]").trim_end();
    assert!(answer.lines().all(|line| line.len() <= 60), "{answer:?}");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(answer), words(piped), "words stay whole");
    terminal.press(CTRL_D);
    assert_eq!(terminal.exit_code(), Some(0));
}

#[test]
fn tab_completes_commands_settings_and_files() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("a long talk.json");
    fs::write(&file, r#"{"messages":[{"role":"user","content":"Hi"}]}"#).unwrap();
    let mut terminal = Terminal::start(state.path(), &[]);
    terminal.enter("/set\t temp\t 0.5");
    terminal.wait_for("[temperature = 0.5]");
    terminal.enter(&format!("/lo\t {}/a l\t", state.path().display()));
    terminal.wait_for("[1 message loaded from");
    terminal.wait_for(PROMPT);
    terminal.press(CTRL_D);
    assert_eq!(terminal.exit_code(), Some(0));
}

#[test]
fn without_a_history_nothing_is_written() {
    let state = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(state.path(), &["--no-history"]);
    terminal.enter("/set top_k 7");
    terminal.wait_for(PROMPT);
    terminal.press(CTRL_D);
    assert_eq!(terminal.exit_code(), Some(0));
    assert!(!history(state.path()).exists());
}

/// Files of a chat with a tool and a script that answers its calls; the script counts them.
fn tool_files(folder: &Path) -> (String, String) {
    let tools = r#"[{"name": "get_weather", "description": "Get the weather in a city", "parameters": {"type": "object",
        "properties": {"city": {"type": "string", "description": "Name of the city"}}, "required": ["city"]}}]"#;
    let (file, script) = (folder.join("tools.json"), folder.join("run-tool"));
    fs::write(&file, tools).unwrap();
    let called = folder.join("called");
    fs::write(
        &script,
        format!("#!/bin/sh\necho $1 >> {}\necho '{{\"temperature_c\": 21}}'\n", called.display()),
    )
    .unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    [file, script].map(|path| path.to_str().unwrap().to_owned()).into()
}

/// Number of calls that the script has run.
fn calls(folder: &Path) -> usize {
    fs::read_to_string(folder.join("called")).map_or(0, |text| text.lines().count())
}

#[test]
fn each_call_is_asked_for_before_it_runs() {
    let state = tempfile::tempdir().unwrap();
    let (tools, script) = tool_files(state.path());
    let mut terminal = Terminal::start(state.path(), &["--tools", &tools, "--exec", &script, "-n", "80"]);
    let question = "What is the weather in Rome?";
    // Refused: nothing runs, and the model is told.
    terminal.enter(question);
    let shown = terminal.wait_for(ASKED);
    assert!(shown.contains("run-tool get_weather <<< {") && shown.contains("Rome"), "{shown:?}");
    terminal.press("n\r");
    terminal.wait_for("the user has refused the call");
    terminal.answer_until_prompt("n\r");
    assert_eq!(calls(state.path()), 0);
    // Ctrl-C refuses the call and ends the answer.
    terminal.press("/reset\r");
    terminal.enter(question);
    terminal.wait_for(ASKED);
    terminal.press(CTRL_C);
    terminal.wait_for("[stopped]");
    assert_eq!(calls(state.path()), 0);
    // Allowed for this call, then for all.
    terminal.enter("/reset");
    terminal.enter(question);
    terminal.wait_for(ASKED);
    terminal.press("y\r");
    terminal.answer_until_prompt("n\r");
    assert_eq!(calls(state.path()), 1);
    terminal.press("/reset\r");
    terminal.enter(question);
    terminal.wait_for(ASKED);
    terminal.press("a\r");
    terminal.wait_for(PROMPT);
    let all = calls(state.path());
    assert!(all >= 2);
    terminal.press("/reset\r");
    terminal.enter(question);
    terminal.wait_for(PROMPT);
    assert!(calls(state.path()) > all, "no question any more");
    terminal.press(CTRL_D);
    assert_eq!(terminal.exit_code(), Some(0));
}
