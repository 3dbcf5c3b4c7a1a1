//! `cargo xtask setup`: installs the tools that a fresh Debian machine lacks beyond Rust, with apt.
//!
//! Without a linker this program cannot be built: install `build-essential` by hand first, as the
//! README says. The command then confirms that nothing else is missing.

use crate::process::CommandLine;
use crate::{Error, Result, Workspace};
use crate::{cross_test, gpu, platforms, web};

/// A program that the build or the checks call.
struct Need {
    what: &'static str,
    /// Command that succeeds if it is installed.
    probe: &'static [&'static str],
    /// Command that installs it.
    install: &'static [&'static str],
}

const NEEDS: [Need; 3] = [
    Need {
        what: "C compiler and linker",
        probe: &["cc", "--version"],
        install: &["apt-get", "install", "-y", "--no-install-recommends", "build-essential"],
    },
    Need {
        what: "rustfmt",
        probe: &["cargo", "fmt", "--version"],
        install: &["rustup", "component", "add", "rustfmt"],
    },
    Need {
        what: "clippy",
        probe: &["cargo", "clippy", "--version"],
        install: &["rustup", "component", "add", "clippy"],
    },
];

/// Additional programs of `cross-test`.
const CROSS_NEEDS: [Need; 3] = [
    Need {
        what: "compiler with libraries for AArch64",
        probe: &[
            "sh",
            "-c",
            "for rustc in rustc /usr/bin/rustc; do \
             test -d \"$($rustc --print target-libdir --target aarch64-unknown-linux-gnu)\" && exit; done; exit 1",
        ],
        // Debian's compiler is in /usr/bin, after rustup's in the search path.
        install: &[
            "sh",
            "-c",
            "dpkg --add-architecture arm64 && apt-get update && apt-get install -y --no-install-recommends \
             rustc-web libstd-rust-web-dev libstd-rust-web-dev:arm64",
        ],
    },
    Need {
        what: "linker and C library for AArch64",
        probe: &[cross_test::LINKER, "--version"],
        install: &[
            "apt-get",
            "install",
            "-y",
            "--no-install-recommends",
            "gcc-aarch64-linux-gnu",
            "libc6-dev-arm64-cross",
        ],
    },
    Need {
        what: "emulator for AArch64",
        probe: &[cross_test::EMULATOR, "--version"],
        install: &["apt-get", "install", "-y", "--no-install-recommends", "qemu-user-static"],
    },
];

/// Compiler whose standard library can be built for any target.
const LIBRARY: Need = Need {
    what: "compiler with the source of its library",
    probe: &[
        "sh",
        "-c",
        "test -e \"$(/usr/bin/rustc --print sysroot)/lib/rustlib/src/rust/library/std/Cargo.toml\"",
    ],
    install: &[
        "apt-get",
        "install",
        "-y",
        "--no-install-recommends",
        "rustc-web",
        "libstd-rust-web-dev",
        "rust-web-src",
    ],
};

/// Additional programs of `platforms`.
const PLATFORM_NEEDS: [Need; 3] = [
    LIBRARY,
    Need {
        what: "compiler and linker of C for Windows",
        probe: &[platforms::LINKER, "--version"],
        install: &["apt-get", "install", "-y", "--no-install-recommends", "gcc-mingw-w64-x86-64"],
    },
    Need {
        what: "wine",
        probe: &[platforms::WINE, "--version"],
        install: &["apt-get", "install", "-y", "--no-install-recommends", "wine", "wine64"],
    },
];

/// Additional programs of `web`.
const WEB_NEEDS: [Need; 2] = [
    Need {
        what: "Node.js",
        probe: &[web::NODE, "--version"],
        install: &["apt-get", "install", "-y", "--no-install-recommends", "nodejs"],
    },
    Need {
        what: "Chromium",
        probe: &["chromium", "--version"],
        install: &["apt-get", "install", "-y", "--no-install-recommends", "chromium"],
    },
];

/// Additional programs of the steps of the GPU.
const GPU_NEEDS: [Need; 2] = [
    Need {
        what: "software Vulkan",
        probe: &[
            "sh",
            "-c",
            "test -e /usr/share/vulkan/icd.d/lvp_icd.*.json && /sbin/ldconfig -p | grep -q libvulkan.so.1",
        ],
        install: &[
            "apt-get",
            "install",
            "-y",
            "--no-install-recommends",
            "libvulkan1",
            "mesa-vulkan-drivers",
        ],
    },
    Need {
        what: "clang",
        probe: &[gpu::CLANG, "--version"],
        install: &["apt-get", "install", "-y", "--no-install-recommends", "clang"],
    },
];

/// Commands whose tools are installed on request only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extras {
    pub(crate) cross: bool,
    pub(crate) platforms: bool,
    pub(crate) web: bool,
    pub(crate) gpu: bool,
    pub(crate) core_pack: bool,
}

/// Installs missing programs; with `dry_run` only lists them.
pub(crate) fn setup(workspace: &Workspace, dry_run: bool, extras: Extras) -> Result<()> {
    let cross = CROSS_NEEDS.iter().filter(|_| extras.cross);
    let platforms = PLATFORM_NEEDS.iter().filter(|_| extras.platforms);
    let web = WEB_NEEDS.iter().filter(|_| extras.web);
    let gpu = GPU_NEEDS.iter().filter(|_| extras.gpu);
    // `platforms` names it too.
    let library = [&LIBRARY].into_iter().filter(|_| extras.core_pack && !extras.platforms);
    provide(
        workspace,
        NEEDS.iter().chain(cross).chain(platforms).chain(web).chain(gpu).chain(library),
        dry_run,
    )
}

/// Installs the `needs` whose probe fails; with `dry_run` only lists them.
fn provide<'n>(workspace: &Workspace, needs: impl Iterator<Item = &'n Need>, dry_run: bool) -> Result<()> {
    for need in needs {
        if command(workspace, need.probe).succeeds() {
            println!("{}: present", need.what);
            continue;
        }
        let install = command(workspace, need.install);
        println!("{}: missing, provided by: {}", need.what, install.display());
        if dry_run {
            continue;
        }
        let failed = |_| Error::Setup { missing: need.what.to_owned(), install: install.display() };
        install.run().map_err(failed)?;
    }
    Ok(())
}

fn command(workspace: &Workspace, words: &[&str]) -> CommandLine {
    let (program, args) = words.split_first().expect("every need names a program");
    CommandLine::new(program, workspace.root()).args(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_installed_and_a_dry_run_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let workspace = Workspace::at(folder.path());
        let present = Need { what: "a", probe: &["true"], install: &["touch", "unasked"] };
        let missing = Need { what: "b", probe: &["test", "-e", "here"], install: &["touch", "here"] };
        let needs = || [&present, &missing].into_iter();
        let found = |name: &str| folder.path().join(name).exists();

        provide(&workspace, needs(), true).expect("a dry run");
        assert!(!found("here") && !found("unasked"));
        provide(&workspace, needs(), false).expect("an installation");
        assert!(found("here") && !found("unasked"));
        let broken = Need { what: "c", probe: &["false"], install: &["false"] };
        let error = provide(&workspace, [&broken].into_iter(), false).expect_err("nothing installs it");
        assert!(matches!(error, Error::Setup { ref missing, .. } if missing == "c"), "{error}");
    }
}
