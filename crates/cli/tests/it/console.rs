//! Verbosity and colour, at pseudo-terminals and in pipes.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

use crate::program::{command, finish, run};
use crate::store::{Place, tiny};

/// Exit code and output of a program with a terminal as its three standard streams, after `typed`
/// is entered.
pub(crate) fn at_terminal(mut program: Command, typed: &str) -> (i32, String) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let peer = ioctl_tiocgptpeer(&master, flags).unwrap();
    let stdio = || Stdio::from(peer.try_clone().unwrap());
    let mut child =
        program.env("TERM", "xterm").stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
    // Both hold the other end open.
    drop((program, peer));
    let mut terminal = File::from(master);
    terminal.write_all(typed.as_bytes()).unwrap();
    let mut shown = Vec::new();
    let mut bytes = [0; 4096];
    // Reads fail once the program has closed the terminal.
    while let Ok(n @ 1..) = terminal.read(&mut bytes) {
        shown.extend_from_slice(&bytes[..n]);
    }
    (child.wait().unwrap().code().unwrap(), String::from_utf8(shown).unwrap().replace("\r\n", "\n"))
}

const ESCAPE: char = '\u{1b}';

#[test]
fn colours_are_for_terminals_without_no_color() {
    let colored = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut program = command(arguments);
        program.env_remove("NO_COLOR").envs(variables.iter().copied());
        at_terminal(program, "").1.contains(ESCAPE)
    };
    for arguments in [&["--help"][..], &["list", "--no-such-flag"], &["show", "nothing"]] {
        assert!(colored(arguments, &[]), "{arguments:?}");
        assert!(!colored(arguments, &[("NO_COLOR", "1")]), "{arguments:?}");
        assert!(!colored(&[arguments, &["--color", "never"]].concat(), &[]), "{arguments:?}");
        assert!(colored(&[arguments, &["--color=always"]].concat(), &[("NO_COLOR", "1")]), "{arguments:?}");
        assert!(!format!("{:?}", run(arguments)).contains("\\u{1b}"), "{arguments:?}");
    }
    assert!(run(&["--help", "--color", "always"]).text().contains(ESCAPE));
    assert!(colored(&["--help"], &[("NO_COLOR", "")]), "an empty variable is unset");
    run(&["list", "--color", "pink"]).fails_with(2, &["pink", "--color"]);
}

#[test]
fn quiet_leaves_errors_and_verbose_adds_plan_and_timings() {
    let arguments = |flag: &'static str| ["generate", "--temp", "0", "-n", "2", "Once", flag];
    let usual = run(&arguments("--chat"));
    assert_eq!(usual.text_and_notes().1, "", "in a pipe there are no notes");
    let verbose = run(&arguments("--verbose"));
    let (text, notes) = verbose.text_and_notes();
    for piece in ["loaded in", "threads", "kv-budget", "tokens at", "prompt tokens"] {
        assert!(notes.contains(piece), "{piece:?} is not in {notes:?}");
    }
    assert_eq!(run(&arguments("-q")).text(), text);
    run(&["show", "nothing", "-q"]).fails_with(1, &["nothing"]);

    let at_terminal = |flag| at_terminal(command(&arguments(flag)), "").1;
    assert!(at_terminal("--chat").contains("[loaded in "));
    assert!(!at_terminal("--quiet").contains("[loaded in "));
}

#[test]
fn progress_is_quiet_too() {
    let place = Place::new(&[("m.gguf", crate::server::noise(3 << 20, 1))]);
    let trickle = Some((std::time::Duration::from_millis(40), 64 << 10));
    let shown = |arguments: &[&str]| {
        place.hub.set(crate::server::Faults { trickle, ..Default::default() });
        let (code, shown) = at_terminal(place.command(arguments), "");
        assert_eq!(code, 0, "{shown}");
        fs::remove_dir_all(place.home.path().join("models")).unwrap();
        shown
    };
    assert!(shown(&["pull", "org/repo"]).contains("pulling "));
    assert!(!shown(&["pull", "org/repo", "--quiet"]).contains("pulling "));
}

#[test]
fn a_person_is_asked_before_a_pull() {
    let place = Place::new(&[("tiny.gguf", tiny())]);
    let tokenize = ["tokenize", "a", "-m", "org/repo"];
    let (code, shown) = at_terminal(place.command(&tokenize), "n\n");
    assert_eq!(code, 1, "{shown}");
    assert!(shown.contains("Pull hf://org/repo from the hub? [y/N]"), "{shown}");
    assert!(shown.contains("`ruvllm pull org/repo`"), "{shown}");
    assert_eq!(place.hub.take_requests().len(), 0);
    let (code, shown) = at_terminal(place.command(&tokenize), "y\n");
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("pulled as tiny"), "{shown}");
    let by_name = place.command(&["tokenize", "a", "-m", "tiny"]).output().unwrap();
    assert!(shown.ends_with(finish(&tokenize, by_name).text()), "{shown}");
}

#[test]
fn help_follows_the_width_of_the_terminal() {
    // A new terminal has no size: the program takes 80 columns.
    let (_, shown) = at_terminal(command(&["generate", "--help", "--color", "never"]), "");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
}
