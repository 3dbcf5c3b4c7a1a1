//! `ruvllm pack bench`: times of a pack's kernels in the sandbox.

use std::path::PathBuf;

use clap::Args;

use super::trust::TrustArgs;
use crate::args::positive;
use crate::error::Result;

const HELP: &str = "\
Verifies the pack as `ruvllm pack verify` does, checks each kernel with golden vectors, and calls it with sizes of its
category: rows of 4096 values, 512 positions of 128, blocks of 64 x 1024, rank 16. In place means that inputs and
outputs stay in the memory of the sandbox; copied has one copy in and one out. Kernels without a signature
(docs/kernel-packs.md) are not called. What the author claims is in `ruvllm pack inspect`.

JSON: {pack, name, version, repeats, kernels: [{id, sizes, in_place: {median_us, least_us, most_us}, copied: {..}}],
not_called: [{id, reason}]}

Examples:
  ruvllm pack bench core.rkp
  ruvllm pack bench core.rkp --repeats 51 --json";

/// Measure the kernels of a pack in the sandbox
#[derive(Debug, Args)]
#[command(after_help = HELP)]
#[cfg_attr(not(feature = "kernel-packs"), allow(dead_code))]
pub(crate) struct BenchArgs {
    /// Archive or folder
    pack: PathBuf,

    #[command(flatten)]
    trust: TrustArgs,

    /// Measurements of each kernel, of about 2 ms
    #[arg(long, value_name = "N", default_value = "15", value_parser = positive)]
    repeats: usize,
}

/// The error of a program without the sandbox.
///
/// # Errors
/// Always.
#[cfg(not(feature = "kernel-packs"))]
pub(crate) fn run(_: &BenchArgs, _: bool) -> Result<()> {
    Err(crate::error::Error::NoSandbox)
}

#[cfg(feature = "kernel-packs")]
pub(crate) use measured::run;

#[cfg(feature = "kernel-packs")]
mod measured {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Instant;

    use ruvllm_kernel_packs::manager::{LoadedKernel, Manager, ManagerOptions};
    use ruvllm_kernel_packs::manifest::{Category, DType, ParameterValue};
    use ruvllm_kernel_packs::sandbox::{Binding, Fault, Guest, Job, Kernel, Sandbox, SandboxOptions};
    use ruvllm_kernel_packs::{Contents, Version};
    use serde::Serialize;

    use super::super::store;
    use super::{BenchArgs, Result};
    use crate::output;
    use crate::progress::Progress;

    /// Time of the calls of one measurement.
    const MEASURED_S: f64 = 0.002;

