//! Generated WGSL: valid, translatable to SPIR-V and MSL, and without operations whose order
//! drivers choose.

use std::collections::HashSet;

use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use ruvllm_gpu::{
    Activation, AddKernel, ArgmaxKernel, AttentionKernel, AttentionOutput, ColumnSplits, CooperativeKernel,
    CooperativeTile, CutGatesKernel, CutHeadsKernel, ExpandKernel, ExpertAffineKernel, ExpertScaleKernel,
    ExpertStack, ExpertSumKernel, Format, GatherKernel, GemmKernel, HeadNormKernel, HeadValues, Kernel,
    KvFormat, LargestKernel, LatentKeysKernel, LatentQueriesKernel, LowRankKernel, LowRankRoom, LowRankStep,
    MAX_BATCH, MAX_PRODUCT_ROWS, MergeKernel, PartNormKernel, Product, RopeKernel, RopeKvKernel, RopeLayout,
    RouterKernel, RouterLogitsKernel, RouterScoring, RowKernel, RowOp, RowPart, SortKernel, StreamKernel,
    StreamRows, SumSplitsKernel, SumStart, Target, Tile, TiledAttentionKernel,
};

const TARGETS: [Target; 7] = [
    Target { subgroup: Some(32), f16: true, cooperative: Some(16) },
    Target { subgroup: Some(32), f16: true, cooperative: Some(8) },
    Target { subgroup: Some(32), f16: true, cooperative: None },
    Target { subgroup: Some(64), f16: true, cooperative: None },
    Target { subgroup: Some(8), f16: true, cooperative: None },
    Target { subgroup: Some(32), f16: false, cooperative: None },
    Target { subgroup: None, f16: false, cooperative: None },
];

/// Fewer and more items than threads, one and two stages.
const COOPERATIVE: [CooperativeTile; 4] = [
    CooperativeTile { batch: 16, rows: 64, depth: 32, across: 1, down: 4, stages: 2 },
    CooperativeTile { batch: 128, rows: 128, depth: 32, across: 2, down: 4, stages: 2 },
    CooperativeTile { batch: 64, rows: 64, depth: 64, across: 2, down: 1, stages: 1 },
    CooperativeTile { batch: 32, rows: 32, depth: 64, across: 1, down: 1, stages: 2 },
];

/// Kernels of every kind, format and batch, with tiles that take each path of the generator.
pub(crate) fn kernels() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for format in Format::ALL {
        for (rows, cols) in [(14_336, 4096), (4096, 14_336), (13, 2304), (128_256, 2048)] {
            for batch in (1..=MAX_BATCH).chain([16, MAX_PRODUCT_ROWS]) {
                let tile = Tile { rows: 4, lanes: 64, teams: 2, unroll: 2 };
                kernels.push(Kernel::Product(Product {
                    format,
                    rows,
                    cols,
                    batch,
                    width: rows,
                    first: 0,
                    tile,
                }));
            }
            for tile_batch in [16, 32, 64] {
                kernels.push(Kernel::Gemm(GemmKernel {
                    format,
                    rows,
                    cols,
                    width: rows,
                    first: 0,
                    tile_batch,
                }));
            }
            for tile in COOPERATIVE {
                let (width, first) = (rows + 64, 64);
                for splits in [ColumnSplits::Whole, ColumnSplits::InTurn(320), ColumnSplits::Apart(320)] {
                    let key = CooperativeKernel { format, rows, cols, width, first, tile, splits };
                    kernels.push(Kernel::Cooperative(key));
                }
            }
            for scale in [1.0_f32, 45.25] {
                let scale_bits = scale.to_bits();
                for first_beyond in [false, true] {
                    let key = GatherKernel { format, rows, cols, scale_bits, first_beyond };
                    kernels.push(Kernel::Gather(key));
                }
            }
            let (width, first, tile_batch) = (rows + 64, 64, 32);
            kernels.push(Kernel::Gemm(GemmKernel { format, rows, cols, width, first, tile_batch }));
            let tile = Tile { rows: 3, lanes: 128, teams: 1, unroll: 4 };
            kernels.push(Kernel::Product(Product {
                format,
                rows,
                cols,
                batch: 1,
                width: rows + 5,
                first: 5,
                tile,
            }));
        }
    }
    let (rows, splits) = (4096, 4);
    for (width, first) in [(rows, 0), (rows + 64, 64)] {
        kernels.push(Kernel::SumSplits(SumSplitsKernel { rows, splits, width, first }));
    }
    kernels.extend(row_kernels());
    kernels.extend(expert_products());
    kernels.extend(expert_kernels());
    kernels.extend(attention_kernels());
    kernels.extend(low_rank_kernels());
    kernels.extend(crate::states::kernels());
    kernels.extend(latent_kernels());
    kernels.extend(stream_kernels());
    kernels
}

