//! Adapters of a small model, for the tests of this crate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_kernels::low_rank::{Expansion, FactorFormat};
use ruvllm_kernels::quant::SharedBytes;
use ruvllm_memory::{PagePool, PoolConfig, Request};
use ruvllm_testkit::Random;

use crate::adapter::{Adapter, Resident};
use crate::compact::{self, Existing};
use crate::digest::Digests;
use crate::layout::{Layout, SiteShape};
use crate::place::{BaseModel, Site};

pub(crate) const PAGE_BYTES: usize = 512 << 10;

pub(crate) fn base() -> Arc<BaseModel> {
    Arc::new(BaseModel {
        architecture: "llama".to_owned(),
        n_layers: 2,
        model_dim: 6,
        query_dim: 8,
        kv_dim: 4,
        head_dim: 4,
        ffn_dim: 10,
        vocab_size: 12,
        interleaved_heads: true,
        joint_attention: false,
        joint_feed_forward: false,
    })
}

/// A pool of `pages` pages; an adapter of [`adapter`] takes one.
pub(crate) fn pool(pages: usize) -> PagePool {
    PagePool::new(PoolConfig { page_bytes: PAGE_BYTES, ..PoolConfig::new(pages * PAGE_BYTES) })
        .expect("a pool")
}

/// Shapes at the queries and values of both layers, and at down of the last.
pub(crate) fn shapes(rank: usize) -> Vec<SiteShape> {
    let expansion = |target, first, outputs| Expansion { target, first, rank, outputs };
    let input = |layer| SiteShape {
        layer,
        site: Site::AttentionInput,
        rank: 2 * rank,
        inputs: 6,
        expansions: vec![expansion(0, 0, 8), expansion(2, rank, 4)],
    };
    let down = SiteShape {
        layer: 1,
        site: Site::FeedForwardOutput,
        rank,
        inputs: 10,
        expansions: vec![expansion(0, 0, 6)],
    };
    vec![input(0), input(1), down]
}

/// Adapters with the same random factors in F16 and in I8.
pub(crate) fn adapters(seed: u64, rank: usize) -> [Adapter; 2] {
    let layout = Layout::new(FactorFormat::F16, shapes(rank)).expect("a layout");
    let pool = pool(4);
    let mut pages = pool.allocate(1, &Request::default()).expect("a page");
    let bytes = &mut pages.bytes_mut()[..layout.bytes()];
    bytes.fill(0);
    let mut random = Random::new(seed);
    for at in layout.sites() {
        let mut write = |place: usize, width: usize, rank: usize| {
            let values: Vec<f32> = (0..rank * width).map(|_| random.normal()).collect();
            let out = &mut bytes[place..][..FactorFormat::F16.bytes(rank, width)];
            FactorFormat::F16.quantize(width, &values, out);
        };
        let factors = &at.factors;
        write(factors.a(), factors.inputs(), factors.rank());
        for (index, expansion) in factors.expansions().iter().enumerate() {
            write(factors.b(index), expansion.outputs, expansion.rank);
        }
    }
    let bytes = layout.bytes();
    let shared = SharedBytes::new(Resident::new(pages, bytes));
    let digests = Digests::new(&base(), &layout, shared.as_ref());
    let f16 = Adapter::from_bytes(base(), Arc::new(layout), shared, digests).expect("an adapter");
    let i8 = f16.to_format(FactorFormat::I8, &pool, &Request::default()).expect("an adapter");
    [f16, i8]
}

/// Writes a compact file of rank 2, or replaces it.
pub(crate) fn write(folder: &Path, name: &str, seed: u64) -> PathBuf {
    let path = folder.join(format!("{name}.ruvlora"));
    let [f16, i8] = adapters(seed, 2);
    compact::write(&path, [&f16, &i8], name, 7, Existing::Replace).expect("a file");
    path
}
