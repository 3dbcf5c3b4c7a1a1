//! The step loop of a simulation.

use super::instance::Instance;
use super::report::Report;
use super::traffic::trace;
use super::{Setup, Violation};
use crate::config::Config;

/// Runs a trace of `setup` under a scheduler with the settings `config`.
///
/// # Errors
/// The first [`Violation`] of an invariant.
pub fn simulate(config: &Config, setup: &Setup) -> Result<Report, Violation> {
    let arrivals = trace(&setup.traffic, setup.requests, setup.seed);
    let mut instance = Instance::new(config, setup, &arrivals, setup.seed);
    for arrival in &arrivals {
        instance.send(arrival.request.id, arrival.at, arrival.at);
    }
    loop {
        if let Some(duration) = instance.begin()? {
            instance.finish_step(duration)?;
        } else if let Some(next) = instance.next_submission() {
            instance.now = next;
        } else {
            return instance.finish();
        }
    }
}