/// Few and many streams, with and without a rest of words.
fn stream_kernels() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for (count, dim) in [(4, 2048), (2, 20), (8, 1028)] {
        let key = StreamRows { count, dim, active: count - 2, eps_bits: 1e-6_f32.to_bits() };
        kernels.extend([
            StreamKernel::Split(key),
            StreamKernel::Predict(key),
            StreamKernel::Correct(key),
            StreamKernel::AddToOthers(key),
            StreamKernel::Merge(key),
        ]);
    }
    for deviations in [1.644_853_6_f32, -0.5] {
        let deviations_bits = deviations.to_bits();
        kernels.push(StreamKernel::CutGates(CutGatesKernel { cols: 16_384, width: 32_768, deviations_bits }));
    }
    kernels.into_iter().map(Kernel::Stream).collect()
}

/// Widths of DeepSeek-V3, and odd ones.
fn latent_kernels() -> Vec<Kernel> {
    let eps_bits = 1e-6_f32.to_bits();
    let mut kernels = Vec::new();
    for layout in [RopeLayout::Halves, RopeLayout::Interleaved] {
        for (heads, still, rotary, rank) in [(128_u32, 128_u32, 64, 512), (3, 13, 32, 96)] {
            let (width, padded) = (heads * (still + rotary) + 7, still.next_multiple_of(8));
            for scaled in [false, true] {
                kernels.push(Kernel::LatentQueries(LatentQueriesKernel {
                    heads,
                    still,
                    rotary,
                    rank,
                    width,
                    padded,
                    layout,
                    scaled,
                }));
            }
            for format in KvFormat::ALL {
                let (width, first) = (width + rank + rotary, width);
                let key = LatentKeysKernel { rotary, rank, width, first, layout, eps_bits, format };
                kernels.push(Kernel::LatentKeys(key));
            }
        }
    }
    for (cols, width, padded) in [(1536, 2112, 1536), (20, 52, 24)] {
        kernels.push(Kernel::PartNorm(PartNormKernel { cols, width, padded, eps_bits }));
    }
    kernels
}

/// Both halves with every input, number format and division; columns with and without a rest,
/// output rows that are no whole words.
fn low_rank_kernels() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for (cols, width) in [(4096, 6144), (14_336, 4096), (96, 131), (3008, 32_002)] {
        for f16 in [true, false] {
            let room =
                LowRankRoom { slots: 8, cols, width, components: 48, expansions: 3, words: 90_000, f16 };
            for (terms, one_list, tile) in
                [(1, false, 1), (1, true, 4), (8, false, 1), (2, true, 1), (4, true, 4)]
            {
                let key = |step| Kernel::LowRank(LowRankKernel { step, room, terms, one_list, tile });
                kernels.extend([
                    key(LowRankStep::Shrink { quantized: false }),
                    key(LowRankStep::Shrink { quantized: true }),
                    key(LowRankStep::Expand),
                ]);
            }
        }
    }
    kernels
}

