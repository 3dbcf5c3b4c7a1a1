//! Statistics of a few samples.

use serde_json::{Value, json};

/// Rates, one per round.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Samples(pub(super) Vec<f64>);

/// Median and extremes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Samples {
    /// The spread; the median of an even number is the mean of the two middle samples. `None` of no
    /// samples.
    pub(super) fn spread(&self) -> Option<Spread> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Spread { median, min, max })
    }

    pub(super) fn median(&self) -> Option<f64> {
        self.spread().map(|spread| spread.median)
    }

    /// The ratio of the medians, with the extremes of the ratios within a round. The extremes
    /// always enclose it.
    pub(super) fn ratio(&self, to: &Self) -> Option<Spread> {
        let rounds = Self(self.0.iter().zip(&to.0).map(|(a, b)| a / b).collect()).spread()?;
        Some(Spread { median: self.median()? / to.median()?, ..rounds })
    }

    /// `31.2 (30.9-31.5)`, or a dash without samples.
    pub(super) fn cell(&self) -> String {
        self.spread().map_or_else(|| "-".to_owned(), |spread| spread.cell(1))
    }

    pub(super) fn json(&self) -> Value {
        self.spread().map_or(
            Value::Null,
            |s| json!({ "median": s.median, "min": s.min, "max": s.max, "samples": self.0 }),
        )
    }
}

impl Spread {
    /// Median and extremes with `digits` decimals.
    pub(super) fn cell(&self, digits: usize) -> String {
        format!("{:.digits$} ({:.digits$}-{:.digits$})", self.median, self.min, self.max)
    }

    /// As [`cell`](Self::cell), with the median in bold.
    pub(super) fn bold_cell(&self, digits: usize) -> String {
        format!("**{:.digits$}** ({:.digits$}-{:.digits$})", self.median, self.min, self.max)
    }

    pub(super) fn json(&self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_the_sorted_samples() {
        assert_eq!(Samples(vec![3.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(Samples(vec![4.0, 1.0, 2.0, 3.0]).median(), Some(2.5));
        assert_eq!(Samples(vec![4.0, 1.0, 2.0]).cell(), "2.0 (1.0-4.0)");
        assert_eq!(Samples::default().median(), None);
        assert_eq!(Samples::default().json(), Value::Null, "not measured, not invented");
    }

    #[test]
    fn ratios_are_of_medians_with_the_spread_of_the_rounds() {
        let (ours, peer) = (Samples(vec![10.0, 12.0, 30.0]), Samples(vec![5.0, 8.0, 10.0]));
        let ratio = ours.ratio(&peer).expect("three rounds");
        assert_eq!(ratio, Spread { median: 1.5, min: 1.5, max: 3.0 });
        assert_eq!(ratio.bold_cell(2), "**1.50** (1.50-3.00)");
        assert_eq!(ours.ratio(&Samples::default()), None);
    }
}
