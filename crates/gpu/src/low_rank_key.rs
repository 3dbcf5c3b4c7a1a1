//! Keys of the kernels of low-rank updates.

use crate::error::{Error, Result, expect_multiple};

/// Largest number of entries of a row's list.
pub const MAX_TERMS: u32 = 8;

/// Sizes of the factors of low-rank updates in slots: see [`LowRank`](crate::LowRank).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LowRankRoom {
    /// Number of slots.
    pub slots: u32,
    /// Values per input row.
    pub cols: u32,
    /// Values per output row.
    pub width: u32,
    /// Largest number of components of a slot: rows of `A`.
    pub components: u32,
    /// Largest number of parts of `B` of a slot.
    pub expansions: u32,
    /// Factors per slot, in words of 4 values.
    pub words: u32,
    /// Factors in F16 instead of F32.
    pub f16: bool,
}

/// Half of a low-rank update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LowRankStep {
    /// Components `s A x`.
    Shrink {
        /// Input in 8 bits instead of f32.
        quantized: bool,
    },
    /// `y += B` times the components.
    Expand,
}

/// Low-rank updates of rows, each with the slots of its own list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LowRankKernel {
    /// The half.
    pub step: LowRankStep,
    /// Sizes of the factors.
    pub room: LowRankRoom,
    /// Entries of a list.
    pub terms: u32,
    /// All rows have the first list.
    pub one_list: bool,
    /// Rows per workgroup: 1, or 4 with `one_list`. Results do not depend on it.
    pub tile: u32,
}

impl LowRankRoom {
    /// Words of 4 values of the factors of an update, `expansions` with components and outputs of
    /// each.
    pub fn words_of(cols: u32, components: u32, expansions: impl Iterator<Item = (u32, u32)>) -> u64 {
        let b = expansions.map(|(rank, outputs)| u64::from(rank) * u64::from(outputs.div_ceil(4)));
        u64::from(components) * u64::from(cols / 4) + b.sum::<u64>()
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        u64::from(self.slots)
            * (u64::from(self.words) * self.word_bytes() + u64::from(self.shape_words()) * 4)
    }

    /// Bytes of a word of 4 values.
    pub(crate) fn word_bytes(&self) -> u64 {
        if self.f16 { 8 } else { 16 }
    }

    /// Words that describe a slot: components, number of expansions, and 5 of each of these.
    pub(crate) fn shape_words(&self) -> u32 {
        2 + 5 * self.expansions
    }
}

impl LowRankKernel {
    /// Short name, unique per kernel.
    pub(crate) fn name(&self) -> String {
        let LowRankRoom { slots, cols, width, components, expansions, words, f16 } = self.room;
        let step = match self.step {
            LowRankStep::Shrink { quantized: false } => "shrink_f32",
            LowRankStep::Shrink { quantized: true } => "shrink_q8",
            LowRankStep::Expand => "expand",
        };
        let (format, list) = (if f16 { "f16" } else { "f32" }, if self.one_list { "_one" } else { "" });
        let (terms, tile) = (self.terms, self.tile);
        format!(
            "low_rank_{step}_{format}_{width}x{cols}_c{components}e{expansions}w{words}s{slots}_t{terms}b{tile}{list}"
        )
    }
}

/// Fails for sizes beyond what kernels address.
pub(crate) fn check_room(room: &LowRankRoom) -> Result<()> {
    expect_multiple("slots", 1, room.slots.into())?;
    expect_multiple("columns", 4, room.cols.into())?;
    expect_multiple("values per output row", 1, room.width.into())?;
    expect_multiple("components", 1, room.components.into())?;
    expect_multiple("expansions", 1, room.expansions.into())?;
    expect_multiple("words of factors", 1, room.words.into())?;
    at_most("words of factors of all slots", u32::MAX, u64::from(room.slots) * u64::from(room.words))?;
    at_most("words of all shapes", u32::MAX, u64::from(room.slots) * u64::from(room.shape_words()))
}

pub(crate) fn check_terms(terms: u32) -> Result<()> {
    expect_multiple("entries of a list", 1, terms.into())?;
    at_most("entries of a list", MAX_TERMS, terms.into())
}

pub(crate) fn at_most(what: &'static str, most: u32, found: u64) -> Result<()> {
    if found <= most.into() {
        return Ok(());
    }
    Err(Error::Shape { what, expected: format!("at most {most}"), found })
}
