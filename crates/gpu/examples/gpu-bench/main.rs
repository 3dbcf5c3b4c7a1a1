//! Correctness and speed of every kernel on one GPU.
//!
//! `gpu-bench [--adapter INDEX|NAME] [--software] [--quick] [--sweep] [--kv f16|q8]
//! [--part NAME]... [--json FILE]`
//!
//! Parts: `products`, `operations`, `states`, `attention`, `prefill`, `gemm`, `steps`; all without
//! `--part`.
//!
//! Times are those of the device (timestamp queries), medians with minimum and maximum. Weights
//! rotate over more memory than any level-2 cache holds.

mod args;
mod attention;
mod cooperative;
mod gemm;
mod json;
mod measure;
mod operations;
mod products;
mod states;
mod sweep;
mod tiled;
mod token;

use std::process::ExitCode;

use args::Args;
use json::Json;
use ruvllm_gpu::{Gpu, self_test};

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: a check failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let args = Args::parse(std::env::args().skip(1))?;
    let gpu = Gpu::open(&args.selection, args.budget)?;
    let info = gpu.info().clone();
    println!("{info}");
    println!(
        "subgroup {:?}, f16 {}, cooperative {:?}, largest binding {} MiB",
        info.subgroup,
        info.f16,
        info.cooperative.iter().map(|s| format!("{}x{}x{}", s.m, s.n, s.k)).collect::<Vec<_>>(),
        info.max_binding >> 20
    );
    let mut json = Json::new(&info);
    let rounds = if args.sweep || args.quick { 2 } else { 8 };
    let checks = self_test::run(&gpu, 1, rounds)?;
    for check in &checks {
        println!("{check}");
        json.check(check);
    }
    let mut passed = checks.iter().all(self_test::Check::passed);
    let peak = measure::read_bandwidth(&gpu, args.quick)?;
    println!("\nread bandwidth: {peak} GB/s");
    json.number("read_gb_per_s", peak.median);
    if args.sweep {
        if args.part("products") {
            sweep::run(&gpu, peak.median, args.quick)?;
        }
        if args.part("gemm") {
            passed &= cooperative::run(&gpu, args.quick)?;
        }
        if args.part("prefill") {
            passed &= tiled::run(&gpu, args.quick, args.kv)?;
        }
        if args.part("attention") {
            for own in [1, 2, 4] {
                println!("\n{own} query heads of a workgroup");
                attention::run(&gpu, (peak.median, args.quick), Some(own), args.kv, &mut json)?;
            }
        }
    } else {
        let (peak, quick) = (peak.median, args.quick);
        if args.part("products") {
            passed &= products::run(&gpu, peak, quick, &mut json)?;
        }
        if args.part("operations") {
            operations::run(&gpu, quick, &mut json)?;
        }
        if args.part("states") {
            states::run(&gpu, quick, &mut json)?;
        }
        if args.part("attention") {
            attention::run(&gpu, (peak, quick), None, args.kv, &mut json)?;
        }
        if args.part("prefill") {
            attention::prefill(&gpu, quick, args.kv, &mut json)?;
        }
        if args.part("gemm") {
            gemm::run(&gpu, quick, &mut json)?;
        }
        if args.part("steps") {
            token::run(&gpu, peak, quick, args.kv, &mut json)?;
        }
    }
    if let Some(path) = &args.json {
        std::fs::write(path, json.finish())?;
    }
    Ok(passed)
}
