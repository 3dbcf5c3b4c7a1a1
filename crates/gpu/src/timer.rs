//! Timestamps around kernels.

/// Query set and buffers of [`Gpu::time`](crate::Gpu::time).
#[derive(Debug)]
pub(crate) struct Timer {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    pub(crate) readable: wgpu::Buffer,
    nanoseconds: f64,
}

impl Timer {
    pub(crate) fn new(device: &wgpu::Device, queue: &wgpu::Queue) -> Self {
        use wgpu::BufferUsages as U;
        let buffer = |usage| {
            let size = 16;
            device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size,
                usage,
                mapped_at_creation: false,
            })
        };
        Self {
            queries: device.create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count: 2,
            }),
            resolved: buffer(U::QUERY_RESOLVE | U::COPY_SRC),
            readable: buffer(U::MAP_READ | U::COPY_DST),
            nanoseconds: f64::from(queue.get_timestamp_period()),
        }
    }

    /// Timestamps of a compute pass.
    pub(crate) fn writes(&self) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: Some(1),
        }
    }

    /// Copies the timestamps to memory that the host can map.
    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        encoder.resolve_query_set(&self.queries, 0..2, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.readable, 0, 16);
    }

    /// Seconds between the timestamps, from their bytes.
    pub(crate) fn seconds(&self, bytes: &[u8]) -> f64 {
        let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(bytes);
        ticks[1].wrapping_sub(ticks[0]) as f64 * self.nanoseconds * 1e-9
    }
}
