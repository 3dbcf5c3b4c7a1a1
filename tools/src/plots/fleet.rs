//! Figures of the simulated fleets: hits and time to first token over the number of workers.

use plotters::prelude::*;

use super::lines::{self, Line};
use super::style::{Axis, BLUE, GREY, ORANGE, SKY, VERMILLION, plain};
use super::tables::Page;
use crate::Result;

const MARKER: &str = "table:fleet";

/// Lines of the figures: prefixes, router, color.
const SERIES: [(&str, &str, RGBColor); 4] = [
    ("40 per worker", "KV-aware", BLUE),
    ("40 per worker", "round robin", VERMILLION),
    ("400", "KV-aware", SKY),
    ("400", "round robin", ORANGE),
];

/// `column` over the logarithm of the workers, for one row of [`SERIES`]; `scale` maps a value.
fn line(
    page: &Page,
    (prefixes, router, color): (&str, &str, RGBColor),
    column: &str,
    scale: impl Fn(f64) -> (f64, String),
) -> Result<Line> {
    let table = page.table(MARKER, 0)?;
    let mut points = Vec::new();
    for row in table.rows.iter().filter(|row| row[0] == prefixes && row[1] == router) {
        let (workers, value) = (table.number_in(row, "workers")?, table.number_in(row, column)?);
        let (y, label) = scale(value);
        points.push((workers.log10(), y, label));
    }
    Ok(Line { name: format!("{router}, {prefixes} prefixes"), color, points })
}

fn workers_axis() -> Axis<'static> {
    let label = &|x: &f64| plain(10f64.powf(*x).round());
    Axis { name: "workers", range: (0.9, 3.1), ticks: 3, label }
}

/// Share of prompt tokens from a prefix cache; in grey, the bound of any router.
pub(super) fn hits(page: &Page) -> Result<String> {
    let percent = |value: f64| (value, format!("{value:.0} %"));
    let lines = SERIES.into_iter().map(|series| line(page, series, "prefix hits", percent));
    let lines: Vec<Line> = lines.collect::<Result<_>>()?;
    let bound =
        |(prefixes, _, _)| line(page, (prefixes, "KV-aware", GREY), "bound", |value| (value, String::new()));
    let bounds = [bound(SERIES[0])?, bound(SERIES[2])?];
    let y = Axis {
        name: "prompt tokens from a prefix cache, %",
        range: (0.0, 100.0),
        ticks: 6,
        label: &|y| plain(*y),
    };
    let title = "Prefix hits over the number of workers: simulation with measured step times";
    let others = ("bound of any router", &bounds[..]);
    lines::plot(title, (&workers_axis(), &y), &lines, others, SeriesLabelPosition::LowerLeft)
}

/// Median time to the first token.
pub(super) fn time_to_first_token(page: &Page) -> Result<String> {
    let ms = |value: f64| (value.log10(), format!("{value} ms"));
    let lines = SERIES.into_iter().map(|series| line(page, series, "TTFT p50, ms", ms));
    let lines: Vec<Line> = lines.collect::<Result<_>>()?;
    let y = Axis {
        name: "median time to first token, ms",
        range: (1.0, 5.0),
        ticks: 5,
        label: &|y| plain(10f64.powf(*y)),
    };
    let title = "Time to first token over the number of workers: simulation with measured step times";
    lines::plot(title, (&workers_axis(), &y), &lines, ("", &[]), SeriesLabelPosition::UpperLeft)
}
