//! Attention against an f64 oracle, and bit-identity in the canonical order.

mod batch;
mod convert;
mod fixture;
mod formats;
mod goldens;
mod latent;
mod nuq;
mod property;
mod sinks;
mod squat;
mod turbo;

use fixture::{Random, Sequence, assert_close, assert_same_bits, best, scalar};
use ruvllm_kernels::attention::{
    AttentionScratch, AttentionShape, KvBlock, KvFormat, KvLayout, KvPlane, KvRole, KvView, Mask,
};
use ruvllm_kernels::{Kernels, ThreadPool};

#[test]
fn lengths_around_tiles_and_splits() {
    let pool = ThreadPool::single();
    for tokens in [1, 2, 31, 32, 33, 63, 65, 511, 512, 513, 1030] {
        let sequence = Sequence::new(tokens as u64, tokens, 1, 16, KvFormat::F32);
        let last = AttentionShape { query_start: tokens - 1, n_queries: 1, ..sequence.shape(2) };
        let q = Random(5).values(2 * 16);
        let expected = sequence.oracle(&last, &q);
        for kernels in Kernels::available() {
            assert_close(&sequence.attend(kernels, &pool, &last, &q), &expected, &format!("{tokens} tokens"));
        }
    }
}

#[test]
fn no_queries_and_no_tokens() {
    let kv = KvView::new(&[], 0);
    let sequence = Sequence::new(1, 1, 2, 8, KvFormat::F32);
    let shape = AttentionShape { n_queries: 0, ..sequence.shape(1) };
    best().attention(&ThreadPool::single(), &shape, &[], &kv, &mut [], &mut AttentionScratch::new());
}

#[test]
fn groups_and_head_sizes() {
    let pool = ThreadPool::single();
    let cases: [(usize, usize, usize); 11] = [
        (4, 1, 8),
        (2, 4, 64),
        (1, 7, 80),
        (1, 8, 128),
        (2, 1, 128),
        (2, 1, 256),
        (1, 6, 96),
        (3, 1, 32),
        (1, 3, 20),
        (1, 2, 1),
        (2, 5, 33),
    ];
    for (n_kv_heads, group, head_dim) in cases {
        for format in KvFormat::ALL {
            if !head_dim.is_multiple_of(format.head_dim_multiple()) {
                continue;
            }
            let block_tokens = format.block_tokens_multiple().max(64);
            let mut random = Random(7);
            let mut rows = || random.values(70 * n_kv_heads * head_dim);
            let (keys, values) = (rows(), rows());
            let formats = [[format; 2]];
            let sequence = Sequence::from_rows(n_kv_heads, head_dim, block_tokens, &formats, keys, values);
            let shape = sequence.shape(group);
            let q = Random(3).values(70 * n_kv_heads * group * head_dim);
            let expected = sequence.oracle(&shape, &q);
            let what = format!("{n_kv_heads} x {group} heads of {head_dim}, {format}");
            let reference = sequence.attend(scalar(), &pool, &shape, &q);
            assert_close(&reference, &expected, &what);
            for kernels in Kernels::available() {
                assert_same_bits(&sequence.attend(kernels, &pool, &shape, &q), &reference, &what);
            }
        }
    }
}

#[test]
fn windows() {
    let pool = ThreadPool::single();
    let sequence = Sequence::new(9, 130, 1, 16, KvFormat::F32);
    let q = Random(4).values(130 * 3 * 16);
    for window in [0, 1, 5, 31, 32, 33, 100, 130, 1000, usize::MAX] {
        let shape = AttentionShape { mask: Mask::Causal { window: Some(window) }, ..sequence.shape(3) };
        let expected = sequence.oracle(&shape, &q);
        let reference = sequence.attend(scalar(), &pool, &shape, &q);
        assert_close(&reference, &expected, &format!("window {window}"));
        assert_same_bits(
            &sequence.attend(best(), &pool, &shape, &q),
            &reference,
            &format!("window {window}"),
        );
    }
}

