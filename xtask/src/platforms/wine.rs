//! Windows: the tests and the program, run under wine.

use std::fs;
use std::path::{Path, PathBuf};

use super::{TARGET_FOLDER, cargo};
use crate::metadata::Graph;
use crate::process::CommandLine;
use crate::tally::Tally;
use crate::test_binaries::{self, TestBinary};
use crate::{Error, Result, Workspace};

const TARGET: &str = "x86_64-pc-windows-gnu";

/// C compiler and linker of the target; and the program that runs its executables.
pub(crate) const LINKER: &str = "x86_64-w64-mingw32-gcc";
pub(crate) const WINE: &str = "wine";

/// Packages whose tests run.
const PACKAGES: [&str; 4] = ["gguf-rs-lite", "ruvllm-kernels", "ruvllm-memory", "ruvllm-kv-cache"];

/// Generated cases of a property test; proptest's default is 256.
const CASES: &str = "64";

/// Source of a random-bytes function that Rust's standard library imports and wine before version 9
/// lacks.
const RANDOM: &str = "\
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) {
    while (size > 0) {
        ULONG part = size > 65536 ? 65536 : (ULONG)size;
        if (!SystemFunction036(data, part)) return FALSE;
        data += part;
        size -= part;
    }
    return TRUE;
}
";

/// Builds for Windows and runs under wine: the tests, then a session with the program.
pub(super) fn check(workspace: &Workspace) -> Result<String> {
    let mut tally = Tally::default();
    let wine = Wine::prepare(workspace)?;
    let binaries = build_tests(workspace)?;
    let mut failed = Vec::new();
    for binary in &binaries {
        let name = format!("{}/{} under wine", binary.package, binary.target);
        println!("     Running {name}");
        let result = wine.runs(binary.command_under(WINE, &[])).args(["--quiet"]).run_lines(|line| {
            println!("{line}");
            tally.add(line);
        });
        match result {
            Ok(()) => {}
            Err(Error::CommandFailed { .. }) => failed.push(name),
            Err(error) => return Err(error),
        }
    }
    if !failed.is_empty() {
        let (failed, names) = (failed.len(), failed.join(", "));
        return Err(Error::TestsFailed { failed, total: binaries.len(), names });
    }
    session(workspace, &wine)?;
    Ok(format!("{}; a session with the program", tally.summary()))
}

fn build_tests(workspace: &Workspace) -> Result<Vec<TestBinary>> {
    let mut command = windows(workspace, "test").args(["--lib", "--tests", "--no-run"]);
    for package in PACKAGES {
        command = command.args(["--package", package]);
    }
    let command = command.args(test_binaries::MESSAGES);
    println!("{}", command.display());
    test_binaries::executables(&command, &Graph::load(workspace)?)
}

fn windows(workspace: &Workspace, command: &str) -> CommandLine {
    cargo(workspace, command, TARGET)
        .env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER", LINKER)
        .env("CC_x86_64_pc_windows_gnu", LINKER)
}

/// A fresh wine prefix for each run, and the library that wine lacks.
struct Wine {
    prefix: PathBuf,
    libraries: PathBuf,
}

impl Wine {
    fn prepare(workspace: &Workspace) -> Result<Self> {
        let folder = workspace.path(TARGET_FOLDER).join("wine");
        let prefix = folder.join("prefix");
        if prefix.exists() {
            fs::remove_dir_all(&prefix).map_err(Error::io("remove", &prefix))?;
        }
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        let source = folder.join("random.c");
        fs::write(&source, RANDOM).map_err(Error::io("write", &source))?;
        CommandLine::new(LINKER, &folder)
            .args(["-shared", "-O1", "-o", "bcryptprimitives.dll", "random.c", "-ladvapi32"])
            .run()?;
        Ok(Self { prefix, libraries: folder })
    }

    /// The command with the environment of this prefix.
    fn runs(&self, command: CommandLine) -> CommandLine {
        command
            .env("WINEPREFIX", &self.prefix.to_string_lossy())
            .env("WINEDEBUG", "-all")
            .env("WINEPATH", &format!("Z:{}", self.libraries.to_string_lossy()))
            .env("PROPTEST_CASES", CASES)
    }
}

