//! Index against an exact scan and against a plain map; damaged files.

use std::collections::BTreeMap;
use std::fs;

use proptest::prelude::*;

use super::*;
use crate::random::Random;

/// Vectors in clusters, as embeddings are: a common direction, topics, and noise around them.
struct Clusters {
    topics: Vec<Vec<f32>>,
    random: Random,
}

impl Clusters {
    fn new(dim: usize, topics: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let common: Vec<f32> = (0..dim).map(|_| normal(&mut random)).collect();
        let topic = |random: &mut Random| common.iter().map(|c| 0.5 * c + normal(random)).collect();
        let topics = (0..topics).map(|_| topic(&mut random)).collect();
        Self { topics, random }
    }

    fn draw(&mut self) -> Vec<f32> {
        let topic = &self.topics[self.random.below(self.topics.len())];
        topic.iter().map(|x| x + 0.6 * normal(&mut self.random)).collect()
    }
}

/// Sum of twelve uniform numbers: nearly normal.
fn normal(random: &mut Random) -> f32 {
    (0..12).map(|_| random.uniform()).sum::<f64>() as f32 - 6.0
}

fn config(precision: Precision) -> IndexConfig {
    IndexConfig { precision, flat_up_to: 0, ef_insert: 64, ..IndexConfig::default() }
}

fn filled(n: u64, dim: usize, config: IndexConfig) -> (VectorIndex, Clusters) {
    let mut clusters = Clusters::new(dim, 20, 3);
    let mut index = VectorIndex::new(dim, config).unwrap();
    for key in 0..n {
        index.insert(key, &clusters.draw()).unwrap();
    }
    (index, clusters)
}

/// Share of the exact ten nearest that a search finds, over 50 queries.
fn recall(index: &VectorIndex, clusters: &mut Clusters, filter: impl Fn(u64) -> bool + Copy) -> f64 {
    let mut found = 0;
    for _ in 0..50 {
        let query = clusters.draw();
        let exact = index.search_exact(&query, 10, filter).unwrap();
        let hits = index.search_where(&query, 10, filter).unwrap();
        assert!(hits.iter().all(|hit| filter(hit.key)));
        found += hits.iter().filter(|hit| exact.iter().any(|e| e.key == hit.key)).count();
    }
    found as f64 / 500.0
}

#[test]
fn recall_against_exact_search_in_both_precisions() {
    for precision in [Precision::F32, Precision::Int8] {
        let (index, mut clusters) = filled(1500, 48, config(precision));
        let all = recall(&index, &mut clusters, |_| true);
        assert!(all >= 0.97, "{precision:?}: {all}");
        let few = recall(&index, &mut clusters, |key| key % 50 == 0);
        assert!(few >= 0.97, "{precision:?}, filtered: {few}");
    }
}

#[test]
fn recall_stays_after_most_vectors_were_replaced() {
    let (mut index, mut clusters) = filled(400, 32, config(Precision::Int8));
    for key in 400..1200 {
        index.insert(key, &clusters.draw()).unwrap();
        assert!(index.remove(key - 400));
    }
    assert_eq!((index.len(), index.contains(799), index.contains(800)), (400, false, true));
    assert!(index.graph.len() <= 501, "{} slots", index.graph.len());
    let recall = recall(&index, &mut clusters, |_| true);
    assert!(recall >= 0.97, "{recall}");
}

#[test]
fn int8_similarities_are_those_of_f32_within_the_precision_of_f16() {
    let (int8, mut clusters) = filled(300, 384, IndexConfig::default());
    let (f32s, _) = filled(300, 384, IndexConfig { precision: Precision::F32, ..IndexConfig::default() });
    let query = clusters.draw();
    let (a, b) = (int8.search(&query, 300).unwrap(), f32s.search(&query, 300).unwrap());
    assert_eq!(a.len(), 300);
    let by_key: BTreeMap<u64, f32> = b.iter().map(|hit| (hit.key, hit.similarity)).collect();
    // Each product has two relative errors of 2^-11, and the vectors are of length 1.
    assert!(a.iter().all(|hit| (hit.similarity - by_key[&hit.key]).abs() < 2.0 / 2048.0));
    assert!(int8.memory_bytes() < f32s.memory_bytes());
}

