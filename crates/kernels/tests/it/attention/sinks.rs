//! Attention sinks: scores without a value.

use ruvllm_kernels::attention::{AttentionScratch, AttentionShape, KvFormat, Mask};
use ruvllm_kernels::{Kernels, ThreadPool};

use super::fixture::{Random, Sequence, assert_close, assert_same_bits, best, scalar};

/// Sinks below, among and far above the scores, whose magnitudes are below 1.
const SINKS: [f32; 4] = [-30.0, -0.5, 1.0, 60.0];

fn with_sinks(tokens: usize, format: KvFormat) -> Sequence {
    let mut sequence = Sequence::new(71, tokens, 2, 32, format);
    sequence.sinks = Some(SINKS.to_vec());
    sequence
}

/// Any chunks, threads, instruction sets and window; splits that are merged and such that are not.
#[test]
fn sinks_take_part_in_the_softmax_with_the_same_bits_in_any_chunks() {
    let tokens = 1100;
    for (format, window) in [(KvFormat::F32, None), (KvFormat::Q8, None), (KvFormat::F16, Some(128))] {
        let sequence = with_sinks(tokens, format);
        let shape = AttentionShape { mask: Mask::Causal { window }, ..sequence.shape(2) };
        let width = 4 * 32;
        let q = Random(72).values(tokens * width);
        let reference = sequence.attend(scalar(), &ThreadPool::single(), &shape, &q);
        assert_close(&reference, &sequence.oracle(&shape, &q), &format!("{format}, {window:?}"));
        let mut scratch = AttentionScratch::new();
        for threads in [1, 3] {
            let pool = ThreadPool::new(threads).unwrap();
            for kernels in Kernels::available() {
                for (start, end) in [(0, 300), (300, 301), (700, 712), (1097, 1100), (1099, 1100)] {
                    let part = AttentionShape { query_start: start, n_queries: end - start, ..shape.clone() };
                    let rows = start * width..end * width;
                    let out = sequence.attend_with(kernels, &pool, &part, &q[rows.clone()], &mut scratch);
                    assert_same_bits(
                        &out,
                        &reference[rows],
                        &format!("{format}, {window:?}, {start}..{end}"),
                    );
                }
            }
        }
    }
}

/// The first query sees one key: its output is the value times the share of that key.
#[test]
fn a_sink_takes_its_share_and_has_no_value() {
    let sequence = with_sinks(1, KvFormat::F32);
    let shape = AttentionShape { scale: 0.0, ..sequence.shape(2) };
    let out = sequence.attend(best(), &ThreadPool::single(), &shape, &[1.0; 128]);
    for (head, (out, sink)) in out.chunks_exact(32).zip(SINKS).enumerate() {
        let share = 1.0 / (1.0 + f64::from(sink).exp());
        let value = &sequence.values[head / 2 * 32..][..32];
        let expected: Vec<f64> = value.iter().map(|&value| share * f64::from(value)).collect();
        assert_close(out, &expected, &format!("sink {sink}"));
    }
}

#[test]
fn queries_without_keys_get_zeros() {
    let sequence = with_sinks(40, KvFormat::F32);
    let shape = AttentionShape { mask: Mask::Causal { window: Some(0) }, ..sequence.shape(2) };
    let out = sequence.attend(best(), &ThreadPool::single(), &shape, &vec![1.0; 40 * 128]);
    assert!(out.iter().all(|&x| x == 0.0));
}

#[test]
fn bits_without_sinks_are_those_of_sinks_without_weight() {
    let mut sequence = with_sinks(600, KvFormat::F32);
    let q = Random(73).values(600 * 128);
    let shape = sequence.shape(2);
    sequence.sinks = Some(vec![-1e4; 4]);
    let weightless = sequence.attend(best(), &ThreadPool::single(), &shape, &q);
    sequence.sinks = None;
    let none = sequence.attend(best(), &ThreadPool::single(), &shape, &q);
    assert_same_bits(&weightless, &none, "no weight");
}

#[test]
#[should_panic(expected = "3 sinks for 4 query heads")]
fn another_number_of_sinks_is_refused() {
    let mut sequence = with_sinks(4, KvFormat::F32);
    sequence.sinks = Some(vec![0.0; 3]);
    sequence.attend(best(), &ThreadPool::single(), &sequence.shape(2), &[0.0; 4 * 128]);
}
