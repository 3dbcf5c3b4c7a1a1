//! The engine alone with the settings of small devices, and RMSNorm of 1 x 4096 in 128 KiB.
//!
//! `engine MODULE EXPORT [lazy]` takes the module from a file, so that its bytes are heap.

use std::error::Error;
use std::process::ExitCode;
use std::{env, fs};

use wasmi::{
    CompilationMode, Config, Engine, Instance, Module, Store, StoreLimitsBuilder, TypedResumableCall,
};

#[global_allocator]
static HEAP: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

/// Values of the row.
const DIM: u32 = 4096;

fn main() -> ExitCode {
    match run() {
        Ok(()) => {
            ruvllm_embedded::report("engine", HEAP.peak_usage());
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().collect();
    let [_, path, export, mode @ ..] = &words[..] else { return Err("engine MODULE EXPORT [lazy]".into()) };
    let mut config = Config::default();
    config
        .consume_fuel(true)
        .ignore_custom_sections(true)
        .compilation_mode(if mode.is_empty() {
            CompilationMode::Eager
        } else {
            CompilationMode::LazyTranslation
        })
        .set_max_recursion_depth(128)
        .set_min_stack_height(512)
        .set_max_stack_height(24 << 10);
    let engine = Engine::new(&config);
    let module = Module::new(&engine, fs::read(path)?)?;
    println!("module: heap {} bytes", HEAP.current_usage());
    let mut store = Store::new(&engine, StoreLimitsBuilder::new().memory_size(128 << 10).build());
    store.limiter(|limits| limits);
    store.set_fuel(100_000)?;
    let instance = Instance::new(&mut store, &module, &[])?;
    let memory = instance.get_memory(&store, "memory").ok_or("no memory")?;
    let base = memory.data_size(&store) as u32;
    memory.grow(&mut store, 1)?;
    let (bytes, x) = (4 * DIM, base + 64);
    let parameters = x + 3 * bytes;
    let areas = [x, bytes, x + bytes, bytes, x + 2 * bytes, bytes, 0, 0, parameters, 24];
    let data = memory.data_mut(&mut store);
    for (area, to) in areas.iter().zip(data[base as usize..].chunks_mut(4)) {
        to.copy_from_slice(&area.to_le_bytes());
    }
    data[x as usize..(x + 2 * bytes) as usize].fill(0x3f);
    for (index, value) in [1e-5f32.to_bits(), 0, 1, 0, DIM, 0].iter().enumerate() {
        let at = parameters as usize + 4 * index;
        data[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    let function = instance.get_typed_func::<(i32, i32), i32>(&store, export)?;
    match function.call_resumable(&mut store, (base.cast_signed(), 1))? {
        TypedResumableCall::Finished(0) => {}
        TypedResumableCall::Finished(code) => return Err(format!("code {code}").into()),
        _ => return Err("more than 100,000 of fuel".into()),
    }
    let y = (x + 2 * bytes) as usize;
    println!("first value {:02x?}, {} of fuel left", &memory.data(&store)[y..y + 4], store.get_fuel()?);
    Ok(())
}