#[test]
fn a_window_over_several_splits() {
    let sequence = Sequence::new(10, 1300, 1, 8, KvFormat::F32);
    let q = Random(4).values(1300 * 8);
    let shape = AttentionShape { mask: Mask::Causal { window: Some(600) }, ..sequence.shape(1) };
    let expected = sequence.oracle(&shape, &q);
    let reference = sequence.attend(best(), &ThreadPool::single(), &shape, &q);
    assert_close(&reference, &expected, "window 600 of 1300");
    let pool = ThreadPool::new(3).unwrap();
    let tail = AttentionShape { query_start: 1298, n_queries: 2, ..shape };
    let out = sequence.attend(best(), &pool, &tail, &q[1298 * 8..]);
    assert_same_bits(&out, &reference[1298 * 8..], "window 600, the last two queries alone");
}

#[test]
fn queries_of_a_full_mask_see_all_keys_wherever_they_stand() {
    let sequence = Sequence::new(12, 530, 2, 16, KvFormat::F32);
    let q = Random(4).values(530 * 2 * 16);
    let full = AttentionShape { mask: Mask::Full, ..sequence.shape(1) };
    let reference = sequence.attend(scalar(), &ThreadPool::single(), &full, &q);
    assert_close(&reference, &sequence.oracle(&full, &q), "full mask");
    let pool = ThreadPool::new(3).unwrap();
    for kernels in Kernels::available() {
        for (first, n_queries, query_start) in [(0, 530, 7), (100, 3, 0), (529, 1, 529)] {
            let part = AttentionShape { query_start, n_queries, ..full.clone() };
            let rows = first * 32..(first + n_queries) * 32;
            let out = sequence.attend(kernels, &pool, &part, &q[rows.clone()]);
            assert_same_bits(&out, &reference[rows], "some queries alone");
        }
        // The last query of a causal mask sees the same keys.
        let last = AttentionShape { query_start: 529, n_queries: 1, ..sequence.shape(1) };
        let out = sequence.attend(kernels, &pool, &last, &q[529 * 32..]);
        assert_same_bits(&out, &reference[529 * 32..], "causal, the last query");
    }
}

#[test]
#[should_panic(expected = "linear biases need a causal mask")]
fn linear_biases_of_a_full_mask_are_refused() {
    let sequence = Sequence::new(51, 10, 1, 8, KvFormat::F32);
    let shape = AttentionShape { mask: Mask::Full, alibi: Some(8.0), ..sequence.shape(1) };
    sequence.attend(best(), &ThreadPool::single(), &shape, &[0.0; 80]);
}

/// `ALiBi` depends on distances, not positions: a window far beyond 2^24, where f32 cannot
/// represent every position, gives the same bits as the same keys at the beginning.
#[test]
fn linear_biases_far_into_a_sequence() {
    let (block_tokens, head_dim, tokens) = (1 << 16, 8, 1024);
    let layout = KvLayout::new(KvFormat::F32, 1, block_tokens, head_dim).unwrap();
    let mut random = Random(52);
    let [keys, values] = [KvRole::Keys, KvRole::Values]
        .map(|role| fixture::stored(best(), &layout, role, &random.values(tokens * head_dim), 0));
    let keys = KvPlane::new(layout, KvRole::Keys, keys.as_bytes());
    let values = KvPlane::new(layout, KvRole::Values, values.as_bytes());
    let last = 1000;
    // All blocks are one.
    let blocks = vec![KvBlock { keys, values }; (1 << 30) / block_tokens + 1];
    let q = random.values(3 * 2 * head_dim);
    let attend = |kernels: Kernels, first: usize| {
        let shape = AttentionShape {
            n_heads: 2,
            n_kv_heads: 1,
            head_dim,
            query_start: first + last - 2,
            n_queries: 3,
            scale: 0.5,
            mask: Mask::Causal { window: Some(100) },
            soft_cap: None,
            alibi: Some(4.0),
        };
        let mut out = vec![f32::NAN; q.len()];
        let kv = KvView::new(&blocks, first + last + 1);
        let mut scratch = AttentionScratch::new();
        kernels.attention(&ThreadPool::single(), &shape, &q, &kv, &mut out, &mut scratch);
        out
    };
    for kernels in Kernels::available() {
        let near = attend(kernels, 0);
        for first in [1 << 25, 1 << 30] {
            assert_same_bits(&attend(kernels, first), &near, &format!("from position {first} on"));
        }
    }
}

