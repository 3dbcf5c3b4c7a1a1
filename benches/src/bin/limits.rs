//! Measures the machine's limits and prints them, one JSON object per thread count.
//!
//! Usage: `limits [THREADS,..]`, such as `limits 1,2`; all cores without an argument. `cargo xtask
//! bench` runs it in every round, so that a share of a limit compares numbers of the same minute.

use std::process::ExitCode;

use ruvllm_benches::Limits;
use ruvllm_kernels::ThreadPool;

fn main() -> ExitCode {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let text = std::env::args().nth(1).unwrap_or_else(|| cores.to_string());
    for word in text.split(',') {
        let pool = word.parse().map_err(|error| format!("{error}"));
        match pool.and_then(|n| ThreadPool::new(n).map_err(|error| error.to_string())) {
            Ok(pool) => println!("{}", Limits::measure(&pool).json()),
            Err(error) => {
                eprintln!("not a number of threads: `{word}`: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
