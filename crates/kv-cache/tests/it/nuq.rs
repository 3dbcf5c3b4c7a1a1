//! Blocks in `nuq3`, which mean nothing without a calibration and their place in the sequence.

use std::sync::Arc;

use ruvllm_kernels::ThreadPool;
use ruvllm_kernels::attention::{KvRole, NuqCodebooks};
use ruvllm_kernels::rope::RopeTable;
use ruvllm_kv_cache::{Error, KvCalibration, KvRopes, KvShape, KvStore, Probe, SampleScratch};

use crate::oracle::{
    Checked, SHAPE, calibrated_store, calibration, kernels, pool, read_rows, ropes, rows, several_ropes,
};

fn ids(n: usize, first: u32) -> Vec<u32> {
    (first..).take(n).collect()
}

#[test]
fn forks_and_cuts_keep_every_number() {
    let pool = pool(16);
    let store = calibrated_store("tiered:hot=32,sink=0,warm=nuq3,cold=off", &pool);
    let mut first = Checked::new(&store, 1000);
    first.append(&ids(130, 0)).expect("room");
    let migration = first.sequence.migrate(&kernels(), &ThreadPool::new(2).expect("threads"), usize::MAX);
    assert_eq!(migration.blocks, 3);
    first.check();
    let mut second = first.fork();
    // Into a block of 3 bits, which is copied before it is written.
    second.truncate(70);
    second.append(&ids(40, 500)).expect("room");
    second.check();
    first.append(&ids(3, 700)).expect("room");
    first.check();
}

#[test]
fn a_cold_tier_is_written_from_it_and_copies_of_prefixes_are_read() {
    let pool = pool(16);
    let store = calibrated_store("tiered:hot=32,sink=0,warm=nuq3,warm_tokens=32,cold=kivi2", &pool);
    let mut checked = Checked::new(&store, 1000);
    let threads = ThreadPool::single();
    for step in 0..5 {
        checked.append(&ids(32, 100 * step)).expect("room");
        checked.sequence.migrate(&kernels(), &threads, usize::MAX);
        checked.check();
    }
    let formats: Vec<String> =
        checked.sequence.blocks().iter().map(|block| block.formats().to_string()).collect();
    assert_eq!(formats, ["kivi2", "kivi2", "kivi2", "nuq3", "f16"]);
    let (blocks, tokens) = checked.prefix(4);
    let mut other = Checked::new(&store, 1000);
    other.sequence.append_shared(&blocks[..3]).expect("room");
    other.sequence.append_copy(&kernels(), &blocks[3], 20).expect("room");
    other.tokens = tokens[..3 * 32 + 20].to_vec();
    other.append(&ids(5, 900)).expect("room");
    other.check();
}

#[test]
fn positions_beyond_the_first_tables_are_turned_back() {
    let pool = pool(64);
    let store = calibrated_store("tiered:hot=0,sink=0,warm=nuq3,cold=off", &pool);
    let mut checked = Checked::new(&store, 4000);
    for step in 0..3 {
        checked.append(&ids(700, 1000 * step)).expect("room");
        checked.sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
    }
    checked.check();
}

#[test]
fn going_down_costs_something_and_is_sampled() {
    let pool = pool(16);
    let store = calibrated_store("tiered:hot=0,sink=0,warm=nuq3,cold=off", &pool);
    let mut checked = Checked::new(&store, 1000);
    let query: Vec<f32> = (0..4 * 32).map(|i| (i as f32).sin()).collect();
    let probe = Probe { layer: 1, query: &query, scale: 0.2, window: None, soft_cap: None };
    let mut scratch = SampleScratch::new();
    for step in 0..2 {
        // The second time, older blocks are read as they are in the lower tier.
        checked.append(&ids(100, 1000 * step)).expect("room");
        let sample = checked.sequence.sample(&kernels(), &ThreadPool::single(), &probe, &mut scratch);
        assert!(sample.error.is_some_and(|error| error > 0.0 && error < 0.5), "{sample:?}");
        assert!((sample.shares.iter().sum::<f32>() - 1.0).abs() < 1e-3, "{sample:?}");
        checked.sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
    }
}

