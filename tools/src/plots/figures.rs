//! Figures: their tables, columns and titles.

use plotters::prelude::*;

use super::bars::{self, Row};
use super::lines::{self, Line};
use super::style::{self, Axis, BLUE, GREEN, GREY, Labels, ORANGE, PURPLE, SKY, Side, VERMILLION, plain};
use super::tables::{Page, Table};
use crate::Result;

/// `1.41x (512 against 363 t/s)`, and the ratio, of one row of a table of [`crate::bench`].
fn ratio(table: &Table, model: &str, test: &str) -> Result<(f64, String)> {
    let keys = [("model", model), ("test", test), ("threads", "2"), ("depth", "0")];
    let ratio = table.number(&keys, "ratio")?;
    let digits = |rate: f64| usize::from(rate < 100.0);
    let (ours, its) = (table.number(&keys, "ruvllm t/s")?, table.number(&keys, "its t/s")?);
    let note = format!("{ratio:.2}x: {ours:.*} / {its:.*} t/s", digits(ours), digits(its));
    Ok((ratio, note))
}

/// A pair of bars: prefill and decode of a model.
fn row(table: &Table, name: String, model: &str, tests: [&str; 2]) -> Result<Row> {
    Ok(Row { name, bars: [ratio(table, model, tests[0])?, ratio(table, model, tests[1])?] })
}

/// Speed relative to each peer, for the two weight types measured with all peers.
pub(super) fn speed_peers(page: &Page) -> Result<String> {
    let peers = [
        ("llama.cpp", ["bench:llama-1b-4bit", "bench:llama-1b-8bit"], ["pp512", "tg64"]),
        ("mistral.rs", ["bench:mistralrs"; 2], ["pp128", "tg16"]),
        ("candle", ["bench:candle"; 2], ["pp128", "tg16"]),
    ];
    let mut rows = Vec::new();
    for (peer, sections, tests) in peers {
        for (section, kind) in sections.into_iter().zip(["Q4_K_M", "Q8_0"]) {
            let table = page.table(section, 0)?;
            rows.push(row(&table, format!("{peer}, {kind}"), &format!("llama-1b-{kind}"), tests)?);
        }
    }
    bars::ratios(
        "Speed of ruvllm over that of its peers: 1B model, AMD EPYC Zen 5, 2 threads",
        "ruvllm / peer (tokens per second of each at the bar)",
        ["prompt (prefill)", "generation (decode)"],
        &rows,
    )
}

/// Speed relative to llama.cpp for every weight type.
pub(super) fn speed_llama_cpp(page: &Page) -> Result<String> {
    let sections = [
        ("bench:llama-1b-4bit", "llama-1b", vec!["Q4_0", "Q4_K_M", "Q5_K_M"]),
        ("bench:llama-1b-8bit", "llama-1b", vec!["IQ4_NL", "Q6_K", "Q8_0"]),
        ("bench:llama-1b-float", "llama-1b", vec!["F16", "BF16"]),
        ("bench:llama-7b", "llama-7b", vec!["Q4_K_M"]),
    ];
    let mut rows = Vec::new();
    for (section, model, kinds) in sections {
        let table = page.table(section, 0)?;
        for kind in kinds {
            let size = model.trim_start_matches("llama-").to_uppercase();
            rows.push(row(&table, format!("{size}, {kind}"), &format!("{model}-{kind}"), ["pp512", "tg64"])?);
        }
    }
    bars::ratios(
        "Speed of ruvllm over the best setting of llama.cpp: AMD EPYC Zen 5, 2 threads",
        "ruvllm / llama.cpp (tokens per second of each at the bar)",
        ["prompt of 512 tokens", "generation of 64 tokens"],
        &rows,
    )
}

