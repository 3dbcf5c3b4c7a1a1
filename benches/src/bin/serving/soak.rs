//! Soak: a mix of calls for a long time, and the size of the server's process meanwhile.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Result;
use crate::http::Connection;
use crate::load::Server;

/// Threads that send calls.
const THREADS: usize = 4;
/// Times between two samples.
const INTERVAL: Duration = Duration::from_secs(10);
/// Sessions and prompts that calls rotate among.
const ROTATION: usize = 32;

/// Kinds of calls: each thread makes one after another.
const KINDS: [&str; 7] = ["stream", "cancelled", "session", "chat", "embedding", "refused", "tokens"];

/// Length of a run and the process that is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Soak {
    pub(crate) minutes: f64,
    pub(crate) pid: u32,
    /// Connections that are open and idle the whole time.
    pub(crate) idle: usize,
    /// Most calls per second of all threads; 0 without a limit.
    pub(crate) rate: f64,
}

/// Sizes of a process at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    minutes: f64,
    pub(crate) resident_mib: f64,
    pub(crate) files: usize,
    pub(crate) threads: usize,
    calls: usize,
}

impl Sample {
    pub(crate) fn json(&self) -> Value {
        let Self { minutes, resident_mib, files, threads, calls } = self;
        json!({"minutes": minutes, "resident_mib": resident_mib, "files": files, "threads": threads, "calls": calls})
    }
}

/// Sends calls and samples the process; prints a table and returns the document.
pub(crate) fn run(server: &Server, soak: Soak) -> Result<Value> {
    let before = sample(soak.pid, 0.0, 0)?;
    let idle = (0..soak.idle).map(|_| Connection::open(&server.url, &server.key));
    let idle = idle.collect::<std::io::Result<Vec<_>>>()?;
    let (start, end) = (Instant::now(), Duration::from_secs_f64(soak.minutes * 60.0));
    let counts: [AtomicUsize; KINDS.len()] = Default::default();
    let next = AtomicUsize::new(0);
    let made = || counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
    let mut samples = Vec::new();
    thread::scope(|scope| -> Result<()> {
        let calls = || -> Result<()> {
            while start.elapsed() < end {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if soak.rate > 0.0 {
                    let due = Duration::from_secs_f64(number as f64 / soak.rate).min(end);
                    thread::sleep(due.saturating_sub(start.elapsed()));
                }
                call(server, number)?;
                counts[number % KINDS.len()].fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(calls)).collect();
        while start.elapsed() < end && threads.iter().all(|thread| !thread.is_finished()) {
            samples.push(sample(soak.pid, start.elapsed().as_secs_f64() / 60.0, made())?);
            thread::sleep(INTERVAL.min(end.saturating_sub(start.elapsed())));
        }
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;
    drop(idle);
    thread::sleep(Duration::from_secs(3));
    let after = sample(soak.pid, start.elapsed().as_secs_f64() / 60.0, made())?;
    print_table(&samples);
    let growth = growth(&samples);
    println!("\ngrowth after the first third: {growth:.3} MiB per minute; {} calls", after.calls);
    let kinds: serde_json::Map<String, Value> = KINDS
        .iter()
        .zip(&counts)
        .map(|(kind, n)| ((*kind).to_owned(), n.load(Ordering::Relaxed).into()))
        .collect();
    Ok(json!({
        "minutes": soak.minutes, "idle_connections": soak.idle, "calls_per_second": soak.rate, "calls": kinds, "growth_mib_per_minute": growth,
        "before": before.json(), "after": after.json(),
        "samples": samples.iter().map(Sample::json).collect::<Vec<_>>(),
    }))
}

/// Makes the call with this number; its kind is that of the number.
fn call(server: &Server, number: usize) -> Result<()> {
    let item = number / KINDS.len();
    let prompt = format!("Tell story {} of book {}.", item % ROTATION, item / ROTATION % ROTATION);
    let messages = json!([{"role": "user", "content": prompt}]);
    let model = &server.model;
    let text = |rest: Value| {
        let mut body =
            json!({"model": model, "prompt": prompt, "max_tokens": 16 + number % 48, "ignore_eos": true});
        body.as_object_mut()
            .into_iter()
            .for_each(|body| body.extend(rest.as_object().cloned().unwrap_or_default()));
        body.to_string()
    };
    let (path, body, status) = match KINDS[number % KINDS.len()] {
        "stream" => ("/v1/completions", text(json!({"stream": true})), 200),
        "cancelled" => ("/v1/completions", text(json!({"stream": true, "max_tokens": 400})), 200),
        "session" => {
            ("/v1/completions", text(json!({"session": format!("reader-{}", item % ROTATION)})), 200)
        }
        "chat" => {
            let body = json!({"model": model, "messages": messages, "max_tokens": 16, "n": 2});
            ("/v1/chat/completions", body.to_string(), 200)
        }
        "embedding" => ("/v1/embeddings", json!({"model": model, "input": [prompt]}).to_string(), 200),
        "refused" => ("/v1/chat/completions", format!("{{\"messages\": [{prompt}"), 400),
        _ => ("/tokenize", json!({"content": prompt}).to_string(), 200),
    };
    // A connection for each call: those of clients that come and go.
    let mut connection = Connection::open(&server.url, &server.key)?;
    let (mut reply, _) = connection.send(path, Some(&body))?;
    if reply.status != status {
        let (status, text) = (reply.status, reply.text()?);
        return Err(format!("{path}: status {status}: {text}").into());
    }
    // A client that goes away has read the first byte.
    if KINDS[number % KINDS.len()] != "cancelled" {
        reply.text()?;
    }
    Ok(())
}

/// Sizes of a process from `/proc`.
pub(crate) fn sample(pid: u32, minutes: f64, calls: usize) -> Result<Sample> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let number = |name: &str| -> Result<usize> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let word =
            line.and_then(|line| line.split_whitespace().next()).ok_or_else(|| format!("no {name}"))?;
        Ok(word.parse()?)
    };
    Ok(Sample {
        minutes,
        resident_mib: number("VmRSS")? as f64 / 1024.0,
        files: fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
        threads: number("Threads")?,
        calls,
    })
}

/// A line for each minute.
fn print_table(samples: &[Sample]) {
    println!("| minute | resident, MiB | open files | threads | calls |\n|---:|---:|---:|---:|---:|");
    let mut minute = 0.0;
    for sample in samples {
        if sample.minutes >= minute {
            let Sample { minutes, resident_mib, files, threads, calls } = sample;
            println!("| {minutes:.0} | {resident_mib:.1} | {files} | {threads} | {calls} |");
            minute += 1.0;
        }
    }
}

/// Slope of the resident size by least squares over the last two thirds of the samples, in MiB per
/// minute; 0 without enough of them.
fn growth(samples: &[Sample]) -> f64 {
    let late = &samples[samples.len() / 3..];
    let n = late.len() as f64;
    let mean = |value: fn(&Sample) -> f64| late.iter().map(value).sum::<f64>() / n;
    let (x, y) = (mean(|sample| sample.minutes), mean(|sample| sample.resident_mib));
    let (covariance, variance) = late.iter().fold((0.0, 0.0), |(covariance, variance), sample| {
        let dx = sample.minutes - x;
        (covariance + dx * (sample.resident_mib - y), variance + dx * dx)
    });
    if variance > 0.0 { covariance / variance } else { 0.0 }
}
