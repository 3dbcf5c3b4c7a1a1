//! WGSL text of the kernels.
//!
//! The order of every sum is written out (`fma` chains, shuffles or trees in a fixed order, no
//! atomics), so that drivers have nothing to choose but the rounding of `exp`, `tanh`, division and
//! `inverseSqrt`.

mod attention;
mod code;
mod cooperative;
mod elementwise;
mod expand;
mod experts;
mod gemm;
mod heads;
mod kv;
mod largest;
mod latent;
mod low_rank;
mod merge;
mod output;
mod product;
mod rows;
mod sinks;
mod splits;
mod states;
mod streams;
mod tile;
mod tiled;
mod weights;

pub(crate) use attention::{
    SPLIT_TOKENS, choose_heads, partial_words, workgroup_bytes as attention_workgroup_bytes,
};
pub(crate) use code::Code;
pub(crate) use cooperative::{cooperative_bytes, cooperative_grid, expanded, square};
pub(crate) use elementwise::{ADD_THREADS, ARGMAX_VALUES, READ_WORDS, ROPE_THREADS};
pub(crate) use experts::{LOGIT_ROWS, PAIR_THREADS, logit_outputs};
pub(crate) use gemm::gemm_grid;
pub(crate) use heads::{cut_heads_groups, head_norm_groups};
pub(crate) use kv::rope_kv_groups;
pub(crate) use largest::LARGEST_CANDIDATES;
pub(crate) use latent::{latent_key_bytes, latent_query_groups};
pub(crate) use low_rank::{low_rank_bytes, low_rank_grid};
pub(crate) use product::{expert_grid, grid, group_grid, workgroup_bytes as product_workgroup_bytes};
pub(crate) use rows::workgroups_per_row;
pub(crate) use splits::SUM_THREADS;
pub(crate) use states::{CONVOLUTION_THREADS, MatrixTile, NO_STATE, TILE_ROWS};
pub(crate) use streams::STREAM_THREADS;
pub(crate) use tiled::{TILED_HEAD_DIM, TILED_SPLIT_TOKENS, choose_tile_heads, tiled_bytes, tiled_grid};
pub(crate) use weights::GATHER_THREADS;

use crate::kernel::{Kernel, Target};

impl Kernel {
    /// WGSL source.
    pub fn source(&self, target: Target) -> String {
        let mut code = Code::default();
        code.line(format!("// {}", self.name()));
        match self {
            Kernel::Product(p) => product::emit(&mut code, p, None, target),
            Kernel::Gemm(g) => gemm::emit(&mut code, g, None, target),
            Kernel::Cooperative(g) => cooperative::emit(&mut code, g, None, target),
            Kernel::ExpertProduct(p, stack) => product::emit(&mut code, p, Some(stack), target),
            Kernel::ExpertGemm(g, stack) => gemm::emit(&mut code, g, Some(stack), target),
            Kernel::ExpertCooperative(g, stack) => cooperative::emit(&mut code, g, Some(stack), target),
            Kernel::RouterLogits(k) => experts::logits(&mut code, k),
            Kernel::Route(r) => experts::route(&mut code, r),
            Kernel::SortPairs(k) => experts::sort(&mut code, k),
            Kernel::ExpertAffine(k) => experts::affine(&mut code, k),
            Kernel::ExpertScale(k) => experts::scale(&mut code, k),
            Kernel::ExpertSum(k) => experts::sum(&mut code, k),
            Kernel::SumSplits(s) => splits::emit(&mut code, s),
            Kernel::Expand(e) => expand::emit(&mut code, e),
            Kernel::Gather(g) => weights::gather(&mut code, g, target),
            Kernel::Rows(r) => rows::emit(&mut code, r, target),
            Kernel::Attention(a) => attention::attention(&mut code, a, target),
            Kernel::TiledAttention(t) => tiled::emit(&mut code, t, target),
            Kernel::MergeSplits(m) => merge::merge(&mut code, m, target),
            Kernel::RopeKv(k) => kv::rope_kv(&mut code, k),
            Kernel::PartNorm(k) => latent::part_norm(&mut code, k),
            Kernel::LatentQueries(k) => latent::queries(&mut code, k),
            Kernel::LatentKeys(k) => latent::keys(&mut code, k),
            Kernel::LowRank(l) => low_rank::emit(&mut code, l),
            Kernel::State(k) => states::emit(&mut code, k),
            Kernel::Stream(k) => streams::emit(&mut code, k),
            Kernel::Rope(r) => elementwise::rope(&mut code, r),
            Kernel::HeadNorm(h) => heads::head_norm(&mut code, h),
            Kernel::CutHeads(k) => heads::cut_heads(&mut code, k),
            Kernel::CopyRow(n) => elementwise::copy_row(&mut code, *n),
            Kernel::Add(a) => elementwise::add(&mut code, a),
            Kernel::Argmax(a) => elementwise::argmax(&mut code, a),
            Kernel::Largest(l) => largest::emit(&mut code, l),
            Kernel::Read(n) => elementwise::read(&mut code, *n),
            Kernel::ArgmaxMerge(n) => elementwise::argmax_merge(&mut code, *n),
        }
        code.finish()
    }
}
