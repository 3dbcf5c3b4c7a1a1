//! Calibration of a model's keys and values, and its file.

pub(crate) mod fault;

use ruvllm_kernels::attention::{NUQ_LEVELS, NuqCodebooks};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::shape::KvShape;

use fault::FORMAT_VERSION;

pub use fault::CalibrationFault;

const MAGIC: [u8; 8] = *b"KVCALIB\0";

/// Bytes before the layers.
const HEADER_BYTES: usize = 8 + 4 + 3 * 4 + 32;

/// Bytes of the checksum at the end.
const CHECKSUM_BYTES: usize = 32;

/// Codebooks of all layers of a model, for
/// [`KvFormat::Nuq3`](ruvllm_kernels::attention::KvFormat::Nuq3).
///
/// # File
/// All numbers are little-endian:
///
/// | bytes | field |
/// |---|---|
/// | 8 | `KVCALIB` and a zero |
/// | 4 | format version, 1 |
/// | 4 each | layers, key/value heads, values of a head |
/// | 32 | fingerprint of the model |
/// | per layer, 4 each | 8 levels of keys, 8 levels of values; of each dimension of the keys the lower and the upper end |
/// | 32 | SHA-256 of everything before |
///
/// # Examples
/// ```
/// use ruvllm_kernels::attention::NuqCodebooks;
/// use ruvllm_kv_cache::{KvCalibration, KvShape};
///
/// let shape = KvShape::new(1, 1, 32);
/// let levels = [-0.9, -0.6, -0.3, -0.1, 0.1, 0.3, 0.6, 0.9];
/// let layer = NuqCodebooks::new(levels, levels, vec![[-1.0, 2.0]; 32])?;
/// let calibration = KvCalibration::new([7; 32], shape, vec![layer])?;
/// assert_eq!(KvCalibration::from_bytes(&calibration.to_bytes())?, calibration);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct KvCalibration {
    model: [u8; 32],
    shape: KvShape,
    layers: Vec<NuqCodebooks>,
}

impl KvCalibration {
    /// The calibration of a model.
    ///
    /// # Shapes
    /// `layers`: one per layer, with ranges of `n_kv_heads * head_dim` dimensions.
    ///
    /// # Errors
    /// [`Error::Calibration`] if there are others.
    pub fn new(model: [u8; 32], shape: KvShape, layers: Vec<NuqCodebooks>) -> Result<Self> {
        let row = shape.n_kv_heads.checked_mul(shape.head_dim);
        let fits = |layer: &NuqCodebooks| Some(layer.key_ranges().len()) == row;
        let sizes = [shape.n_layers, shape.n_kv_heads, shape.head_dim];
        let are_counts = sizes.iter().all(|&size| u32::try_from(size).is_ok());
        if layers.len() != shape.n_layers || !layers.iter().all(fits) || !are_counts {
            return Err(Error::Calibration(CalibrationFault::Shape { layers: layers.len(), shape }));
        }
        Ok(Self { model, shape, layers })
    }

    /// Fingerprint of the model it was made from.
    pub fn model(&self) -> &[u8; 32] {
        &self.model
    }

    /// The shape of the model.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Codebooks of each layer.
    pub fn layers(&self) -> &[NuqCodebooks] {
        &self.layers
    }

    /// SHA-256 of its content. Blocks stored under another calibration cannot be read with this
    /// one.
    pub fn fingerprint(&self) -> [u8; 32] {
        Sha256::digest(self.content()).into()
    }

    /// The bytes of its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.content();
        let checksum = Sha256::digest(&bytes);
        bytes.extend_from_slice(&checksum);
        bytes
    }

    /// Everything but the checksum.
    fn content(&self) -> Vec<u8> {
        let KvShape { n_layers, n_kv_heads, head_dim, .. } = self.shape;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        // `new` has made sure that they fit.
        bytes.extend(
            [n_layers, n_kv_heads, head_dim].into_iter().flat_map(|size| (size as u32).to_le_bytes()),
        );
        bytes.extend(self.model);
        for layer in &self.layers {
            let levels = layer.key_levels().iter().chain(layer.value_levels());
            let numbers = levels.chain(layer.key_ranges().as_flattened());
            bytes.extend(numbers.flat_map(|number| number.to_le_bytes()));
        }
        bytes
    }

    /// Reads the bytes of a file. Sizes are checked before anything is allocated, all content by
    /// the checksum.
    ///
    /// # Errors
    /// [`Error::Calibration`] with what is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        parse(bytes).map_err(Error::Calibration)
    }
}

fn parse(bytes: &[u8]) -> Result<KvCalibration, CalibrationFault> {
    let length = |expected| CalibrationFault::Length { expected, found: bytes.len() as u64 };
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(if bytes.starts_with(&MAGIC) {
            length(HEADER_BYTES as u64)
        } else {
            CalibrationFault::Magic
        });
    };
    let (magic, header) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(CalibrationFault::Magic);
    }
    let (counts, model) = header.split_at(4 * 4);
    let (counts, _) = counts.as_chunks::<4>();
    let [found, n_layers, n_kv_heads, head_dim] = [0, 1, 2, 3].map(|at| u32::from_le_bytes(counts[at]));
    if found != FORMAT_VERSION {
        return Err(CalibrationFault::Version { found });
    }
    let row = u64::from(n_kv_heads) * u64::from(head_dim);
    let layer_bytes = row.saturating_mul(8).saturating_add(2 * 4 * NUQ_LEVELS as u64);
    let layers_bytes = layer_bytes.saturating_mul(n_layers.into());
    let expected = layers_bytes.saturating_add((HEADER_BYTES + CHECKSUM_BYTES) as u64);
    if expected != bytes.len() as u64 {
        return Err(length(expected));
    }
    let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
    if Sha256::digest(content)[..] != *checksum {
        return Err(CalibrationFault::Checksum);
    }
    let shape = KvShape::new(n_layers as usize, n_kv_heads as usize, head_dim as usize);
    let layers = &rest[..rest.len() - CHECKSUM_BYTES];
    let layer_bytes = usize::try_from(layer_bytes).unwrap_or(usize::MAX);
    let layers = layers.chunks_exact(layer_bytes).enumerate().map(|(layer, bytes)| {
        codebooks(bytes).map_err(|source| CalibrationFault::Codebooks { layer, source })
    });
    let layers = layers.collect::<Result<Vec<_>, _>>()?;
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(model);
    Ok(KvCalibration { model: fingerprint, shape, layers })
}

