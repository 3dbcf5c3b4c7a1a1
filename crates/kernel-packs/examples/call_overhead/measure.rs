//! One measurement: a row of the table.

use std::time::Instant;

use crate::Result;

/// Repeats of each measurement; the table has their median, least and most.
const REPEATS: usize = 15;

/// Measures `work` in microseconds per call and prints a row.
pub(crate) fn row(name: &str, calls: u32, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(REPEATS);
    // The first one warms up.
    for _ in 0..=REPEATS {
        let start = Instant::now();
        for _ in 0..calls {
            work()?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(calls));
    }
    times.remove(0);
    times.sort_by(f64::total_cmp);
    let median = times[REPEATS / 2];
    println!("| {name} | {median:.3} us | {:.3} us | {:.3} us |", times[0], times[REPEATS - 1]);
    Ok(median)
}
