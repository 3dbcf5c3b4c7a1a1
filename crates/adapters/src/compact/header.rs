//! The header of a compact file.

use std::sync::Arc;

use ruvllm_kernels::low_rank::{Expansion, FactorFormat};

use super::SECTIONS;
use super::wire::{Bytes, Fault, Fields};
use crate::digest::Digests;
use crate::layout::{Layout, SiteShape};
use crate::place::{BaseModel, Site};

/// First bytes of a file.
pub(super) const MAGIC: [u8; 8] = *b"ruvlora\0";

/// Version of the format.
const VERSION: u32 = 1;

/// Bytes in front of the fields: magic, version, length and CRC-32 of the header.
pub(super) const PREFIX_BYTES: usize = 20;

/// Place of the CRC-32, which is computed with zeros there.
const CRC_AT: usize = 16;

/// Header and sections start at multiples of this many bytes.
const ALIGN: usize = 64;

/// Longest header in bytes. That of all seven projections of 126 layers has 20 KB.
pub(super) const MAX_HEADER_BYTES: usize = 4 << 20;

/// Longest text in bytes.
pub(crate) const MAX_TEXT_BYTES: usize = 4096;

/// Sites by their number in files.
/// Flags of the base model's projections: all joint, or gate and up alone.
const JOINT: u8 = 2;
const JOINT_FEED_FORWARD: u8 = 4;

const SITES: [Site; 6] = [
    Site::AttentionInput,
    Site::AttentionOutput,
    Site::FeedForwardInput,
    Site::FeedForwardOutput,
    Site::Logits,
    Site::FinalHidden,
];

/// Factors in one number format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) crc: u32,
    pub(crate) digests: Digests,
}

/// Contents of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// Sections in the order of [`SECTIONS`].
    pub(crate) sections: [Section; 2],
    /// Time of writing in seconds since 1970.
    pub(crate) added_unix: u64,
    /// Files that the adapter was made of, for people.
    pub(crate) source: String,
    pub(crate) base: BaseModel,
    /// Shapes in F16.
    pub(crate) layout: Arc<Layout>,
}

/// Lengths that the first bytes of a file state.
pub(super) struct Prefix {
    pub(super) header_bytes: usize,
}

impl Prefix {
    /// Reads the first [`PREFIX_BYTES`] bytes; `None` if they are of another format.
    pub(super) fn read(bytes: &[u8]) -> Option<Result<Self, Fault>> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let mut fields = Fields(rest);
        Some(fields.u32().and_then(|version| {
            if version != VERSION {
                return Err("it has another version of the format; add the adapter again");
            }
            let header_bytes = fields.size()?;
            let is_sound = header_bytes.is_multiple_of(ALIGN)
                && (PREFIX_BYTES..=MAX_HEADER_BYTES).contains(&header_bytes);
            if is_sound { Ok(Self { header_bytes }) } else { Err("its header has an impossible length") }
        }))
    }
}

impl Header {
    /// Reads a whole header, its prefix included.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut prefix = Fields(bytes.get(CRC_AT..).ok_or("its header is cut")?);
        if prefix.u32()? != crc_of_header(bytes) {
            return Err("its header has a wrong checksum");
        }
        let mut fields = prefix;
        let mut section = || -> Result<Section, Fault> {
            let crc = fields.u32()?;
            let has_kv = fields.u8()?;
            let (factors, kv) = (fields.array()?, fields.array()?);
            let kv = match (has_kv, kv) {
                (1, kv) => Some(kv),
                (0, kv) if kv == [0; 32] => None,
                _ => return Err("its header has an impossible flag"),
            };
            Ok(Section { crc, digests: Digests { factors, kv } })
        };
        let sections = [section()?, section()?];
        let added_unix = fields.u64()?;
        let source = fields.text(MAX_TEXT_BYTES)?;
        let base = read_base(&mut fields)?;
        let n_sites = fields.size()?;
        let mut shapes = Vec::new();
        for _ in 0..n_sites {
            shapes.push(read_site(&mut fields, &base)?);
        }
        if fields.0.len() >= ALIGN || fields.0.iter().any(|byte| *byte != 0) {
            return Err("its header has more than its fields");
        }
        let layout = Layout::new(SECTIONS[0], shapes).map_err(|_| "its shapes are inconsistent")?;
        layout.check(&base).map_err(|_| "its shapes are not those of its base model")?;
        Ok(Self { sections, added_unix, source, base, layout: Arc::new(layout) })
    }

    /// The bytes of a header; `None` if it is larger than any that is read.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = Bytes::default();
        bytes.put(&MAGIC).put(&VERSION.to_le_bytes()).put(&[0; PREFIX_BYTES - MAGIC.len() - 4]);
        for Section { crc, digests } in &self.sections {
            bytes.put(&crc.to_le_bytes()).put(&[u8::from(digests.kv.is_some())]);
            bytes.put(&digests.factors).put(&digests.kv.unwrap_or_default());
        }
        bytes.put(&self.added_unix.to_le_bytes());
        bytes.text(Some(&*self.source).filter(|text| text.len() <= MAX_TEXT_BYTES)?)?;
        write_base(&mut bytes, &self.base)?;
        bytes.size(self.layout.sites().len())?;
        for shape in self.layout.shapes() {
            write_site(&mut bytes, &shape)?;
        }
        let mut bytes = bytes.0;
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        if bytes.len() > MAX_HEADER_BYTES {
            return None;
        }
        let len = u32::try_from(bytes.len()).ok()?;
        bytes[CRC_AT - 4..CRC_AT].copy_from_slice(&len.to_le_bytes());
        let crc = crc_of_header(&bytes);
        bytes[CRC_AT..PREFIX_BYTES].copy_from_slice(&crc.to_le_bytes());
        Some(bytes)
    }

    /// The layout of a section.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub(crate) fn layout_of(&self, format: FactorFormat) -> crate::Result<Arc<Layout>> {
        if format == self.layout.format() {
            return Ok(Arc::clone(&self.layout));
        }
        Layout::new(format, self.layout.shapes()).map(Arc::new)
    }
}

