//! Training, codes and tables on clustered and degenerate data.

use ruvllm_kernels::vector::{Metric, ProductQuantizer, ProductTraining, VectorRows};
use ruvllm_kernels::{Error, Kernels, ThreadPool};
use ruvllm_testkit::Random;

/// Rows around `clusters` centres, with a tenth of the spread of the centres.
fn clustered(rows: usize, dim: usize, clusters: usize) -> Vec<f32> {
    let mut random = Random::new(7);
    let mut uniform = move || random.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0;
    let centres: Vec<f32> = (0..clusters * dim).map(|_| uniform()).collect();
    (0..rows * dim).map(|i| centres[(i / dim % clusters) * dim + i % dim] + 0.1 * uniform()).collect()
}

fn trained(rows: &[f32], dim: usize, training: &ProductTraining) -> ProductQuantizer {
    let (kernels, pool) = (Kernels::detect().unwrap(), ThreadPool::new(2).unwrap());
    ProductQuantizer::train(&kernels, &pool, rows, dim, training).unwrap()
}

/// Indices of the ten nearest rows.
fn nearest_ten(kernels: &Kernels, distances: &[f32]) -> Vec<u32> {
    let mut best = Vec::new();
    kernels.top_k(&distances.iter().map(|d| -d).collect::<Vec<_>>(), 10, &mut best);
    best
}

#[test]
fn neighbours_are_found_among_codes() {
    let (n, dim, clusters) = (600, 32, 60);
    let kernels = Kernels::detect().unwrap();
    let rows = clustered(n, dim, clusters);
    let quantizer =
        trained(&rows, dim, &ProductTraining { centroids: 64, iterations: 10, ..ProductTraining::new(8) });
    let mut codes = vec![0; n * 8];
    quantizer.encode(&kernels, &rows, &mut codes).unwrap();
    for metric in [Metric::SquaredEuclidean, Metric::Manhattan, Metric::Dot] {
        let mut found = 0;
        for query in rows.chunks_exact(dim).step_by(17) {
            let (mut exact, mut coded) = (vec![0.0; n], vec![0.0; n]);
            kernels.distances(metric, VectorRows::F32(query), VectorRows::F32(&rows), &mut exact);
            quantizer.table(&kernels, metric, query).unwrap().distances(&codes, &mut coded);
            let expected = nearest_ten(&kernels, &exact);
            found += nearest_ten(&kernels, &coded).iter().filter(|i| expected.contains(i)).count();
        }
        // The ten nearest rows are those of the same cluster; other clusters are ten times as far
        // away.
        let asked = 10 * n.div_ceil(17);
        assert!(found * 10 >= asked * 9, "{metric:?}: {found} of {asked}");
    }
}

#[test]
fn tables_give_the_distance_of_the_decoded_vector() {
    let (n, dim) = (50, 12);
    let kernels = Kernels::detect().unwrap();
    let rows = clustered(n, dim, 5);
    let quantizer = trained(&rows, dim, &ProductTraining { centroids: 7, ..ProductTraining::new(4) });
    let (mut codes, mut decoded) = (vec![0; n * 4], vec![0.0; n * dim]);
    quantizer.encode(&kernels, &rows, &mut codes).unwrap();
    quantizer.decode(&codes, &mut decoded);
    let query = &rows[3 * dim..4 * dim];
    for metric in [Metric::SquaredEuclidean, Metric::Manhattan, Metric::Dot] {
        let table = quantizer.table(&kernels, metric, query).unwrap();
        let mut coded = vec![0.0; n];
        table.distances(&codes, &mut coded);
        for ((coded, code), row) in coded.iter().zip(codes.chunks_exact(4)).zip(decoded.chunks_exact(dim)) {
            assert_eq!(*coded, table.distance(code));
            let exact = kernels.distance(metric, VectorRows::F32(query), VectorRows::F32(row));
            assert!((coded - exact).abs() < 1e-5, "{metric:?}: {coded} for {exact}");
        }
    }
    assert!(matches!(quantizer.table(&kernels, Metric::Cosine, query), Err(Error::CosineTable)));
}

#[test]
fn training_is_the_same_for_any_threads_and_instruction_set() {
    let rows = clustered(200, 16, 9);
    let training = ProductTraining { centroids: 16, iterations: 6, ..ProductTraining::new(4) };
    let expected = trained(&rows, 16, &training);
    for kernels in Kernels::available() {
        for threads in 1..=3 {
            let pool = ThreadPool::new(threads).unwrap();
            let found = ProductQuantizer::train(&kernels, &pool, &rows, 16, &training).unwrap();
            assert_eq!(found.codebooks(), expected.codebooks());
        }
    }
    let other = trained(&rows, 16, &ProductTraining { seed: 1, ..training });
    assert_ne!(other.codebooks(), expected.codebooks());
}

