//! Limits of this machine with the threads of a pool: bytes read from memory, f32
//! multiply-adds and int8 multiply-adds per second. Best of a few short bursts; on a shared machine
//! even that is an estimate from below.
//!
//! The arithmetic loops are chains of one instruction on registers, in assembly, because a compiler
//! would merge equal chains and constant-fold known ones. A loop is listed only if the CPU has its
//! instructions.

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ruvllm_kernels::ThreadPool;

/// Extent of a measurement.
#[derive(Clone, Copy)]
struct Effort {
    /// Number of bursts; the best counts.
    bursts: usize,
    /// Bytes read cyclically, one window per burst.
    read_bytes: usize,
    /// Rounds of an arithmetic loop per burst.
    rounds: u64,
}

/// Bursts of one to three milliseconds, short enough to run without preemption; far more bytes than
/// a last-level cache.
const FULL: Effort = Effort { bursts: 48, read_bytes: 512 << 20, rounds: 600_000 };
/// Number of windows: bursts until a byte is read again.
const WINDOWS: usize = 8;

/// Type of the multiply-adds of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Fused multiply-adds of f32.
    F32,
    /// Products of bytes, summed into 32 bits.
    Int8,
}

/// Rate of one arithmetic loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// The instructions, such as `vpdpbusd zmm`.
    pub name: &'static str,
    /// Billions of operations per second, two per multiply-add.
    pub gop_s: f64,
}

/// Limits of the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Threads that ran at once.
    pub threads: usize,
    /// Sequential read bandwidth of memory in GB/s (1e9), from ordinary pages.
    pub read_gb_s: f64,
    /// f32 multiply-adds, one entry per instruction that this CPU has and this package has a loop
    /// for.
    pub fma: Vec<Peak>,
    /// int8 multiply-adds, likewise.
    pub int8: Vec<Peak>,
}

impl Limits {
    /// Measures with all threads of `pool`; takes about a second.
    #[must_use]
    pub fn measure(pool: &ThreadPool) -> Self {
        Self::measure_for(pool, FULL)
    }

    fn measure_for(pool: &ThreadPool, effort: Effort) -> Self {
        let peaks = |arithmetic| {
            let of_kind = loops().into_iter().filter(|l| l.arithmetic == arithmetic);
            of_kind.map(|l| Peak { name: l.name, gop_s: gop_s(pool, effort, &l) }).collect()
        };
        Self {
            threads: pool.threads(),
            read_gb_s: read_gb_s(pool, effort),
            fma: peaks(Arithmetic::F32),
            int8: peaks(Arithmetic::Int8),
        }
    }

    /// Fastest loop of a kind; `None` if this package has none for the CPU.
    #[must_use]
    pub fn best(&self, arithmetic: Arithmetic) -> Option<Peak> {
        let peaks = match arithmetic {
            Arithmetic::F32 => &self.fma,
            Arithmetic::Int8 => &self.int8,
        };
        peaks.iter().copied().max_by(|a, b| a.gop_s.total_cmp(&b.gop_s))
    }