fn row_kernels() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    let eps = 1e-5_f32.to_bits();
    let clamped = Activation::ClampedSilu { alpha_bits: 1.702_f32.to_bits(), limit_bits: 7.0_f32.to_bits() };
    let gated = [Activation::Silu, Activation::GeluTanh, clamped, Activation::SquaredRelu].map(RowOp::Gated);
    let scaled = RowOp::AddScaledRmsNorm { eps_bits: eps, scale_bits: 0.22_f32.to_bits() };
    let norms = [
        RowOp::RmsNorm(eps),
        RowOp::AddRmsNorm(eps),
        RowOp::LayerNorm(eps),
        RowOp::AddLayerNorm(eps),
        scaled,
    ];
    let parts = [(4096, 0), (4092, 8192)].map(|(values, first)| RowPart { values, width: 16_384, first });
    let parts = parts.map(|part| [RowOp::Part(part), RowOp::GatedPart(Activation::GeluTanh, part)]);
    for op in
        [RowOp::Copy, RowOp::Join].into_iter().chain(norms).chain(gated).chain(parts.into_iter().flatten())
    {
        for quantize in [false, true] {
            kernels.push(Kernel::Rows(RowKernel { op, cols: 4096, quantize }));
        }
    }
    for values in [HeadValues::Kept, HeadValues::Normed, HeadValues::Keys] {
        let key =
            HeadNormKernel { heads: 8, kv_heads: 2, head_dim: 128, eps_bits: eps, together: false, values };
        kernels.push(Kernel::HeadNorm(key));
    }
    for layout in [RopeLayout::Halves, RopeLayout::Interleaved] {
        kernels.push(Kernel::Rope(RopeKernel { heads: 32, head_dim: 128, rotary_dim: 64, layout }));
    }
    kernels.extend([
        Kernel::Expand(ExpandKernel { cols: 4096, quantized: true }),
        Kernel::Expand(ExpandKernel { cols: 2312, quantized: false }),
        Kernel::Add(AddKernel { values: 4097, period: 4097, scaled: false }),
        Kernel::Add(AddKernel { values: 4096, period: 1024, scaled: false }),
        Kernel::Add(AddKernel { values: 4096, period: 4096, scaled: true }),
        Kernel::CopyRow(4096),
        Kernel::CutHeads(CutHeadsKernel { heads: 32, head_dim: 100 }),
        Kernel::HeadNorm(HeadNormKernel {
            heads: 8,
            kv_heads: 2,
            head_dim: 128,
            eps_bits: eps,
            together: true,
            values: HeadValues::Kept,
        }),
        Kernel::Argmax(ArgmaxKernel { width: 128_256, values: 128_003 }),
        Kernel::ArgmaxMerge(126),
        Kernel::Largest(LargestKernel {
            width: 128_256,
            candidates: 128_003,
            is_first: true,
            is_last: false,
        }),
        Kernel::Largest(LargestKernel { width: 128_256, candidates: 8064, is_first: false, is_last: false }),
        Kernel::Largest(LargestKernel { width: 128_256, candidates: 512, is_first: false, is_last: true }),
        Kernel::Largest(LargestKernel { width: 700, candidates: 691, is_first: true, is_last: true }),
        Kernel::Read(4096),
    ]);
    kernels
}

/// Products with the matrices of experts, of all formats.
fn expert_products() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for format in Format::ALL {
        for (rows, cols, experts, sharing) in [(1536, 2048, 128, 8), (2050, 768, 60, 1)] {
            let stack = ExpertStack { experts, sharing };
            let (width, first) = (rows + 64, 64);
            for (own, lanes) in [(1, 64), (4, 128)] {
                let tile = Tile { rows: own, lanes, teams: 2, unroll: 2 };
                let product = Product { format, rows, cols, batch: 1, width, first, tile };
                kernels.push(Kernel::ExpertProduct(product, stack));
            }
            for tile_batch in [16, 64] {
                let gemm = GemmKernel { format, rows, cols, width, first, tile_batch };
                kernels.push(Kernel::ExpertGemm(gemm, stack));
            }
            for tile in COOPERATIVE {
                let product =
                    CooperativeKernel { format, rows, cols, width, first, tile, splits: ColumnSplits::Whole };
                kernels.push(Kernel::ExpertCooperative(product, stack));
            }
        }
    }
    kernels
}

