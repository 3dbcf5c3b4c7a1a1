//! Kernels against the limits of a device.

use crate::adapter::AdapterInfo;
use crate::error::{Error, Result, expect_multiple, expect_size};
use crate::expert_keys::{
    ExpertAffineKernel, ExpertStack, ExpertSumKernel, MAX_EXPERTS, MAX_USED_EXPERTS, RouterKernel,
    RouterLogitsKernel, SortKernel, SumStart,
};
use crate::kernel::{
    AddKernel, AttentionKernel, AttentionOutput, CooperativeKernel, GemmKernel, HeadNormKernel, Kernel,
    MAX_BATCH, MAX_PRODUCT_ROWS, Product, RopeKernel, RowOp, Target, TiledAttentionKernel,
};
use crate::latent_key::{LatentKeysKernel, LatentQueriesKernel};
use crate::layer_keys::{HeadValues, RowPart};
use crate::low_rank_key::{LowRankKernel, LowRankStep, check_room, check_terms};
use crate::repack::Format;
use crate::split_key::{ColumnSplits, SPLIT_UNIT};
use crate::wgsl;
use crate::window::AttentionWindow;

impl Kernel {
    /// Fails if sizes do not match or exceed the limits of the device.
    pub(crate) fn check(&self, info: &AdapterInfo) -> Result<()> {
        match self {
            Self::Product(p) => check_product(p, info),
            Self::Gemm(g) => check_gemm(g),
            Self::Cooperative(g) => check_cooperative(g, info),
            Self::SumSplits(s) => {
                expect_multiple("splits", 1, s.splits.into())?;
                check_part(s.rows, s.first, s.width)
            }
            Self::ExpertProduct(p, stack) => {
                check_product(p, info)?;
                expect_size("activation rows of a pair", 1, p.batch.into())?;
                check_stack(stack)
            }
            Self::ExpertGemm(g, stack) => check_gemm(g).and_then(|()| check_stack(stack)),
            Self::ExpertCooperative(g, stack) => check_cooperative(g, info).and_then(|()| check_stack(stack)),
            Self::RouterLogits(k) => check_logits(k),
            Self::Route(r) => check_router(r),
            Self::SortPairs(k) => check_sort(k),
            Self::ExpertAffine(k) => check_affine(k),
            Self::ExpertScale(k) => {
                check_experts(k.experts).and_then(|()| expect_multiple("pairs", 1, k.pairs.into()))
            }
            Self::ExpertSum(k) => check_sum(k),
            Self::Expand(e) => {
                need_f16(info)?;
                expect_multiple("columns", if e.quantized { 32 } else { 8 }, e.cols.into())
            }
            Self::Gather(g) => check_shape(g.format, g.rows, g.cols),
            Self::Rows(r) => {
                if let RowOp::Part(part) | RowOp::GatedPart(_, part) = r.op {
                    check_row_part(&part, r.cols)?;
                }
                let unit = if r.op == RowOp::Join { 8 } else { 4 };
                let unit = if r.quantize { 32 } else { unit };
                expect_multiple("columns", unit, r.cols.into())
            }
            Self::LowRank(l) => check_low_rank(l, info),
            Self::State(k) => k.check(),
            Self::Stream(k) => k.check(),
            Self::Rope(r) => check_rope(r),
            Self::RopeKv(k) => {
                check_rope(&k.rope)?;
                k.format.expect_head_dim(k.stored_dim())?;
                expect_multiple("KV heads", 1, k.kv_heads.into())
            }
            Self::PartNorm(k) => {
                check_part(k.cols, 0, k.width)?;
                check_part(k.cols, 0, k.padded)?;
                expect_multiple("columns", 1, k.cols.into())
            }
            Self::LatentQueries(k) => check_latent_queries(k),
            Self::LatentKeys(k) => check_latent_keys(k, info),
            Self::Attention(a) => check_attention(a, info),
            Self::TiledAttention(t) => check_tiled(t, info),
            Self::MergeSplits(m) => {
                expect_multiple("heads", 1, m.heads.into())?;
                expect_multiple("tokens of a split", 1, m.split_tokens.into())?;
                expect_multiple("head dimension", if m.quantize { 32 } else { 8 }, m.head_dim.into())
            }
            Self::HeadNorm(h) => check_head_norm(h),
            Self::CutHeads(k) => k.check(),
            Self::CopyRow(n) => expect_multiple("values", 4, (*n).into()),
            Self::Add(a) => check_add(a),
            Self::Read(n) => expect_multiple("words", 1024, (*n).into()),
            Self::Argmax(a) if (1..=a.width).contains(&a.values) => Ok(()),
            Self::Argmax(a) => {
                let (expected, found) = (format!("1 to {}", a.width), a.values.into());
                Err(Error::Shape { what: "values of an argmax", expected, found })
            }
            Self::Largest(l) if !l.is_first || (1..=l.width).contains(&l.candidates) => Ok(()),
            Self::Largest(l) => {
                let (expected, found) = (format!("1 to {}", l.width), l.candidates.into());
                Err(Error::Shape { what: "values of which the largest are found", expected, found })
            }
            Self::ArgmaxMerge(n) => expect_multiple("values", 1, (*n).into()),
        }
    }
}

