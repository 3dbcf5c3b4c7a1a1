//! Steps of the GPU: `cargo xtask gpu`, and those of a full run.

use super::{Steps, counted, counted_all};
use crate::extent::Extent;
use crate::process::CommandLine;
use crate::{Result, Workspace, gpu, gpu_web};

/// Each kernel and a tiny model end to end, on any adapter; skipped without a Vulkan loader or
/// driver.
pub(crate) fn gpu(workspace: &Workspace) -> Result<()> {
    let mut steps = Steps::default();
    quick_steps(workspace, &mut steps)?;
    steps.summary()
}

/// Types of MSL, if there is clang; lints, then the tests of kernels, backend and the program's
/// device option, if there is an adapter.
pub(super) fn gpu_steps(workspace: &Workspace, steps: &mut Steps) -> Result<()> {
    msl_step(workspace, steps)?;
    if !quick_steps(workspace, steps)? {
        return Ok(());
    }
    let lints = "cargo clippy --package ruvllm --package ruvllm-cli --features gpu";
    steps.run("gpu lints", lints, || gpu::lint(workspace).map(|()| "ok".to_owned()))?;
    for (name, command) in [
        ("gpu kernels", gpu::kernels(workspace, Extent::Full)),
        ("gpu backend", gpu::backend(workspace)),
        ("gpu program", gpu::program(workspace)),
    ] {
        steps.run(name, &command.display(), || counted(&command))?;
    }
    if let Some(missing) = gpu_web::missing(workspace) {
        steps.skip("gpu in a browser", missing);
        return Ok(());
    }
    steps.run("gpu in a browser", "cargo xtask gpu-web", || {
        gpu_web::check(workspace).map(|()| "ok".to_owned())
    })
}

fn msl_step(workspace: &Workspace, steps: &mut Steps) -> Result<()> {
    if let Some(missing) = gpu::lacks_clang(workspace) {
        steps.skip("gpu msl", missing);
        return Ok(());
    }
    let tests = gpu::msl(workspace);
    steps.run("gpu msl", &tests.display(), || counted(&tests))
}

/// Builds and runs the quick tests, so that the time of the second step is that of the tests.
/// False without an adapter.
fn quick_steps(workspace: &Workspace, steps: &mut Steps) -> Result<bool> {
    if let Some(missing) = gpu::missing(workspace) {
        steps.skip("gpu", missing);
        return Ok(false);
    }
    let rerun = "cargo xtask gpu";
    steps.run("gpu build", rerun, || {
        gpu::builds(workspace).iter().try_for_each(CommandLine::run).map(|()| "ok".to_owned())
    })?;
    steps.run("gpu quick", rerun, || counted_all(&gpu::quick(workspace)))?;
    Ok(true)
}
