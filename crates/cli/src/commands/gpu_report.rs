//! `ruvllm doctor --gpu`: the GPUs of this machine, the one that would be used, and a self-test.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::device::{Device, DeviceArgs};
use crate::error::Result;

/// Flags of the report.
#[derive(Debug, Args)]
#[cfg_attr(not(feature = "gpu"), allow(dead_code))]
pub(crate) struct GpuReportArgs {
    /// Report on the GPUs instead: adapters, features, the one that --device gpu takes
    #[arg(long)]
    gpu: bool,

    /// Check every GPU kernel against float64 and print a report to paste
    #[arg(long, requires = "gpu")]
    self_test: bool,

    /// Check so many small random shapes too
    #[arg(long, value_name = "N", requires = "self_test", default_value_t = 0)]
    shapes: usize,

    /// Measure tiles of the model's products on the GPU, for its later uses; no result changes
    #[arg(long, requires = "gpu")]
    tune: bool,

    /// Write the GPU kernels that the model uses into a folder, as WGSL
    #[arg(long, value_name = "DIR", requires = "gpu")]
    dump_kernels: Option<PathBuf>,

    #[command(flatten)]
    device: DeviceArgs,
}

impl GpuReportArgs {
    /// True if the flags ask for the GPU report.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.gpu || matches!(self.device.device, Device::Gpu(_))
    }
}

/// Flag and description of GPU use, for the report of `doctor`.
pub(crate) const WAYS: (&str, &str) = if cfg!(feature = "gpu") {
    ("--device gpu or auto", "a GPU; `ruvllm doctor --gpu` lists them")
} else {
    ("--device gpu", "a GPU, in a program built with `--features gpu`")
};

#[cfg(not(feature = "gpu"))]
pub(crate) fn run(_: &GpuReportArgs, _: &crate::args::ModelArgs, _: Option<usize>, _: bool) -> Result<()> {
    Err(crate::device::DeviceError::NotBuilt.into())
}

#[cfg(feature = "gpu")]
pub(crate) use with_gpu::run;

/// Writes each kernel to `NAME.wgsl` in a folder.
#[cfg_attr(not(feature = "gpu"), allow(dead_code))]
fn write_kernels<'k>(folder: &Path, kernels: impl Iterator<Item = (&'k str, &'k str)>) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| crate::error::Error::WriteFile { path, source }
    };
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    for (name, source) in kernels {
        let path = folder.join(format!("{name}.wgsl"));
        std::fs::write(&path, source).map_err(failed(&path))?;
    }
    Ok(())
}

#[cfg(feature = "gpu")]
mod with_gpu {
    use std::path::PathBuf;

    use ruvllm::{
        EngineOptions, GpuAdapter, GpuAdapterKind, GpuBackend, GpuCheck, GpuSelfTest, GpuTuned, gpu_adapters,
        gpu_choose, gpu_self_test,
    };
    use serde::Serialize;

    use super::{GpuReportArgs, write_kernels};
    use crate::args::ModelArgs;
    use crate::device::gpu::{absent, backend, explain, gpu_options};
    use crate::device::{Device, DeviceError};
    use crate::error::{Error, Result, one_line, printable};
    use crate::output;
    use crate::progress::Progress;

    /// Rounds of the self-test. Software adapters take a second to compile a kernel, and each round
    /// has some 120.
    fn rounds(adapter: Option<&GpuAdapter>) -> usize {
        match adapter.map(|adapter| adapter.kind) {
            Some(GpuAdapterKind::Software) => 1,
            _ => 6,
        }
    }

    /// The JSON document, and the data of the text form.
    #[derive(Serialize)]
    struct Document {
        version: &'static str,
        platform: String,
        adapters: Vec<AdapterDocument>,
        #[serde(skip_serializing_if = "Option::is_none")]
        used: Option<usize>,
        reason: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        kernel_cache: Option<KernelCache>,
        #[serde(skip_serializing_if = "Option::is_none")]
        self_test: Option<SelfTestDocument>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tuned: Option<TunedDocument>,
        #[serde(skip_serializing_if = "Option::is_none")]
        dumped: Option<Dumped>,
    }

