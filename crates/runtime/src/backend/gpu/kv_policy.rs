//! Formats of keys and values on the device, and the policies that they implement.

use ruvllm_gpu::KvFormat;
use ruvllm_kernels::attention;
use ruvllm_kv_cache::KvPolicy;

/// Policy that a format of the device implements.
pub(super) fn policy_of(format: KvFormat) -> KvPolicy {
    match format {
        KvFormat::F16 => attention::KvFormat::F16.into(),
        KvFormat::Q8 => attention::KvFormat::Q8.into(),
    }
}

/// Format of a policy on the device, if it has one.
pub(super) fn format_of(policy: KvPolicy) -> Option<KvFormat> {
    KvFormat::ALL.into_iter().find(|&format| policy_of(format) == policy)
}
