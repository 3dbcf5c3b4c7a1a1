//! Choice of the device: the values of `--device`.

use std::fmt;

use clap::Args;

/// Options of the device.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Device: cpu, gpu, gpu:N as `doctor --gpu` lists them, or auto
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = device)]
    pub(crate) device: Device,
}

/// Device that computes a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Device {
    Cpu,
    /// A GPU that can compute the model as asked for, else the CPU.
    Auto,
    /// The best GPU, or the adapter with this index.
    Gpu(Option<usize>),
}

/// Parses `cpu`, `auto`, `gpu` or `gpu:N`.
fn device(text: &str) -> Result<Device, String> {
    match text {
        "cpu" => Ok(Device::Cpu),
        "auto" => Ok(Device::Auto),
        "gpu" => Ok(Device::Gpu(None)),
        _ => text
            .strip_prefix("gpu:")
            .and_then(|index| index.parse().ok())
            .map(|index| Device::Gpu(Some(index)))
            .ok_or_else(|| "expected cpu, gpu, gpu:N or auto; N as `ruvllm doctor --gpu` lists them".into()),
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => write!(f, "cpu"),
            Self::Auto => write!(f, "auto"),
            Self::Gpu(None) => write!(f, "gpu"),
            Self::Gpu(Some(index)) => write!(f, "gpu:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_and_written() {
        for (text, expected) in [
            ("cpu", Device::Cpu),
            ("auto", Device::Auto),
            ("gpu", Device::Gpu(None)),
            ("gpu:0", Device::Gpu(Some(0))),
            ("gpu:12", Device::Gpu(Some(12))),
        ] {
            assert_eq!(device(text), Ok(expected));
            assert_eq!(expected.to_string(), text);
        }
        for text in ["", "GPU", "gpu:", "gpu:-1", "gpu:x", "cuda", "gpu0"] {
            assert!(device(text).is_err_and(|reason| reason.contains("gpu:N")), "{text}");
        }
    }
}