    /// Measured tiles of the products of a model.
    #[derive(Serialize)]
    struct TunedDocument {
        /// Absent if they are not kept.
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<PathBuf>,
        products: Vec<TunedProduct>,
    }

    #[derive(Serialize)]
    struct TunedProduct {
        format: &'static str,
        rows: u32,
        cols: u32,
        batch: u32,
        matrix_instructions: bool,
        usual_us: f64,
        fastest_us: f64,
        tiles: usize,
        changed: bool,
    }

    impl From<&GpuTuned> for TunedProduct {
        fn from(tuned: &GpuTuned) -> Self {
            let shape = tuned.shape;
            Self {
                format: shape.format.name(),
                rows: shape.rows,
                cols: shape.cols,
                batch: shape.batch,
                matrix_instructions: tuned.is_gemm,
                usual_us: tuned.usual * 1e6,
                fastest_us: tuned.fastest * 1e6,
                tiles: tuned.tiles,
                changed: tuned.is_changed,
            }
        }
    }

    /// File of the compiled kernels of the adapter that is used.
    #[derive(Serialize)]
    struct KernelCache {
        file: PathBuf,
        /// Absent if there is no file yet.
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
    }

    #[derive(Serialize)]
    struct AdapterDocument {
        index: usize,
        name: String,
        backend: String,
        kind: &'static str,
        driver: String,
        f16: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        subgroup: Option<[u32; 2]>,
        timestamps: bool,
        cooperative: Vec<String>,
        max_buffer_bytes: u64,
        workgroup_bytes: u32,
        max_threads: u32,
    }

    #[derive(Serialize)]
    struct SelfTestDocument {
        adapter: usize,
        passed: bool,
        kernels: usize,
        seconds: f64,
        checks: Vec<CheckDocument>,
    }

    #[derive(Serialize)]
    struct CheckDocument {
        name: String,
        passed: bool,
        /// Largest error relative to its bound; absent if it is not finite.
        #[serde(skip_serializing_if = "Option::is_none")]
        worst: Option<f64>,
        shape: String,
        shapes: usize,
    }

    #[derive(Serialize)]
    struct Dumped {
        folder: PathBuf,
        kernels: usize,
    }

    impl From<&GpuAdapter> for AdapterDocument {
        fn from(adapter: &GpuAdapter) -> Self {
            let shape = |shape: &_| {
                let &ruvllm::GpuMatrixShape { m, n, k } = shape;
                format!("{m}x{n}x{k}")
            };
            Self {
                index: adapter.index,
                name: adapter.name.clone(),
                backend: adapter.backend.clone(),
                kind: kind(adapter.kind),
                driver: adapter.driver.clone(),
                f16: adapter.f16,
                subgroup: adapter.subgroup.map(|(least, most)| [least, most]),
                timestamps: adapter.timestamps,
                cooperative: adapter.cooperative.iter().map(shape).collect(),
                max_buffer_bytes: adapter.max_binding,
                workgroup_bytes: adapter.workgroup_memory,
                max_threads: adapter.max_threads,
            }
        }
    }

    impl From<&GpuCheck> for CheckDocument {
        fn from(check: &GpuCheck) -> Self {
            Self {
                name: check.name.clone(),
                passed: check.passed(),
                worst: Some(check.worst).filter(|worst| worst.is_finite()),
                shape: check.shape.clone(),
                shapes: check.rounds,
            }
        }
    }

