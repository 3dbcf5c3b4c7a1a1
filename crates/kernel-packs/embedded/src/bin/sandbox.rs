//! The sandbox with the settings of small devices: a pack is verified, and RMSNorm of 1 x 4096
//! called.
//!
//! `sandbox PACK TRUSTED-KEYS`: an archive as `ruvllm pack build` writes it.

use std::error::Error;
use std::process::ExitCode;
use std::{env, fs};

use ruvllm_kernel_packs::sandbox::{Job, Sandbox, SandboxOptions};
use ruvllm_kernel_packs::{Contents, Host, Policy, Timestamp, TrustedKeys, Version};

#[global_allocator]
static HEAP: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

fn main() -> ExitCode {
    match run() {
        Ok(()) => {
            ruvllm_embedded::report("sandbox", HEAP.peak_usage());
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
    let [_, archive, keys] = &words[..] else { return Err("sandbox PACK TRUSTED-KEYS".into()) };
    let keys = TrustedKeys::load(keys.as_ref())?;
    let host = Host { version: Version::new(0, 1, 0), engine: Some(Sandbox::engine()) };
    let policy = Policy { keys: &keys, host: &host, now: Some(Timestamp::now()) };
    let pack = Contents::from_archive(&fs::read(archive)?)?.verify(policy)?;
    println!("pack: heap {} bytes, peak {}", HEAP.current_usage(), HEAP.peak_usage());
    HEAP.reset_peak_usage();
    let kernel = Sandbox::new(SandboxOptions::embedded())?.load(&pack, "rms-norm-f32")?;
    drop(pack);
    println!("kernel: heap {} bytes", HEAP.current_usage());
    let binding = kernel.bind(&[("rows", 1), ("dim", 4096)], &[])?;
    let (x, mut y) = ([0x3f; 16384], [0; 16384]);
    kernel.call(&mut [Job { binding: &binding, inputs: &[&x, &x], outputs: &mut [&mut y] }])?;
    println!("first value {:02x?}, heap {} bytes", &y[..4], HEAP.current_usage());
    Ok(())
}