#[test]
fn as_many_centroids_as_vectors_lose_nothing() {
    let kernels = Kernels::detect().unwrap();
    let rows = clustered(20, 8, 20);
    let quantizer = trained(&rows, 8, &ProductTraining::new(2));
    assert_eq!((quantizer.dim(), quantizer.subspaces(), quantizer.centroids()), (8, 2, 20));
    let (mut codes, mut decoded) = (vec![0; 40], vec![0.0; rows.len()]);
    quantizer.encode(&kernels, &rows, &mut codes).unwrap();
    quantizer.decode(&codes, &mut decoded);
    assert_eq!(decoded, rows);
}

#[test]
fn an_empty_cluster_moves_to_the_farthest_vector() {
    // Most starts fall on the copies; both outliers must get their own centroids.
    let mut rows = vec![1.0f32; 60];
    rows[17] = 50.0;
    rows[41] = -80.0;
    for seed in 0..5 {
        let training = ProductTraining { subspaces: 1, centroids: 3, iterations: 10, seed };
        let mut centroids = trained(&rows, 1, &training).codebooks();
        centroids.sort_by(f32::total_cmp);
        assert_eq!(centroids, [-80.0, 1.0, 50.0]);
    }
    // All vectors are equal: no vector to move to.
    let quantizer = trained(&[2.5; 30], 3, &ProductTraining { centroids: 4, ..ProductTraining::new(3) });
    assert!(quantizer.codebooks().iter().all(|&x| x == 2.5));
}

#[test]
fn codebooks_go_there_and_back() {
    let quantizer =
        trained(&clustered(90, 12, 6), 12, &ProductTraining { centroids: 10, ..ProductTraining::new(3) });
    let again = ProductQuantizer::from_codebooks(&quantizer.codebooks(), 12, 3, 10).unwrap();
    assert_eq!(again.codebooks(), quantizer.codebooks());
    let wrong = ProductQuantizer::from_codebooks(&quantizer.codebooks()[1..], 12, 3, 10);
    assert!(matches!(wrong, Err(Error::VectorCount { found: 119, dim: 120 })));
    let mut damaged = quantizer.codebooks();
    damaged[5] = f32::NAN;
    assert!(matches!(
        ProductQuantizer::from_codebooks(&damaged, 12, 3, 10),
        Err(Error::VectorValue { row: 1 })
    ));
}

#[test]
fn a_code_without_a_centroid_is_no_number() {
    let kernels = Kernels::detect().unwrap();
    let quantizer = ProductQuantizer::from_codebooks(&[1.0, 2.0], 1, 1, 2).unwrap();
    let table = quantizer.table(&kernels, Metric::Dot, &[3.0]).unwrap();
    assert_eq!(table.distance(&[1]), -6.0);
    assert!(table.distance(&[2]).is_nan() && table.distance(&[255]).is_nan());
    let mut out = [0.0];
    quantizer.decode(&[9], &mut out);
    assert!(out[0].is_nan());
}

#[test]
fn bad_shapes_and_values_are_errors() {
    let (kernels, pool) = (Kernels::detect().unwrap(), ThreadPool::new(1).unwrap());
    let train = |rows: &[f32], dim, subspaces, centroids| {
        let training = ProductTraining { centroids, ..ProductTraining::new(subspaces) };
        ProductQuantizer::train(&kernels, &pool, rows, dim, &training)
    };
    for (dim, subspaces, centroids) in [(0, 1, 2), (6, 0, 2), (6, 4, 2), (2, 4, 2), (6, 2, 0), (6, 2, 257)] {
        let refused = train(&[1.0; 12], dim, subspaces, centroids);
        assert!(matches!(refused, Err(Error::ProductShape { .. })), "{dim} {subspaces} {centroids}");
    }
    assert!(matches!(train(&[], 6, 2, 2), Err(Error::VectorCount { found: 0, dim: 6 })));
    assert!(matches!(train(&[1.0; 7], 6, 2, 2), Err(Error::VectorCount { found: 7, .. })));
    let mut rows = [1.0; 12];
    rows[8] = f32::INFINITY;
    assert!(matches!(train(&rows, 6, 2, 2), Err(Error::VectorValue { row: 1 })));
    let quantizer = train(&[1.0; 12], 6, 2, 2).unwrap();
    assert!(matches!(quantizer.encode(&kernels, &rows, &mut [0; 4]), Err(Error::VectorValue { row: 1 })));
}
