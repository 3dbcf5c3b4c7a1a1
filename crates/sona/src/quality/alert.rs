//! Alerts on moving means of scores, with hysteresis.

use std::collections::VecDeque;

use crate::error::{Error, Result};

use super::QualityReport;

/// Condition of an alert.
#[derive(Debug, Clone, PartialEq)]
pub struct AlertRule {
    /// Name of the scorer, or `overall`.
    pub score: String,
    /// Mean below which the alert is raised.
    pub raise_below: f64,
    /// Mean above which a raised alert is cleared.
    pub clear_above: f64,
    /// Scores per mean; nothing happens before there are as many.
    pub window: usize,
}

/// Change of an alert.
#[derive(Debug, Clone, PartialEq)]
pub struct Alert {
    /// Name of the scorer, or `overall`.
    pub score: String,
    /// True if the alert was raised, false if it was cleared.
    pub is_raised: bool,
    /// Mean over the window.
    pub mean: f64,
}

/// State of alerts over a sequence of reports.
#[derive(Debug, Clone, Default)]
pub struct Alerts {
    states: Vec<State>,
}

#[derive(Debug, Clone)]
struct State {
    rule: AlertRule,
    values: VecDeque<f64>,
    is_raised: bool,
}

impl Alerts {
    /// Makes the alerts, none of them raised.
    ///
    /// # Errors
    /// [`Error::Setting`] unless 0 <= `raise_below` < `clear_above` <= 1 and 1 <= `window` <=
    /// 10,000.
    pub fn new(rules: Vec<AlertRule>) -> Result<Self> {
        let mut states = Vec::with_capacity(rules.len());
        for rule in rules {
            let is_ordered = 0.0 <= rule.raise_below && rule.raise_below < rule.clear_above;
            if !is_ordered || rule.clear_above > 1.0 {
                return Err(Error::Setting {
                    name: "clear_above",
                    value: format!("{} (raise_below is {})", rule.clear_above, rule.raise_below),
                    range: "above raise_below, both from 0 to 1",
                });
            }
            if !(1..=10_000).contains(&rule.window) {
                return Err(Error::Setting {
                    name: "window",
                    value: rule.window.to_string(),
                    range: "from 1 to 10000",
                });
            }
            states.push(State { rule, values: VecDeque::new(), is_raised: false });
        }
        Ok(Self { states })
    }

    /// Takes a report and returns the alerts that it raised or cleared. Absent scores change
    /// nothing.
    pub fn observe(&mut self, report: &QualityReport) -> Vec<Alert> {
        let mut changes = Vec::new();
        for State { rule, values, is_raised } in &mut self.states {
            let Some(value) = report.value(&rule.score) else { continue };
            if values.len() == rule.window {
                values.pop_front();
            }
            values.push_back(value);
            if values.len() < rule.window {
                continue;
            }
            // Summed anew each time: a running sum would drift.
            let mean = values.iter().sum::<f64>() / rule.window as f64;
            let changes_now = if *is_raised { mean > rule.clear_above } else { mean < rule.raise_below };
            if changes_now {
                *is_raised = !*is_raised;
                changes.push(Alert { score: rule.score.clone(), is_raised: *is_raised, mean });
            }
        }
        changes
    }

    /// Names of the scores whose alert is raised.
    pub fn raised(&self) -> impl Iterator<Item = &str> {
        self.states.iter().filter(|state| state.is_raised).map(|state| state.rule.score.as_str())
    }
}