/// The numbers of one layer.
fn codebooks(bytes: &[u8]) -> Result<NuqCodebooks, ruvllm_kernels::Error> {
    let numbers: Vec<f32> = bytes.as_chunks().0.iter().map(|&number| f32::from_le_bytes(number)).collect();
    let (levels, ranges) = numbers.split_at(2 * NUQ_LEVELS);
    let (levels, _) = levels.as_chunks::<NUQ_LEVELS>();
    NuqCodebooks::new(levels[0], levels[1], ranges.as_chunks().0.to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHAPE: KvShape = KvShape::new(2, 1, 32);

    fn codebooks(first: f32) -> NuqCodebooks {
        let levels = [first, -0.6, -0.3, -0.1, 0.1, 0.3, 0.6, 0.9];
        let ranges = (0..32).map(|i| [-0.5 * i as f32, 1.0 + i as f32]).collect();
        NuqCodebooks::new(levels, levels, ranges).expect("numbers in order")
    }

    fn calibration() -> KvCalibration {
        let layers = vec![codebooks(-0.9), codebooks(-0.8)];
        KvCalibration::new([3; 32], SHAPE, layers).expect("two layers")
    }

    fn fault(bytes: &[u8]) -> CalibrationFault {
        match KvCalibration::from_bytes(bytes) {
            Err(Error::Calibration(fault)) => fault,
            other => panic!("{other:?}"),
        }
    }

    /// The bytes with a checksum that is right.
    fn sealed(content: &[u8]) -> Vec<u8> {
        [content, &Sha256::digest(content)[..]].concat()
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let bytes = calibration().to_bytes();
        assert_eq!(KvCalibration::from_bytes(&bytes).ok(), Some(calibration()));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(KvCalibration::from_bytes(&damaged).is_err(), "byte {at}");
        }
        for len in 0..bytes.len() {
            assert!(KvCalibration::from_bytes(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(matches!(fault(&[&bytes[..], &[0]].concat()), CalibrationFault::Length { .. }));
    }

    #[test]
    fn the_fault_is_named() {
        let bytes = calibration().to_bytes();
        let content = &bytes[..bytes.len() - CHECKSUM_BYTES];
        assert!(matches!(fault(b"GGUF"), CalibrationFault::Magic));
        assert!(matches!(fault(&bytes[..40]), CalibrationFault::Length { expected: 56, found: 40 }));
        let mut other = content.to_vec();
        other[8] = 2;
        assert!(matches!(fault(&sealed(&other)), CalibrationFault::Version { found: 2 }));
        let mut huge = content.to_vec();
        huge[12..24].fill(0xff);
        assert!(matches!(fault(&sealed(&huge)), CalibrationFault::Length { .. }));
        // The lowest level of the second layer becomes NaN.
        let layer_bytes = 64 + 8 * 32;
        let mut garbage = content.to_vec();
        garbage[HEADER_BYTES + layer_bytes..][..4].fill(0xff);
        assert!(matches!(fault(&sealed(&garbage)), CalibrationFault::Codebooks { layer: 1, .. }));
        let one = KvCalibration::new([3; 32], SHAPE, vec![codebooks(-0.9)]);
        assert!(matches!(one, Err(Error::Calibration(CalibrationFault::Shape { layers: 1, .. }))));
    }

    #[test]
    fn everything_in_it_changes_the_fingerprint() {
        let others = [
            KvCalibration::new([4; 32], SHAPE, vec![codebooks(-0.9), codebooks(-0.8)]),
            KvCalibration::new([3; 32], SHAPE, vec![codebooks(-0.8), codebooks(-0.9)]),
        ];
        for other in others {
            assert_ne!(other.expect("two layers").fingerprint(), calibration().fingerprint());
        }
    }

    proptest! {
        /// Any bytes, also those with a right beginning and a right checksum, give an error or what
        /// was written.
        #[test]
        fn any_bytes_are_read_or_refused(
            counts in prop::array::uniform3(prop_oneof![0u32..4, Just(32), any::<u32>()]),
            rest in prop::collection::vec(any::<u8>(), 0..700),
            is_sealed in any::<bool>(),
        ) {
            let mut bytes = MAGIC.to_vec();
            bytes.extend(FORMAT_VERSION.to_le_bytes());
            bytes.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
            bytes.extend(&rest);
            let bytes = if is_sealed { sealed(&bytes) } else { bytes };
            if let Ok(calibration) = KvCalibration::from_bytes(&bytes) {
                prop_assert_eq!(calibration.to_bytes(), bytes);
            }
        }
    }
}
