//! Figure of a run: losses by step, as SVG.

use std::io::Write as _;
use std::path::Path;

use gguf_rs_lite::write_atomic;
use ruvllm_training::Point;

use crate::error::{Error, Result};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
/// Edges of the area of the curves.
const LEFT: f64 = 76.0;
const RIGHT: f64 = 740.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 384.0;
const TRAINING: &str = "#4477aa";
const VALIDATION: &str = "#cc3311";

/// Writes the figure, in place of an older one.
///
/// # Errors
/// [`Error::WriteFile`].
pub(super) fn write(path: &Path, label: &str, history: &[Point]) -> Result<()> {
    let figure = draw(label, history);
    let written = write_atomic(path, |mut out| match out.write_all(figure.as_bytes()) {
        Ok(()) => Ok(out),
        Err(source) => Err(gguf_rs_lite::Error::File { action: "write", path: path.to_owned(), source }),
    });
    written.map_err(|error| {
        let source = match error {
            gguf_rs_lite::Error::File { source, .. } => source,
            other => std::io::Error::other(other),
        };
        Error::WriteFile { path: path.to_owned(), source }
    })
}

/// Figure of the training loss and, where it was measured, the validation loss.
fn draw(label: &str, history: &[Point]) -> String {
    let training: Vec<(f64, f64)> = history.iter().map(|point| (point.step as f64, point.loss)).collect();
    let validation: Vec<(f64, f64)> =
        history.iter().filter_map(|point| Some((point.step as f64, point.validation?))).collect();
    let losses = || training.iter().chain(&validation).map(|(_, loss)| *loss);
    let steps = ticks(0.0, history.last().map_or(1.0, |point| point.step as f64), 8);
    let lowest = losses().fold(f64::INFINITY, f64::min);
    let highest = losses().fold(f64::NEG_INFINITY, f64::max);
    let levels = if lowest.is_finite() { ticks(lowest, highest, 6) } else { vec![0.0, 1.0] };
    let place = |ticks: &[f64], value: f64, from: f64, to: f64| {
        let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
        from + (value - first) / (last - first) * (to - from)
    };
    let x = |step: f64| place(&steps, step, LEFT, RIGHT);
    let y = |loss: f64| place(&levels, loss, BOTTOM, TOP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n<title>{label} by step</title>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let mut line = |text: String| svg += &(text + "\n");
    for &step in &steps {
        let at = x(step);
        line(format!("<path d=\"M{at:.1} {TOP}V{BOTTOM}\" stroke=\"#ddd\"/>"));
        line(format!("<text x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{step}</text>", BOTTOM + 18.0));
    }
    let decimals = decimals(levels[1] - levels[0]);
    for &level in &levels {
        let at = y(level);
        line(format!("<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#ddd\"/>"));
        line(format!(
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{level:.decimals$}</text>",
            LEFT - 6.0,
            at + 4.5
        ));
    }
    line(format!("<path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\" fill=\"none\" stroke=\"black\"/>"));
    let (middle, height) = (f64::midpoint(LEFT, RIGHT), f64::midpoint(TOP, BOTTOM));
    line(format!(
        "<text x=\"{middle}\" y=\"{:.0}\" text-anchor=\"middle\">optimizer step</text>",
        BOTTOM + 42.0
    ));
    line(format!(
        "<text x=\"18\" y=\"{height}\" text-anchor=\"middle\" transform=\"rotate(-90 18 {height})\">{label}</text>"
    ));
    for (number, (name, colour, points)) in
        [("training", TRAINING, &training), ("validation", VALIDATION, &validation)].into_iter().enumerate()
    {
        if points.is_empty() {
            continue;
        }
        let at: Vec<_> =
            points.iter().map(|&(step, loss)| format!("{:.1},{:.1}", x(step), y(loss))).collect();
        line(format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"/>",
            at.join(" ")
        ));
        // A single point has no line; few points are seen better with marks.
        if points.len() <= 60 {
            for &(step, loss) in points {
                let (x, y) = (x(step), y(loss));
                line(format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\" fill=\"{colour}\"/>"));
            }
        }
        let from = LEFT + 120.0 * number as f64;
        line(format!("<path d=\"M{from} 24h26\" stroke=\"{colour}\" stroke-width=\"3\"/>"));
        line(format!("<text x=\"{}\" y=\"28\">{name}</text>", from + 32.0));
    }
    svg += "</svg>\n";
    svg
}

/// Multiples of 1, 2 or 5 times a power of ten around a range: at least two, about `n`.
fn ticks(low: f64, high: f64, n: usize) -> Vec<f64> {
    let span = (high - low).max(low.abs().max(high.abs()) * 1e-6).max(1e-9);
    let rough = span / n as f64;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|&s| s >= rough);
    let step = step.unwrap_or(10.0 * power);
    let first = (low / step).floor();
    let last = ((high / step).ceil()).max(first + 1.0);
    // Rounded, so that 0.1 + 0.2 is written as 0.3.
    let round = |value: f64| (value / step).round() * step;
    (0..=(last - first) as usize).map(|tick| round((first + tick as f64) * step)).collect()
}

/// Decimals that tell neighbours apart.
fn decimals(step: f64) -> usize {
    (-step.log10().floor()).clamp(0.0, 9.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(step: u64, loss: f64, validation: Option<f64>) -> Point {
        let mut point = Point::default();
        (point.step, point.loss, point.validation) = (step, loss, validation);
        point
    }

    #[test]
    fn both_curves_stay_inside_of_the_axes() {
        let history: Vec<Point> = (1..=100)
            .map(|step| point(step, 3.0 / step as f64, (step % 25 == 0).then_some(1.0 + 1.0 / step as f64)))
            .collect();
        let svg = draw("cross-entropy", &history);
        let lines: Vec<&str> = svg.lines().filter(|line| line.starts_with("<polyline")).collect();
        assert_eq!(lines.len(), 2);
        let points = |line: &str| -> Vec<(f64, f64)> {
            let list = line.split('"').nth(1).expect("points");
            let pair = |text: &str| {
                let (x, y) = text.split_once(',').expect("a pair");
                (x.parse().expect("x"), y.parse().expect("y"))
            };
            list.split(' ').map(pair).collect()
        };
        assert_eq!((points(lines[0]).len(), points(lines[1]).len()), (100, 4));
        for (x, y) in lines.iter().flat_map(|line| points(line)) {
            assert!((LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y), "{x} {y}");
        }
        let training = points(lines[0]);
        assert!(training.windows(2).all(|pair| pair[1].0 > pair[0].0 && pair[1].1 >= pair[0].1), "it falls");
        assert!(!svg.contains("NaN") && !svg.contains("<script"));
    }

    #[test]
    fn ticks_are_round_numbers_around_the_range() {
        assert_eq!(ticks(0.0, 100.0, 8), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        for (low, high) in [(2.31, 2.94), (-1.0, -1.0), (0.0, 0.0), (1e-7, 3e-7), (5e8, 6e8)] {
            let found = ticks(low, high, 6);
            assert!(found.len() >= 2 && found.len() < 12, "{low} {high}: {found:?}");
            assert!(found[0] <= low && found[found.len() - 1] >= high, "{low} {high}: {found:?}");
        }
        let flat = draw("x", &[point(1, 0.5, None)]);
        assert!(flat.contains("<circle") && !flat.contains("NaN") && !flat.contains("inf"));
    }
}