#[test]
fn a_full_mask_ignores_the_position_of_its_queries() {
    let sequence = Sequence::new(53, 40, 1, 8, KvFormat::F32);
    let q = Random(54).values(40 * 8);
    let shape = AttentionShape { mask: Mask::Full, ..sequence.shape(1) };
    let far = AttentionShape { query_start: usize::MAX, ..shape.clone() };
    let [shape, far] = [shape, far].map(|s| sequence.attend(best(), &ThreadPool::single(), &s, &q));
    assert_same_bits(&far, &shape, "at the last position");
}

#[test]
#[should_panic(expected = "length of queries or output")]
fn a_product_of_the_shape_that_overflows_is_refused() {
    let sequence = Sequence::new(55, 10, 1, 8, KvFormat::F32);
    // Overflows to 16 in `usize`.
    let n_queries = (1 << (usize::BITS - 3)) + 2;
    let shape = AttentionShape { mask: Mask::Full, n_queries, ..sequence.shape(1) };
    sequence.attend(best(), &ThreadPool::single(), &shape, &[0.0; 16]);
}

#[test]
fn soft_cap() {
    let pool = ThreadPool::single();
    let sequence = Sequence::new(11, 70, 1, 32, KvFormat::F32);
    let mut q = Random(6).values(70 * 2 * 32);
    q.iter_mut().for_each(|q| *q *= 40.0);
    for cap in [0.5, 20.0, 50.0] {
        let shape = AttentionShape { soft_cap: Some(cap), ..sequence.shape(2) };
        let expected = sequence.oracle(&shape, &q);
        let reference = sequence.attend(scalar(), &pool, &shape, &q);
        assert_close(&reference, &expected, &format!("cap {cap}"));
        assert_same_bits(&sequence.attend(best(), &pool, &shape, &q), &reference, &format!("cap {cap}"));
    }
}

#[test]
fn scores_of_ten_thousand() {
    // One large score per key, exactly representable, so that the oracle differs only by the
    // softmax.
    let tokens = 100;
    let mut keys = vec![0.0; tokens * 8];
    for (t, key) in keys.chunks_mut(8).enumerate() {
        key[0] = if t % 3 == 0 { 100.0 } else { -100.0 };
        key[1] = (t % 7) as f32;
    }
    let values = Random(8).values(tokens * 8);
    let sequence = Sequence::from_rows(1, 8, 32, &[[KvFormat::F32; 2]], keys, values);
    let shape = AttentionShape { scale: 1.0, ..sequence.shape(1) };
    let mut q = vec![0.0; tokens * 8];
    q.chunks_mut(8).for_each(|q| (q[0], q[1]) = (100.0, 1.0));
    for kernels in Kernels::available() {
        let out = sequence.attend(kernels, &ThreadPool::single(), &shape, &q);
        assert_close(&out, &sequence.oracle(&shape, &q), "scores of 1e4");
    }
}

/// The result of a token does not depend on the division of the work.
#[test]
fn any_chunking_and_any_threads_give_the_same_bits() {
    let tokens = 1100;
    for (format, group, head_dim) in [(KvFormat::F32, 4, 8), (KvFormat::F16, 3, 16), (KvFormat::F16, 1, 12)] {
        let sequence = Sequence::new(21, tokens, 2, head_dim, format);
        let shape = sequence.shape(group);
        let width = 2 * group * head_dim;
        let q = Random(22).values(tokens * width);
        let single = ThreadPool::single();
        let reference = sequence.attend(best(), &single, &shape, &q);
        let mut scratch = AttentionScratch::new();
        for threads in [1, 2, 3] {
            let pool = ThreadPool::new(threads).unwrap();
            for chunk in [1, 7, 64, 512, tokens] {
                // Token by token is slow to repeat: only the last ones.
                let first = if chunk == 1 { tokens - 40 } else { 0 };
                for start in (first..tokens).step_by(chunk) {
                    let end = (start + chunk).min(tokens);
                    let part = AttentionShape { query_start: start, n_queries: end - start, ..shape.clone() };
                    let rows = start * width..end * width;
                    let out = sequence.attend_with(best(), &pool, &part, &q[rows.clone()], &mut scratch);
                    let what = format!("{format}, {threads} threads, chunks of {chunk} at {start}");
                    assert_same_bits(&out, &reference[rows], &what);
                }
            }
        }
        let last = AttentionShape { query_start: tokens - 3, n_queries: 3, ..shape };
        let out = sequence.attend(scalar(), &single, &last, &q[(tokens - 3) * width..]);
        assert_same_bits(&out, &reference[(tokens - 3) * width..], "scalar");
    }
}

