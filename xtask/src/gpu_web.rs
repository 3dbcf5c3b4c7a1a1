//! `cargo xtask gpu-web`: GPU kernels in Chromium's WebGPU (ADR-0159).
//!
//! The self-test runs on software Vulkan with the kernels that every browser can have, and its
//! launches are recorded; `crates/gpu/tests/web` repeats them in Chromium and compares results.

use crate::process::CommandLine;
use crate::{Result, Workspace, gpu, web};

/// Place of the recorded launches.
const FOLDER: &str = "target/gpu-web";

/// Description of missing parts; `None` if the check can run.
pub(crate) fn missing(workspace: &Workspace) -> Option<String> {
    let browser = || web::tools(workspace).err().map(|error| error.to_string());
    gpu::missing(workspace).or_else(browser)
}

/// Records the launches, and repeats them in the browser.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let browser = web::tools(workspace)?;
    gpu::trace(workspace, FOLDER).run()?;
    CommandLine::new(web::NODE, workspace.root())
        .args(["crates/gpu/tests/web/check.mjs", browser, FOLDER])
        .run()
}
