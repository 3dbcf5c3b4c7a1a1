//! Archive of programs that check and measure kernels, models and a server on a GPU of another
//! machine.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

/// Programs of the archive, which the script calls by these names.
const PROGRAMS: [&str; 3] = ["ruvllm", "serving", "ruvllm-tools"];

/// Example of `crates/gpu` that checks and measures every kernel.
const KERNELS: &str = "gpu-bench";

/// Folder of llama.cpp's programs in the archive.
const PEER: &str = "peer";
/// The program that the script looks for there.
const PEER_PROGRAM: &str = "llama-bench";

/// Script that measures, with its usage at its head.
const SCRIPT: &str = include_str!("measure.sh");

/// The Vulkan loader, for machines that have a driver and no loader.
const LOADER: &str = "libvulkan.so.1";

/// Name of the folder in the archive.
const NAME: &str = "ruvllm-gpu";

/// Builds the programs and packs them with the script, the Vulkan loader of this machine, and the
/// files of `peer`, a folder with `llama-bench` and its libraries.
pub(crate) fn gpu_bundle(workspace: &Workspace, folder: &Path, peer: Option<&Path>) -> Result<()> {
    if let Some(peer) = peer {
        let program = peer.join(PEER_PROGRAM);
        fs::metadata(&program).map_err(Error::io("find", &program))?;
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.path("target/gpu"), Into::into);
    build(workspace, &target)?;
    let folder = &std::path::absolute(folder).map_err(Error::io("find", folder))?;
    let content = folder.join(NAME);
    let libraries = content.join("lib");
    fs::create_dir_all(&libraries).map_err(Error::io("create", &libraries))?;
    for program in PROGRAMS {
        let packed = content.join(program);
        copy(&target.join("release").join(program), &packed)?;
        CommandLine::new("strip", folder).args([packed]).run()?;
    }
    let kernels = content.join(KERNELS);
    copy(&target.join("release/examples").join(KERNELS), &kernels)?;
    if let Some(peer) = peer {
        copy_files(peer, &content.join(PEER))?;
    }
    if let Some(loader) = loader(workspace) {
        copy(&loader, &libraries.join(LOADER))?;
    }
    let script = content.join("measure.sh");
    fs::write(&script, SCRIPT).map_err(Error::io("write", &script))?;
    let archive = folder.join(format!("{NAME}.tar.xz"));
    // A window that several programs lie in: they have much in common.
    let tar = CommandLine::new("tar", folder).env("XZ_OPT", "-9");
    tar.args(["-cJf"]).args([&archive]).args([NAME]).run()?;
    let bytes = fs::metadata(&archive).map_err(Error::io("read", &archive))?.len();
    println!("{}: {:.1} MiB; on the other machine:", archive.display(), bytes as f64 / f64::from(1 << 20));
    println!("tar -xJf {NAME}.tar.xz && sh {NAME}/measure.sh");
    Ok(())
}

/// Builds the programs, `ruvllm` without its model: the archive is a third in size, and the script
/// has models made.
fn build(workspace: &Workspace, target: &Path) -> Result<()> {
    let packages = ["ruvllm-cli", "ruvllm-benches", "ruvllm-tools"].into_iter().flat_map(|name| ["-p", name]);
    let programs = PROGRAMS.into_iter().flat_map(|name| ["--bin", name]);
    CommandLine::cargo(workspace)
        .args(["build", "--release", "--locked", "--no-default-features", "--features", "ruvllm-cli/gpu"])
        .args(packages)
        .args(programs)
        .args(["--target-dir".as_ref(), target.as_os_str()])
        .run()?;
    CommandLine::cargo(workspace)
        .args(["build", "--release", "--locked", "--manifest-path", "crates/gpu/Cargo.toml"])
        .args(["--example", KERNELS])
        .args(["--target-dir".as_ref(), target.as_os_str()])
        .run()
}

/// Copies the files of a folder, not those of folders in it.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(Error::io("create", to))?;
    for entry in fs::read_dir(from).map_err(Error::io("read", from))? {
        let path = entry.map_err(Error::io("read", from))?.path();
        if let Some(name) = path.file_name().filter(|_| path.is_file()) {
            copy(&path, &to.join(name))?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(drop).map_err(Error::io("copy", from))
}

/// Path of the Vulkan loader as the dynamic linker lists it.
fn loader(workspace: &Workspace) -> Option<PathBuf> {
    let list = ["/sbin/ldconfig", "ldconfig"]
        .iter()
        .find_map(|program| CommandLine::new(program, workspace.root()).args(["-p"]).output().ok())?;
    path_in(&list).map(PathBuf::from)
}

/// Path of the loader in a list of libraries.
fn path_in(list: &str) -> Option<&str> {
    let line = list.lines().find(|line| line.trim_start().starts_with(LOADER))?;
    line.split_once("=> ").map(|(_, path)| path.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loader_is_found_by_its_whole_name() {
        let list =
            "2 libs found\n\tlibvulkan_lvp.so (libc6) => /lib/a\n\tlibvulkan.so.1 (libc6,x86-64) => /lib/b\n";
        assert_eq!(path_in(list), Some("/lib/b"));
        assert_eq!(path_in("libc.so.6 => /lib/c"), None);
    }

    #[test]
    fn script_calls_every_program() {
        for program in PROGRAMS.into_iter().chain([KERNELS]) {
            assert!(SCRIPT.contains(&format!("./{program} ")), "{program}");
        }
        assert!(SCRIPT.contains("$PWD/lib"));
        assert!(SCRIPT.contains(&format!("{PEER}/{PEER_PROGRAM}")));
    }

    #[test]
    fn the_peers_files_are_packed_and_a_folder_without_it_is_refused() {
        let from = tempfile::tempdir().expect("a folder");
        let to = tempfile::tempdir().expect("a folder");
        let workspace = Workspace::at(".");
        let error = gpu_bundle(&workspace, to.path(), Some(from.path())).expect_err("no llama-bench");
        assert!(error.to_string().contains(PEER_PROGRAM), "{error}");
        fs::write(from.path().join(PEER_PROGRAM), "x").expect("written");
        fs::create_dir(from.path().join("inner")).expect("a folder");
        copy_files(from.path(), &to.path().join(PEER)).expect("copied");
        assert_eq!(fs::read(to.path().join(PEER).join(PEER_PROGRAM)).expect("it is there"), b"x");
    }
}
