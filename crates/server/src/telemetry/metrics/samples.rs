//! Samples of metrics that are read when somebody asks for them.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::labels::Labels;

/// Writes a metric: its description and its values.
pub(super) fn write(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, unit): (&str, &str, Option<&Unit>),
    is_counter: bool,
    samples: &[(Labels, f64)],
) -> fmt::Result {
    if samples.is_empty() {
        return Ok(());
    }
    let kind = if is_counter { MetricType::Counter } else { MetricType::Gauge };
    let help = format!("{help}.");
    let mut metric = encoder.encode_descriptor(name, &help, unit, kind)?;
    for (labels, value) in samples {
        if *labels == Labels::default() {
            write_value(&mut metric, is_counter, *value)?;
        } else {
            write_value(&mut metric.encode_family(labels)?, is_counter, *value)?;
        }
    }
    Ok(())
}

fn write_value(metric: &mut MetricEncoder<'_>, is_counter: bool, value: f64) -> fmt::Result {
    if is_counter {
        metric.encode_counter::<Labels, f64, f64>(&value, None)
    } else {
        metric.encode_gauge(&value)
    }
}
