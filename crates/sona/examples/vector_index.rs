//! Recall, latency, insertion time and memory of the vector index, on clustered vectors or a file.
//!
//! ```text
//! cargo run --release -p ruvllm-sona --features bank --example vector_index -- \
//!     [--n 100000] [--dim 384] [--precision int8|f32] [--vectors FILE.f32]
//! ```
//!
//! `--vectors`: little-endian f32, `[n + 500, dim]`; the last 500 rows are the queries.

use std::error::Error;
use std::time::Instant;

use ruvllm_sona::index::{IndexConfig, Precision, VectorIndex};
use ruvllm_sona::random::Random;

const QUERIES: usize = 500;
const K: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse()?;
    let mut vectors = match &options.file {
        Some(file) => read(file, options.dim)?,
        None => clustered(options.n + QUERIES, options.dim),
    };
    let queries = vectors.split_off(vectors.len().saturating_sub(QUERIES));
    let n = vectors.len();
    let config = IndexConfig { precision: options.precision, flat_up_to: 0, ..IndexConfig::default() };
    let mut index = VectorIndex::new(options.dim, config.clone())?;
    let mut times = Vec::new();
    for (key, vector) in (0..).zip(&vectors) {
        let start = Instant::now();
        index.insert(key, vector)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let last = times.split_off(n - n.min(1000));
    println!("{n} vectors of {} values, {:?}", options.dim, options.precision);
    println!("insert: mean of all {:.0} us, the last 1000: {}", mean(&times), percentiles(last));
    println!("memory: {:.1} MiB", index.memory_bytes() as f64 / f64::from(1 << 20));
    let mut times = Vec::new();
    let mut exact = Vec::new();
    for query in &queries {
        let start = Instant::now();
        exact.push(index.search_exact(query, K, |_| true)?);
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    println!("exact scan: {}", percentiles(times));
    let folder = std::env::temp_dir().join(format!("ruvllm-vector-index-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let path = folder.join("x.graph");
    let start = Instant::now();
    index.save(&path)?;
    let saved = start.elapsed().as_secs_f64();
    let size = std::fs::metadata(&path)?.len() as f64 / f64::from(1 << 20);
    for ef_search in [16, 24, 32, 48, 64, 96, 128] {
        let config = IndexConfig { ef_search, ..config.clone() };
        let start = Instant::now();
        let stored = (0..).zip(vectors.iter().cloned()).collect();
        let (index, recovery) = VectorIndex::open(&path, options.dim, config, stored)?;
        assert_eq!(recovery.kept, n);
        if ef_search == 16 {
            println!(
                "file: {size:.1} MiB, saved in {saved:.2} s, opened in {:.2} s",
                start.elapsed().as_secs_f64()
            );
        }
        let (mut times, mut found) = (Vec::new(), 0);
        for (query, exact) in queries.iter().zip(&exact) {
            let start = Instant::now();
            let hits = index.search(query, K)?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
            found += hits.iter().filter(|hit| exact.iter().any(|e| e.key == hit.key)).count();
        }
        let recall = found as f64 / (K * queries.len()) as f64;
        println!("ef {ef_search}: recall@{K} {recall:.4}, {}", percentiles(times));
    }
    let start = Instant::now();
    let removed = n / 5 + 1;
    (0..removed as u64).for_each(|key| assert!(index.remove(key)));
    println!("removal of {removed} with one rebuild: {:.2} s", start.elapsed().as_secs_f64());
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

struct Options {
    n: usize,
    dim: usize,
    precision: Precision,
    file: Option<String>,
}

impl Options {
    fn parse() -> Result<Self, Box<dyn Error>> {
        let mut options = Self { n: 100_000, dim: 384, precision: Precision::Int8, file: None };
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--n" => options.n = value.parse()?,
                "--dim" => options.dim = value.parse()?,
                "--vectors" => options.file = Some(value),
                "--precision" if value == "int8" => options.precision = Precision::Int8,
                "--precision" if value == "f32" => options.precision = Precision::F32,
                _ => return Err(format!("unknown option {name} {value}").into()),
            }
        }
        if options.n == 0 || options.dim == 0 {
            return Err("--n and --dim must be 1 or more".into());
        }
        Ok(options)
    }
}

fn read(file: &str, dim: usize) -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
    let bytes = std::fs::read(file)?;
    let values: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    if values.len() < dim * (QUERIES + 1) {
        return Err(format!("{file}: fewer than {} vectors of {dim} values", QUERIES + 1).into());
    }
    Ok(values.chunks_exact(dim).map(<[f32]>::to_vec).collect())
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

fn percentiles(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    format!("p50 {:.0} us, p90 {:.0} us, p99 {:.0} us", at(0.5), at(0.9), at(0.99))
}

/// Unit vector whose spectrum decays, as that of embeddings does.
fn direction(random: &mut Random, dim: usize) -> Vec<f32> {
    let mut vector: Vec<f32> = (1..=dim).map(|i| (i as f32).powf(-0.4) * random.normal() as f32).collect();
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    vector.iter_mut().for_each(|x| *x /= length);
    vector
}

/// Vectors of 300 topics of unequal sizes, with what embeddings of text have: a direction that all
/// share, variation within a topic in 24 dimensions of its own, and a little noise in all.
fn clustered(n: usize, dim: usize) -> Vec<Vec<f32>> {
    const TOPICS: usize = 300;
    const OWN: usize = 24;
    let mut random = Random::new(1);
    let common = direction(&mut random, dim);
    let topics: Vec<(Vec<f32>, Vec<Vec<f32>>)> = (0..TOPICS)
        .map(|_| (direction(&mut random, dim), (0..OWN).map(|_| direction(&mut random, dim)).collect()))
        .collect();
    let noise = 0.25 / (dim as f32).sqrt();
    (0..n)
        .map(|_| {
            let size = random.uniform() as f32;
            let (centre, own) = &topics[(size * size * TOPICS as f32) as usize];
            let mut vector: Vec<f32> = common.iter().zip(centre).map(|(m, c)| 0.6 * m + c).collect();
            for axis in own {
                let weight = 0.16 * random.normal() as f32;
                vector.iter_mut().zip(axis).for_each(|(x, a)| *x += weight * a);
            }
            vector.iter_mut().for_each(|x| *x += noise * random.normal() as f32);
            vector
        })
        .collect()
}
