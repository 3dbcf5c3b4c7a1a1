//! Flags of kernel packs in the engine.

use clap::Args;
use ruvllm::EngineOptions;

use crate::error::Result;
use crate::kernel_pack;

/// Pack whose kernels replace native ones.
#[derive(Debug, Clone, Args)]
pub(crate) struct KernelPackArgs {
    #[arg(
        long,
        value_name = "NAME",
        help = "Installed pack whose kernels replace RMSNorm, SwiGLU and RoPE [default: none]"
    )]
    kernel_pack: Option<String>,

    /// Largest cost of a call of the pack, as a share of native time; shorter operations are native
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, requires = "kernel_pack", value_parser = share)]
    kernel_pack_share: f64,
}

impl KernelPackArgs {
    /// Adds the kernels to the options of an engine.
    ///
    /// # Errors
    /// A program without the sandbox; a pack that is not installed, not trusted or not healthy.
    pub(crate) fn apply(&self, options: EngineOptions) -> Result<EngineOptions> {
        let Some(name) = &self.kernel_pack else { return Ok(options) };
        Ok(options.with_row_kernels(Some(kernel_pack::load(name, self.kernel_pack_share)?)))
    }
}

/// Parses a positive share; `inf` admits all calls.
fn share(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|share: &f64| *share > 0.0);
    value.ok_or_else(|| "expected a positive number, as 0.1, or inf for all calls".to_owned())
}
