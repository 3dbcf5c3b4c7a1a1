//! Loading of a command's model on its device, and flags without effect on a GPU.

use ruvllm::{EngineOptions, KvPolicy, ModelSource, PressurePolicy};
use ruvllm_server::BackendLoader;
#[cfg(not(feature = "gpu"))]
use ruvllm_server::LoadedBackend;

use super::choice::{Device, DeviceArgs, Wanted};
use super::cpu::engine;
use super::error::{DeviceError, Refused};
#[cfg(feature = "gpu")]
use super::gpu::{open, present, served};
use super::loaded::Loaded;
use crate::args::{AdapterArgs, ModelArgs};
use crate::error::{Error, Result, one_line};
use crate::output;

/// Defaults of a command for settings that its flags leave open.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Defaults {
    /// Context length on a GPU, which reserves it at start; the CPU allocates as sequences grow.
    pub(crate) gpu_context: Option<usize>,
    /// Sequences that are decoded together on a GPU, which reserves a context for each; `None` =
    /// one.
    pub(crate) gpu_sequences: Option<usize>,
    /// KV-cache policy on the CPU.
    pub(crate) cpu_kv: Option<KvPolicy>,
    /// True if each request names its adapter, so that none becomes the engine's default.
    pub(crate) requests_have_adapters: bool,
}

impl DeviceArgs {
    /// Rejects a GPU for a command that runs on the CPU alone; `auto` means the CPU there.
    ///
    /// # Errors
    /// [`DeviceError::CpuOnly`].
    pub(crate) fn cpu_only(&self, command: &'static str) -> Result<()> {
        match self.device {
            Device::Cpu | Device::Auto => Ok(()),
            Device::Gpu(_) => Err(DeviceError::CpuOnly { command, device: self.device }.into()),
        }
    }

    /// Loads the model of a command on its device.
    ///
    /// # Errors
    /// A model that cannot be opened or run on the device, an absent device, flags without effect
    /// on it. `auto` falls back to the CPU, with a note, if the error is one of the device.
    pub(crate) fn load(
        &self,
        model: &ModelArgs,
        adapters: &AdapterArgs,
        options: EngineOptions,
        defaults: Defaults,
    ) -> Result<Loaded> {
        let gpu = |index| {
            refused(&options, adapters.gate.is_some())?;
            let context = options.context.or(defaults.gpu_context);
            let wanted = self.wanted(index, defaults.gpu_sequences, None);
            let defaults = (!defaults.requests_have_adapters).then_some(adapters);
            open(model, &options.clone().with_context(context), wanted, defaults)
        };
        match self.device {
            Device::Cpu => {}
            Device::Gpu(index) => return gpu(index),
            Device::Auto => match gpu(None) {
                Err(error) if is_of_the_device(&error) => {
                    output::note(&format!("[--device auto: the CPU computes: {}]", one_line(&error)));
                }
                result => return result,
            },
        }
        let kv = options.kv.or(defaults.cpu_kv);
        let mut engine = engine(model, options.with_kv(kv))?;
        if !defaults.requests_have_adapters {
            adapters.apply(&mut engine)?;
        }
        Ok(Loaded::Cpu(Box::new(engine)))
    }
}

impl DeviceArgs {
    /// Loader of a served model on a GPU; `None` if the engine computes it on the CPU.
    /// `sequences`: those that are meant to be decoded together.
    ///
    /// # Errors
    /// Flags without effect on a GPU, and an absent one; `auto` falls back to the CPU, with a note.
    pub(crate) fn loader(
        &self,
        source: &ModelSource,
        options: &EngineOptions,
        sequences: usize,
    ) -> Result<Option<BackendLoader>> {
        let index = match self.device {
            Device::Cpu => return Ok(None),
            Device::Auto => None,
            Device::Gpu(index) => index,
        };
        // A pool of keys and values that requests share.
        let kv_bytes = options.kv_budget.map(|bytes| bytes as u64);
        let falls_back = self.device == Device::Auto;
        let checked = refused(&options.clone().with_kv_budget(None), false).and_then(|()| present(index));
        match checked {
            Err(error) if falls_back => {
                output::note(&format!("[--device auto: the CPU computes: {}]", one_line(&error)));
                Ok(None)
            }
            Err(error) => Err(error),
            Ok(()) => {
                let wanted = self.wanted(index, Some(sequences), kv_bytes);
                Ok(Some(served(source.clone(), options, wanted, falls_back)))
            }
        }
    }

