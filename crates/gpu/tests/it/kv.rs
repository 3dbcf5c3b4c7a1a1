//! Keys and values in 8 bits beside those of the CPU.

use half::f16;
use ruvllm_gpu::{Gpu, KvBlocks, KvFormat, KvRows, RopeKernel, RopeKvKernel, RopeLayout};
use ruvllm_kernels::Kernels;
use ruvllm_kernels::attention::{self, KvBuffer, KvLayout, KvPlaneMut, KvRole};

use crate::gpu;

const DIM: usize = 96;
const HEADS: usize = 2;
/// Tokens, all of one block.
const TOKENS: usize = 20;

/// Quants and bits of the scales, `[tokens, heads, head_dim]` and `[tokens, heads, head_dim / 32]`.
type Stored = (Vec<i8>, Vec<u16>);

/// Rows `[tokens, heads, head_dim]` of all magnitudes, with groups of zeros and of values that are
/// tiny, large, or not finite.
fn rows() -> Vec<f32> {
    let mut rows: Vec<f32> = (0..TOKENS * HEADS * DIM).map(|i| (i as f32 * 0.61).sin()).collect();
    for (token, row) in rows.chunks_exact_mut(HEADS * DIM).enumerate() {
        row.iter_mut().for_each(|x| *x *= 10.0_f32.powi(token as i32 % 7 - 3));
    }
    let groups = rows.as_chunks_mut::<32>().0;
    groups[0].fill(0.0);
    groups[1].fill(1e-12);
    groups[2].fill(-3.0);
    groups[7].iter_mut().for_each(|x| *x *= 60_000.0);
    groups[8][5] = 8.0e6; // in the range of f16 scales
    groups[9][5] = 9.0e6; // beyond it
    groups[10][31] = f32::INFINITY;
    groups[11][0] = -f32::INFINITY;
    groups[12][3] = f32::NAN;
    rows
}

/// The CPU's, from its planes: keys `[head_dim, 32]`, values `[32, head_dim]`, then scales.
fn on_cpu(role: KvRole, rows: &[f32]) -> Stored {
    let layout = KvLayout::new(attention::KvFormat::Q8, HEADS, 32, DIM).unwrap();
    let mut buffer = KvBuffer::zeroed(layout.plane_bytes()).unwrap();
    let plane = KvPlaneMut::new(layout, role, &mut buffer.as_bytes_mut()[..layout.plane_bytes()]);
    Kernels::detect().unwrap().store_kv(plane, 0, rows);
    let (mut quants, mut scales) = (Vec::new(), Vec::new());
    for (token, head) in (0..TOKENS).flat_map(|token| (0..HEADS).map(move |head| (token, head))) {
        let run = &buffer.as_bytes()[head * layout.plane_bytes() / HEADS..];
        let at = |index: usize, columns: usize| match role {
            KvRole::Keys => index * 32 + token,
            KvRole::Values => token * columns + index,
        };
        quants.extend((0..DIM).map(|d| run[at(d, DIM)] as i8));
        scales.extend((0..DIM / 32).map(|group| half(run, 32 * DIM + 2 * at(group, DIM / 32))));
    }
    (quants, scales)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Keys and values of the GPU, from the layout of `KvBlocks`, with RoPE by an angle of 0.
fn on_gpu(gpu: &Gpu, rows: &[f32]) -> [Stored; 2] {
    let (heads, kv_heads, head_dim) = (1, HEADS as u32, DIM as u32);
    let kv = KvBlocks::new(gpu, KvFormat::Q8, 1, kv_heads, head_dim).unwrap();
    let rope = RopeKernel { heads, head_dim, rotary_dim: 2, layout: RopeLayout::Halves };
    // A query, then the same rows as keys and as values.
    let row = |row: &[f32]| [&vec![0.5; DIM][..], row, row].concat();
    let qkv: Vec<f32> = rows.chunks_exact(HEADS * DIM).flat_map(row).collect();
    let indices: Vec<u32> = (0..TOKENS as u32).collect();
    let kv_rows =
        KvRows { positions: gpu.upload(&[0_u32; TOKENS]).unwrap(), slots: gpu.upload(&indices).unwrap() };
    let (qkv, angles) = (gpu.upload(&qkv).unwrap(), gpu.upload(&[1.0_f32, 0.0]).unwrap());
    let queries = gpu.zeroed((TOKENS * DIM * 4) as u64).unwrap();
    let key = RopeKvKernel { rope, kv_heads, format: KvFormat::Q8, scaled: false };
    gpu.run(&[&gpu.rope_kv(key, &qkv, &angles, &kv_rows, &kv, &queries).unwrap()]).unwrap();
    assert!(gpu.download::<f32>(&queries).unwrap().iter().all(|&query| query == 0.5));
    [(kv.keys(), true), (kv.values().unwrap(), false)].map(|(buffer, is_keys)| {
        let bytes: Vec<u8> = gpu.download(buffer).unwrap();
        let head_bytes = bytes.len() / HEADS;
        let (mut quants, mut scales) = (Vec::new(), Vec::new());
        for (token, head) in (0..TOKENS).flat_map(|token| (0..HEADS).map(move |head| (token, head))) {
            let block = &bytes[head * head_bytes..][..head_bytes];
            let at = |d: usize| if is_keys { (d / 16 * 32 + token) * 16 + d % 16 } else { token * DIM + d };
            quants.extend((0..DIM).map(|d| block[at(d)] as i8));
            let scale = |group: usize| half(block, 32 * DIM + (group / 2 * 32 + token) * 4 + group % 2 * 2);
            scales.extend((0..DIM / 32).map(scale));
        }
        (quants, scales)
    })
}

/// A division that is rounded otherwise moves a scale by one step, and a quant at a tie.
#[test]
fn keys_and_values_in_8_bits_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let rows = rows();
    for ((found, found_scales), role) in on_gpu(&gpu, &rows).into_iter().zip([KvRole::Keys, KvRole::Values]) {
        let (expected, expected_scales) = on_cpu(role, &rows);
        let mut other = 0;
        for (group, (&scale, &bits)) in found_scales.iter().zip(&expected_scales).enumerate() {
            let (found, expected) = (&found[group * 32..][..32], &expected[group * 32..][..32]);
            let (value, exact) = (f16::from_bits(scale), f16::from_bits(bits));
            if exact.is_nan() {
                assert!(value.is_nan(), "{role:?}, group {group}: {value}");
                continue;
            }
            assert!(scale.abs_diff(bits) <= 1, "{role:?}, group {group}: scale {value}, {exact} on the CPU");
            let differ = found.iter().zip(expected).filter(|(a, b)| a != b).count();
            let largest = found.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(largest <= Some(1), "{role:?}, group {group}: {found:?}, {expected:?} on the CPU");
            other += usize::from(scale != bits || differ > 0);
        }
        let nans = expected_scales.iter().filter(|&&bits| f16::from_bits(bits).is_nan()).count();
        assert_eq!(nans, 4, "{role:?}");
        // Of 120 groups.
        assert!(other <= 3, "{role:?}: {other} groups differ");
    }
}
