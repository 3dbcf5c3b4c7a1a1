//! Segments of a forward pass in a list that keeps its memory from pass to pass.

use ruvllm_models::Segment;

/// Segments of a pass, drained by it.
pub(crate) struct Batch<'v, 's>(pub(crate) &'v mut Vec<Segment<'s>>);

impl<'s> AsMut<[Segment<'s>]> for Batch<'_, 's> {
    fn as_mut(&mut self) -> &mut [Segment<'s>] {
        self.0
    }
}

impl<'v, 's> IntoIterator for Batch<'v, 's> {
    type Item = Segment<'s>;
    type IntoIter = std::vec::Drain<'v, Segment<'s>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.drain(..)
    }
}

/// Empties a list and changes the lifetime of its elements. Collecting a vector's own iterator into
/// the same layout reuses the allocation.
pub(crate) fn recycle<'a>(mut segments: Vec<Segment<'_>>) -> Vec<Segment<'a>> {
    segments.clear();
    segments.into_iter().map(|_| unreachable!("the list is empty")).collect()
}
