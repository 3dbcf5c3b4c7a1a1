//! Measures the learning store: recording, storing, opening, snapshots.
//!
//! `cargo run --release -p ruvllm-sona --example store_cost -- FOLDER [COUNT]`

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ruvllm_sona::random::Random;
use ruvllm_sona::store::{NewEvent, NewSnapshot, SnapshotKind, StoreOptions};
use ruvllm_sona::trajectory::{Embedding, Feedback, Timings, Trajectory, TrajectoryId};
use ruvllm_sona::{LearningStore, Rating, Recorder, RecorderOptions};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const DIMENSION: usize = 2048;
const PROMPT: usize = 400;
const RESPONSE: usize = 200;

fn token(random: &mut Random) -> u32 {
    random.below(128_256) as u32
}

fn options() -> StoreOptions {
    StoreOptions { trajectory_bytes: 8 << 30, ..StoreOptions::default() }
}

fn trajectory(number: usize, numbers: &mut Random, embedding: &Embedding) -> Trajectory {
    Trajectory {
        request_id: format!("req-{number:024x}"),
        tenant: format!("tenant-{}", number % 10),
        session: Some(format!("session-{}", number / 8)),
        model_digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef".to_owned(),
        prompt_tokens: (0..PROMPT).map(|_| token(numbers)).collect(),
        response_tokens: (0..RESPONSE).map(|_| token(numbers)).collect(),
        embedding: Some(embedding.clone()),
        route: Some("base".to_owned()),
        timings: Timings { queue_ms: Some(0.5), ttft_ms: Some(120.0), ..Timings::default() },
        created_ms: number as u64,
        ..Trajectory::default()
    }
}

/// Median and 99th percentile.
fn percentiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn timed<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<(T, Duration)> {
    let start = Instant::now();
    let value = work()?;
    Ok((value, start.elapsed()))
}

fn record(folder: &Path, embedding: &Embedding, numbers: &mut Random) -> Outcome<()> {
    let store = LearningStore::open(folder.join("record"), options())?;
    let recorder = Recorder::start(store, RecorderOptions::default())?;
    let mut times = Vec::new();
    for round in 0..40 {
        let new: Vec<_> = (0..250).map(|n| trajectory(round * 250 + n, numbers, embedding)).collect();
        for trajectory in new {
            let start = Instant::now();
            recorder.record(trajectory)?;
            times.push(start.elapsed());
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    recorder.flush()?;
    let (median, p99) = percentiles(times);
    println!("record: median {median:?}, p99 {p99:?}, {:?}", recorder.status());
    Ok(())
}

fn fill(path: &Path, count: usize, embedding: &Embedding, numbers: &mut Random) -> Outcome<()> {
    let store = LearningStore::open(path, options())?;
    let mut spent = Duration::ZERO;
    for first in (0..count).step_by(256) {
        let new: Vec<_> =
            (first..count.min(first + 256)).map(|n| trajectory(n, numbers, embedding)).collect();
        spent += timed(|| Ok(store.add(&new)?))?.1;
    }
    let counted: u64 = store.tenants()?.iter().map(|(_, usage)| usage.bytes).sum();
    println!(
        "store: {count} trajectories in {spent:?} ({:.0}/s), {:.0} bytes each counted, {:.0} in the file",
        count as f64 / spent.as_secs_f64(),
        counted as f64 / count as f64,
        store.file_bytes()? as f64 / count as f64,
    );
    let rating = Feedback { rating: Some(Rating::new(1.0)?), ..Feedback::default() };
    let mut times = Vec::new();
    for n in (0..count).step_by((count / 200).max(1)) {
        let (tenant, request) = (format!("tenant-{}", n % 10), format!("req-{n:024x}"));
        times.push(timed(|| Ok(store.attach_feedback(&tenant, &request, &rating)?))?.1);
    }
    println!("feedback: median {:?}, p99 {:?}", percentiles(times.clone()).0, percentiles(times).1);
    let mut times = Vec::new();
    for _ in 0..200 {
        let event = NewEvent {
            tenant: "tenant-0".to_owned(),
            adapter: "a".to_owned(),
            trajectories: vec![TrajectoryId(1)],
            kind: 1,
            settings: [0; 32],
            payload: vec![1; 100_000],
            created_ms: 0,
        };
        times.push(timed(|| Ok(store.append_events(&[event])?))?.1);
    }
    println!("event of 100 kB: median {:?}, p99 {:?}", percentiles(times.clone()).0, percentiles(times).1);
    // A copy of a file that is open is one that was not closed.
    fs::copy(path, path.with_extension("unclosed"))?;
    Ok(())
}

fn open(path: &Path) -> Outcome<()> {
    let unverified = StoreOptions { verify: false, ..options() };
    println!(
        "open after a kill: {:?}",
        timed(|| Ok(LearningStore::open(path.with_extension("unclosed"), options())?))?.1
    );
    println!("open, verified: {:?}", timed(|| Ok(LearningStore::open(path, options())?))?.1);
    println!("open, not verified: {:?}", timed(|| Ok(LearningStore::open(path, unverified)?))?.1);
    Ok(())
}

/// Temporary file, sync, rename, sync of the folder.
fn write_file(path: &Path, bytes: &[u8]) -> Outcome<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    File::open(path.parent().ok_or("no folder")?)?.sync_all()?;
    Ok(())
}

fn snapshots(folder: &Path) -> Outcome<()> {
    for size in [100_000, 6_000_000, 60_000_000] {
        let path = folder.join(format!("snapshots-{size}"));
        let store = LearningStore::open(&path, StoreOptions { snapshots: 3, ..options() })?;
        let (mut in_store, mut in_file, mut loads) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..7 {
            let bytes = vec![n; size];
            let new = NewSnapshot {
                tenant: "t",
                adapter: "a",
                kind: SnapshotKind::Clean,
                through: 0,
                bytes: &bytes,
            };
            let (info, time) = timed(|| Ok(store.save_snapshot(&new)?))?;
            in_store.push(time);
            loads.push(timed(|| Ok(store.snapshot("t", "a", info.version)?))?.1);
            in_file.push(timed(|| write_file(&folder.join("blob"), &bytes))?.1);
        }
        println!(
            "snapshot of {size}: store {:?}, file {:?}, load {:?}; 3 kept take {} bytes",
            percentiles(in_store).0,
            percentiles(in_file).0,
            percentiles(loads).0,
            store.file_bytes()?,
        );
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("give a folder")?);
    let count = arguments.next().map_or(Ok(100_000), |count| count.parse())?;
    let folder = folder.join("store-cost");
    fs::create_dir_all(&folder)?;
    let mut numbers = Random::new(1);
    let values: Vec<f32> = (0..DIMENSION).map(|_| 2.0 * numbers.uniform() as f32 - 1.0).collect();
    let mut times = Vec::new();
    for _ in 0..1000 {
        times.push(timed(|| Ok(Embedding::quantize(&values)?))?.1);
    }
    println!("quantize {DIMENSION}: median {:?}", percentiles(times).0);
    let embedding = Embedding::quantize(&values)?;
    record(&folder, &embedding, &mut numbers)?;
    let path = folder.join("store");
    fill(&path, count, &embedding, &mut numbers)?;
    open(&path)?;
    snapshots(&folder)?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}
