//! The driver's pipeline cache: the only unsafe block of the crate.

use super::entry::Verified;

/// Creates the driver's cache with `data`, or empty.
///
/// The driver takes only what its `PipelineCache::get_data` returned. [`Verified`] holds no other
/// bytes: `entry::decode` alone makes it, of bytes behind a header of ours with the digest of this
/// adapter, driver and versions, in full length and with their SHA-256; `PipelineStore::save` alone
/// writes such files, and `files::read` takes them only from a folder and file that this user owns
/// and nobody else may write (ADR-0043).
#[allow(unsafe_code)]
pub(super) fn pipeline_cache(device: &wgpu::Device, data: Option<&Verified<'_>>) -> wgpu::PipelineCache {
    let descriptor = wgpu::PipelineCacheDescriptor {
        label: Some("ruvllm"),
        data: data.map(Verified::bytes),
        // Data that wgpu finds to be of another version of wgpu or the driver is dropped.
        fallback: true,
    };
    // SAFETY: `data`, if any, was returned by `PipelineCache::get_data` for this adapter and
    // driver: `Verified` is made of nothing else.
    unsafe { device.create_pipeline_cache(&descriptor) }
}
