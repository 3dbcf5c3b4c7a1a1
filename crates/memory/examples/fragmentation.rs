//! Fragmentation: longest run as a share of free memory after a million random requests at 90 %
//! use.
//!
//! `cargo run --release -p ruvllm-memory --example fragmentation`

use std::time::Instant;

use ruvllm_memory::{Fit, PagePool, Pages, PoolConfig, Request, Result};

/// 8 GiB in pages of 2 MiB, never written.
const CAPACITY_PAGES: usize = 4096;
const OPERATIONS: usize = 1_000_000;

/// Fill level; above it a random handle is dropped for each new one.
const USED_PAGES: usize = CAPACITY_PAGES / 10 * 9;

fn main() -> Result<()> {
    println!("largest run over all free pages; lowest and mean of 1000 samples of the second half");
    println!(
        "| fit | addresses per page | lowest | mean | failed | pages returned per page taken | ns per operation |"
    );
    println!("|---|---|---|---|---|---|---|");
    for fit in [Fit::Best, Fit::First] {
        for address_factor in [1, 2, 3, 4, 8] {
            let run = Run::new(fit, address_factor)?;
            let outcome = run.finish()?;
            println!(
                "| {fit:?} | {address_factor} | {:.2} | {:.2} | {} | {:.3} | {:.0} |",
                outcome.lowest, outcome.mean, outcome.failed, outcome.returned, outcome.ns
            );
        }
    }
    Ok(())
}

struct Run {
    pool: PagePool,
    held: Vec<Pages>,
    random: u64,
}

struct Outcome {
    lowest: f64,
    mean: f64,
    failed: usize,
    /// Share of memory returned at one address and taken again at another.
    returned: f64,
    ns: f64,
}

impl Run {
    fn new(fit: Fit, address_factor: usize) -> Result<Self> {
        let config = PoolConfig { fit, address_factor, ..PoolConfig::new(CAPACITY_PAGES << 21) };
        Ok(Self { pool: PagePool::new(config)?, held: Vec::new(), random: 0x9e37_79b9_7f4a_7c15 })
    }

    /// Half of the requests are for one page, the rest for up to 64.
    fn finish(mut self) -> Result<Outcome> {
        let (mut samples, mut failed, mut used, mut taken) = (Vec::new(), 0, 0, 0);
        let start = Instant::now();
        for operation in 0..OPERATIONS {
            let n_pages = if self.next(2) == 0 { 1 } else { 1 + self.next(64) };
            if used + n_pages > USED_PAGES {
                let index = self.next(self.held.len());
                used -= self.held.swap_remove(index).len_pages();
            } else if let Ok(pages) = self.pool.allocate(n_pages, &Request::default()) {
                used += n_pages;
                taken += n_pages;
                self.held.push(pages);
            } else {
                failed += 1;
                let index = self.next(self.held.len());
                used -= self.held.swap_remove(index).len_pages();
            }
            if operation >= OPERATIONS / 2 && operation % (OPERATIONS / 2000) == 0 {
                samples.push(1.0 - self.pool.stats().fragmentation());
            }
        }
        let ns = start.elapsed().as_nanos() as f64 / OPERATIONS as f64;
        let lowest = samples.iter().copied().fold(1.0, f64::min);
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        let returned = self.pool.stats().returned_pages as f64 / taken as f64;
        Ok(Outcome { lowest, mean, failed, returned, ns })
    }

    /// A xorshift generator.
    fn next(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % below as u64) as usize
    }
}