#[test]
fn bad_vectors_and_settings_are_refused() {
    let mut index = VectorIndex::new(3, IndexConfig::default()).unwrap();
    let dimension = index.insert(1, &[1.0, 2.0]).unwrap_err();
    assert_eq!(dimension.to_string(), "vector has 2 values, need 3");
    assert!(matches!(index.insert(1, &[f32::NAN, 0.0, 0.0]), Err(Error::NotFinite { .. })));
    assert!(matches!(index.insert(1, &[f32::INFINITY, 0.0, 0.0]), Err(Error::NotFinite { .. })));
    assert!(matches!(index.search(&[0.0; 3], 1), Err(Error::ZeroVector { .. })));
    assert!(index.is_empty() && index.search(&[1.0, 0.0, 0.0], 5).unwrap().is_empty());
    for config in [
        IndexConfig { m: 1, ..IndexConfig::default() },
        IndexConfig { ef_insert: 3, ..IndexConfig::default() },
        IndexConfig { ef_search: 0, ..IndexConfig::default() },
    ] {
        assert!(matches!(VectorIndex::new(3, config), Err(Error::Setting { .. })));
    }
    index.insert(1, &[f32::MAX, f32::MAX, 0.0]).unwrap();
    assert!((index.search(&[1.0, 1.0, 0.0], 1).unwrap()[0].similarity - 1.0).abs() < 1e-3);
}

type Vectors = Vec<(u64, Vec<f32>)>;

fn saved(n: u64) -> (tempfile::TempDir, std::path::PathBuf, Vectors, VectorIndex) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.graph");
    let mut clusters = Clusters::new(16, 5, 9);
    let vectors: Vectors = (0..n).map(|key| (key * 7, clusters.draw())).collect();
    let mut index = VectorIndex::new(16, config(Precision::Int8)).unwrap();
    vectors.iter().for_each(|(key, vector)| index.insert(*key, vector).unwrap());
    index.save(&path).unwrap();
    (folder, path, vectors, index)
}

#[test]
fn a_reopened_index_gives_the_same_results() {
    let (_folder, path, vectors, index) = saved(200);
    let (again, recovery) = VectorIndex::open(&path, 16, config(Precision::Int8), vectors).unwrap();
    assert_eq!(recovery, Recovery { kept: 200, ..Recovery::default() });
    let mut clusters = Clusters::new(16, 5, 10);
    for _ in 0..20 {
        let query = clusters.draw();
        assert_eq!(again.search(&query, 10).unwrap(), index.search(&query, 10).unwrap());
    }
}

#[test]
fn the_store_decides_over_the_file() {
    let (_folder, path, mut vectors, _) = saved(200);
    vectors.remove(0);
    vectors[5].1[0] += 10.0;
    vectors.push((5000, vec![1.0; 16]));
    let changed = vectors[5].clone();
    let (index, recovery) = VectorIndex::open(&path, 16, config(Precision::Int8), vectors.clone()).unwrap();
    assert_eq!(recovery, Recovery { kept: 198, inserted: 2, removed: 2, refused: None });
    assert_eq!((index.len(), index.contains(0)), (200, false));
    let hit = index.search(&changed.1, 1).unwrap()[0];
    assert!(hit.key == changed.0 && hit.similarity > 0.999, "{hit:?}");
    // Each is found by its own vector: none has the place of another.
    for (key, vector) in &vectors {
        assert_eq!(index.search(vector, 1).unwrap()[0].key, *key);
    }
}

