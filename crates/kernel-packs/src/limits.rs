//! Limits that are checked before bytes are read or kept.

/// Most bytes of `kernels.json`.
pub const MAX_MANIFEST_BYTES: u64 = 256 << 10;
/// Bytes of `kernels.json.sig`: 128 hexadecimal digits and a line feed.
pub const SIGNATURE_BYTES: u64 = 129;
/// Most bytes of one kernel file.
pub const MAX_KERNEL_BYTES: u64 = 8 << 20;
/// Most bytes of all kernel files of a pack.
pub const MAX_PACK_BYTES: u64 = 64 << 20;
/// Most kernels of a pack, and most of its files beside manifest and signature.
pub const MAX_KERNELS: usize = 256;
/// Most bytes of an archive: all files with a header and padding each, and the end of the archive.
pub const MAX_ARCHIVE_BYTES: u64 =
    MAX_MANIFEST_BYTES + MAX_PACK_BYTES + (MAX_KERNELS as u64 + 3) * 1024 + 1024;
/// Most bytes of a path in a pack: what a header of an archive holds.
pub const MAX_PATH_BYTES: usize = 100;
/// Most folders and file names in a path.
pub const MAX_PATH_PARTS: usize = 4;
/// Most bytes of a name or id.
pub const MAX_NAME_BYTES: usize = 64;
/// Most bytes of a text for people.
pub const MAX_TEXT_BYTES: usize = 2048;
/// Most inputs, and most outputs, of a kernel.
pub const MAX_TENSORS: usize = 16;
/// Most dimensions of a tensor.
pub const MAX_DIMS: usize = 8;
/// Largest size of a dimension.
pub const MAX_DIM: u64 = 1 << 31;
/// Most parameters of a kernel.
pub const MAX_PARAMETERS: usize = 64;
/// Most benchmarks of a kernel.
pub const MAX_BENCHMARKS: usize = 32;
/// Most pages (64 KiB) of memory that a kernel may ask for: 1 GiB.
pub const MAX_MEMORY_PAGES: u32 = 16_384;
/// Most epoch ticks (10 ms) that a call may ask for: one minute.
pub const MAX_EPOCH_TICKS: u32 = 6_000;
/// Most table elements that a kernel may ask for.
pub const MAX_TABLE_ELEMENTS: u32 = 65_536;
/// Most bytes of a file of trusted keys.
pub const MAX_TRUST_BYTES: u64 = 1 << 20;
/// Most keys of a file of trusted keys.
pub const MAX_KEYS: usize = 1_024;
/// Most hashes of an allow-list.
pub const MAX_ALLOWED: usize = 8_192;
/// Most versions of a pack that a store keeps.
pub const MAX_RELEASES: usize = 32;
/// Most bytes of a pack's state in a store.
pub const MAX_STATE_BYTES: u64 = 32 << 10;