#[test]
fn nan_reaches_those_who_see_it_and_nobody_else() {
    let tokens = 80;
    let clean = Sequence::new(31, tokens, 1, 16, KvFormat::F32);
    let shape = clean.shape(4);
    let q = Random(32).values(tokens * 4 * 16);
    let expected = clean.attend(best(), &ThreadPool::single(), &shape, &q);
    for spoiled in [f32::NAN, f32::INFINITY] {
        let (mut keys, mut values) = (clean.keys.clone(), clean.values.clone());
        keys[41 * 16 + 3] = f32::NAN;
        values[60 * 16 + 5] = spoiled;
        let sequence = Sequence::from_rows(1, 16, 64, &[[KvFormat::F32; 2]], keys, values);
        for kernels in Kernels::available() {
            let out = sequence.attend(kernels, &ThreadPool::single(), &shape, &q);
            assert_same_bits(&out[..41 * 64], &expected[..41 * 64], "before the NaN");
            assert!(out[41 * 64..].iter().all(|x| x.is_nan()));
        }
    }
}

#[test]
fn infinite_scores_weigh_nothing_or_give_nan() {
    let keys = vec![1.0; 40 * 8];
    let sequence = Sequence::from_rows(1, 8, 32, &[[KvFormat::F32; 2]], keys, vec![1.0; 40 * 8]);
    let shape = AttentionShape { query_start: 39, n_queries: 1, ..sequence.shape(1) };
    for kernels in Kernels::available() {
        let out = sequence.attend(kernels, &ThreadPool::single(), &shape, &[f32::MIN; 8]);
        assert_eq!(out, [0.0; 8], "all scores -inf");
        let out = sequence.attend(kernels, &ThreadPool::single(), &shape, &[f32::MAX; 8]);
        assert!(out.iter().all(|x| x.is_nan()), "all scores +inf");
    }
}

#[test]
fn blocks_may_differ_in_format() {
    let rows = || Random(41).values(1500 * 2 * 128);
    let mixed: Vec<[KvFormat; 2]> =
        KvFormat::ALL.iter().zip(KvFormat::ALL.iter().rev()).map(|(&keys, &values)| [keys, values]).collect();
    let sequence = Sequence::from_rows(2, 128, 128, &mixed, rows(), rows());
    // Few rows read keys and values in place, many widen them first.
    for n_queries in [1, 40] {
        let shape = AttentionShape { query_start: 1500 - n_queries, n_queries, ..sequence.shape(2) };
        let q = Random(42).values(n_queries * 4 * 128);
        let pool = ThreadPool::single();
        let reference = sequence.attend(scalar(), &pool, &shape, &q);
        assert_close(&reference, &sequence.oracle(&shape, &q), "mixed blocks");
        for kernels in Kernels::available() {
            assert_same_bits(&sequence.attend(kernels, &pool, &shape, &q), &reference, "mixed blocks");
        }
        // The same values in single precision, in blocks of another size.
        let (keys, values) = (&sequence.keys, &sequence.values);
        for block_tokens in [32, 64, 320] {
            let formats = [[KvFormat::F32; 2]];
            let f32s = Sequence::from_rows(2, 128, block_tokens, &formats, keys.clone(), values.clone());
            assert_same_bits(&f32s.attend(best(), &pool, &shape, &q), &reference, "f32 blocks");
        }
    }
}

#[test]
#[should_panic(expected = "the keys end at 10")]
fn queries_past_the_keys_are_refused() {
    let sequence = Sequence::new(51, 10, 1, 8, KvFormat::F32);
    let shape = AttentionShape { query_start: 10, n_queries: 1, ..sequence.shape(1) };
    sequence.attend(best(), &ThreadPool::single(), &shape, &[0.0; 8]);
}