/// Place of the I8 section behind an F16 one that starts at `start`.
pub(super) fn second_section(start: u64, first_bytes: usize) -> u64 {
    start.saturating_add(first_bytes as u64).next_multiple_of(ALIGN as u64)
}

/// CRC-32 of a header, with zeros in its place.
fn crc_of_header(header: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[..CRC_AT]);
    crc.update(&[0; PREFIX_BYTES - CRC_AT]);
    crc.update(header.get(PREFIX_BYTES..).unwrap_or_default());
    crc.finalize()
}

fn read_base(fields: &mut Fields<'_>) -> Result<BaseModel, Fault> {
    let architecture = fields.text(MAX_TEXT_BYTES)?;
    let [mut n_layers, mut model_dim, mut query_dim, mut kv_dim] = [0; 4];
    let [mut head_dim, mut ffn_dim, mut vocab_size] = [0; 3];
    for size in [
        &mut n_layers,
        &mut model_dim,
        &mut query_dim,
        &mut kv_dim,
        &mut head_dim,
        &mut ffn_dim,
        &mut vocab_size,
    ] {
        *size = fields.size()?;
    }
    let flags = fields.u8()?;
    if flags > 5 {
        return Err("its header has an impossible flag");
    }
    Ok(BaseModel {
        architecture,
        n_layers,
        model_dim,
        query_dim,
        kv_dim,
        head_dim,
        ffn_dim,
        vocab_size,
        interleaved_heads: flags & 1 != 0,
        joint_attention: flags & JOINT != 0,
        joint_feed_forward: flags & (JOINT | JOINT_FEED_FORWARD) != 0,
    })
}

fn write_base(bytes: &mut Bytes, base: &BaseModel) -> Option<()> {
    let &BaseModel { n_layers, model_dim, query_dim, kv_dim, head_dim, ffn_dim, vocab_size, .. } = base;
    bytes.text(Some(&*base.architecture).filter(|text| text.len() <= MAX_TEXT_BYTES)?)?;
    for size in [n_layers, model_dim, query_dim, kv_dim, head_dim, ffn_dim, vocab_size] {
        bytes.size(size)?;
    }
    let joint = match (base.joint_attention, base.joint_feed_forward) {
        (false, false) => 0,
        (true, _) => JOINT,
        (false, true) => JOINT_FEED_FORWARD,
    };
    bytes.put(&[u8::from(base.interleaved_heads) | joint]);
    Some(())
}

fn read_site(fields: &mut Fields<'_>, base: &BaseModel) -> Result<SiteShape, Fault> {
    let layer = fields.size()?;
    let site = *SITES.get(usize::from(fields.u8()?)).ok_or("its header names an unknown site")?;
    let rank = fields.size()?;
    let n_expansions = fields.size()?;
    let mut expansions = Vec::new();
    for _ in 0..n_expansions {
        let target = usize::from(fields.u8()?);
        let [first, rank, outputs] = [fields.size()?, fields.size()?, fields.size()?];
        expansions.push(Expansion { target, first, rank, outputs });
    }
    Ok(SiteShape { layer, site, rank, inputs: base.inputs(site), expansions })
}

fn write_site(bytes: &mut Bytes, shape: &SiteShape) -> Option<()> {
    let site = SITES.iter().position(|site| *site == shape.site)?;
    bytes.size(shape.layer)?.put(&[u8::try_from(site).ok()?]);
    bytes.size(shape.rank)?.size(shape.expansions.len())?;
    for &Expansion { target, first, rank, outputs } in &shape.expansions {
        bytes.put(&[u8::try_from(target).ok()?]).size(first)?.size(rank)?.size(outputs)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_keep_the_order_and_the_places_of_their_rows() {
        let former = crate::testing::base();
        for (interleaved_heads, joint_attention, joint_feed_forward) in
            [(true, false, false), (false, true, true), (false, false, true), (true, false, true)]
        {
            let base =
                BaseModel { interleaved_heads, joint_attention, joint_feed_forward, ..(*former).clone() };
            let mut bytes = Bytes(Vec::new());
            write_base(&mut bytes, &base).expect("a short name");
            assert_eq!(read_base(&mut Fields(&bytes.0)), Ok(base));
        }
        let mut bytes = Bytes(Vec::new());
        write_base(&mut bytes, &former).expect("a short name");
        *bytes.0.last_mut().expect("flags") = 6;
        assert!(read_base(&mut Fields(&bytes.0)).is_err());
    }
}