/// The relative error of all keys of the blocks in `nuq3`, by layer, of a sequence of 128 tokens
/// whose keys are those of `turned` and the store's `ropes`.
fn key_errors(turned: &KvRopes, ropes: &KvRopes, capacity: usize) -> Vec<f64> {
    let pool = pool(16);
    let policy = "tiered:hot=0,sink=0,warm=nuq3,cold=off".parse().expect("a policy");
    // A range of its own for each dimension, as wide as noise.
    let middle = |index: usize| ((index * 7 % 32) as f32 - 16.0) / 4.0;
    let levels = [-0.93, -0.66, -0.4, -0.13, 0.13, 0.4, 0.66, 0.93];
    let ranges = (0..SHAPE.width()).map(|index| [middle(index) - 0.05, middle(index) + 0.05]).collect();
    let layer = NuqCodebooks::new(levels, levels, ranges).expect("ascending levels");
    let calibration = KvCalibration::new([0; 32], SHAPE, vec![layer; SHAPE.n_layers]).expect("a calibration");
    let store = KvStore::with_calibration(SHAPE, &policy, &pool, Arc::new(calibration), ropes);
    let mut sequence = store.expect("a store").sequence(capacity);
    let mut step = sequence.step(&kernels(), 128).expect("room");
    let noise = rows(&ids(128, 0), KvRole::Keys, 0);
    let mut exact = Vec::new();
    for layer in 0..SHAPE.n_layers {
        let mut keys: Vec<f32> =
            noise.iter().enumerate().map(|(i, x)| middle(i % SHAPE.width()) + 0.05 * x).collect();
        let rope = match (&turned.local, &turned.long) {
            (Some((rope, layers)), _) if layers[layer] => rope,
            (_, Some((above, rope))) if capacity > *above => rope,
            _ => &turned.usual,
        };
        let table = RopeTable::from_frequencies(&rope.frequencies, 0..128);
        kernels().rope(&table, rope.layout, 0..128, &mut keys, SHAPE.n_kv_heads, SHAPE.head_dim);
        step.write(&kernels(), layer, &keys, &keys);
        exact.push(keys);
    }
    step.commit();
    let migration = sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
    assert_eq!(migration.blocks, 4);
    let reader = sequence.read();
    let errors = exact.iter().enumerate().map(|(layer, exact)| {
        let mut views = Vec::new();
        let kv = reader.view(layer, &mut views);
        let found: Vec<f32> = kv.blocks().iter().flat_map(|view| read_rows(view.keys)).collect();
        let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        norm(&mut exact.iter().zip(&found).map(|(a, b)| a - b)) / norm(&mut exact.iter().copied())
    });
    errors.collect()
}

#[test]
fn keys_are_turned_back_as_their_layer_and_their_sequence_turned_them() {
    let (one, several) = (ropes(), several_ropes());
    for capacity in [500, 501] {
        for (turned, ropes) in [(&one, &one), (&several, &several)] {
            let errors = key_errors(turned, ropes, capacity);
            // Noise of 0.05 in levels an eighth of its range apart, on numbers of 2 and more.
            assert!(errors.iter().all(|&error| error < 0.01), "{errors:?}");
        }
    }
    // Keys that were turned in another way lie far outside of their ranges.
    let [first, second] = key_errors(&several, &one, 500)[..] else { panic!("two layers") };
    assert!(first > 0.1 && second < 0.01, "{first}, {second}: the first layer is local");
    let [first, second] = key_errors(&several, &one, 501)[..] else { panic!("two layers") };
    assert!(first > 0.1 && second > 0.1, "{first}, {second}: the sequence is long");
}

#[test]
fn need_and_model_of_a_calibration_are_checked() {
    let pool = pool(16);
    let policy = "tiered:warm=nuq3".parse().expect("a policy");
    assert!(matches!(KvStore::new(SHAPE, &policy, &pool), Err(Error::NoCalibration { .. })));
    let other = KvShape { n_layers: 3, ..SHAPE };
    let found = KvStore::with_calibration(SHAPE, &policy, &pool, calibration(other), &ropes());
    assert!(matches!(found, Err(Error::CalibrationShape { .. })));
    let none = "tiered".parse().expect("a policy");
    let found = KvStore::with_calibration(SHAPE, &none, &pool, calibration(SHAPE), &ropes());
    assert!(matches!(found, Err(Error::PolicyConflict { .. })));
}
