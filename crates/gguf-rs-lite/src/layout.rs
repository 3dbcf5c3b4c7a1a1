//! Checks of a tensor list: unique names, data inside the file, no overlap.
//!
//! Gaps between tensors, data in another order than the list, and bytes after the last tensor are
//! valid.

use crate::{
    error::{Error, Field, Place, Result},
    header::TensorInfo,
};

/// Checks a list of tensors.
///
/// `positions`: their entries in a file of `file_len` bytes; `data_start`: start of the data
/// section.
///
/// Takes O(n log n) for n tensors.
pub(crate) fn check(tensors: &[TensorInfo], positions: &[u64], data_start: u64, file_len: u64) -> Result<()> {
    check_inside(tensors, positions, data_start, file_len)?;
    if let Some(i) = duplicate_name(tensors) {
        let place = Place::at(positions[i], Field::Named(&tensors[i].name, "name"));
        return Err(Error::DuplicateTensor { place });
    }
    check_overlap(tensors, positions)
}

fn check_inside(tensors: &[TensorInfo], positions: &[u64], data_start: u64, file_len: u64) -> Result<()> {
    for (tensor, &position) in tensors.iter().zip(positions) {
        let start = data_start.checked_add(tensor.offset);
        let end = start.and_then(|start| start.checked_add(tensor.bytes()));
        if end.is_none_or(|end| end > file_len) {
            return Err(Error::TensorOutOfFile {
                place: Place::at(position, Field::Named(&tensor.name, "data")),
                data_offset: tensor.offset,
                bytes: tensor.bytes(),
                data_start,
                file_len,
            });
        }
    }
    Ok(())
}

/// Index of a tensor with the name of an earlier one.
pub(crate) fn duplicate_name(tensors: &[TensorInfo]) -> Option<usize> {
    let mut by_name: Vec<usize> = (0..tensors.len()).collect();
    by_name.sort_unstable_by_key(|&i| (&tensors[i].name, i));
    by_name.windows(2).find(|pair| tensors[pair[0]].name == tensors[pair[1]].name).map(|pair| pair[1])
}

fn check_overlap(tensors: &[TensorInfo], positions: &[u64]) -> Result<()> {
    let mut by_offset: Vec<usize> = (0..tensors.len()).filter(|&i| tensors[i].bytes() > 0).collect();
    by_offset.sort_unstable_by_key(|&i| (tensors[i].offset, i));
    for pair in by_offset.windows(2) {
        let [first, second] = [&tensors[pair[0]], &tensors[pair[1]]];
        // The sum cannot overflow: every tensor was found to end inside the file.
        if first.offset + first.bytes() > second.offset {
            return Err(Error::TensorOverlap {
                place: Place::at(positions[pair[1]], Field::Named(&second.name, "data")),
                other: first.name.clone(),
            });
        }
    }
    Ok(())
}
