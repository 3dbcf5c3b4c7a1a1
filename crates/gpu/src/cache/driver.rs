//! The driver's pipeline cache: the only unsafe block of the crate.

use super::entry::Verified;

/// Creates the driver's cache with `data`, or empty.
#[allow(unsafe_code)]
pub(super) fn pipeline_cache(device: &wgpu::Device, data: Option<&Verified<'_>>) -> wgpu::PipelineCache {
    let descriptor = wgpu::PipelineCacheDescriptor {
        label: Some("ruvllm"),
        data: data.map(Verified::bytes),
        // Data that wgpu finds to be of another version of wgpu or the driver is dropped.
        fallback: true,
    };
    // SAFETY: `data`, if any, must have been returned by `PipelineCache::get_data`. `Verified` is
    // made by `entry::decode` only: the bytes follow a header of ours with the digest of this
    // adapter, driver and versions, in full length and with their SHA-256. `PipelineStore::save`
    // alone writes such files, from `get_data`, and `files::read` takes them only from a folder and
    // file that this user owns and nobody else may write (ADR-0043).
    unsafe { device.create_pipeline_cache(&descriptor) }
}