/// Routers of all kinds, and what stands around products of experts.
fn expert_kernels() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for scoring in RouterScoring::ALL {
        for (experts, used, groups, scale) in [
            (8, 2, None, 1.0_f32),
            (128, 8, Some((8, 4)), 2.5),
            (64, 1, Some((64, 3)), 1.0),
            (512, 10, None, 1.0),
        ] {
            for (biased, renormalize) in [(false, true), (true, false)] {
                kernels.push(Kernel::Route(RouterKernel {
                    experts,
                    used,
                    width: experts + 1,
                    scoring,
                    groups,
                    biased,
                    renormalize,
                    scale_bits: scale.to_bits(),
                }));
            }
        }
    }
    for (biased, batch) in [(false, 1), (true, 4)] {
        kernels.push(Kernel::RouterLogits(RouterLogitsKernel { outputs: 61, cols: 2048, biased, batch }));
    }
    for (weighted, biased) in [(true, false), (false, true), (true, true)] {
        kernels.push(Kernel::ExpertAffine(ExpertAffineKernel { experts: 32, cols: 2880, weighted, biased }));
    }
    kernels.push(Kernel::ExpertScale(ExpertScaleKernel { experts: 128, pairs: 4096 }));
    for start in [SumStart::Zero, SumStart::Output, SumStart::GatedOutput { width: 61, at: 60 }] {
        for weighted in [true, false] {
            kernels.push(Kernel::ExpertSum(ExpertSumKernel { cols: 2048, used: 8, weighted, start }));
        }
    }
    kernels.push(Kernel::SortPairs(SortKernel { experts: 128, pairs: 4096, tile: 32 }));
    kernels
}

fn attention_kernels() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for (heads, kv_heads, head_dim) in [(32, 8, 128), (16, 16, 128), (8, 4, 256), (12, 1, 96), (14, 2, 64)] {
        let rope = RopeKernel { heads, head_dim, rotary_dim: head_dim, layout: RopeLayout::Halves };
        let outputs = [AttentionOutput::Partial, AttentionOutput::F32, AttentionOutput::Quantized];
        // Filled up.
        for (head_dim, layout) in
            [(head_dim - 2, RopeLayout::Halves), (head_dim - 6, RopeLayout::Interleaved)]
        {
            let rope = RopeKernel { head_dim, rotary_dim: head_dim / 4 * 2, layout, ..rope };
            let format = KvFormat::F16;
            kernels.push(Kernel::RopeKv(RopeKvKernel { rope, kv_heads, format, scaled: head_dim % 4 == 0 }));
        }
        for format in KvFormat::ALL {
            for scaled in [false, true] {
                kernels.push(Kernel::RopeKv(RopeKvKernel { rope, kv_heads, format, scaled }));
            }
        }
        for (format, output) in KvFormat::ALL.into_iter().flat_map(|f| outputs.map(|output| (f, output))) {
            let key = AttentionKernel::new(heads, kv_heads, head_dim);
            let key = AttentionKernel { output, format, ..key };
            let key =
                AttentionKernel { workgroup_heads: (1..=8).rfind(|n| (heads / kv_heads) % n == 0), ..key };
            kernels.extend([
                Kernel::Attention(key),
                Kernel::Attention(key.one_sequence()),
                Kernel::Attention(key.window(1000).soft_cap(30.0)),
                Kernel::Attention(key.chunk(1000)),
            ]);
            // Partial results have none: the merge adds them.
            let sinks = output != AttentionOutput::Partial;
            if sinks {
                kernels.push(Kernel::Attention(AttentionKernel { sinks, ..key }));
            }
            let key = key.one_sequence();
            for (own, queries) in [(1, 16), (if heads / kv_heads % 2 == 0 { 2 } else { 1 }, 64)] {
                let attention = AttentionKernel { workgroup_heads: Some(own), ..key };
                let chunked = attention.chunk(1000);
                let windowed = AttentionKernel { sinks, ..attention.window(1000).soft_cap(30.0) };
                kernels.extend([
                    Kernel::TiledAttention(TiledAttentionKernel { attention, queries }),
                    Kernel::TiledAttention(TiledAttentionKernel { attention: windowed, queries }),
                    Kernel::TiledAttention(TiledAttentionKernel { attention: chunked, queries }),
                ]);
            }
        }
        for (format, output) in KvFormat::ALL.into_iter().flat_map(|f| outputs.map(|output| (f, output))) {
            let key = AttentionKernel::new(heads, 1, 576).values_from(64);
            let key = AttentionKernel { output, format, workgroup_heads: Some(2), ..key };
            kernels.extend([Kernel::Attention(key), Kernel::Attention(key.one_sequence())]);
        }
        for (quantize, sinks) in [(false, false), (true, false), (false, true), (true, true)] {
            let merge = MergeKernel { heads, head_dim, window: None, split_tokens: 256, sinks, quantize };
            kernels.push(Kernel::MergeSplits(merge));
        }
    }
    kernels
}

