//! What this machine can do at most: bytes read from memory and fused multiply-adds, per second, with the threads of a
//! pool. Best of a few short bursts; on a shared machine even that is an estimate from below.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ruvllm_kernels::ThreadPool;

/// Bursts of which the best counts.
const BURSTS: usize = 7;
/// Far more than a last-level cache of one processor holds.
const READ_BYTES: usize = 512 << 20;

/// The machine's limits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Gigabytes (1e9) read from memory per second, in order, from ordinary pages.
    pub read_gb_s: f64,
    /// Billions of f32 operations per second, two per multiply-add; absent where this package has no code for it.
    pub fma_gflop_s: Option<f64>,
}

impl Limits {
    /// Measures with all threads of `pool`; takes about a second.
    #[must_use]
    pub fn measure(pool: &ThreadPool) -> Self {
        Self { read_gb_s: read_gb_s(pool), fma_gflop_s: fma_gflop_s(pool) }
    }
}

fn read_gb_s(pool: &ThreadPool) -> f64 {
    let memory: Vec<u64> = (0..READ_BYTES as u64 / 8).collect();
    let per_worker = memory.len() / pool.threads();
    let sum = AtomicU64::new(0);
    let seconds = best(|| {
        pool.run(&|worker| {
            let part = &memory[worker * per_worker..(worker + 1) * per_worker];
            let part = part.iter().fold(0u64, |sum, value| sum.wrapping_add(*value));
            sum.fetch_add(part, Ordering::Relaxed);
        });
    });
    black_box(sum);
    (per_worker * pool.threads() * 8) as f64 / seconds / 1e9
}

/// Seconds of the fastest burst.
fn best(mut burst: impl FnMut()) -> f64 {
    (0..BURSTS)
        .map(|_| {
            let start = Instant::now();
            burst();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

#[cfg(target_arch = "x86_64")]
fn fma_gflop_s(pool: &ThreadPool) -> Option<f64> {
    if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
        return None;
    }
    const ROUNDS: usize = 2_000_000;
    let seconds = best(|| {
        pool.run(&|_| {
            #[allow(unsafe_code, reason = "the multiply-add instructions cannot be called without")]
            // SAFETY: AVX2 and FMA were detected above.
            let sum = unsafe { x86::chains(black_box(ROUNDS)) };
            black_box(sum);
        });
    });
    Some((ROUNDS * x86::FLOPS_PER_ROUND * pool.threads()) as f64 / seconds / 1e9)
}

#[cfg(not(target_arch = "x86_64"))]
fn fma_gflop_s(_pool: &ThreadPool) -> Option<f64> {
    None
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::hint::black_box;

    use std::arch::x86_64::{_mm256_add_ps, _mm256_cvtss_f32, _mm256_fmadd_ps, _mm256_set1_ps};

    /// Independent chains: enough to cover the latency of two units.
    const CHAINS: usize = 12;
    pub(super) const FLOPS_PER_ROUND: usize = CHAINS * 8 * 2;

    /// The compiler must not know the values: it would compute equal chains once, and known ones not at all.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn chains(rounds: usize) -> f32 {
        let starts: [f32; CHAINS] = black_box(std::array::from_fn(|i| i as f32));
        let mut chains = starts.map(|start| _mm256_set1_ps(start));
        let (factor, term) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(1e-3)));
        for _ in 0..rounds {
            for chain in &mut chains {
                *chain = _mm256_fmadd_ps(*chain, factor, term);
            }
        }
        let sum = chains.into_iter().fold(_mm256_set1_ps(0.0), |sum, chain| _mm256_add_ps(sum, chain));
        _mm256_cvtss_f32(sum)
    }
}
