//! Metrics of the kernel pack that replaces native kernels, once for all models that use it.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use ruvllm::{RowKernelCounts, RowKernelReport};

use super::labels::Labels;
use super::samples::write;
use crate::models::LoadedModel;

/// Values with their labels.
type Samples = Vec<(Labels, f64)>;

/// A metric of packs: name, help, true for a counter, and the values that it has.
type PackMetric = (&'static str, &'static str, bool, fn(&RowKernelReport) -> Samples);

/// Metrics of packs, without the active version.
const METRICS: [PackMetric; 8] = [
    ("kernel_pack_swaps", "Versions of the pack that came into use", true, |pack| {
        vec![(of_pack(pack), pack.swaps as f64)]
    }),
    ("kernel_pack_refused", "Versions of the pack that were refused", true, |pack| {
        vec![(of_pack(pack), pack.refused as f64)]
    }),
    ("kernel_pack_rollbacks", "Versions that went out of use, by cause", true, |pack| {
        let rollbacks = pack.rollbacks.iter();
        rollbacks.map(|(cause, count)| (of_pack(pack).with("cause", cause), *count as f64)).collect()
    }),
    ("kernel_pack_calls", "Calls of kernels of the pack", true, |pack| {
        by_kernel(pack, |kernel| kernel.calls)
    }),
    ("kernel_pack_failures", "Calls that failed", true, |pack| by_kernel(pack, |kernel| kernel.failed)),
    ("kernel_pack_fallbacks", "Operations that native code computed after a failure", true, |pack| {
        by_kernel(pack, |kernel| kernel.fallbacks)
    }),
    ("kernel_pack_traps", "Traps of kernels by kind", true, |pack| {
        let traps = pack.kernels.iter().flat_map(|kernel| {
            let labels = of_kernel(pack, kernel);
            kernel.traps.iter().map(move |(kind, count)| (labels.clone().with("kind", kind), *count as f64))
        });
        traps.collect()
    }),
    ("kernel_pack_quarantined", "1 for a kernel in quarantine, else 0", false, |pack| {
        by_kernel(pack, |kernel| u64::from(kernel.is_quarantined))
    }),
];

fn of_pack(pack: &RowKernelReport) -> Labels {
    Labels { pack: Some(pack.name.as_str().into()), ..Labels::default() }
}

fn of_kernel(pack: &RowKernelReport, kernel: &RowKernelCounts) -> Labels {
    Labels { kernel: Some(kernel.id.as_str().into()), ..of_pack(pack) }
}

fn by_kernel(pack: &RowKernelReport, read: fn(&RowKernelCounts) -> u64) -> Samples {
    pack.kernels.iter().map(|kernel| (of_kernel(pack, kernel), read(kernel) as f64)).collect()
}

/// Writes the metrics of the packs that loaded models use; nothing without one.
pub(super) fn write_kernel_packs(
    encoder: &mut DescriptorEncoder<'_>,
    models: &[Arc<LoadedModel>],
) -> fmt::Result {
    let mut packs: Vec<RowKernelReport> = Vec::new();
    for engine in models.iter().filter_map(|model| model.try_engine()) {
        // Engines share the pack of the process: a series of the same labels may be there once.
        if let Some(pack) = engine.row_kernel_report()
            && packs.iter().all(|other| other.name != pack.name)
        {
            packs.push(pack);
        }
    }
    write_versions(encoder, &packs)?;
    for (name, help, is_counter, read) in METRICS {
        let samples: Samples = packs.iter().flat_map(read).collect();
        write(encoder, (name, help, None), is_counter, &samples)?;
    }
    Ok(())
}

/// Writes the active versions.
fn write_versions(encoder: &mut DescriptorEncoder<'_>, packs: &[RowKernelReport]) -> fmt::Result {
    let active = packs.iter().filter_map(|pack| Some((pack.name.as_str(), pack.version.as_deref()?)));
    let active: Vec<_> = active.collect();
    if active.is_empty() {
        return Ok(());
    }
    let help = "Version of the kernel pack in use.";
    let mut metric = encoder.encode_descriptor("kernel_pack", help, None, MetricType::Info)?;
    for (name, version) in active {
        metric.encode_info(&[("pack", name), ("version", version)])?;
    }
    Ok(())
}
