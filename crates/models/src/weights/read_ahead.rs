//! Read-ahead of experts in mapped files.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use gguf_rs_lite::TensorData;

/// The matrices of all experts in a tensor of a mapped file, each read ahead before its first use.
///
/// A product that meets an absent page waits for it and little more, so that experts chosen one by
/// one come from the disk at a fraction of its bandwidth. Pages that the system drops later are
/// read as they are used: asking again for those in memory would cost more.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    tensor: TensorData,
    expert_bytes: usize,
    is_asked: Vec<AtomicBool>,
}

impl ReadAhead {
    /// A tensor of `n` experts of equal size.
    pub(super) fn new(tensor: TensorData, n: usize) -> Self {
        let expert_bytes = tensor.len() / n.max(1);
        Self { tensor, expert_bytes, is_asked: (0..n).map(|_| AtomicBool::new(false)).collect() }
    }

    /// Starts to read an expert's bytes, the first time that it is asked for; true then.
    pub(crate) fn ask(&self, expert: usize) -> bool {
        let is_first =
            self.is_asked.get(expert).is_some_and(|asked| !asked.load(Relaxed) && !asked.swap(true, Relaxed));
        let start = expert.saturating_mul(self.expert_bytes);
        if is_first && let Some(bytes) = self.tensor.slice(start..start.saturating_add(self.expert_bytes)) {
            bytes.read_ahead();
        }
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_asked_for_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("experts");
        std::fs::write(&path, [7; 3 * 5000]).expect("written");
        let ahead = ReadAhead::new(TensorData::map_file(&path).expect("mapped"), 3);
        assert_eq!(
            [2, 0, 2, 2, 3, usize::MAX, 0].map(|expert| ahead.ask(expert)),
            [true, true, false, false, false, false, false]
        );
    }
}
