//! Adapters: listing, description, selection.

use std::fmt;

use crate::error::{Error, Result};
use crate::future::block_on;
use crate::kernel::CooperativeTile;

/// Kind of an adapter, in order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AdapterKind {
    /// Discrete GPU with its own memory.
    Discrete,
    /// Integrated GPU that shares the memory of the CPU.
    Integrated,
    /// Virtual GPU.
    Virtual,
    /// Kind unknown to the driver.
    Other,
    /// Software adapter on the CPU; selected only on request.
    Software,
}

/// Shape of a cooperative matrix product with f16 factors and an f32 sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatrixShape {
    /// Rows of the result.
    pub m: u32,
    /// Columns of the result.
    pub n: u32,
    /// Inner dimension.
    pub k: u32,
}

/// Description of an adapter: identity, features, limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Index in [`adapters`].
    pub index: usize,
    /// Name of the device.
    pub name: String,
    /// Driver name and version.
    pub driver: String,
    /// Graphics API: `vulkan` or `metal`.
    pub backend: String,
    /// Kind of device.
    pub kind: AdapterKind,
    /// f16 arithmetic and storage in kernels.
    pub f16: bool,
    /// Smallest and largest subgroup size, if kernels may use subgroup operations.
    pub subgroup: Option<(u32, u32)>,
    /// Timestamps at the begin and end of a pass.
    pub timestamps: bool,
    /// Cooperative matrix products of f16 with f32 sums.
    pub cooperative: Vec<MatrixShape>,
    /// Largest storage buffer in bytes.
    pub max_binding: u64,
    /// Workgroup memory in bytes.
    pub workgroup_memory: u32,
    /// Largest number of threads in a workgroup.
    pub max_threads: u32,
    /// Name of the adapter's pipeline cache; `None` if compiled pipelines cannot be kept.
    pub cache_key: Option<String>,
}

impl AdapterInfo {
    /// The adapter with the features and limits alone that every WebGPU device has.
    pub(crate) fn plain(self) -> Self {
        Self {
            f16: false,
            subgroup: None,
            cooperative: Vec::new(),
            cache_key: None,
            workgroup_memory: self.workgroup_memory.min(16 << 10),
            max_threads: self.max_threads.min(256),
            ..self
        }
    }

    fn new(index: usize, adapter: &wgpu::Adapter) -> Self {
        let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
        let has = |feature| features.contains(feature);
        let f16_to_f32 = |p: &&wgpu::CooperativeMatrixProperties| {
            p.ab_type == wgpu::CooperativeScalarType::F16 && p.cr_type == wgpu::CooperativeScalarType::F32
        };
        let properties = adapter.cooperative_matrix_properties();
        let shape =
            |p: &wgpu::CooperativeMatrixProperties| MatrixShape { m: p.m_size, n: p.n_size, k: p.k_size };
        let cache_key = has(wgpu::Features::PIPELINE_CACHE).then(|| wgpu::util::pipeline_cache_key(&info));
        Self {
            index,
            cache_key: cache_key.flatten(),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            backend: info.backend.to_string(),
            kind: match info.device_type {
                wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
                wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
                wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
                wgpu::DeviceType::Cpu => AdapterKind::Software,
                wgpu::DeviceType::Other => AdapterKind::Other,
            },
            f16: has(wgpu::Features::SHADER_F16),
            subgroup: has(wgpu::Features::SUBGROUP)
                .then_some((info.subgroup_min_size, info.subgroup_max_size)),
            timestamps: has(wgpu::Features::TIMESTAMP_QUERY),
            cooperative: properties.iter().filter(f16_to_f32).map(shape).collect(),
            max_binding: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size),
            workgroup_memory: limits.max_compute_workgroup_storage_size,
            max_threads: limits
                .max_compute_invocations_per_workgroup
                .min(limits.max_compute_workgroup_size_x),
            name: info.name,
        }
    }

    /// Subgroup size that kernels are generated for.
    ///
    /// `None` without subgroups, or if the driver chooses the size per kernel.
    pub fn fixed_subgroup(&self) -> Option<u32> {
        self.subgroup.filter(|(min, max)| min == max && *min >= 4).map(|(size, _)| size)
    }

    /// Side of the cooperative matrices that kernels are generated for, 16 before 8.
    ///
    /// `None` without square ones, without f16, without a [fixed](Self::fixed_subgroup) subgroup
    /// size (a matrix belongs to a subgroup), or where a workgroup cannot hold the tiles of
    /// [`CooperativeTile::choose`]: 48 KiB and 8 subgroups.
    pub fn matrix_side(&self) -> Option<u32> {
        let has = |side: &u32| self.cooperative.contains(&MatrixShape { m: *side, n: *side, k: *side });
        let subgroup = self.fixed_subgroup()?;
        let holds = self.workgroup_memory >= CooperativeTile::MEMORY
            && self.max_threads / subgroup >= CooperativeTile::MOST_SUBGROUPS;
        [16, 8].into_iter().find(has).filter(|side| self.f16 && holds && side * side % subgroup == 0)
    }
}

