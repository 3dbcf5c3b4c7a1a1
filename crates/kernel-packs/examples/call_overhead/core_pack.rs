//! Kernels of the core pack beside the native ones.

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};

use ruvllm_kernel_packs::Contents;
#[cfg(feature = "wasmi")]
use ruvllm_kernel_packs::EngineKind;
use ruvllm_kernel_packs::manifest::ParameterValue;
#[cfg(feature = "wasmi")]
use ruvllm_kernel_packs::sandbox::SandboxOptions;
use ruvllm_kernel_packs::sandbox::{Job, Kernel, Sandbox};
use ruvllm_kernels::Kernels;
use ruvllm_kernels::quant::WeightFormat;
use ruvllm_kernels::rope::{RopeConfig, RopeLayout, RopeTable};

use crate::measure::row;
use crate::{Result, verified};

/// Values of a row.
pub(crate) const DIM: usize = 4096;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("core/pack")
}

/// Bytes of the module.
pub(crate) fn module() -> Result<Vec<u8>> {
    Ok(fs::read(folder().join("core.wasm"))?)
}

/// Kernels of the pack.
struct Core(Vec<Kernel>);

type Parameters<'a> = &'a [(&'a str, ParameterValue)];

impl Core {
    /// Measures a kernel, with copies and in place, and prints its time beside that of `native`.
    fn beside(
        &self,
        (id, sizes, parameters): (&str, &[(&str, usize)], Parameters<'_>),
        inputs: &[&[u8]],
        mut native: impl FnMut(),
    ) -> Result<()> {
        let kernel = self.0.iter().find(|kernel| kernel.manifest().id == id).ok_or("no such kernel")?;
        let list: Vec<(&str, u64)> = sizes.iter().map(|(name, size)| (*name, *size as u64)).collect();
        let binding = kernel.bind(&list, parameters)?;
        let mut output = vec![0u8; binding.output_bytes().next().unwrap_or(0)];
        let sizes: Vec<String> = sizes.iter().map(|(_, size)| size.to_string()).collect();
        let name = format!("{id} {}", sizes.join(" x "));
        let calls = (20_000_000 / (output.len() as u32 + 1)).clamp(20, 5_000);
        row(&format!("{name}, copied in and out"), calls, || {
            Ok(kernel.call(&mut [Job { binding: &binding, inputs, outputs: &mut [&mut output[..]] }])?)
        })?;
        let in_place = row(&format!("{name}, in place"), calls, || {
            Ok(kernel.call_with(&[&binding], |_| Ok(()), |_| Ok(()))?)
        })?;
        let native = row(&format!("{name}, native"), calls, || {
            native();
            Ok(())
        })?;
        println!("| in place by native | {:.2} | | |", in_place / native);
        Ok(())
    }
}

/// All categories.
pub(crate) fn all(sandbox: &Sandbox) -> Result<()> {
    let core = Core(sandbox.load_all(&verified(|key| Ok(Contents::build(&folder(), Some(key))?))?)?);
    let native = Kernels::detect()?;
    println!("| native kernels: {} | | | |", native.isa());
    norms(&core, &native, &[1, 64])?;
    rope(&core, &native)?;
    swiglu(&core, &native)?;
    blocks(&core, &native)?;
    low_rank(&core, &native)
}

/// Row kernels on another engine, which takes 100 times as long.
#[cfg(feature = "wasmi")]
pub(crate) fn rows(engine: EngineKind) -> Result<()> {
    let sandbox = Sandbox::new(SandboxOptions { engine, ..Default::default() })?;
    let core = Core(sandbox.load_all(&verified(|key| Ok(Contents::build(&folder(), Some(key))?))?)?);
    let native = Kernels::detect()?;
    println!("| on {} | | | |", engine.name());
    norms(&core, &native, &[1])?;
    rope(&core, &native)?;
    swiglu(&core, &native)
}

fn bytes(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// Values between -1 and 1.
fn values(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index as f32 * 0.7).sin()).collect()
}

fn norms(core: &Core, native: &Kernels, rows: &[usize]) -> Result<()> {
    for &rows in rows {
        let (x, weight) = (values(rows * DIM), values(DIM));
        let mut y = vec![0.0; rows * DIM];
        let what = ("rms-norm-f32", &[("rows", rows), ("dim", DIM)][..], &[][..]);
        core.beside(what, &[bytes(&x), bytes(&weight)], || {
            native.rms_norm(black_box(&x), &weight, 1e-5, &mut y);
        })?;
    }
    Ok(())
}

fn rope(core: &Core, native: &Kernels) -> Result<()> {
    let (tokens, dim) = (512, 128);
    let table = RopeTable::new(&RopeConfig::new(10_000.0, dim), tokens)?;
    let x = values(tokens * dim);
    let cos: Vec<f32> = (0..tokens).flat_map(|position| table.at(position).0.to_vec()).collect();
    let sin: Vec<f32> = (0..tokens).flat_map(|position| table.at(position).1.to_vec()).collect();
    let sizes = [("tokens", tokens), ("heads", 1), ("dim", dim), ("pairs", dim / 2)];
    for layout in [RopeLayout::Halves, RopeLayout::Interleaved] {
        let mut y = x.clone();
        let is_interleaved = ParameterValue::Bool(layout == RopeLayout::Interleaved);
        let what = ("rope-f32", &sizes[..], &[("interleaved", is_interleaved)][..]);
        core.beside(what, &[bytes(&x), bytes(&cos), bytes(&sin)], || {
            native.rope(&table, layout, 0..tokens, black_box(&mut y), 1, dim);
        })?;
    }
    Ok(())
}

fn swiglu(core: &Core, native: &Kernels) -> Result<()> {
    let n = 64 * DIM;
    let (gate, up) = (values(n), values(n));
    let mut y = gate.clone();
    core.beside(("swiglu-f32", &[("n", n)], &[]), &[bytes(&gate), bytes(&up)], || {
        native.silu_mul(black_box(&mut y), &up);
    })
}

fn blocks(core: &Core, native: &Kernels) -> Result<()> {
    let sizes = [("rows", 64), ("dim", 1024)];
    let x = values(64 * 1024);
    for (format, name) in [(WeightFormat::Q8_0, "q8-0"), (WeightFormat::Q4_0, "q4-0")] {
        let mut packed = vec![0; format.row_bytes(x.len()).unwrap_or(0)];
        let mut out = vec![0.0; x.len()];
        let pack = format!("kv-pack-{name}");
        core.beside((&pack, &sizes, &[]), &[bytes(&x)], || format.quantize(black_box(&x), &mut packed))?;
        let unpack = format!("kv-unpack-{name}");
        core.beside((&unpack, &sizes, &[]), &[&packed], || {
            native.dequantize(format, black_box(&packed), &mut out);
        })?;
    }
    Ok(())
}

/// Beside dot products and additions of the native kernels, one thread.
fn low_rank(core: &Core, native: &Kernels) -> Result<()> {
    let (rows, rank) = (8, 16);
    let (x, a, b) = (values(rows * DIM), values(rank * DIM), values(DIM * rank));
    let base = values(rows * DIM);
    let sizes = [("rows", rows), ("inputs", DIM), ("rank", rank), ("outputs", DIM)];
    let mut y = base.clone();
    let inputs = [bytes(&x), bytes(&a), bytes(&b), bytes(&base)];
    core.beside(("lora-apply-f32", &sizes, &[]), &inputs, || {
        for (x, y) in x.chunks(DIM).zip(y.chunks_mut(DIM)) {
            let components: Vec<f32> = a.chunks(DIM).map(|a| native.dot(black_box(x), a)).collect();
            for (y, b) in y.iter_mut().zip(b.chunks(rank)) {
                *y += native.dot(&components, b);
            }
        }
    })
}
