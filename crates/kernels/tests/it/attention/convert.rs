//! Conversion of planes and reading of rows, against the values and bytes of storing.

use proptest::prelude::*;
use ruvllm_kernels::Kernels;
use ruvllm_kernels::attention::{KvBuffer, KvFormat, KvLayout, KvRole, KvScratch};

use super::fixture::{Random, assert_same_bits, convert_at, decode, plane_at, scalar, stored, with_format};

const ROLES: [KvRole; 2] = [KvRole::Keys, KvRole::Values];

fn converted(kernels: Kernels, role: KvRole, from: &KvLayout, plane: &KvBuffer, to: &KvLayout) -> KvBuffer {
    let mut out = KvBuffer::zeroed(to.plane_bytes()).unwrap();
    out.as_bytes_mut().fill(0x5a);
    convert_at(kernels, role, (from, plane), (to, &mut out), 0);
    out
}

/// Decodes the rows of all positions, `[block_tokens, n_kv_heads, head_dim]`, by the documented
/// layout.
fn decoded(layout: &KvLayout, role: KvRole, plane: &KvBuffer) -> Vec<f32> {
    let mut rows = Vec::new();
    for position in 0..layout.block_tokens() {
        for head in 0..layout.n_kv_heads() {
            for i in 0..layout.head_dim() {
                rows.push(decode(layout, role, plane.as_bytes(), [position, head, i]));
            }
        }
    }
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// A converted plane equals storing the values of the old one, byte for byte, on every
    /// instruction set.
    #[test]
    fn converting_is_storing_what_was_read(
        (from, to) in (0..KvFormat::ALL.len(), 0..KvFormat::ALL.len()),
        (n_kv_heads, head_dim, blocks) in (1usize..4, 1usize..70, 1usize..3),
        special in prop::option::of((prop_oneof![Just(f32::NAN), Just(f32::NEG_INFINITY), Just(1e6)], 0usize..4000)),
        seed in any::<u64>(),
    ) {
        let [from, to] = [from, to].map(|index| KvFormat::ALL[index]);
        let multiple = from.head_dim_multiple().max(to.head_dim_multiple());
        let (head_dim, block_tokens) = (head_dim.next_multiple_of(multiple), blocks * multiple.next_multiple_of(32));
        let from = KvLayout::new(from, n_kv_heads, block_tokens, head_dim).unwrap();
        let to = with_format(&from, to);
        let mut rows = Random(seed).values(block_tokens * n_kv_heads * head_dim);
        if let Some((garbage, at)) = special {
            let at = at % rows.len();
            rows[at] = garbage;
        }
        for role in ROLES {
            let plane = stored(scalar(), &from, role, &rows, 0);
            let expected = if from == to {
                plane.as_bytes().to_vec()
            } else {
                stored(scalar(), &to, role, &decoded(&from, role, &plane), 0).as_bytes().to_vec()
            };
            for kernels in Kernels::available() {
                let found = converted(kernels, role, &from, &plane, &to);
                prop_assert_eq!(found.as_bytes(), &expected[..], "{} {:?}", kernels.isa(), role);
            }
        }
    }

    /// Rows are read as the values of the documented layout.
    #[test]
    fn rows_are_read_as_they_are_laid_out(
        format in 0..KvFormat::ALL.len(),
        head_dim in 1usize..70,
        (first, n) in (0usize..128, 0usize..129),
        seed in any::<u64>(),
    ) {
        let format = KvFormat::ALL[format];
        let head_dim = head_dim.next_multiple_of(format.head_dim_multiple());
        let layout = KvLayout::new(format, 2, 128, head_dim).unwrap();
        let rows = Random(seed).values(128 * 2 * head_dim);
        let positions = first..(first + n).min(128);
        for role in ROLES {
            let plane = stored(scalar(), &layout, role, &rows, 0);
            let all = decoded(&layout, role, &plane);
            for head in 0..2 {
                let expected: Vec<f32> = positions
                    .clone()
                    .flat_map(|position| &all[(position * 2 + head) * head_dim..][..head_dim])
                    .copied()
                    .collect();
                for kernels in Kernels::available() {
                    let mut out = vec![f32::NAN; expected.len()];
                    let (plane, scratch) = (plane_at(layout, role, &plane, 0), &mut KvScratch::new());
                    kernels.read_kv(plane, head, positions.clone(), &mut out, scratch);
                    assert_same_bits(&out, &expected, &format!("{format} {role:?}"));
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "the layouts differ in more than the format")]
fn planes_of_other_sizes_are_refused() {
    let [small, large] = [32, 64].map(|tokens| KvLayout::new(KvFormat::F16, 1, tokens, 32).unwrap());
    let plane = KvBuffer::zeroed(small.plane_bytes()).unwrap();
    converted(scalar(), KvRole::Keys, &small, &plane, &large);
}
