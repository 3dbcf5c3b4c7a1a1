//! Results of a probe against float64.

use ruvllm_kernels::ThreadPool;
use ruvllm_kernels::attention::KvRole;
use ruvllm_kv_cache::{Probe, SampleScratch, Sequence};

use crate::oracle::{Checked, SHAPE, kernels, pool, read_rows, rows, store};

const LAYER: usize = 1;
const BLOCK: usize = 32;

/// Softmax of the scores of one query head with `keys`, `[tokens, n_kv_heads, head_dim]`.
fn probabilities(probe: &Probe<'_>, head: usize, keys: &[f32]) -> Vec<f64> {
    let query = &probe.query[head * SHAPE.head_dim..][..SHAPE.head_dim];
    let weight = |row: &[f32]| {
        let key = &row[head / 2 * SHAPE.head_dim..][..SHAPE.head_dim];
        let product: f64 = query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
        let score = f64::from(probe.scale) * product;
        probe.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh()).exp()
    };
    let weights: Vec<f64> = keys.chunks(SHAPE.width()).map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// The share of each block, a mean over the four heads.
fn shares(probe: &Probe<'_>, keys: &[f32]) -> Vec<f64> {
    let mut shares = vec![0.0; keys.len() / SHAPE.width() / BLOCK];
    for head in 0..4 {
        for (at, probability) in probabilities(probe, head, keys).into_iter().enumerate() {
            shares[at / BLOCK] += probability / 4.0;
        }
    }
    shares
}

/// Attention over one block, all heads.
fn attend(probe: &Probe<'_>, sequence: &Sequence, block: usize) -> Vec<f64> {
    let (reader, mut views) = (sequence.read(), Vec::new());
    reader.view(LAYER, &mut views);
    let keys = read_rows(views[block].keys);
    let values = read_rows(views[block].values);
    let mut out = vec![0.0; 4 * SHAPE.head_dim];
    for (head, out) in out.chunks_mut(SHAPE.head_dim).enumerate() {
        for (probability, row) in
            probabilities(probe, head, &keys).into_iter().zip(values.chunks(SHAPE.width()))
        {
            let value = &row[head / 2 * SHAPE.head_dim..];
            out.iter_mut().zip(value).for_each(|(out, &value)| *out += probability * f64::from(value));
        }
    }
    out
}

#[test]
fn shares_and_error_are_those_of_capped_attention() {
    let tokens: Vec<u32> = (0..160).collect();
    let keys = rows(&tokens, KvRole::Keys, LAYER);
    let query: Vec<f32> = (0..2 * SHAPE.width()).map(|i| (i as f32 * 0.37).sin()).collect();
    let estimate = |soft_cap| {
        let probe = Probe { layer: LAYER, query: &query, scale: 4.0, window: None, soft_cap };
        let pool = pool(16);
        let mut checked = Checked::new(&store("tiered:hot=64,sink=0,warm=kivi2", &pool), 1000);
        checked.append(&tokens).expect("room");
        let threads = ThreadPool::single();
        let mut scratch = SampleScratch::new();
        let sample = checked.sequence.sample(&kernels(), &threads, &probe, &mut scratch);
        let expected = shares(&probe, &keys);
        for (&found, &expected) in sample.shares.iter().zip(&expected) {
            assert!((f64::from(found) - expected).abs() < 1e-5, "{:?}, not {expected:?}", sample.shares);
        }
        // Of the three blocks that are due the youngest is looked at: before and after it goes
        // down.
        let error = f64::from(sample.error.expect("blocks are due"));
        let exact = attend(&probe, &checked.sequence, 2);
        checked.sequence.migrate(&kernels(), &threads, usize::MAX);
        assert_eq!(checked.sequence.blocks()[2].formats().to_string(), "kivi2");
        let coarse = attend(&probe, &checked.sequence, 2);
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let lost =
            norm(&mut exact.iter().zip(&coarse).map(|(a, b)| a - b)) / norm(&mut exact.iter().copied());
        let share: f64 = expected[..3].iter().sum();
        // Products of single precision against float64, and the output of attention in the same.
        assert!((error - lost * share).abs() < 1e-4 * error, "{error}, not {}", lost * share);
        error
    };
    let [free, capped] = [None, Some(0.5)].map(estimate);
    assert!((free - capped).abs() > 0.05 * capped, "the cap makes a difference: {free} and {capped}");
}