/// Kernels for the targets that can run them; for cooperative matrices those that use them.
pub(crate) fn all() -> impl Iterator<Item = (Kernel, Target)> {
    let runs = |kernel: &Kernel, target: Target| match kernel {
        // Metal adds no matrices.
        Kernel::Cooperative(g) if matches!(g.splits, ColumnSplits::InTurn(_)) => {
            target.f16 && target.cooperative != Some(8)
        }
        Kernel::Cooperative(_) | Kernel::ExpertCooperative(..) => target.f16,
        // Not with the squares of 8 of Metal.
        Kernel::TiledAttention(_) => target.f16 && target.cooperative != Some(8),
        Kernel::Expand(_) => target.f16 && target.cooperative.is_none(),
        _ => target.cooperative.is_none(),
    };
    let with = move |target| {
        kernels().into_iter().filter(move |kernel| runs(kernel, target)).map(move |kernel| (kernel, target))
    };
    TARGETS.into_iter().flat_map(with)
}

/// The parsed kernel; panics if it is not valid.
pub(crate) fn validated(name: &str, source: &str) -> (naga::Module, ModuleInfo) {
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(source)));
    let capabilities = Capabilities::SUBGROUP
        | Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::COOPERATIVE_MATRIX;
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(source)));
    (module, info)
}