    /// The JSON document.
    #[derive(Serialize)]
    struct Document<'a> {
        pack: &'a Path,
        name: &'a str,
        version: &'a Version,
        repeats: usize,
        kernels: Vec<KernelDocument<'a>>,
        not_called: Vec<NotCalled<'a>>,
    }

    #[derive(Serialize)]
    struct KernelDocument<'a> {
        id: &'a str,
        sizes: String,
        in_place: Times,
        copied: Times,
    }

    #[derive(Serialize)]
    struct NotCalled<'a> {
        id: &'a str,
        reason: String,
    }

    /// Times of a call in microseconds.
    #[derive(Clone, Copy, Serialize)]
    struct Times {
        median_us: f64,
        least_us: f64,
        most_us: f64,
    }

    /// Sizes of symbols and values of parameters.
    type Request = (&'static [(&'static str, u64)], Vec<(&'static str, ParameterValue)>);

    pub(crate) fn run(args: &BenchArgs, json: bool) -> Result<()> {
        let trust = args.trust.load(&store()?)?.with_engine(Sandbox::engine());
        let pack = Contents::open(&args.pack)?.verify(trust.policy())?;
        let sandbox = Arc::new(Sandbox::new(SandboxOptions::default())?);
        let manager = Manager::new(sandbox, &*pack.manifest().name, ManagerOptions::default());
        manager.upgrade(&pack)?;
        let mut reader = manager.reader();
        let loaded = reader.get().map_or(&[][..], |loaded| loaded.kernels());
        let (mut kernels, mut not_called) = (Vec::new(), Vec::new());
        let mut progress = Progress::steps("measuring");
        for (index, LoadedKernel { kernel, callable, .. }) in loaded.iter().enumerate() {
            progress.update(index as u64, loaded.len() as u64);
            let id = kernel.manifest().id.as_str();
            match callable {
                Err(reason) => not_called.push(NotCalled { id, reason: reason.to_string() }),
                Ok(_) => kernels.push(measure(kernel, args.repeats)?),
            }
        }
        drop(progress);
        let manifest = pack.manifest();
        let document = Document {
            pack: &args.pack,
            name: &manifest.name,
            version: &manifest.version,
            repeats: args.repeats,
            kernels,
            not_called,
        };
        if json { output::write_json(&document) } else { output::write_text(&text(&document)).map(|_| ()) }
    }

    /// Sizes at which kernels of a category are measured.
    fn request(category: Category) -> Request {
        match category {
            Category::RmsNorm => (&[("rows", 1), ("dim", 4096)], vec![("eps", ParameterValue::Number(1e-5))]),
            Category::Swiglu => (&[("n", 8192)], Vec::new()),
            Category::Rope => {
                let is_interleaved = vec![("interleaved", ParameterValue::Bool(false))];
                (&[("tokens", 512), ("heads", 1), ("dim", 128), ("pairs", 64)], is_interleaved)
            }
            Category::KvPack | Category::KvUnpack => (&[("rows", 64), ("dim", 1024)], Vec::new()),
            Category::LoraApply => {
                let scale = vec![("scale", ParameterValue::Number(1.0))];
                (&[("rows", 1), ("inputs", 4096), ("rank", 16), ("outputs", 4096)], scale)
            }
            // Without a signature, and so not called.
            _ => (&[], Vec::new()),
        }
    }

    fn measure(kernel: &Kernel, repeats: usize) -> Result<KernelDocument<'_>> {
        let manifest = kernel.manifest();
        let (sizes, parameters) = request(manifest.category);
        let binding = kernel.bind(sizes, &parameters)?;
        let inputs: Vec<Vec<u8>> = binding
            .input_bytes()
            .zip(&manifest.inputs)
            .map(|(bytes, tensor)| pattern(tensor.dtype, bytes))
            .collect();
        // Inputs stay in the instance between calls in place.
        kernel.call_with(&[&binding], |guest| write(guest, &inputs), |_| Ok(()))?;
        let in_place = times(repeats, || kernel.call_with(&[&binding], |_| Ok(()), |_| Ok(())))?;
        let copied = copied(kernel, &binding, &inputs, repeats)?;
        let sizes = sizes.iter().map(|(name, size)| format!("{name} {size}")).collect::<Vec<_>>().join(", ");
        Ok(KernelDocument { id: &manifest.id, sizes, in_place, copied })
    }

    fn write(guest: &mut Guest<'_>, inputs: &[Vec<u8>]) -> Result<(), Fault> {
        inputs.iter().enumerate().try_for_each(|(index, input)| {
            guest.input_mut::<u8>(0, index)?.copy_from_slice(input);
            Ok(())
        })
    }

    fn copied(kernel: &Kernel, binding: &Binding, inputs: &[Vec<u8>], repeats: usize) -> Result<Times> {
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut outputs: Vec<Vec<u8>> = binding.output_bytes().map(|bytes| vec![0; bytes]).collect();
        times(repeats, || {
            let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            kernel.call(&mut [Job { binding, inputs: &inputs, outputs: &mut outputs }])
        })
    }

    /// Times of a call over some measurements, after one that warms up and says how many calls fill
    /// a measurement.
    fn times(
        repeats: usize,
        mut call: impl FnMut() -> Result<(), ruvllm_kernel_packs::Error>,
    ) -> Result<Times> {
        let mut measured = |calls: u32| -> Result<f64> {
            let start = Instant::now();
            for _ in 0..calls {
                call()?;
            }
            Ok(start.elapsed().as_secs_f64() / f64::from(calls))
        };
        let first = measured(3)?.max(1e-9);
        let calls = (MEASURED_S / first).clamp(1.0, 1e6) as u32;
        let mut list = (0..repeats).map(|_| measured(calls)).collect::<Result<Vec<f64>>>()?;
        list.sort_by(f64::total_cmp);
        let us = |index: usize| list.get(index).map_or(f64::NAN, |seconds| seconds * 1e6);
        Ok(Times { median_us: us(repeats / 2), least_us: us(0), most_us: us(repeats.saturating_sub(1)) })
    }

    /// Bytes of ordinary numbers: values between -1 and 1, blocks with a scale of 1/16.
    fn pattern(dtype: DType, bytes: usize) -> Vec<u8> {
        let unit: Vec<u8> = match dtype {
            DType::F32 => [0.5f32, -0.25, 0.125, -1.0].iter().flat_map(|value| value.to_le_bytes()).collect(),
            // The bits of the same values in half precision.
            DType::F16 => {
                [0x3800u16, 0xb400, 0x3000, 0xbc00].iter().flat_map(|bits| bits.to_le_bytes()).collect()
            }
            DType::Q8_0 => {
                0x2c00u16.to_le_bytes().into_iter().chain((0..32).map(|index| 3 * index)).collect()
            }
            DType::Q4_0 => {
                0x2c00u16.to_le_bytes().into_iter().chain((0..16).map(|index| 16 * index + 7)).collect()
            }
            _ => vec![0],
        };
        unit.into_iter().cycle().take(bytes).collect()
    }

    fn text(document: &Document<'_>) -> String {
        let row = |kernel: &KernelDocument<'_>| {
            let [in_place, copied] = [kernel.in_place, kernel.copied].map(|times| {
                format!("{:.2} ({:.2} to {:.2})", times.median_us, times.least_us, times.most_us)
            });
            vec![kernel.id.to_owned(), kernel.sizes.clone(), in_place, copied]
        };
        let title = ["kernel", "sizes", "in place, us", "copied, us"].map(str::to_owned).to_vec();
        let rows: Vec<Vec<String>> = std::iter::once(title).chain(document.kernels.iter().map(row)).collect();
        let mut text = output::table(&rows, &[]);
        for NotCalled { id, reason } in &document.not_called {
            text.push_str(&format!("{id}: not called: {reason}\n"));
        }
        text
    }
}