/// Decode speed over depth (tokens in the KV cache).
pub(super) fn decode_depth(page: &Page) -> Result<String> {
    let runs = [
        ("bench:llama-1b-4bit", "0", "tg64"),
        ("bench:kv-tiers", "4096", "tg16"),
        ("bench:kv-tiers-deep", "32768", "tg16"),
    ];
    let mut lines = [("ruvllm", "ruvllm t/s", BLUE), ("llama.cpp", "its t/s", VERMILLION)]
        .map(|(name, column, color)| (Line { name: name.to_owned(), color, points: Vec::new() }, column));
    for (section, depth, test) in runs {
        let table = page.table(section, 0)?;
        let keys =
            [("model", "llama-1b-Q4_0"), ("KV", "f16"), ("depth", depth), ("test", test), ("threads", "2")];
        for (line, column) in &mut lines {
            let rate = table.number(&keys, column)?;
            line.points.push((depth.parse().unwrap_or(0.0), rate, format!("{rate:.1}")));
        }
    }
    let top = lines.iter().flat_map(|(line, _)| &line.points).map(|point| point.1).fold(0.0, f64::max);
    let x = Axis {
        name: "tokens in the KV cache (f16)",
        range: (-600.0, 34_000.0),
        ticks: 8,
        label: &|x| plain(*x),
    };
    let y = Axis { name: "tokens per second", range: (0.0, top * 1.12), ticks: 6, label: &|y| plain(*y) };
    let lines = lines.map(|(line, _)| line);
    let title = "Decode speed over context: 1B model in Q4_0, AMD EPYC Zen 5, 2 threads";
    lines::plot(title, (&x, &y), &lines, ("", &[]), SeriesLabelPosition::UpperRight)
}

/// TTFT with and without a prefix hit.
pub(super) fn ttft_prefix(page: &Page) -> Result<String> {
    let table = page.table("table:prefix-ttft", 0)?;
    let mut lines = [("prefix not cached", "at first", VERMILLION), ("prefix cached", "the next", BLUE)]
        .map(|(name, column, color)| (Line { name: name.to_owned(), color, points: Vec::new() }, column));
    for row in &table.rows {
        let (known, prompt) = (table.number_in(row, "known")?, table.number_in(row, "of")?);
        for (index, (line, column)) in lines.iter_mut().enumerate() {
            let ms = table.number_in(row, column)?;
            let own = if index == 0 { String::new() } else { format!(", {} new", prompt - known) };
            line.points.push((prompt, ms.log10(), format!("{ms} ms{own}")));
        }
    }
    let x = Axis {
        name: "tokens of the prompt; new: those behind the cached prefix",
        range: (-60.0, 1150.0),
        ticks: 12,
        label: &|x| plain(*x),
    };
    let y = Axis {
        name: "time to first token, ms",
        range: (1.0, 4.0),
        ticks: 4,
        label: &|y| plain(10f64.powf(*y)),
    };
    let lines = lines.map(|(line, _)| line);
    let title = "A cached prefix saves its prefill: 1B model in Q4_K_M, AMD EPYC Zen 5, 2 cores";
    lines::plot(title, (&x, &y), &lines, ("", &[]), SeriesLabelPosition::MiddleRight)
}

/// Rate of the matrix product over the batch size, where a cliff would show a missing tile.
pub(super) fn batch_curve(page: &Page) -> Result<String> {
    let table = page.table("bench:batch-curve", 1)?;
    let named = [
        ("Q4_K", BLUE),
        ("Q8_0", GREEN),
        ("Q6_K", SKY),
        ("Q2_K", PURPLE),
        ("F16", ORANGE),
        ("F32", VERMILLION),
    ];
    let batches: Vec<f64> =
        table.head().iter().filter_map(|name| name.strip_prefix("batch ")?.parse().ok()).collect();
    let (mut lines, mut others) = (Vec::new(), Vec::new());
    for row in &table.rows {
        let rates = row.iter().skip(1).filter_map(|cell| cell.parse::<f64>().ok());
        let points = batches.iter().zip(rates).map(|(batch, rate)| (batch.log2(), rate, String::new()));
        let color = named.iter().find(|(name, _)| *name == row[0]).map(|(_, color)| *color);
        let line = Line { name: row[0].clone(), color: color.unwrap_or(GREY), points: points.collect() };
        if color.is_some() { lines.push(line) } else { others.push(line) }
    }
    lines.sort_by_key(|line| named.iter().position(|(name, _)| *name == line.name));
    let x = Axis {
        name: "batch (rows of activations)",
        range: (0.0, 9.0),
        ticks: 10,
        label: &|x| plain(2f64.powf(*x)),
    };
    let y = Axis { name: "GOP/s of one thread", range: (0.0, 700.0), ticks: 8, label: &|y| plain(*y) };
    let title = "Rate of matrix products over batch size: 2048 x 8192, AMD EPYC Zen 5, 1 thread";
    lines::plot(title, (&x, &y), &lines, ("other types", &others), SeriesLabelPosition::UpperLeft)
}