    /// One JSON object in one line: `{"threads", "read_gb_s", "fma": [{"name", "gop_s"}], "int8":
    /// [...]}`.
    #[must_use]
    pub fn json(&self) -> String {
        let list = |peaks: &[Peak]| {
            let items = peaks.iter().map(|p| format!(r#"{{"name":"{}","gop_s":{:.1}}}"#, p.name, p.gop_s));
            items.collect::<Vec<_>>().join(",")
        };
        format!(
            r#"{{"threads":{},"read_gb_s":{:.2},"fma":[{}],"int8":[{}]}}"#,
            self.threads,
            self.read_gb_s,
            list(&self.fma),
            list(&self.int8)
        )
    }

    /// One line for a reader.
    #[must_use]
    pub fn sentence(&self) -> String {
        let mut text = format!("{:.1} GB/s read", self.read_gb_s);
        for peak in &self.fma {
            let _ = write!(text, ", {:.0} GFLOP/s ({})", peak.gop_s, peak.name);
        }
        for peak in &self.int8 {
            let _ = write!(text, ", {:.0} GOP/s ({})", peak.gop_s, peak.name);
        }
        text
    }
}

fn read_gb_s(pool: &ThreadPool, effort: Effort) -> f64 {
    let memory: Vec<u64> = (0..effort.read_bytes as u64 / 8).collect();
    let window = memory.len() / WINDOWS;
    let per_worker = window / pool.threads();
    let sum = AtomicU64::new(0);
    let seconds = best(effort.bursts, |burst| {
        let start = burst % WINDOWS * window;
        pool.run(&|worker| {
            let part = &memory[start + worker * per_worker..start + (worker + 1) * per_worker];
            let part = part.iter().fold(0u64, |sum, value| sum.wrapping_add(*value));
            sum.fetch_add(part, Ordering::Relaxed);
        });
    });
    black_box(sum);
    (per_worker * pool.threads() * 8) as f64 / seconds / 1e9
}

fn gop_s(pool: &ThreadPool, effort: Effort, work: &Loop) -> f64 {
    let seconds = best(effort.bursts, |_| {
        pool.run(&|_| {
            #[allow(unsafe_code, reason = "the instructions cannot be called without")]
            // SAFETY: `loops` lists a loop only after its CPU features were detected.
            unsafe {
                (work.run)(effort.rounds);
            }
        });
    });
    (effort.rounds * work.ops_per_round * pool.threads() as u64) as f64 / seconds / 1e9
}

/// Seconds of the fastest burst; `burst` gets its index.
fn best(bursts: usize, mut burst: impl FnMut(usize)) -> f64 {
    (0..bursts)
        .map(|index| {
            let start = Instant::now();
            burst(index);
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

/// An arithmetic loop.
struct Loop {
    name: &'static str,
    arithmetic: Arithmetic,
    ops_per_round: u64,
    /// Runs this many rounds, at least one. Safe if the CPU has the instructions.
    run: unsafe fn(u64),
}

/// The loops that this CPU can run.
#[cfg(target_arch = "x86_64")]
fn loops() -> Vec<Loop> {
    use Arithmetic::{F32, Int8};
    let mut loops = Vec::new();
    let mut add = |name, arithmetic, ops_per_round, run: unsafe fn(u64)| {
        loops.push(Loop { name, arithmetic, ops_per_round, run });
    };
    // 12 chains of 8 or 16 lanes; 6 chains of 32 bytes; 12 chains of 64 bytes.
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        add("vfmadd ymm", F32, 12 * 8 * 2, x86::fma_ymm);
        add("vpmaddubsw + vpmaddwd ymm", Int8, 6 * 32 * 2, x86::maddubs_ymm);
    }
    if is_x86_feature_detected!("avx512f") {
        add("vfmadd zmm", F32, 12 * 16 * 2, x86::fma_zmm);
    }
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
        add("vpdpbusd zmm", Int8, 12 * 64 * 2, x86::dpbusd_zmm);
    }
    loops
}

#[cfg(not(target_arch = "x86_64"))]
fn loops() -> Vec<Loop> {
    Vec::new()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #![allow(unsafe_code, reason = "assembly")]

    use std::arch::asm;

    /// A loop over `lines`: accumulators in registers 0 to 11, both operands broadcast to registers
    /// 12 and 13. Enough independent chains to cover the latency of two units.
    macro_rules! burst {
        ($(#[$doc:meta])* $name:ident, $width:literal, $($line:literal),+) => {
            $(#[$doc])*
            ///
            /// # Safety
            /// The CPU must have the instructions, and `rounds` must not be 0.
            pub(super) unsafe fn $name(rounds: u64) {
                // SAFETY: the loop touches no memory and no stack, and every register that it
                // writes is declared; the caller answers for the instructions and for the number of
                // rounds.
                unsafe {
                    asm!(
                        concat!("vbroadcastss ", $width, "12, xmm12"),
                        concat!("vbroadcastss ", $width, "13, xmm13"),
                        ".irp i,0,1,2,3,4,5,6,7,8,9,10,11",
                        "vxorps xmm\\i, xmm\\i, xmm\\i",
                        ".endr",
                        ".p2align 5",
                        "2:",
                        $($line,)+
                        "dec {rounds}",
                        "jnz 2b",
                        "vzeroupper",
                        rounds = inout(reg) rounds => _,
                        inout("xmm12") 0.999f32 => _,
                        inout("xmm13") 1e-3f32 => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        options(nomem, nostack),
                    );
                }
            }
        };
    }

    burst!(
        /// 12 chains of fused multiply-adds of 8 lanes (AVX2, FMA).
        fma_ymm, "ymm",
        ".irp i,0,1,2,3,4,5,6,7,8,9,10,11",
        "vfmadd231ps ymm\\i, ymm12, ymm13",
        ".endr"
    );
    burst!(
        /// 12 chains of fused multiply-adds of 16 lanes (AVX-512 F).
        fma_zmm, "zmm",
        ".irp i,0,1,2,3,4,5,6,7,8,9,10,11",
        "vfmadd231ps zmm\\i, zmm12, zmm13",
        ".endr"
    );
    burst!(
        /// 6 chains of the byte product of AVX2: pairs to 16 bits, pairs of those to 32 bits,
        /// added.
        maddubs_ymm, "ymm",
        ".irp i,6,7,8,9,10,11",
        "vpmaddubsw ymm\\i, ymm12, ymm13",
        ".endr",
        ".irp i,6,7,8,9,10,11",
        "vpmaddwd ymm\\i, ymm\\i, ymm13",
        ".endr",
        "vpaddd ymm0, ymm0, ymm6",
        "vpaddd ymm1, ymm1, ymm7",
        "vpaddd ymm2, ymm2, ymm8",
        "vpaddd ymm3, ymm3, ymm9",
        "vpaddd ymm4, ymm4, ymm10",
        "vpaddd ymm5, ymm5, ymm11"
    );
    burst!(
        /// 12 chains of sums of four byte products of 16 lanes (AVX-512 VNNI).
        dpbusd_zmm, "zmm",
        ".irp i,0,1,2,3,4,5,6,7,8,9,10,11",
        "vpdpbusd zmm\\i, zmm12, zmm13",
        ".endr"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_of_this_cpu_runs_and_gives_a_rate() {
        let pool = ThreadPool::new(2).expect("two threads");
        let limits = Limits::measure_for(&pool, Effort { bursts: 1, read_bytes: 1 << 16, rounds: 100 });
        assert_eq!(limits.threads, 2);
        let peaks: Vec<&Peak> = limits.fma.iter().chain(&limits.int8).collect();
        assert_eq!(peaks.len(), loops().len());
        let rates = peaks.iter().map(|peak| peak.gop_s).chain([limits.read_gb_s]);
        assert!(rates.into_iter().all(|rate| rate.is_finite() && rate > 0.0), "{limits:?}");
    }

    #[test]
    fn the_fastest_loop_is_the_limit() {
        let peak = |name, gop_s| Peak { name, gop_s };
        let int8 = vec![peak("a", 200.0), peak("b", 900.0)];
        let limits = Limits { threads: 1, read_gb_s: 20.5, fma: vec![], int8 };
        assert_eq!(limits.best(Arithmetic::Int8), Some(peak("b", 900.0)));
        assert_eq!(limits.best(Arithmetic::F32), None, "not measured, not invented");
        assert_eq!(
            limits.json(),
            r#"{"threads":1,"read_gb_s":20.50,"fma":[],"int8":[{"name":"a","gop_s":200.0},{"name":"b","gop_s":900.0}]}"#
        );
        assert_eq!(limits.sentence(), "20.5 GB/s read, 200 GOP/s (a), 900 GOP/s (b)");
    }
}
