//! Low-rank (LoRA) updates at the sites of a 1B Llama: decode of 16 rows with one adapter or 16,
//! prefill of 512 rows, and the forward of a MicroLoRA on one thread. Factors rotate through more
//! memory than the caches hold, as those of a model's layers do, except those of the MicroLoRA.

use ruvllm_benches::{Suite, Work, values};
use ruvllm_kernels::ThreadPool;
use ruvllm_kernels::low_rank::{
    Expansion, FACTOR_ALIGN, FactorFormat, LowRank, LowRankScratch, LowRankShape, LowRankTerm,
};

/// More than the caches hold.
const ROTATION_BYTES: usize = 128 << 20;

/// A site: name, inputs, outputs of each target.
type Site = (&'static str, usize, &'static [usize]);

const SITES: [Site; 4] = [
    ("qkv", 2048, &[2048, 512, 512]),
    ("o", 2048, &[2048]),
    ("gate_up", 2048, &[8192, 8192]),
    ("down", 8192, &[2048]),
];

/// Sites that are nearly all shrink, or all expand.
const HALVES: [Site; 2] = [("shrink", 8192, &[16]), ("expand", 16, &[8192])];

const SMALL: [Site; 1] = [("small", 40, &[72, 33])];

fn main() {
    let mut suite = Suite::new();
    let test = suite.is_test();
    let rank_16: &[Site] = if test { &SMALL } else { &SITES };
    for (rows, adapters) in if test { [(3, 1), (3, 3), (5, 1)] } else { [(16, 1), (16, 16), (512, 1)] } {
        for &site in rank_16 {
            measure(&mut suite, site, FactorFormat::F16, 16, rows, adapters);
        }
        for site in if test { SMALL.repeat(2) } else { HALVES.to_vec() } {
            for format in FactorFormat::ALL {
                for rank in if test { vec![2] } else { vec![2, 8, 16] } {
                    measure(&mut suite, site, format, rank, rows, adapters);
                }
            }
        }
    }
    micro(&mut suite, if test { 40 } else { 4096 });
    suite.finish();
}

/// Rows that share an adapter are neighbours.
fn measure(suite: &mut Suite, site: Site, format: FactorFormat, rank: usize, rows: usize, adapters: usize) {
    let (name, inputs, outputs) = site;
    let shape = shape(format, rank, inputs, outputs);
    let rotation = if suite.is_test() { 0 } else { ROTATION_BYTES };
    let copies = (rotation / (shape.end() * adapters)).max(1);
    let factors: Vec<Vec<f32>> = (0..copies * adapters).map(|_| bytes(&shape)).collect();
    let input = values(rows * inputs);
    let mut outs: Vec<Vec<f32>> = outputs.iter().map(|outputs| values(rows * outputs)).collect();
    let (kernels, pool) = (suite.kernels, std::sync::Arc::clone(&suite.pool));
    let (mut turn, mut scratch) = (0, LowRankScratch::default());
    let id = format!("{name} {} rank {rank} rows {rows} adapters {adapters}", format.name());
    suite.measure("low_rank", &id, work(&shape, rows, adapters), || {
        turn = (turn + 1) % copies;
        let terms: Vec<_> = factors[turn * adapters..(turn + 1) * adapters]
            .iter()
            .enumerate()
            .map(|(index, factors)| LowRankTerm {
                rows: index * rows / adapters..(index + 1) * rows / adapters,
                scale: 1e-3,
                gates: &[],
                update: LowRank::new(&shape, aligned(factors)),
            })
            .collect();
        let mut outs: Vec<&mut [f32]> = outs.iter_mut().map(|out| &mut out[..]).collect();
        kernels.add_low_rank(&pool, &input, &terms, &mut outs, &mut scratch);
    });
}

/// Rank 2 in F32, one row, one thread, factors in the second-level cache.
fn micro(suite: &mut Suite, width: usize) {
    let shape = shape(FactorFormat::F32, 2, width, &[width]);
    let (factors, input, mut out) = (bytes(&shape), values(width), values(width));
    let (kernels, pool) = (suite.kernels, ThreadPool::single());
    let mut scratch = LowRankScratch::default();
    let id = format!("{width} to {width} rank 2");
    suite.measure("micro_lora", &id, work(&shape, 1, 1), || {
        let update = LowRank::new(&shape, aligned(&factors));
        let terms = [LowRankTerm { rows: 0..1, scale: 1e-3, gates: &[], update }];
        kernels.add_low_rank(&pool, &input, &terms, &mut [&mut out], &mut scratch);
    });
}

fn shape(format: FactorFormat, rank: usize, inputs: usize, outputs: &[usize]) -> LowRankShape {
    let expansion = |(target, &outputs)| Expansion { target, first: target * rank, rank, outputs };
    let expansions = outputs.iter().enumerate().map(expansion).collect();
    LowRankShape::new(format, rank * outputs.len(), inputs, expansions, 0)
}

/// Random factors, with room for the alignment.
fn bytes(shape: &LowRankShape) -> Vec<f32> {
    let mut floats = vec![0.0; (shape.end() + FACTOR_ALIGN).div_ceil(size_of::<f32>())];
    let start = start(&floats);
    let bytes = &mut bytemuck::cast_slice_mut::<f32, u8>(&mut floats)[start..];
    let format = shape.format();
    let mut write = |rank: usize, width: usize, place: usize| {
        let values = values(rank * width);
        format.quantize(width, &values, &mut bytes[place..][..format.bytes(rank, width)]);
    };
    write(shape.rank(), shape.inputs(), shape.a());
    for (index, expansion) in shape.expansions().iter().enumerate() {
        write(expansion.rank, expansion.outputs, shape.b(index));
    }
    floats
}

fn start(floats: &[f32]) -> usize {
    floats.as_ptr().addr().next_multiple_of(FACTOR_ALIGN) - floats.as_ptr().addr()
}

fn aligned(floats: &[f32]) -> &[u8] {
    &bytemuck::cast_slice(floats)[start(floats)..]
}

/// Bytes of factors and products, and operations.
fn work(shape: &LowRankShape, rows: usize, adapters: usize) -> Work {
    let outputs: usize = shape.expansions().iter().map(|expansion| expansion.outputs).sum();
    let multiplications = shape.rank() * shape.inputs()
        + shape.expansions().iter().map(|expansion| expansion.rank * expansion.outputs).sum::<usize>();
    let bytes = adapters * shape.end() + 4 * rows * (shape.inputs() + 2 * outputs);
    Work { bytes: bytes as u64, flops: (2 * rows * multiplications) as u64 }
}