/// A period of the addend is repeated over whole rows.
fn check_add(a: &AddKernel) -> Result<()> {
    expect_multiple("values", 1, a.values.into())?;
    if a.period == a.values {
        return Ok(());
    }
    expect_multiple("values of the addend", 4, a.period.into())?;
    expect_multiple("values", a.period.into(), a.values.into())
}

fn check_head_norm(h: &HeadNormKernel) -> Result<()> {
    expect_multiple("query heads", 1, h.heads.into())?;
    expect_multiple("KV heads", 1, h.kv_heads.into())?;
    let keeps = !h.together || h.values == HeadValues::Kept;
    expect_size("normed values of heads with one norm", 1, keeps.into())?;
    expect_multiple("head dimension", 4, h.head_dim.into())
}

/// A part lies within its rows, and fits into output rows of `cols` values.
fn check_row_part(part: &RowPart, cols: u32) -> Result<()> {
    for (what, values) in [
        ("values of a part", part.values),
        ("offset of a part", part.first.saturating_add(4)),
        ("values of a row", part.width),
    ] {
        expect_multiple(what, 4, values.into())?;
    }
    check_part(part.values, 0, cols)?;
    check_part(part.values, part.first, part.width)
}

fn check_gemm(g: &GemmKernel) -> Result<()> {
    check_shape(g.format, g.rows, g.cols)?;
    check_part(g.rows, g.first, g.width)?;
    if [16, 32, 64].contains(&g.tile_batch) {
        return Ok(());
    }
    let (what, found) = ("activation rows of a tile", g.tile_batch.into());
    Err(Error::Shape { what, expected: "16, 32 or 64".to_owned(), found })
}

fn check_stack(stack: &ExpertStack) -> Result<()> {
    check_experts(stack.experts)?;
    expect_multiple("pairs of an input row", 1, stack.sharing.into())
}

fn check_logits(k: &RouterLogitsKernel) -> Result<()> {
    expect_multiple("outputs", 1, k.outputs.into())?;
    expect_multiple("rows of a workgroup", 1, k.batch.into())?;
    expect_multiple("columns", 4, k.cols.into())
}

fn check_sort(k: &SortKernel) -> Result<()> {
    check_experts(k.experts)?;
    expect_multiple("pairs", 1, k.pairs.into())?;
    expect_multiple("pairs of a tile", 16, k.tile.into())
}

fn check_affine(k: &ExpertAffineKernel) -> Result<()> {
    check_experts(k.experts)?;
    expect_multiple("weights or biases", 1, (u32::from(k.weighted) + u32::from(k.biased)).into())?;
    expect_multiple("columns", 4, k.cols.into())
}

fn check_experts(experts: u32) -> Result<()> {
    if (1..=MAX_EXPERTS).contains(&experts) {
        return Ok(());
    }
    Err(Error::Shape { what: "experts", expected: format!("1 to {MAX_EXPERTS}"), found: experts.into() })
}

fn check_used(used: u32, experts: u32) -> Result<()> {
    let most = MAX_USED_EXPERTS.min(experts);
    if (1..=most).contains(&used) {
        return Ok(());
    }
    Err(Error::Shape { what: "experts of a row", expected: format!("1 to {most}"), found: used.into() })
}

fn check_router(r: &RouterKernel) -> Result<()> {
    check_experts(r.experts)?;
    check_used(r.used, r.experts)?;
    check_part(r.experts, 0, r.width)?;
    let Some((count, used)) = r.groups else { return Ok(()) };
    expect_multiple("experts", count.max(1).into(), r.experts.into())?;
    let len = r.experts / count.max(1);
    if (1..=count).contains(&used) && used * len >= r.used {
        return Ok(());
    }
    let expected = format!("1 to {count}, with {} experts or more", r.used);
    Err(Error::Shape { what: "groups of a row", expected, found: used.into() })
}

fn check_sum(k: &ExpertSumKernel) -> Result<()> {
    check_used(k.used, MAX_EXPERTS)?;
    expect_multiple("columns", 4, k.cols.into())?;
    match k.start {
        SumStart::GatedOutput { width, at } => check_part(1, at, width),
        _ => Ok(()),
    }
}

