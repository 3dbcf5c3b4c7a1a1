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
    packages: Packages,
}

/// Packages that an example may compile.
enum Packages {
    /// All of them, with default features on Linux; other systems may have fewer.
    All(&'static [&'static str]),
    /// Packages of this project, beside any number of others.
    Own(&'static [&'static str]),
}

impl Packages {
    fn allow(&self, name: &str) -> bool {
        match self {
            Self::All(names) => names.contains(&name),
            Self::Own(names) => {
                !(name.starts_with("ruvllm") || name.starts_with("gguf-")) || names.contains(&name)
            }
        }
    }
}

/// Examples that every tier runs.
pub(crate) const EXAMPLES: [Example; 2] = [
    // The three packages allowed by the kernels' decision record, their macros, and dependencies of
    // these.
    Example {
        package: "kernels-only",
        folder: "examples/kernels-only",
        step: "example of the kernels alone",
        packages: Packages::All(&[
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
        ]),
    },
    // As above, plus mapping and locks of the pool, and hashes of prefix files.
    Example {
        package: "caches-only",
        folder: "examples/caches-only",
        step: "example of the caches alone",
        packages: Packages::All(&[
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
        ]),
    },
];

/// Learning in an engine of candle. Nothing but the full tier builds candle (ADR-0022).
pub(crate) const CANDLE: Example = Example {
    package: "candle-learning",
    folder: "examples/candle-learning",
    step: "example of learning in candle",
    packages: Packages::Own(&["ruvllm-kernels", "ruvllm-sona"]),
};

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
        let extra: Vec<&str> = packages.iter().copied().filter(|name| !self.packages.allow(name)).collect();
        if !extra.is_empty() {
            return Err(Error::ExtraPackages { folder: self.folder, names: extra.join(", ") });
        }
        self.command(workspace).run()?;
        Ok(format!("{} packages", packages.len()))
    }
}
