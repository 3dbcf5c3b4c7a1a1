//! Errors of `--device`.

use super::choice::Device;

/// Text for a program without the feature `gpu`.
const NOT_BUILT: &str = "this program is built without GPU support; build it with \
     `cargo build --release -p ruvllm-cli --features gpu`, or use --device cpu";

/// Options of the library that messages of the GPU backend name, and the program's flags.
const FLAGS: [(&str, &str); 4] = [
    ("lower GpuOptions::context or kv_tokens", "lower --context or raise --gpu-memory"),
    ("lower GpuOptions::sequences or spare_states", "raise --gpu-memory or lower --gpu-sequences of `serve`"),
    ("raise GpuOptions::kv_tokens", "raise --kv-budget"),
    ("raise GpuOptions::sequences", "raise --gpu-sequences"),
];

/// A message of the GPU backend with the program's flags.
pub(crate) fn in_flags(line: &str) -> String {
    FLAGS.iter().fold(line.to_owned(), |line, (option, flag)| line.replace(option, flag))
}

/// A device that is absent or does not support the command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    /// The feature `gpu` is off.
    #[error("{NOT_BUILT}")]
    #[cfg_attr(feature = "gpu", allow(dead_code))]
    NotBuilt,
    /// No adapter that is chosen automatically (software adapters are not).
    #[error("no GPU found: {reason}; install the GPU's driver and the Vulkan loader, or use --device cpu")]
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    NoGpu {
        /// Adapters that were found, if any.
        reason: String,
    },
    /// No adapter has the index.
    #[error("there is no adapter gpu:{index}: {present}; `ruvllm doctor --gpu` lists them")]
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    NoAdapter {
        /// Index asked for.
        index: usize,
        /// Indices and names of the adapters.
        present: String,
    },
    /// A flag without effect on a GPU.
    #[error("{} has no effect on a GPU: {}; leave it out, or use --device cpu", .0.flag, .0.reason)]
    Flag(Refused),
    /// A command that runs on the CPU alone.
    #[error("`ruvllm {command}` computes on the CPU only; leave out --device {device}")]
    CpuOnly {
        /// The command.
        command: &'static str,
        /// The device asked for.
        device: Device,
    },
    /// The self-test found an operation beyond its error bound.
    #[error("the self-test failed: {failed} of {checks} checks on {adapter}; please report the text above")]
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    SelfTest {
        /// Checks that did not pass.
        failed: usize,
        /// All checks.
        checks: usize,
        /// Name of the adapter.
        adapter: String,
    },
}

/// A flag without effect on a GPU, and the reason.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) flag: &'static str,
    pub(crate) reason: &'static str,
}

impl DeviceError {
    /// Refusal of a gate over adapters.
    pub(crate) fn gate() -> Self {
        Self::Flag(Refused { flag: "--adapter-gate", reason: "it computes adapters without gates" })
    }

    /// True for flags that exclude each other.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::Flag(_) | Self::CpuOnly { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_in_a_message_of_the_backend_has_a_flag() {
        let backend = concat!(
            include_str!("../../../runtime/src/backend/gpu/mod.rs"),
            include_str!("../../../runtime/src/backend/gpu/session.rs"),
        );
        for (option, _) in FLAGS {
            assert!(backend.contains(option), "{option}: no message has it");
        }
        let messages = backend.lines().filter(|line| {
            !line.trim_start().starts_with("//")
                && ["lower GpuOptions", "raise GpuOptions"].iter().any(|hint| line.contains(hint))
        });
        for message in messages {
            assert!(!in_flags(message).contains("GpuOptions"), "{message}");
        }
    }
}
