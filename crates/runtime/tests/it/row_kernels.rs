//! Replacements of native kernels: that they are called, what their failure does, and prefixes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use ruvllm::{Completion, Engine, PrefixCaching, Prompt, RowKernels};
use ruvllm_kernels::Kernels;
use ruvllm_kernels::rope::RopeLayout;

use crate::common::{complete, greedy, load, tiny_options, tiny_path};

/// Native kernels behind the interface of replacements.
#[derive(Debug)]
struct Counted {
    kernels: Kernels,
    /// Factor of norms; 1 for the native numbers.
    factor: f32,
    /// False for kernels that always fail.
    works: bool,
    digest: AtomicU8,
    norms: AtomicU64,
    activations: AtomicU64,
    ropes: AtomicU64,
}

impl Counted {
    fn new(factor: f32, works: bool) -> Arc<Self> {
        let [norms, activations, ropes] = std::array::from_fn(|_| AtomicU64::new(0));
        let (kernels, digest) = (Kernels::detect().expect("kernels"), AtomicU8::new(1));
        Arc::new(Self { kernels, factor, works, digest, norms, activations, ropes })
    }

    fn calls(&self) -> [u64; 3] {
        [&self.norms, &self.activations, &self.ropes].map(|calls| calls.load(Relaxed))
    }
}

impl RowKernels for Counted {
    fn digest(&self) -> [u8; 32] {
        [self.digest.load(Relaxed); 32]
    }

    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> bool {
        self.norms.fetch_add(1, Relaxed);
        if self.works {
            self.kernels.rms_norm(x, weight, eps, out);
            out.iter_mut().for_each(|value| *value *= self.factor);
        }
        self.works
    }

    fn silu_mul(&self, gate: &mut [f32], up: &[f32]) -> bool {
        self.activations.fetch_add(1, Relaxed);
        if self.works {
            self.kernels.silu_mul(gate, up);
        }
        self.works
    }

    fn rope(&self, layout: RopeLayout, cos: &[f32], sin: &[f32], x: &mut [f32], head_dim: usize) -> bool {
        self.ropes.fetch_add(1, Relaxed);
        let pairs = cos.len();
        if self.works {
            for head in x.chunks_exact_mut(head_dim) {
                for (pair, (cos, sin)) in cos.iter().zip(sin).enumerate() {
                    let (first, second) = match layout {
                        RopeLayout::Halves => (pair, pair + pairs),
                        RopeLayout::Interleaved => (2 * pair, 2 * pair + 1),
                    };
                    let (a, b, sin) = (f64::from(head[first]), f64::from(head[second]), f64::from(*sin));
                    // One rounding of the first product, and one of the sum.
                    let (of_a, of_b) = (f64::from(head[first] * cos), f64::from(head[second] * cos));
                    head[first] = (of_a - b * sin) as f32;
                    head[second] = (of_b + a * sin) as f32;
                }
            }
        }
        self.works
    }
}

fn engine(kernels: Option<&Arc<Counted>>, prefixes: PrefixCaching) -> Engine {
    let kernels = kernels.map(|kernels| Arc::clone(kernels) as Arc<dyn RowKernels>);
    load(tiny_path(), &tiny_options().with_prefixes(prefixes).with_row_kernels(kernels))
}

/// Answer to a prompt of 70 tokens.
fn answer(engine: &Engine) -> Completion {
    let tokens = (0..70).map(|index| (index * 53 + 7) % 500).collect();
    complete(engine, &greedy(Prompt::Tokens(tokens), 12).with_ignore_eos(true))
}

#[test]
fn replaced_kernels_compute_the_text() {
    let native = answer(&engine(None, PrefixCaching::Off)).tokens;
    let same = Counted::new(1.0, true);
    assert_eq!(answer(&engine(Some(&same), PrefixCaching::Off)).tokens, native);
    assert!(same.calls().iter().all(|calls| *calls > 12), "{:?}", same.calls());
    let other = Counted::new(-1.5, true);
    assert_ne!(answer(&engine(Some(&other), PrefixCaching::Off)).tokens, native);
}

#[test]
fn native_kernels_compute_what_replacements_do_not() {
    let native = answer(&engine(None, PrefixCaching::Off)).tokens;
    let failing = Counted::new(1.0, false);
    assert_eq!(answer(&engine(Some(&failing), PrefixCaching::Off)).tokens, native);
    assert!(failing.calls().iter().all(|calls| *calls > 12), "{:?}", failing.calls());
}

#[test]
fn prefixes_of_other_kernels_are_not_reused() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = || PrefixCaching::Folder { path: folder.path().to_owned(), limit_bytes: 64 << 20 };
    let cached = |kernels: Option<&Arc<Counted>>| answer(&engine(kernels, files())).cached_tokens;
    let kernels = Counted::new(1.0, true);
    assert_eq!(cached(None), 0);
    assert_eq!(cached(Some(&kernels)), 0, "of native kernels");
    assert!(cached(Some(&kernels)) > 0 && cached(None) > 0);
    kernels.digest.store(2, Relaxed);
    assert_eq!(cached(Some(&kernels)), 0, "of another version");

    let engine = engine(Some(&kernels), PrefixCaching::Memory);
    assert_eq!(answer(&engine).cached_tokens, 0);
    assert!(answer(&engine).cached_tokens > 0);
    kernels.digest.store(3, Relaxed);
    assert_eq!(answer(&engine).cached_tokens, 0, "swapped while the engine runs");
}