impl fmt::Display for AdapterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({}, {:?}, {})", self.index, self.name, self.backend, self.kind, self.driver)
    }
}

/// Selects the adapter to open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// Adapter by index, by name, or the best one.
    pub adapter: AdapterChoice,
    /// Allows software adapters (tests).
    pub software: bool,
}

impl Selection {
    /// Selects the best adapter, software adapters included.
    pub fn with_software() -> Self {
        Self { software: true, ..Self::default() }
    }

    /// Index in `all` of the adapter that [`Gpu::open`](crate::Gpu::open) opens.
    ///
    /// # Errors
    /// [`Error::NoAdapter`], [`Error::UnknownAdapter`].
    pub fn choose(&self, all: &[AdapterInfo]) -> Result<usize> {
        choose(all, self)
    }
}

/// Adapter by index, by name, or the best one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AdapterChoice {
    /// Best adapter: discrete before integrated before virtual; the first among equals.
    #[default]
    Best,
    /// Index in [`adapters`].
    Index(usize),
    /// First adapter whose name contains this text, ignoring case.
    Name(String),
}

/// Lists available adapters, software adapters included. Empty without a Vulkan loader or driver.
pub fn adapters() -> Vec<AdapterInfo> {
    enumerate(&instance()).into_iter().map(|(info, _)| info).collect()
}

pub(crate) fn instance() -> wgpu::Instance {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL;
    descriptor.flags = wgpu::InstanceFlags::empty();
    wgpu::Instance::new(descriptor)
}

fn enumerate(instance: &wgpu::Instance) -> Vec<(AdapterInfo, wgpu::Adapter)> {
    let all = block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN | wgpu::Backends::METAL));
    all.into_iter().enumerate().map(|(index, adapter)| (AdapterInfo::new(index, &adapter), adapter)).collect()
}

/// Adapter selected by `selection`.
pub(crate) fn select(
    instance: &wgpu::Instance,
    selection: &Selection,
) -> Result<(AdapterInfo, wgpu::Adapter)> {
    let all = enumerate(instance);
    let infos: Vec<_> = all.iter().map(|(info, _)| info.clone()).collect();
    let index = selection.choose(&infos)?;
    Ok(all.into_iter().nth(index).expect("choose returns a position in the list"))
}

