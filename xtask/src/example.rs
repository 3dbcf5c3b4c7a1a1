//! Examples that use single crates from outside of the workspace: build, run, and list of compiled
//! packages.

use crate::metadata::Graph;
use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

/// A folder below `examples`, a workspace of its own.
pub(crate) struct Example {
    /// Name of its package.
    package: &'static str,
    folder: &'static str,
    /// Name of its step.
    pub(crate) step: &'static str,
    /// All packages that it compiles with default features on Linux; other systems may have fewer.
    packages: &'static [&'static str],
}

/// All examples.
pub(crate) const EXAMPLES: [Example; 2] = [
    // The three packages allowed by the kernels' decision record, their macros, and dependencies of
    // these.
    Example {
        package: "kernels-only",
        folder: "examples/kernels-only",
        step: "example of the kernels alone",
        packages: &[
            "bytemuck",
            "bytemuck_derive",
            "cfg-if",
            "half",
            "proc-macro2",
            "quote",
            "ruvllm-kernels",
            "syn",
            "thiserror",
            "thiserror-impl",
            "unicode-ident",
            "zerocopy",
            "zerocopy-derive",
        ],
    },
    // As above, plus mapping and locks of the pool, and hashes of prefix files.
    Example {
        package: "caches-only",
        folder: "examples/caches-only",
        step: "example of the caches alone",
        packages: &[
            "bitflags",
            "block-buffer",
            "bytemuck",
            "bytemuck_derive",
            "cfg-if",
            "cmov",
            "cpufeatures",
            "crypto-common",
            "ctutils",
            "digest",
            "errno",
            "half",
            "hmac",
            "hybrid-array",
            "libc",
            "linux-raw-sys",
            "lock_api",
            "memmap2",
            "parking_lot",
            "parking_lot_core",
            "proc-macro2",
            "quote",
            "rustix",
            "ruvllm-kernels",
            "ruvllm-kv-cache",
            "ruvllm-memory",
            "scopeguard",
            "sha2",
            "smallvec",
            "syn",
            "thiserror",
            "thiserror-impl",
            "typenum",
            "unicode-ident",
            "zerocopy",
            "zerocopy-derive",
        ],
    },
];

impl Example {
    /// Builds and runs the example with its lock file.
    pub(crate) fn command(&self, workspace: &Workspace) -> CommandLine {
        let manifest = format!("{}/Cargo.toml", self.folder);
        CommandLine::cargo(workspace).args([
            "run",
            "--quiet",
            "--locked",
            "--target-dir",
            "target/examples",
            "--manifest-path",
            &manifest,
        ])
    }

    /// Checks format and dependencies, then runs [`command`](Self::command); returns a note with
    /// the number of packages.
    pub(crate) fn check(&self, workspace: &Workspace) -> Result<String> {
        let example = Workspace::at(workspace.path(self.folder));
        CommandLine::cargo(&example).args(["fmt", "--check"]).run()?;
        let graph = Graph::load(&example)?;
        let packages = graph.reachable(self.package).unwrap_or_default();
        let extra: Vec<&str> =
            packages.iter().copied().filter(|name| !self.packages.contains(name)).collect();
        if !extra.is_empty() {
            return Err(Error::ExtraPackages { folder: self.folder, names: extra.join(", ") });
        }
        self.command(workspace).run()?;
        Ok(format!("{} packages", packages.len()))
    }
}
