//! Idle connections: memory of the server's process with them and after them, and its answers
//! meanwhile.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Result;
use crate::http::Connection;
use crate::load::Server;
use crate::report::quantiles;
use crate::soak::{Sample, sample};

/// Requests whose time is measured.
const REQUESTS: usize = 500;
/// Time for the server to close connections.
const SETTLE: Duration = Duration::from_secs(3);

/// Opens `count` connections, each of which has made a request, and closes them again; prints a
/// table and returns the document.
pub(crate) fn run(server: &Server, pid: u32, count: usize) -> Result<Value> {
    // Allocations of the first requests belong to no connection.
    health(server)?;
    let before = sample(pid, 0.0, 0)?;
    let open = (0..count).map(|_| {
        let mut connection = Connection::open(&server.url, &server.key)?;
        connection.send("/health", None)?.0.text()?;
        Ok(connection)
    });
    let open = open.collect::<Result<Vec<_>>>()?;
    let during = sample(pid, 0.0, 0)?;
    let times = health(server)?;
    drop(open);
    thread::sleep(SETTLE);
    let after = sample(pid, 0.0, 0)?;
    let times = quantiles(&times);
    println!("| connections | resident, MiB | open files | threads | `/health` p50, ms | p99, ms |");
    println!("|---:|---:|---:|---:|---:|---:|");
    let row = |connections: usize, sample: &Sample, [p50, p99]: [String; 2]| {
        let Sample { resident_mib, files, threads, .. } = sample;
        println!("| {connections} | {resident_mib:.1} | {files} | {threads} | {p50} | {p99} |");
    };
    row(0, &before, Default::default());
    row(
        count,
        &during,
        ["p50", "p99"].map(|name| format!("{:.2}", times[name].as_f64().unwrap_or(f64::NAN))),
    );
    row(0, &after, Default::default());
    let bytes = (during.resident_mib - before.resident_mib) * f64::from(1 << 20) / count as f64;
    println!("\n{bytes:.0} bytes for each connection");
    Ok(json!({
        "connections": count, "bytes_per_connection": bytes, "health_ms": times,
        "before": before.json(), "during": during.json(), "after": after.json(),
    }))
}

/// Times of requests on a connection of their own, in order.
fn health(server: &Server) -> Result<Vec<Duration>> {
    let mut connection = Connection::open(&server.url, &server.key)?;
    let mut times = Vec::with_capacity(REQUESTS);
    for _ in 0..REQUESTS {
        let start = Instant::now();
        let (mut reply, _) = connection.send("/health", None)?;
        if reply.status != 200 {
            return Err(format!("/health: status {}", reply.status).into());
        }
        reply.text()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}