fn choose(infos: &[AdapterInfo], selection: &Selection) -> Result<usize> {
    let allowed = |info: &&AdapterInfo| selection.software || info.kind != AdapterKind::Software;
    let candidates: Vec<_> = infos.iter().filter(allowed).collect();
    if candidates.is_empty() {
        return Err(Error::NoAdapter { software: infos.len() });
    }
    let unknown = |wanted: String| Error::UnknownAdapter {
        wanted,
        present: candidates.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    };
    let found = match &selection.adapter {
        AdapterChoice::Best => candidates.iter().min_by_key(|info| info.kind),
        AdapterChoice::Index(index) => candidates.iter().find(|info| info.index == *index),
        AdapterChoice::Name(name) => {
            let name = name.to_lowercase();
            candidates.iter().find(|info| info.name.to_lowercase().contains(&name))
        }
    };
    found.map(|info| info.index).ok_or_else(|| match &selection.adapter {
        AdapterChoice::Index(index) => unknown(index.to_string()),
        AdapterChoice::Name(name) => unknown(name.clone()),
        AdapterChoice::Best => Error::NoAdapter { software: infos.len() },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::kernel::{AttentionKernel, CooperativeKernel, Kernel, Target, TiledAttentionKernel};
    use crate::repack::Format;
    use crate::split_key::ColumnSplits;

    fn adapter(index: usize, name: &str, kind: AdapterKind) -> AdapterInfo {
        AdapterInfo {
            index,
            name: name.to_owned(),
            driver: String::new(),
            backend: "vulkan".to_owned(),
            kind,
            f16: true,
            subgroup: Some((32, 32)),
            timestamps: true,
            cooperative: Vec::new(),
            max_binding: 1 << 30,
            workgroup_memory: 1 << 14,
            max_threads: 1024,
            cache_key: None,
        }
    }

    fn pick(infos: &[AdapterInfo], adapter: AdapterChoice, software: bool) -> Result<usize> {
        choose(infos, &Selection { adapter, software })
    }

    #[test]
    fn discrete_is_preferred_and_software_needs_permission() {
        use AdapterKind::{Discrete, Integrated, Software};
        let infos =
            [adapter(0, "llvmpipe", Software), adapter(1, "Iris", Integrated), adapter(2, "H100", Discrete)];
        assert_eq!(pick(&infos, AdapterChoice::Best, false), Ok(2));
        assert_eq!(pick(&infos[..2], AdapterChoice::Best, true), Ok(1));
        assert_eq!(pick(&infos[..1], AdapterChoice::Best, true), Ok(0));
        assert_eq!(pick(&infos[..1], AdapterChoice::Best, false), Err(Error::NoAdapter { software: 1 }));
        assert_eq!(pick(&[], AdapterChoice::Best, true), Err(Error::NoAdapter { software: 0 }));
    }

    #[test]
    fn index_and_name_select_or_fail_with_the_list() {
        let infos =
            [adapter(0, "llvmpipe", AdapterKind::Software), adapter(1, "H100", AdapterKind::Discrete)];
        assert_eq!(pick(&infos, AdapterChoice::Index(1), false), Ok(1));
        assert_eq!(pick(&infos, AdapterChoice::Name("h1".to_owned()), false), Ok(1));
        let missing = pick(&infos, AdapterChoice::Index(0), false);
        assert!(
            matches!(&missing, Err(Error::UnknownAdapter { wanted, .. }) if wanted == "0"),
            "{missing:?}"
        );
        let missing = pick(&infos, AdapterChoice::Name("arc".to_owned()), true);
        assert!(
            matches!(&missing, Err(Error::UnknownAdapter { present, .. }) if present.contains("llvmpipe"))
        );
    }

    #[test]
    fn varying_subgroups_are_not_used() {
        let mut info = adapter(0, "Arc", AdapterKind::Discrete);
        info.subgroup = Some((8, 32));
        assert_eq!(info.fixed_subgroup(), None);
        info.subgroup = Some((32, 32));
        assert_eq!(info.fixed_subgroup(), Some(32));
    }

    #[test]
    fn square_matrices_with_a_fixed_subgroup_are_used() {
        let shape = |m, n, k| MatrixShape { m, n, k };
        let mut info = adapter(0, "H100", AdapterKind::Discrete);
        assert_eq!(info.matrix_side(), None);
        info.cooperative = vec![shape(16, 8, 16), shape(8, 8, 8)];
        assert_eq!(info.matrix_side(), None, "16 KiB of workgroup memory");
        info.workgroup_memory = 48 << 10;
        assert_eq!(info.matrix_side(), Some(8));
        info.cooperative.push(shape(16, 16, 16));
        assert_eq!(info.matrix_side(), Some(16));
        info.max_threads = 128;
        assert_eq!(info.matrix_side(), None);
        info.max_threads = 256;
        info.subgroup = Some((8, 32));
        assert_eq!(info.matrix_side(), None);
    }

    #[test]
    fn every_chosen_tile_runs_on_every_device_with_matrices() {
        let mut info = adapter(0, "H100", AdapterKind::Discrete);
        info.cooperative = vec![MatrixShape { m: 16, n: 16, k: 16 }];
        info.workgroup_memory = CooperativeTile::MEMORY;
        info.max_threads = 256;
        let cooperative = info.matrix_side();
        let target = Target { subgroup: info.fixed_subgroup(), f16: true, cooperative };
        let (cols, first) = (256, 0);
        let mut tiles = HashSet::new();
        for format in Format::ALL {
            for rows in [1, 100, 512, 2048, 4096, 14_336, 128_256] {
                for batch in [1, 16, 17, 32, 33, 64, 65, 128, 129, 256, 512, 2048, 65_536] {
                    let tile = CooperativeTile::choose(rows, batch, target).expect("squares of 16");
                    let kernel = CooperativeKernel {
                        format,
                        rows,
                        cols,
                        width: rows,
                        first,
                        tile,
                        splits: ColumnSplits::Whole,
                    };
                    let checked = Kernel::Cooperative(kernel).check(&info);
                    checked.unwrap_or_else(|e| panic!("{format:?}, {rows} rows, batch {batch}: {e}"));
                    tiles.insert(tile);
                }
            }
        }
        assert_eq!(tiles, CooperativeTile::MEASURED.into(), "every line of the table");
    }

    #[test]
    fn attention_is_tiled_by_its_heads_whatever_the_rows() {
        let mut info = adapter(0, "H100", AdapterKind::Discrete);
        info.cooperative = vec![MatrixShape { m: 16, n: 16, k: 16 }];
        info.workgroup_memory = CooperativeTile::MEMORY;
        info.max_threads = 256;
        let cooperative = info.matrix_side();
        let target = Target { subgroup: info.fixed_subgroup(), f16: true, cooperative };
        let shapes = [(32, 8, 64), (14, 2, 64), (32, 32, 128), (24, 3, 112), (9, 3, 16), (64, 8, 128)];
        for (heads, kv_heads, head_dim) in shapes {
            let key = AttentionKernel::new(heads, kv_heads, head_dim).one_sequence();
            for rows in [1, 2, 8, 16, 17, 32, 64, 512, 65_536, u32::MAX] {
                let tile = TiledAttentionKernel::choose(key, rows, target).expect("a tile");
                let checked = Kernel::TiledAttention(tile).check(&info);
                checked.unwrap_or_else(|e| panic!("{heads} heads of {head_dim}, {rows} rows: {e}"));
            }
        }
        for (head_dim, target) in [
            (256, target),
            (160, target),
            (72, target),
            (64, Target { cooperative: Some(8), ..target }),
            (64, Target { cooperative: None, ..target }),
        ] {
            let key = AttentionKernel::new(32, 8, head_dim).one_sequence();
            for rows in [1, 16, 512] {
                assert_eq!(TiledAttentionKernel::choose(key, rows, target), None, "{rows} of {head_dim}");
            }
        }
    }
}