#[test]
fn a_damaged_file_is_never_used() {
    let (_folder, path, vectors, _) = saved(40);
    let whole = fs::read(&path).unwrap();
    let open = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let (index, recovery) =
            VectorIndex::open(&path, 16, config(Precision::Int8), vectors.clone()).unwrap();
        assert_eq!(index.len(), 40);
        recovery
    };
    for length in (0..whole.len()).step_by(97) {
        let recovery = open(&whole[..length]);
        assert!(recovery.refused.is_some() && recovery.inserted == 40, "{length}: {recovery:?}");
    }
    for at in (0..whole.len()).step_by(131) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        assert!(open(&bytes).refused.is_some(), "{at}");
    }
    assert_eq!(open(&whole).refused, None);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let (index, recovery) = VectorIndex::open(&path, 16, config(Precision::Int8), vectors.clone()).unwrap();
    assert!(index.len() == 40 && recovery.refused.is_some());
}

#[test]
fn a_file_with_a_valid_checksum_and_invalid_links_is_not_used() {
    use sha2::{Digest as _, Sha256};
    let (_folder, path, vectors, _) = saved(40);
    let whole = fs::read(&path).unwrap();
    let mut refused = 0;
    for at in (8..whole.len() - 32).step_by(23) {
        let mut bytes = whole[..whole.len() - 32].to_vec();
        bytes[at] = 0xff;
        let sum = Sha256::digest(&bytes);
        bytes.extend_from_slice(&sum);
        fs::write(&path, &bytes).unwrap();
        let (index, recovery) =
            VectorIndex::open(&path, 16, config(Precision::Int8), vectors.clone()).unwrap();
        assert_eq!(index.len(), 40);
        index.search(&vectors[0].1, 5).unwrap();
        refused += usize::from(recovery.refused.is_some());
    }
    assert!(refused > 50, "{refused}");
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u64, u8),
    Remove(u64),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..40u64, any::<u8>()).prop_map(|(key, seed)| Step::Insert(key, seed)),
        4 => (0..40u64).prop_map(Step::Remove),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn operations_follow_a_plain_map(steps in steps(), int8: bool) {
        let dim = 8;
        let precision = if int8 { Precision::Int8 } else { Precision::F32 };
        // So many links that none is dropped: the graph stays connected, whatever the steps.
        let config = IndexConfig { m: 64, ef_insert: 128, ..config(precision) };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.graph");
        let mut index = VectorIndex::new(dim, config.clone()).unwrap();
        let mut model: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        let vector = |seed: u64| {
            let mut random = Random::new(seed);
            (0..dim).map(|_| normal(&mut random)).collect::<Vec<f32>>()
        };
        for step in steps {
            match step {
                Step::Insert(key, seed) => {
                    let vector = vector(u64::from(seed));
                    index.insert(key, &vector).unwrap();
                    model.insert(key, vector);
                }
                Step::Remove(key) => prop_assert_eq!(index.remove(key), model.remove(&key).is_some()),
                Step::Reopen => {
                    index.save(&path).unwrap();
                    let vectors = model.iter().map(|(key, vector)| (*key, vector.clone())).collect();
                    let (next, recovery) = VectorIndex::open(&path, dim, config.clone(), vectors).unwrap();
                    prop_assert_eq!(recovery.kept, model.len());
                    index = next;
                }
            }
            prop_assert_eq!(index.len(), model.len());
        }
        // With more candidates than vectors, a connected graph finds all of them.
        let query = vector(1000);
        let hits = index.search(&query, 64).unwrap();
        let mut keys: Vec<u64> = hits.iter().map(|hit| hit.key).collect();
        keys.sort_unstable();
        prop_assert_eq!(keys, model.keys().copied().collect::<Vec<_>>());
        let unit_query = unit("query", &query).unwrap();
        for hit in hits {
            let stored = unit("vector", &model[&hit.key]).unwrap();
            let exact: f32 = stored.iter().zip(&unit_query).map(|(x, y)| x * y).sum();
            prop_assert!((hit.similarity - exact).abs() < 2e-3);
        }
    }
}
