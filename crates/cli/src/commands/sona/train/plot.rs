//! Figure of a run: losses and rewards by step, as SVG.

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
const REWARD: &str = "#228833";

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

/// Axes with their curves.
struct Panel<'l> {
    label: &'l str,
    curves: Vec<Curve>,
}

struct Curve {
    name: &'static str,
    colour: &'static str,
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// Curve of the steps that have a value.
    fn new(
        name: &'static str,
        colour: &'static str,
        history: &[Point],
        value: impl Fn(&Point) -> Option<f64>,
    ) -> Self {
        let points = history.iter().filter_map(|point| Some((point.step as f64, value(point)?))).collect();
        Self { name, colour, points }
    }
}

/// Figure of the training loss and, where they were measured, validation loss and mean reward; the
/// reward has axes of its own beside those of the losses.
fn draw(label: &str, history: &[Point]) -> String {
    let losses = vec![
        Curve::new("training", TRAINING, history, |point| Some(point.loss)),
        Curve::new("validation", VALIDATION, history, |point| point.validation),
    ];
    let mut panels = vec![Panel { label, curves: losses }];
    let reward = Curve::new("training", REWARD, history, |point| point.reward);
    if !reward.points.is_empty() {
        panels.push(Panel { label: "mean reward", curves: vec![reward] });
    }
    let width = WIDTH * panels.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" width=\"{width}\" \
         height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n<title>{label} by step</title>\n\
         <rect width=\"{width}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    for (number, panel) in panels.iter().enumerate() {
        let left = WIDTH * number as f64;
        svg += &format!("<g transform=\"translate({left} 0)\">\n");
        panel.draw(&mut svg);
        svg += "</g>\n";
    }
    svg += "</svg>\n";
    svg
}

/// A line of the drawing.
fn line(svg: &mut String, text: &str) {
    svg.push_str(text);
    svg.push('\n');
}

/// Place of a value on an axis from the first tick to the last.
fn place(ticks: &[f64], value: f64, from: f64, to: f64) -> f64 {
    let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
    from + (value - first) / (last - first) * (to - from)
}

impl Panel<'_> {
    /// Draws axes, curves and their names.
    fn draw(&self, svg: &mut String) {
        let values = || self.curves.iter().flat_map(|curve| &curve.points);
        let last = values().map(|(step, _)| *step).fold(0.0, f64::max);
        let steps = ticks(0.0, if last > 0.0 { last } else { 1.0 }, 8);
        let lowest = values().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
        let highest = values().map(|(_, value)| *value).fold(f64::NEG_INFINITY, f64::max);
        let levels = if lowest.is_finite() { ticks(lowest, highest, 6) } else { vec![0.0, 1.0] };
        self.draw_axes(svg, &steps, &levels);
        for (number, curve) in self.curves.iter().filter(|curve| !curve.points.is_empty()).enumerate() {
            curve.draw(svg, &steps, &levels);
            let (from, colour) = (LEFT + 120.0 * number as f64, curve.colour);
            line(svg, &format!("<path d=\"M{from} 24h26\" stroke=\"{colour}\" stroke-width=\"3\"/>"));
            line(svg, &format!("<text x=\"{}\" y=\"28\">{}</text>", from + 32.0, curve.name));
        }
    }

    fn draw_axes(&self, svg: &mut String, steps: &[f64], levels: &[f64]) {
        let label = self.label;
        for &step in steps {
            let (at, below) = (place(steps, step, LEFT, RIGHT), BOTTOM + 18.0);
            line(svg, &format!("<path d=\"M{at:.1} {TOP}V{BOTTOM}\" stroke=\"#ddd\"/>"));
            line(svg, &format!("<text x=\"{at:.1}\" y=\"{below:.0}\" text-anchor=\"middle\">{step}</text>"));
        }
        let decimals = decimals(levels[1] - levels[0]);
        for &level in levels {
            let at = place(levels, level, BOTTOM, TOP);
            line(svg, &format!("<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#ddd\"/>"));
            let (left, base) = (LEFT - 6.0, at + 4.5);
            let text = format!("text-anchor=\"end\">{level:.decimals$}</text>");
            line(svg, &format!("<text x=\"{left:.0}\" y=\"{base:.1}\" {text}"));
        }
        line(svg, &format!("<path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\" fill=\"none\" stroke=\"black\"/>"));
        let (middle, height) = (f64::midpoint(LEFT, RIGHT), f64::midpoint(TOP, BOTTOM));
        let below = BOTTOM + 42.0;
        line(
            svg,
            &format!("<text x=\"{middle}\" y=\"{below:.0}\" text-anchor=\"middle\">optimizer step</text>"),
        );
        let turn = format!("text-anchor=\"middle\" transform=\"rotate(-90 18 {height})\"");
        line(svg, &format!("<text x=\"18\" y=\"{height}\" {turn}>{label}</text>"));
    }
}

impl Curve {
    fn draw(&self, svg: &mut String, steps: &[f64], levels: &[f64]) {
        let Self { colour, points, .. } = self;
        let at = |&(step, value): &(f64, f64)| {
            (place(steps, step, LEFT, RIGHT), place(levels, value, BOTTOM, TOP))
        };
        let list: Vec<String> = points.iter().map(at).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let list = list.join(" ");
        line(
            svg,
            &format!("<polyline points=\"{list}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"/>"),
        );
        // A single point has no line; few points are seen better with marks.
        if points.len() <= 60 {
            for (x, y) in points.iter().map(at) {
                line(svg, &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\" fill=\"{colour}\"/>"));
            }
        }
    }
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
        let mut rewarded = [point(1, 0.5, None), point(2, -0.5, None)];
        (rewarded[0].reward, rewarded[1].reward) = (Some(-0.5), Some(0.5));
        let svg = draw("x", &rewarded);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("mean reward").count()), (2, 1));
        let flat = draw("x", &[point(1, 0.5, None)]);
        assert!(flat.contains("<circle") && !flat.contains("NaN") && !flat.contains("inf"));
    }
}
