//! Model files in memory: `--no-mmap` and `--mlock`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::program::{argument, command, default_model, run, start, tiny_model};

#[test]
fn read_files_give_what_mapped_ones_give() {
    let file = tiny_model();
    let tokens = |flags: &[&str]| {
        let generate =
            ["generate", "--temperature", "0", "-n", "4", "--json", "--model", argument(&file), "a"];
        run(&[&generate[..], flags].concat()).json()["tokens"].clone()
    };
    assert_eq!(tokens(&["--no-mmap"]), tokens(&[]));
    assert_eq!(tokens(&["--no-mmap", "--quantize", "q8_0"]), tokens(&["--quantize", "q8_0"]));
}

#[test]
fn a_model_file_that_was_read_may_be_cut_short() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    fs::copy(default_model(), &file).unwrap();
    let arguments = ["chat", "--temperature", "0", "-n", "8", "--no-mmap", "--model", argument(&file)];
    let mut child = start(&arguments);
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut answer = |message: &str| {
        writeln!(stdin, "{message}").unwrap();
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        line
    };
    let first = answer("What is the capital of France?");
    assert!(first.starts_with("The capital of France is"), "{first:?}");
    fs::write(&file, "").unwrap();
    let second = answer("What is the capital of France?");
    assert!(second.ends_with('\n'), "{second:?}");
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Documented behaviour of mapped files: the process ends; it neither hangs nor computes with
/// zeros.
#[cfg(target_os = "linux")]
#[test]
fn a_mapped_model_file_that_is_cut_short_ends_the_program() {
    use std::os::unix::process::ExitStatusExt;
    const SIGBUS: i32 = 7;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    fs::copy(default_model(), &file).unwrap();
    let arguments = ["chat", "--temperature", "0", "-n", "8", "--model", argument(&file)];
    let mut child = command(&arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    writeln!(stdin, "What is the capital of France?").unwrap();
    stdout.read_line(&mut String::new()).unwrap();
    fs::write(&file, "").unwrap();
    // The program may have ended before it reads this.
    let _ = writeln!(stdin, "What is the capital of France?");
    drop(stdin);
    assert_eq!(child.wait().unwrap().signal(), Some(SIGBUS));
}

#[test]
fn locked_and_quantized_weights_exclude_each_other() {
    run(&["generate", "--mlock", "--quantize", "q8_0", "prompt"]).fails_with(2, &["--mlock", "--quantize"]);
}

/// `setpriv` of util-linux drops a privileged user's right to exceed the limit.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_that_is_too_low_to_lock_the_weights_is_named() {
    use crate::program::finish;
    const LIMITED: &str = "ulimit -l 16 || exit 99
        if [ \"$(id -u)\" = 0 ]; then exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock \"$@\"; fi
        exec \"$@\"";
    let file = tiny_model();
    for arguments in
        [&["generate", "--mlock", "--model", argument(&file), "a"][..], &["embed", "--mlock", "a"]]
    {
        for more in [vec![], vec!["--no-mmap"]] {
            let arguments = [arguments, &more].concat();
            let output = std::process::Command::new("sh")
                .args(["-c", LIMITED, "sh", env!("CARGO_BIN_EXE_ruvllm")])
                .args(&arguments)
                .env_remove("RUVLLM_MODEL")
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let pieces = ["in memory", "RLIMIT_MEMLOCK", "is 16384 bytes", "`ulimit -l`"];
            finish(&arguments, output).fails_with(1, &pieces);
        }
    }
}