fn check_low_rank(l: &LowRankKernel, info: &AdapterInfo) -> Result<()> {
    check_room(&l.room)?;
    check_terms(l.terms)?;
    if l.step == (LowRankStep::Shrink { quantized: true }) {
        expect_multiple("columns", 32, l.room.cols.into())?;
    }
    let bytes = wgsl::low_rank_bytes(l);
    if (l.tile == 1 || l.tile == 4 && l.one_list) && bytes <= info.workgroup_memory {
        return Ok(());
    }
    let expected = format!("1, or 4 with one list, and at most {} bytes", info.workgroup_memory);
    Err(Error::Shape { what: "rows of a workgroup", expected, found: l.tile.into() })
}

fn check_rope(r: &RopeKernel) -> Result<()> {
    expect_multiple("rotary dimension", 2, r.rotary_dim.into())?;
    if r.rotary_dim > r.head_dim || r.heads == 0 {
        let expected = format!("at most {}, at least one head", r.head_dim);
        return Err(Error::Shape { what: "rotary dimension", expected, found: r.rotary_dim.into() });
    }
    Ok(())
}

fn check_latent_queries(k: &LatentQueriesKernel) -> Result<()> {
    expect_multiple("rotary dimension", 2, k.rotary.into())?;
    expect_multiple("unrotated dimensions", 1, k.still.into())?;
    check_part(k.still, 0, k.padded)?;
    let queries = u64::from(k.heads) * u64::from(k.still + k.rotary);
    if (1..=u64::from(k.width)).contains(&queries) {
        return Ok(());
    }
    let expected = format!("1 to {}", k.width);
    Err(Error::Shape { what: "values of the queries of a row", expected, found: queries })
}

fn check_latent_keys(k: &LatentKeysKernel, info: &AdapterInfo) -> Result<()> {
    expect_multiple("rotary dimension", 2, k.rotary.into())?;
    expect_multiple("width of the latent", 1, k.rank.into())?;
    check_part(k.head_dim(), k.first, k.width)?;
    k.format.expect_head_dim(k.head_dim())?;
    let bytes = wgsl::latent_key_bytes(k);
    if bytes <= info.workgroup_memory {
        return Ok(());
    }
    let expected = format!("at most {}", info.workgroup_memory);
    Err(Error::Shape { what: "bytes of workgroup memory of a key", expected, found: bytes.into() })
}

/// Largest head dimension of values, and of keys without values.
const MAX_HEAD_DIM: (u32, u32) = (512, 1024);

fn check_attention(a: &AttentionKernel, info: &AdapterInfo) -> Result<()> {
    expect_multiple("KV heads", 1, a.kv_heads.into())?;
    expect_multiple("query heads", a.kv_heads.into(), a.heads.into())?;
    let own = a.workgroup_heads.unwrap_or(1);
    expect_multiple("query heads per KV head", own.max(1).into(), (a.heads / a.kv_heads).into())?;
    expect_multiple("query heads of a workgroup", 1, own.into())?;
    a.format.expect_head_dim(a.head_dim)?;
    if let Some(first) = a.values_from {
        expect_multiple("first dimension of the values", 8, first.into())?;
        check_part(8, first, a.head_dim)?;
    }
    if a.output == AttentionOutput::Quantized {
        expect_multiple("head dimension", 32, a.value_dim().into())?;
    }
    expect_multiple("window", 1, a.window.map_or(1, AttentionWindow::tokens).into())?;
    let bytes = wgsl::attention_workgroup_bytes(a);
    let (values, keys) = MAX_HEAD_DIM;
    if a.value_dim() <= values && a.head_dim <= keys && bytes <= info.workgroup_memory {
        return Ok(());
    }
    let expected =
        format!("at most {values}, with at most {} bytes of workgroup memory", info.workgroup_memory);
    Err(Error::Shape { what: "head dimension", expected, found: a.head_dim.into() })
}

fn check_tiled(t: &TiledAttentionKernel, info: &AdapterInfo) -> Result<()> {
    need_f16(info)?;
    let a = &t.attention;
    let own = a.workgroup_heads.unwrap_or(1);
    // Its workgroup memory is another.
    check_attention(&AttentionKernel { workgroup_heads: Some(1), ..*a }, info)?;
    expect_multiple("query heads per KV head", own.max(1).into(), (a.heads / a.kv_heads).into())?;
    expect_multiple("head dimension of tiles", 16, a.head_dim.into())?;
    let target = Target { subgroup: info.fixed_subgroup(), f16: info.f16, cooperative: info.matrix_side() };
    let (side, subgroup) = wgsl::square(target);
    let fits = side == 16
        && [16, 32, 64].contains(&t.queries)
        && own > 0
        && t.queries.is_multiple_of(own)
        && a.one_sequence
        && a.values_from.is_none()
        && a.head_dim <= wgsl::TILED_HEAD_DIM
        && t.queries / 16 * subgroup <= info.max_threads
        && wgsl::tiled_bytes(t, target) <= info.workgroup_memory;
    if fits {
        return Ok(());
    }
    let expected = format!(
        "16, 32 or 64, a multiple of the heads of a workgroup, of one sequence, heads of at most {}, at most {} bytes \
         of workgroup memory and squares of 16",
        wgsl::TILED_HEAD_DIM,
        info.workgroup_memory
    );
    Err(Error::Shape { what: "queries of a tile", expected, found: t.queries.into() })
}

