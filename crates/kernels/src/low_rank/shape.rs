//! Places of the factors of one site in shared bytes.

use super::format::{Factor, FactorFormat, aligned};

/// `B` of one update and one target, kept transposed: `[rank, outputs]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expansion {
    /// Index of the product that it changes.
    pub target: usize,
    /// First component of the site's rank that it reads.
    pub first: usize,
    /// Number of components.
    pub rank: usize,
    /// Values in a row of the product.
    pub outputs: usize,
}

/// Shapes and places of the factors of the products of one input: `A`, `[rank, inputs]`, of all
/// updates, one below the other, and `B` of each.
///
/// Places follow from the shapes: `A`, then each `B` in order, each at the next multiple of
/// [`FACTOR_ALIGN`](super::FACTOR_ALIGN) bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LowRankShape {
    format: FactorFormat,
    rank: usize,
    inputs: usize,
    a: usize,
    expansions: Vec<Expansion>,
    b: Vec<usize>, // places of the expansions
    end: usize,
}

impl LowRankShape {
    /// Lays the factors out from byte `start` on.
    ///
    /// # Panics
    /// If an expansion reads components beyond `rank`.
    pub fn new(
        format: FactorFormat,
        rank: usize,
        inputs: usize,
        expansions: Vec<Expansion>,
        start: usize,
    ) -> Self {
        let a = aligned(start);
        let mut end = a.saturating_add(format.bytes(rank, inputs));
        let place = |expansion: &Expansion| {
            let &Expansion { first, rank: part, outputs, .. } = expansion;
            assert!(
                first.checked_add(part).is_some_and(|end| end <= rank),
                "LowRankShape: components {first} to {first} + {part} of {rank}"
            );
            let place = aligned(end);
            end = place.saturating_add(format.bytes(part, outputs));
            place
        };
        let b = expansions.iter().map(place).collect();
        Self { format, rank, inputs, a, expansions, b, end }
    }

    /// Number format of the factors.
    pub fn format(&self) -> FactorFormat {
        self.format
    }

    /// Rows of `A`: the sum of the ranks.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Values in a row of `A`.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Place of `A` in bytes.
    pub fn a(&self) -> usize {
        self.a
    }

    /// Shapes of the factors `B`.
    pub fn expansions(&self) -> &[Expansion] {
        &self.expansions
    }

    /// Place of the `B` of expansion `index` in bytes.
    pub fn b(&self, index: usize) -> usize {
        self.b[index]
    }

    /// Byte behind the last factor; `usize::MAX` if that is more than an address.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Values in a row of the product `target`; `None` if that is not changed.
    pub fn outputs(&self, target: usize) -> Option<usize> {
        let expansion = self.expansions.iter().find(|expansion| expansion.target == target)?;
        Some(expansion.outputs)
    }
}

/// Low-rank update of the products of one input: `y += B (A x)` for each target.
#[derive(Debug, Clone, Copy)]
pub struct LowRank<'a> {
    shape: &'a LowRankShape,
    bytes: &'a [u8],
}

impl<'a> LowRank<'a> {
    /// Creates a view of the factors in `bytes`, in which the places of `shape` are.
    ///
    /// # Panics
    /// If there are fewer bytes than [`LowRankShape::end`].
    pub fn new(shape: &'a LowRankShape, bytes: &'a [u8]) -> Self {
        assert!(shape.end <= bytes.len(), "LowRank: {} bytes of {}", bytes.len(), shape.end);
        Self { shape, bytes }
    }

    /// Shapes and places.
    pub fn shape(&self) -> &'a LowRankShape {
        self.shape
    }

    /// `A` of all updates, `[rank, inputs]`.
    pub fn a(&self) -> Factor<'a> {
        let LowRankShape { format, rank, inputs, a, .. } = *self.shape;
        Factor::new(format, rank, inputs, &self.bytes[a..][..format.bytes(rank, inputs)])
    }

    /// `B` of expansion `index`, transposed: `[rank, outputs]`.
    pub fn b(&self, index: usize) -> Factor<'a> {
        let (format, place) = (self.shape.format, self.shape.b[index]);
        let Expansion { rank, outputs, .. } = self.shape.expansions[index];
        Factor::new(format, rank, outputs, &self.bytes[place..][..format.bytes(rank, outputs)])
    }

    /// Bytes of all factors of the site, with the padding between them.
    pub fn bytes(&self) -> &'a [u8] {
        &self.bytes[self.shape.a..self.shape.end]
    }

    /// Addresses of shapes and bytes: equal for the same factors in memory only.
    pub(super) fn place(&self) -> [usize; 2] {
        [std::ptr::from_ref(self.shape).addr(), self.bytes.as_ptr().addr()]
    }
}