    fn wanted(&self, index: Option<usize>, sequences: Option<usize>, kv_bytes: Option<u64>) -> Wanted {
        Wanted {
            index,
            sequences,
            layers: self.gpu_layers(),
            memory: self.gpu_memory(),
            kv_bytes,
            host_kv_bytes: self.gpu_host_memory(),
            slots: self.adapter_slots(),
            cache: self.gpu_cache(),
        }
    }
}

/// Fails unless there is a GPU with an index, or any.
#[cfg(not(feature = "gpu"))]
fn present(_: Option<usize>) -> Result<()> {
    Err(DeviceError::NotBuilt.into())
}

#[cfg(not(feature = "gpu"))]
fn served(_: ModelSource, _: &EngineOptions, _: Wanted, _: bool) -> BackendLoader {
    let reason = DeviceError::NotBuilt.to_string();
    BackendLoader::new(move || Ok(LoadedBackend::Engine { reason: reason.clone() }))
}

#[cfg(not(feature = "gpu"))]
fn open(_: &ModelArgs, _: &EngineOptions, _: Wanted, _: Option<&AdapterArgs>) -> Result<Loaded> {
    Err(DeviceError::NotBuilt.into())
}

/// True if another device may succeed.
fn is_of_the_device(error: &Error) -> bool {
    use ruvllm::Error as E;
    matches!(error, Error::Device(_) | Error::Engine(E::UnsupportedByBackend { .. } | E::Backend { .. }))
}

/// Rejects flags that change results or memory on the CPU but have no effect on a GPU.
fn refused(options: &EngineOptions, has_gate: bool) -> Result<()> {
    if has_gate {
        return Err(DeviceError::gate().into());
    }
    let is_stored = |kv: KvPolicy| ["f16", "q8"].contains(&kv.to_string().as_str());
    let refused = [
        (
            options.kv.is_some_and(|kv| !is_stored(kv)),
            Refused { flag: "--kv", reason: "its keys and values are f16 or q8" },
        ),
        (
            options.row_kernels.is_some(),
            Refused { flag: "--kernel-pack", reason: "its kernels replace those of the CPU" },
        ),
        (
            options.kv_calibration.is_some(),
            Refused { flag: "--kv-calibration", reason: "its keys and values are f16 or q8" },
        ),
        (
            options.kv_budget.is_some(),
            Refused { flag: "--kv-budget", reason: "its keys and values take one context: use --context" },
        ),
        (
            options.pressure != PressurePolicy::default(),
            Refused { flag: "--pressure", reason: "its keys and values have room for one context" },
        ),
        (
            options.prefixes.has_files(),
            Refused { flag: "--prefix-cache", reason: "its stored prefixes are in no files" },
        ),
        (
            options.prefix_transfers,
            Refused { flag: "--grpc-transfers", reason: "its stored prefixes are not exchanged" },
        ),
        (
            options.quantize.is_some(),
            Refused { flag: "--quantize", reason: "it takes weights as stored: use `ruvllm quantize`" },
        ),
        (options.mlock, Refused { flag: "--mlock", reason: "weights are in its own memory" }),
        (!options.mmap, Refused { flag: "--no-mmap", reason: "files are mapped until weights are uploaded" }),
    ];
    match refused.into_iter().find(|(is_given, _)| *is_given) {
        Some((_, refused)) => Err(DeviceError::Flag(refused).into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_cpu_are_refused_by_name() {
        let flag = |options: EngineOptions| match refused(&options, false) {
            Err(Error::Device(DeviceError::Flag(refused))) => refused.flag,
            other => panic!("expected a refusal, found {other:?}"),
        };
        let base = EngineOptions::default;
        assert!(refused(&base(), false).is_ok());
        let gate = refused(&base(), true);
        assert!(matches!(
            gate,
            Err(Error::Device(DeviceError::Flag(Refused { flag: "--adapter-gate", .. })))
        ));
        let kv = |name: &str| base().with_kv(name.parse::<KvPolicy>().ok());
        for name in ["f16", "q8"] {
            assert!(refused(&kv(name).with_threads(3), false).is_ok(), "{name}");
        }
        for name in ["q4", "f32", "q8+f16", "q8:rotate=on", "tiered"] {
            assert_eq!(flag(kv(name)), "--kv", "{name}");
        }
        assert_eq!(flag(base().with_kv_budget(1 << 20)), "--kv-budget");
        assert_eq!(flag(base().with_mlock(true)), "--mlock");
        assert_eq!(flag(base().with_mmap(false)), "--no-mmap");
    }
}
