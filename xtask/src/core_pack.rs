//! The core pack of kernels: its module is built from sources, and committed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

/// Package of the sources, a workspace of its own.
const SOURCES: &str = "crates/kernel-packs/core";
/// Module within the package.
const MODULE: &str = "pack/core.wasm";
/// Compiler with the source of its library: `cargo xtask setup --core-pack`.
pub(crate) const COMPILER: &str = "/usr/bin/rustc";
const TARGET: &str = "wasm32-unknown-unknown";
/// Vectors; the base of the host's memory is exported, and the stack has one page.
const FLAGS: &str = "-Ctarget-feature=+simd128 -Clink-arg=--export=__heap_base -Clink-arg=-zstack-size=65536";

/// Builds the module and replaces the committed one.
pub(crate) fn update(workspace: &Workspace) -> Result<()> {
    let module = build(&workspace.path(SOURCES))?;
    let path = workspace.path(SOURCES).join(MODULE);
    fs::write(&path, &module).map_err(Error::io("write", &path))?;
    println!("{}: {} bytes", path.display(), module.len());
    Ok(())
}

/// Builds the module in another folder and compares it with the committed one.
///
/// # Errors
/// [`Error::CorePack`] if a byte differs; errors of the build.
pub(crate) fn check(workspace: &Workspace) -> Result<String> {
    let sources = workspace.path(SOURCES);
    let folder = std::env::temp_dir().join(format!("core-pack-{}", std::process::id()));
    let built = copy(&sources, &folder).and_then(|()| build(&folder));
    let _ = fs::remove_dir_all(&folder);
    let built = built?;
    let path = sources.join(MODULE);
    let committed = fs::read(&path).map_err(Error::io("read", &path))?;
    if built == committed { Ok(format!("{} bytes", built.len())) } else { Err(Error::CorePack { path }) }
}

/// Reason why the module cannot be built here; `None` if it can.
pub(crate) fn missing(workspace: &Workspace) -> Option<String> {
    let sysroot = CommandLine::new(COMPILER, workspace.root()).args(["--print", "sysroot"]);
    let library =
        sysroot.output().ok().map(|root| Path::new(root.trim()).join("lib/rustlib/src/rust/library"));
    let is_there = library.is_some_and(|library| library.join("core/Cargo.toml").exists());
    (!is_there)
        .then(|| "no compiler with the source of its library: cargo xtask setup --core-pack".to_owned())
}

/// Bytes of the module of the package in a folder.
fn build(folder: &Path) -> Result<Vec<u8>> {
    let target = folder.join("target");
    let words = ["build", "--release", "-Zbuild-std=core", "--locked", "--quiet", "--target", TARGET];
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    CommandLine::new(cargo, folder)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTC", COMPILER)
        .env("RUSTC_WRAPPER", "")
        .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", &linker(folder)?.to_string_lossy())
        .env("RUSTFLAGS", FLAGS)
        .args(words)
        .args(["--target-dir".as_ref(), target.as_os_str()])
        .run()?;
    let path = target.join(TARGET).join("release/core_pack.wasm");
    fs::read(&path).map_err(Error::io("read", path))
}

/// Linker of the toolchain that builds the workspace: the compiler of the target has none.
fn linker(folder: &Path) -> Result<PathBuf> {
    let rustc = |words: &[&str]| CommandLine::new("rustc", folder).args(words).output();
    let (sysroot, version) = (rustc(&["--print", "sysroot"])?, rustc(&["-vV"])?);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    Ok(Path::new(sysroot.trim()).join("lib/rustlib").join(host.trim()).join("bin/rust-lld"))
}

/// Copies manifest, lock file and sources.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let sources = to.join("src");
    fs::create_dir_all(&sources).map_err(Error::io("create", &sources))?;
    let list = fs::read_dir(from.join("src")).map_err(Error::io("read", from))?;
    let names = list.filter_map(|entry| Some(Path::new("src").join(entry.ok()?.file_name())));
    for name in ["Cargo.toml", "Cargo.lock"].into_iter().map(PathBuf::from).chain(names) {
        fs::copy(from.join(&name), to.join(&name)).map_err(Error::io("copy", from.join(&name)))?;
    }
    Ok(())
}