#[test]
fn every_kernel_is_valid_and_translates_to_spirv_and_msl() {
    // Many kernels are alike for several targets.
    let mut seen = HashSet::new();
    for (kernel, target) in all() {
        let name = format!("{} for {target:?}", kernel.name());
        let source = kernel.source(target);
        if !seen.insert((source.clone(), target.cooperative)) {
            continue;
        }
        let (module, info) = validated(&name, &source);
        let spirv = naga::back::spv::Options { lang_version: (1, 3), ..Default::default() };
        naga::back::spv::write_vec(&module, &info, &spirv, None).unwrap_or_else(|e| panic!("{name}: {e}"));
        if target.cooperative == Some(16) {
            continue; // Metal's have 8.
        }
        let msl = naga::back::msl::Options { lang_version: (2, 4), ..Default::default() };
        let (text, _) = naga::back::msl::write_string(&module, &info, &msl, &Default::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        // Forms that naga writes and Metal's compiler refuses.
        assert!(!text.contains("simdgroup_half16x16"), "{name}");
    }
}

/// Tiled attention of every tile, with heads from the narrowest to the widest.
fn tiled_kernels() -> impl Iterator<Item = Kernel> {
    let shape = |head_dim, queries, own, output| {
        let key = AttentionKernel::new(16, 2, head_dim).one_sequence();
        // Every other tile, in both formats.
        let format = KvFormat::ALL[(queries / 16 + own) as usize % 2];
        let attention = AttentionKernel { workgroup_heads: Some(own), output, format, ..key };
        Kernel::TiledAttention(TiledAttentionKernel { attention, queries })
    };
    [AttentionOutput::Partial, AttentionOutput::F32, AttentionOutput::Quantized].into_iter().flat_map(
        move |output| {
            [32, 64, 96, 160, 256].into_iter().flat_map(move |head_dim| {
                [16, 32, 64]
                    .into_iter()
                    .flat_map(move |queries| [1, 2, 4, 8].map(|own| shape(head_dim, queries, own, output)))
            })
        },
    )
}

/// Matrix instructions need addresses of 16 bytes, and drivers place arrays one after the other.
#[test]
fn workgroup_arrays_beside_matrices_are_whole_16_bytes() {
    let subgroups = [Some(32), Some(64)];
    let targets = subgroups.map(|subgroup| Target { subgroup, f16: true, cooperative: Some(16) });
    let all = all().filter(|(_, target)| target.cooperative.is_some());
    let tiled = targets.into_iter().flat_map(|target| tiled_kernels().map(move |kernel| (kernel, target)));
    let mut arrays = 0;
    for (kernel, target) in all.chain(tiled) {
        let name = format!("{} for {target:?}", kernel.name());
        let source = kernel.source(target);
        let module = naga::front::wgsl::parse_str(&source)
            .unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&source)));
        for (_, variable) in module.global_variables.iter() {
            if variable.space != naga::AddressSpace::WorkGroup {
                continue;
            }
            let bytes = module.types[variable.ty].inner.size(module.to_ctx());
            assert!(bytes > 0 && bytes.is_multiple_of(16), "{name}: {:?} has {bytes} bytes", variable.name);
            arrays += 1;
        }
    }
    assert!(arrays > 1000, "{arrays} arrays");
}

#[test]
fn sums_have_an_order_of_their_own() {
    for (kernel, target) in all() {
        let source = kernel.source(target);
        for forbidden in
            ["atomic", "subgroupAdd", "subgroupMul", " dot(", "(dot(", "length(", "bitcast<vec4<f16>>"]
        {
            assert!(!source.contains(forbidden), "{}: {forbidden}", kernel.name());
        }
        let shared = match kernel {
            Kernel::Product(_)
            | Kernel::Cooperative(_)
            | Kernel::TiledAttention(_)
            | Kernel::ExpertProduct(..)
            | Kernel::ExpertCooperative(..) => true,
            Kernel::Rows(r) => {
                let copies = matches!(r.op, RowOp::Copy | RowOp::Part(_) | RowOp::Join);
                r.quantize || !(copies || matches!(r.op, RowOp::Gated(_) | RowOp::GatedPart(..)))
            }
            Kernel::Attention(a) => a.output == AttentionOutput::Quantized,
            Kernel::MergeSplits(m) => m.quantize,
            _ => false,
        };
        assert_eq!(source.contains("subgroup"), target.subgroup.is_some() && shared, "{}", kernel.name());
    }
}

#[test]
fn sources_are_indented_and_short_lined() {
    for (kernel, target) in all() {
        for line in kernel.source(target).lines() {
            let indent = line.len() - line.trim_start().len();
            assert!(indent % 2 == 0 && line.len() <= 160 && line.trim_end() == line, "{line:?}");
        }
    }
}

#[test]
fn f16_is_used_only_where_the_device_has_it() {
    for (kernel, target) in all() {
        let source = kernel.source(target);
        let is_code = |line: &&str| !line.starts_with("//") && !line.starts_with("enable");
        let uses = source.lines().filter(is_code).any(|line| line.contains("f16"));
        assert!(target.f16 || !uses, "{}", kernel.name());
        assert_eq!(source.contains("enable f16"), uses, "{}", kernel.name());
        let matrices = target.cooperative.is_some();
        assert_eq!(source.contains("enable wgpu_cooperative_matrix"), matrices, "{}", kernel.name());
    }
}