fn check_shape(format: Format, rows: u32, cols: u32) -> Result<()> {
    expect_multiple("columns", format.column_unit() as u64, cols.into())?;
    expect_multiple("rows", 1, rows.into())
}

/// `rows` values from `first` on lie within a row of `width`.
fn check_part(rows: u32, first: u32, width: u32) -> Result<()> {
    if first.checked_add(rows).is_some_and(|end| end <= width) {
        return Ok(());
    }
    let expected = format!("at least {}", u64::from(first) + u64::from(rows));
    Err(Error::Shape { what: "values per output row", expected, found: width.into() })
}

fn need_f16(info: &AdapterInfo) -> Result<()> {
    if info.f16 {
        return Ok(());
    }
    Err(Error::MissingFeature { adapter: info.name.clone(), feature: "f16 arithmetic" })
}

fn check_cooperative(g: &CooperativeKernel, info: &AdapterInfo) -> Result<()> {
    need_f16(info)?;
    check_shape(g.format, g.rows, g.cols)?;
    check_part(g.rows, g.first, g.width)?;
    if let Some(split) = g.splits.cols() {
        expect_multiple("columns of a split", SPLIT_UNIT.into(), split.into())?;
    }
    let target = Target { subgroup: info.fixed_subgroup(), f16: info.f16, cooperative: info.matrix_side() };
    let (side, subgroup) = wgsl::square(target);
    if side == 8 && matches!(g.splits, ColumnSplits::InTurn(_)) {
        let expected = "squares of 16: the language of Metal adds no matrices".to_owned();
        return Err(Error::Shape { what: "squares of splits in turn", expected, found: side.into() });
    }
    let tile = g.tile;
    let sides = |subgroups: u32, extent: u32| {
        subgroups.is_power_of_two()
            && extent.is_power_of_two()
            && extent <= 256
            && extent.is_multiple_of(subgroups * side)
            && extent / (subgroups * side) <= 4
    };
    let threads = tile.subgroups().saturating_mul(subgroup);
    let fits = sides(tile.across, tile.batch)
        && sides(tile.down, tile.rows)
        && [32, 64].contains(&tile.depth)
        && [1, 2].contains(&tile.stages)
        && threads <= info.max_threads
        && wgsl::cooperative_bytes(g, target) <= info.workgroup_memory;
    if fits {
        return Ok(());
    }
    let expected = format!(
        "powers of two, 1 to 4 squares of {side} per subgroup along each side, depth 32 or 64, stages 1 or 2, \
         at most {} threads and {} bytes of workgroup memory",
        info.max_threads, info.workgroup_memory
    );
    Err(Error::Shape { what: "cooperative tile", expected, found: threads.into() })
}

fn check_product(p: &Product, info: &AdapterInfo) -> Result<()> {
    check_shape(p.format, p.rows, p.cols)?;
    let whole = p.batch <= MAX_PRODUCT_ROWS && p.batch.is_multiple_of(MAX_BATCH);
    if p.batch == 0 || !(whole || p.batch <= MAX_BATCH) {
        let expected = format!("1 to {MAX_BATCH}, or a multiple of {MAX_BATCH} up to {MAX_PRODUCT_ROWS}");
        return Err(Error::Shape { what: "activation rows", expected, found: p.batch.into() });
    }
    check_part(p.rows, p.first, p.width)?;
    let tile = p.tile;
    let subgroup = info.fixed_subgroup();
    let fits = tile.lanes.is_power_of_two()
        && tile.lanes <= 256
        && subgroup.is_none_or(|size| tile.lanes.is_multiple_of(size))
        && (1..=8).contains(&tile.rows)
        && (1..=8).contains(&tile.teams)
        && (1..=8).contains(&tile.unroll)
        && tile.threads() <= info.max_threads
        && wgsl::product_workgroup_bytes(p, subgroup) <= info.workgroup_memory;
    if fits {
        return Ok(());
    }
    let expected = format!(
        "lanes a power of two of whole subgroups ({subgroup:?}), rows, teams and unroll 1 to 8, at most {} threads \
         and {} bytes of workgroup memory",
        info.max_threads, info.workgroup_memory
    );
    Err(Error::Shape { what: "tile", expected, found: tile.threads().into() })
}