/// Memory of the server while it serves a mix of calls.
pub(super) fn server_soak(page: &Page) -> Result<String> {
    let table = page.table("table:soak", 0)?;
    let mut points = Vec::new();
    for (index, row) in table.rows.iter().enumerate() {
        let (minute, mib) = (table.number_in(row, "minute")?, table.number_in(row, "resident, MiB")?);
        let is_end = index == 0 || index + 1 == table.rows.len();
        points.push((minute, mib, if is_end { format!("{mib} MiB") } else { String::new() }));
    }
    let (end, top) =
        points.iter().fold((0.0, 0.0), |(end, top), point| (point.0.max(end), f64::max(top, point.1)));
    let x = Axis { name: "minute", range: (-end / 20.0, end * 1.05), ticks: 7, label: &|x| plain(*x) };
    let y = Axis { name: "resident memory, MiB", range: (0.0, top * 1.3), ticks: 6, label: &|y| plain(*y) };
    let line = Line { name: "ruvllm serve".to_owned(), color: BLUE, points };
    let title = "Memory of the server under a mix of calls: built-in model, AMD EPYC, 2 cores";
    lines::plot(title, (&x, &y), &[line], ("", &[]), SeriesLabelPosition::LowerRight)
}

/// A policy of the KV cache: name, bytes per token, percent of perplexity above `f16`.
struct Policy {
    name: String,
    bytes: f64,
    percent: f64,
}

/// Perplexity over bytes per token. Labels all Pareto-optimal policies, and others as far as there
/// is room.
pub(super) fn kv_quality(page: &Page) -> Result<String> {
    let table = page.table("bench:kv-quality", 0)?;
    let mut policies = Vec::new();
    for row in table.rows.iter().filter(|row| row[0] != "f16") {
        let name = row[0].trim_start_matches("tiered:").replace(",cold=off", "");
        let (bytes, percent) = (table.number_in(row, "bytes per token")?, table.number_in(row, "above f16")?);
        policies.push(Policy { name, bytes, percent: percent.max(0.001) });
    }
    let f16 = table.number(&[("policy", "f16")], "bytes per token")?;
    let beaten = |policy: &Policy| {
        policies.iter().any(|other| {
            (other.bytes < policy.bytes && other.percent <= policy.percent)
                || (other.bytes <= policy.bytes && other.percent < policy.percent)
        })
    };
    let (mut others, mut best): (Vec<&Policy>, Vec<&Policy>) =
        policies.iter().partition(|policy| beaten(policy));
    best.sort_by(|a, b| a.bytes.total_cmp(&b.bytes));
    // Short names first: they are the common ones.
    others.sort_by_key(|policy| policy.name.len());
    let title = "Perplexity over the size of keys and values: built-in model, 4096 tokens";
    style::svg(title, (760, 560), |root| {
        let x = Axis {
            name: &format!("bytes per token (f16: {f16})"),
            range: (1200.0, 4800.0),
            ticks: 8,
            label: &|x| plain(*x),
        };
        let y = Axis {
            name: "perplexity above that of f16, %",
            range: (-2.6, 1.0),
            ticks: 5,
            label: &|y| plain(10f64.powf(*y)),
        };
        let mut chart = style::chart(root, &x, &y)?;
        let place = |policy: &&Policy| (policy.bytes, policy.percent.log10());
        for (name, policies, color) in
            [("no other policy is better in both", &best, BLUE), ("others", &others, ORANGE)]
        {
            chart
                .draw_series(policies.iter().map(|policy| Circle::new(place(policy), 4, color.filled())))?
                .label(name)
                .legend(move |(x, y)| Circle::new((x + 8, y), 4, color.filled()));
        }
        style::legend(&mut chart, SeriesLabelPosition::UpperRight)?;
        let mut labels = Labels::within(chart.plotting_area());
        let points = best.iter().chain(&others).copied();
        points.clone().for_each(|policy| labels.avoid(chart.backend_coord(&place(&policy)), 4));
        for policy in points {
            labels.draw(root, chart.backend_coord(&place(&policy)), &policy.name, Side::Beside)?;
        }
        Ok(())
    })
}
