//! Cost of the checks of epochs and of the one form of NaN, on `RMSNorm` of the core pack.

use std::hint::black_box;

use wasmtime::{Config, Engine, Instance, Module, Store};

use crate::Result;
use crate::core_pack::{DIM, module};
use crate::measure::row;

/// Plain settings of wasmtime, with or without checks of epochs.
pub(crate) fn config(epochs: bool) -> Config {
    let mut config = Config::new();
    config.epoch_interruption(epochs).cranelift_nan_canonicalization(true);
    config
}

/// Shares of both, in plain wasmtime.
pub(crate) fn shares() -> Result<()> {
    let mut medians = Vec::new();
    let mut plain = config(false);
    plain.cranelift_nan_canonicalization(false);
    for (name, config) in [
        ("with epochs and one NaN", config(true)),
        ("without epochs", config(false)),
        ("without epochs and with any NaN", plain),
    ] {
        medians.push(norm(name, &config)?);
    }
    println!("| share of epochs | {:.1} % | | |", (medians[0] / medians[1] - 1.0) * 100.0);
    println!("| share of epochs and one NaN | {:.1} % | | |", (medians[0] / medians[2] - 1.0) * 100.0);
    Ok(())
}

/// Median of `RMSNorm` in an engine.
fn norm(name: &str, config: &Config) -> Result<f64> {
    let engine = Engine::new(config)?;
    let mut store = Store::new(&engine, ());
    // An engine without checks does not ask for it.
    store.set_epoch_deadline(1);
    let instance = Instance::new(&mut store, &Module::new(&engine, module()?)?, &[])?;
    let memory = instance.get_memory(&mut store, "memory").ok_or("no memory")?;
    let (base, bytes) = (memory.data_size(&store) as u32, 4 * DIM as u32);
    memory.grow(&mut store, 2)?;
    let parameters = base + 48;
    let x = parameters + 80;
    let words = [x, bytes, x + bytes, bytes, x + 2 * bytes, bytes, 0, 0, x + 3 * bytes, 24];
    let data = &mut memory.data_mut(&mut store)[base as usize..];
    for (index, word) in words.iter().enumerate() {
        data[4 * index..4 * index + 4].copy_from_slice(&word.to_le_bytes());
    }
    data[(x - base) as usize..][..2 * bytes as usize].fill(0x3f);
    let sizes = &mut data[(x - base + 3 * bytes) as usize..];
    sizes[8..16].copy_from_slice(&1u64.to_le_bytes());
    sizes[16..24].copy_from_slice(&(DIM as u64).to_le_bytes());
    let function = instance.get_typed_func::<(i32, i32), i32>(&mut store, "rms_norm_f32")?;
    row(&format!("RMSNorm of 1 x {DIM} in plain wasmtime, {name}"), 20_000, || {
        match black_box(function.call(&mut store, (base.cast_signed(), 1))?) {
            0 => Ok(()),
            code => Err(format!("code {code}").into()),
        }
    })
}