    fn kind(kind: GpuAdapterKind) -> &'static str {
        match kind {
            GpuAdapterKind::Discrete => "discrete",
            GpuAdapterKind::Integrated => "integrated",
            GpuAdapterKind::Virtual => "virtual",
            GpuAdapterKind::Other => "unknown",
            GpuAdapterKind::Software => "software",
        }
    }

    /// Prints the report; a failed self-test is an error after its report.
    pub(crate) fn run(
        args: &GpuReportArgs,
        model: &ModelArgs,
        context: Option<usize>,
        json: bool,
    ) -> Result<()> {
        let index = match args.device.device {
            Device::Gpu(index) => index,
            Device::Cpu | Device::Auto => None,
        };
        let adapters = gpu_adapters();
        let (used, reason) = choice(&adapters, index);
        let test = match args.self_test {
            true => {
                let rounds = rounds(used.and_then(|used| adapters.get(used)));
                let test = gpu_self_test(&gpu_options(index), rounds, args.shapes);
                Some(test.map_err(|error| explain(error, index))?)
            }
            false => None,
        };
        let options = EngineOptions::default().with_context(context);
        let tuned = match args.tune {
            true => Some(tune(&backend(model, &options, index, args.device.gpu_cache())?.1)?),
            false => None,
        };
        let dumped = match &args.dump_kernels {
            Some(folder) => {
                let kernels = backend(model, &options, index, args.device.gpu_cache())?.1.kernels()?;
                let texts = kernels.iter().map(|kernel| (kernel.name.as_str(), kernel.source.as_str()));
                write_kernels(folder, texts)?;
                Some(Dumped { folder: folder.clone(), kernels: kernels.len() })
            }
            None => None,
        };
        let document = Document {
            version: env!("CARGO_PKG_VERSION"),
            platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            adapters: adapters.iter().map(AdapterDocument::from).collect(),
            used,
            reason,
            kernel_cache: used.and_then(|used| kernel_cache(&adapters, used, args.device.gpu_cache())),
            self_test: test.as_ref().map(self_test_document),
            tuned,
            dumped,
        };
        if json {
            output::write_json(&document)?;
        } else {
            output::write_text(&human(&document, test.as_ref()))?;
        }
        verdict(test.as_ref())
    }

    /// Measures the tiles of a model's products, with a line on a terminal that counts them.
    fn tune(backend: &GpuBackend) -> Result<TunedDocument> {
        let mut progress = Progress::steps("measured products");
        let tuned = backend.tune(&mut |done, all| progress.update(done as u64, all as u64))?;
        let file = backend.tiles_file().map(Into::into);
        Ok(TunedDocument { file, products: tuned.iter().map(TunedProduct::from).collect() })
    }

    fn tuned_text(tuned: &TunedDocument) -> String {
        let mut rows =
            vec![["product", "rows", "usual, us", "fastest, us", "tiles", ""].map(str::to_owned).to_vec()];
        for product in &tuned.products {
            let TunedProduct { format, rows: outputs, cols, batch, usual_us, fastest_us, tiles, .. } =
                product;
            let kind = if product.matrix_instructions { "matrix instructions" } else { "" };
            rows.push(vec![
                format!("{format} {outputs} x {cols}"),
                batch.to_string(),
                format!("{usual_us:.1}"),
                format!("{fastest_us:.1}"),
                tiles.to_string(),
                [kind, if product.changed { "changed" } else { "" }].join(" ").trim().to_owned(),
            ]);
        }
        let file = match &tuned.file {
            Some(file) => format!("kept in {}", file.display()),
            None => "not kept: --gpu-cache off".to_owned(),
        };
        format!("\n{}\n{file}\n", output::table(&rows, &[1, 2, 3, 4]))
    }

    /// The adapter that `--device gpu` or `gpu:N` takes, and the reason.
    fn choice(adapters: &[GpuAdapter], index: Option<usize>) -> (Option<usize>, String) {
        let Ok(chosen) = gpu_choose(adapters, &gpu_options(index)) else {
            let reason = absent(adapters, index).map_or_else(String::new, |error| one_line(&error));
            return (None, reason);
        };
        let reason = match (index, adapters.get(chosen).map(|adapter| adapter.kind)) {
            (Some(_), _) => "asked for".to_owned(),
            (None, Some(found)) => {
                let same = adapters.iter().filter(|adapter| adapter.kind == found).count();
                let first = if same > 1 { "the first" } else { "the only" };
                format!(
                    "{first} {} adapter; discrete goes before integrated before virtual, software is never \
                     chosen",
                    kind(found)
                )
            }
            (None, None) => String::new(),
        };
        (Some(chosen), reason)
    }

    /// File of the compiled kernels of an adapter; `None` if it has none or they are not kept.
    fn kernel_cache(adapters: &[GpuAdapter], used: usize, folder: Option<PathBuf>) -> Option<KernelCache> {
        let file = adapters.get(used)?.cache_file(&folder?)?;
        let bytes = std::fs::metadata(&file).ok().map(|metadata| metadata.len());
        Some(KernelCache { file, bytes })
    }

    fn self_test_document(test: &GpuSelfTest) -> SelfTestDocument {
        SelfTestDocument {
            adapter: test.adapter.index,
            passed: test.passed(),
            kernels: test.kernels,
            seconds: test.time.as_secs_f64(),
            checks: test.checks.iter().map(CheckDocument::from).collect(),
        }
    }

    fn verdict(test: Option<&GpuSelfTest>) -> Result<()> {
        let Some(test) = test.filter(|test| !test.passed()) else { return Ok(()) };
        let failed = test.checks.iter().filter(|check| !check.passed()).count();
        let (checks, adapter) = (test.checks.len(), test.adapter.name.clone());
        Err(Error::Device(DeviceError::SelfTest { failed, checks, adapter }))
    }

    fn human(document: &Document, test: Option<&GpuSelfTest>) -> String {
        let mut text = format!("ruvllm {} on {}\n", document.version, document.platform);
        for adapter in &document.adapters {
            text.push_str(&adapter_text(adapter));
        }
        let used = document.used.map_or_else(|| "none".to_owned(), |index| format!("gpu:{index}"));
        text.push_str(&format!("\nused by --device gpu: {used} ({})\n", document.reason));
        let auto =
            if document.used.is_some() { "the same; the CPU for what it cannot compute" } else { "cpu" };
        text.push_str(&format!("used by --device auto: {auto}\nused without --device: cpu\n"));
        if let Some(KernelCache { file, bytes }) = &document.kernel_cache {
            let size = bytes.map_or_else(|| "no file yet".to_owned(), output::bytes);
            text.push_str(&format!("compiled kernels: {} ({size})\n", file.display()));
        } else if document.used.is_some() {
            text.push_str("compiled kernels: not kept\n");
        }
        if let Some(test) = test {
            text.push_str(&format!("\nself-test on {}\n", printable(&test.adapter.to_string())));
            for check in &test.checks {
                text.push_str(&format!("{check}\n"));
            }
            let verdict = if test.passed() { "all passed" } else { "FAILED" };
            let (n, kernels, seconds) = (test.checks.len(), test.kernels, test.time.as_secs_f64());
            text.push_str(&format!("{n} checks, {kernels} kernels, {seconds:.1} s: {verdict}\n"));
        }
        if let Some(tuned) = &document.tuned {
            text.push_str(&tuned_text(tuned));
        }
        if let Some(Dumped { folder, kernels }) = &document.dumped {
            text.push_str(&format!("\n{kernels} kernels written to {}\n", folder.display()));
        }
        text
    }

    fn adapter_text(adapter: &AdapterDocument) -> String {
        let list = |items: &[String]| if items.is_empty() { "none".to_owned() } else { items.join(" ") };
        let yes = |has: bool| if has { "yes" } else { "no" }.to_owned();
        let subgroup = match adapter.subgroup {
            Some([least, most]) if least == most => least.to_string(),
            Some([least, most]) => format!("{least} to {most}, not used"),
            None => "none".to_owned(),
        };
        let rows = [
            ("  interface", format!("{}, {}", adapter.backend, adapter.kind)),
            ("  driver", printable(&adapter.driver)),
            ("  largest buffer", output::bytes(adapter.max_buffer_bytes)),
            (
                "  workgroup",
                format!("{} threads, {}", adapter.max_threads, output::bytes(adapter.workgroup_bytes.into())),
            ),
            ("  f16", yes(adapter.f16)),
            ("  subgroup", subgroup),
            ("  timestamps", yes(adapter.timestamps)),
            ("  matrix products", list(&adapter.cooperative)),
        ];
        let rows = rows.map(|(name, value)| vec![name.to_owned(), value]);
        format!("\ngpu:{}  {}\n{}", adapter.index, printable(&adapter.name), output::table(&rows, &[]))
    }
}
