//! Metrics, the live view, logs and traces (ADR-0066).

pub(crate) mod access;
mod figures;
pub(crate) mod live;
pub mod logging;
pub(crate) mod metrics;
#[cfg(feature = "otlp")]
pub mod otlp;
#[cfg(test)]
mod tests;

pub(crate) use self::live::Live;
pub(crate) use self::metrics::Metrics;