/// Runs the program: same output as natively, prefix hit from disk, scripted chat, benchmark, model
/// store, memory of the machine.
fn session(workspace: &Workspace, wine: &Wine) -> Result<()> {
    let build = windows(workspace, "build").args(["--package", "ruvllm-cli"]);
    println!("{}", build.display());
    build.run()?;
    let exe = workspace.path(TARGET_FOLDER).join(TARGET).join("debug/ruvllm.exe");
    let there = |args: &[&str]| {
        let command = wine.runs(CommandLine::new(WINE, workspace.root())).args([&exe]).args(args);
        println!("     Running {WINE} ruvllm.exe {}", args.join(" "));
        Ok(command.output()?.replace("\r\n", "\n"))
    };
    let here = |args: &[&str]| {
        CommandLine::cargo(workspace)
            .args(["run", "--locked", "--quiet", "--package", "ruvllm-cli", "--"])
            .args(args)
            .output()
    };

    let ask = ["generate", "--chat", "Tell me a story about a turtle.", "--seed", "7", "--max-tokens", "40"];
    let (answer, expected) = (there(&ask)?, here(&ask)?);
    let same = answer.trim() == expected.trim() && !answer.trim().is_empty();
    expect(same, "generate", || format!("{answer:?} instead of {expected:?}"))?;

    let folder = wine.libraries.join("prefixes");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(Error::io("remove", &folder))?;
    }
    let folder = windows_path(&folder);
    let prompt = "Once upon a time there was a turtle who lived near a river. ".repeat(12);
    let cached =
        ["--json", "generate", &prompt, "--max-tokens", "4", "--prefix-cache", "on", "--prefix-dir", &folder];
    for expected in [false, true] {
        let text = there(&cached)?;
        let found = number(&text, "cached_tokens").is_some_and(|tokens| tokens > 0.0);
        expect(found == expected, "prefix cache", || text.clone())?;
    }

    let script = "printf 'Hello\\n/exit\\n' | \"$0\" \"$1\" chat --seed 7 --max-tokens 8";
    let chat = CommandLine::new("sh", workspace.root()).args(["-c", script, WINE]).args([&exe]);
    let chat = wine.runs(chat).output()?;
    expect(!chat.trim().is_empty(), "chat", || chat.clone())?;

    let bench = there(&["--json", "bench", "-p", "32", "-n", "4", "-r", "1"])?;
    let rate = number(&bench, "median");
    expect(rate.is_some_and(|rate| rate > 0.0), "bench", || bench.clone())?;
    there(&["--json", "list"])?;
    let doctor = there(&["--json", "doctor"])?;
    let memory = number(&doctor, "total_bytes");
    expect(memory.is_some_and(|bytes| bytes > 0.0), "doctor", || doctor.clone())
}

/// Path of this system in wine's notation.
fn windows_path(path: &Path) -> String {
    format!("Z:{}", path.to_string_lossy().replace('/', "\\"))
}

/// The first number under the key `name` of a JSON document.
fn number(json: &str, name: &str) -> Option<f64> {
    let (_, rest) = json.split_once(&format!("\"{name}\":"))?;
    let end = rest.find([',', '}']).unwrap_or(rest.len());
    rest[..end].trim().parse().ok()
}

fn expect(holds: bool, step: &'static str, found: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::PlatformSession { step, found: found() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_numbers_of_the_session() {
        assert_eq!(windows_path(Path::new("/a/b c")), r"Z:\a\b c");
        let json = r#"{"cached_tokens":96,"x":{"median":1.5}}"#;
        assert_eq!((number(json, "cached_tokens"), number(json, "median")), (Some(96.0), Some(1.5)));
        assert_eq!((number(json, "x"), number(json, "least")), (None, None));
        assert!(expect(false, "bench", || "nothing".to_owned()).is_err());
    }
}
