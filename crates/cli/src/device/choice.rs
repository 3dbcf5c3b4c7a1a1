//! Choice of the device: the values of `--device`.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;

use clap::Args;

use crate::args::{bytes, positive};
use crate::user_folders;

/// Options of the device.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeviceArgs {
    /// Device: cpu, gpu, gpu:N as `doctor --gpu` lists them, or auto
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = device)]
    pub(crate) device: Device,

    /// Folder of compiled GPU kernels, or off [default: ruvllm/gpu in the user's cache folder]
    #[arg(long, value_name = "DIR", value_parser = gpu_cache)]
    gpu_cache: Option<GpuCache>,

    /// Budget of GPU memory for weights, KV cache and activations, e.g. 8GiB [default: none]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    gpu_memory: Option<usize>,

    /// Host memory for stored prefixes that GPU memory has no room for, e.g. 8GiB [default: none]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    gpu_host_memory: Option<usize>,

    /// Layers with their weights in GPU memory, the last N, or auto: as many as there is room for;
    /// the others are read over the bus [default: auto]
    #[arg(long, value_name = "N", value_parser = gpu_layers)]
    gpu_layers: Option<GpuLayers>,

    /// Maximum number of LoRA adapters in GPU memory, of all requests at once [default: 8]
    #[arg(long, value_name = "N", value_parser = positive)]
    adapter_slots: Option<usize>,
}

/// Layers in GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GpuLayers {
    Auto,
    Last(usize),
}

/// Place of compiled GPU kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
enum GpuCache {
    Off,
    Folder(PathBuf),
}

impl DeviceArgs {
    /// Budget of GPU memory in bytes.
    pub(super) fn gpu_memory(&self) -> Option<u64> {
        self.gpu_memory.map(|bytes| bytes as u64)
    }

    /// Host memory for prefixes in bytes.
    pub(super) fn gpu_host_memory(&self) -> u64 {
        self.gpu_host_memory.map_or(0, |bytes| bytes as u64)
    }

    /// Number of layers in GPU memory; `None` = as many as there is room for.
    pub(super) fn gpu_layers(&self) -> Option<usize> {
        match self.gpu_layers? {
            GpuLayers::Auto => None,
            GpuLayers::Last(layers) => Some(layers),
        }
    }

    /// Maximum number of LoRA adapters in GPU memory.
    pub(super) fn adapter_slots(&self) -> Option<usize> {
        self.adapter_slots
    }

    /// Folder of compiled GPU kernels; `None` if they are not kept.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    pub(crate) fn gpu_cache(&self) -> Option<PathBuf> {
        match &self.gpu_cache {
            Some(GpuCache::Off) => None,
            Some(GpuCache::Folder(path)) => Some(path.clone()),
            None => user_folders::cache().map(|folder| folder.join("gpu")),
        }
    }
}

/// Parses a number or `auto`.
fn gpu_layers(text: &str) -> Result<GpuLayers, String> {
    match text {
        "auto" => Ok(GpuLayers::Auto),
        _ => text.parse().map(GpuLayers::Last).map_err(|_| "expected a number of layers or auto".to_owned()),
    }
}

/// Parses a folder or `off`. A folder of that name is `./off`.
fn gpu_cache(text: &str) -> Result<GpuCache, Infallible> {
    Ok(match text {
        "off" => GpuCache::Off,
        _ => GpuCache::Folder(text.into()),
    })
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

/// Adapter and settings of a GPU.
#[cfg_attr(not(feature = "gpu"), allow(dead_code))]
pub(super) struct Wanted {
    /// Index of the adapter; `None` = the best GPU.
    pub(super) index: Option<usize>,
    pub(super) sequences: Option<usize>,
    /// Layers with their weights in device memory; `None` = as many as there is room for.
    pub(super) layers: Option<usize>,
    /// Budget of device memory in bytes.
    pub(super) memory: Option<u64>,
    /// Part of it for keys and values; `None` = a context for each of the sequences.
    pub(super) kv_bytes: Option<u64>,
    /// Host memory for stored prefixes in bytes.
    pub(super) host_kv_bytes: u64,
    /// Largest number of LoRA adapters in device memory.
    pub(super) slots: Option<usize>,
    /// Folder of compiled kernels.
    pub(super) cache: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_kernels_have_a_folder_or_none() {
        let folder = |gpu_cache| {
            let (gpu_memory, gpu_host_memory, gpu_layers, adapter_slots) = (None, None, None, None);
            let device = Device::Cpu;
            DeviceArgs { device, gpu_cache, gpu_memory, gpu_host_memory, gpu_layers, adapter_slots }
                .gpu_cache()
        };
        assert_eq!(folder(gpu_cache("off").ok()), None);
        assert_eq!(folder(gpu_cache("./off").ok()), Some("./off".into()));
        assert_eq!(folder(None), user_folders::cache().map(|cache| cache.join("gpu")));
    }

    #[test]
    fn layers_are_a_number_or_auto() {
        assert_eq!(gpu_layers("auto"), Ok(GpuLayers::Auto));
        assert_eq!(gpu_layers("0"), Ok(GpuLayers::Last(0)));
        for text in ["", "-1", "all", "1.5"] {
            assert!(gpu_layers(text).is_err_and(|reason| reason.contains("auto")), "{text}");
        }
    }

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
