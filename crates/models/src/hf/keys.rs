//! Hyperparameters under the keys of GGUF.

use gguf_rs_lite::Metadata;

/// Writes keys that begin with the architecture.
pub(super) struct Keys {
    pub(super) architecture: &'static str,
    pub(super) metadata: Metadata,
}

impl Keys {
    pub(super) fn count(&mut self, suffix: &str, count: usize) {
        // Every count is at most `MAX_POSITIONS`.
        self.insert(suffix, u32::try_from(count).unwrap_or(u32::MAX));
    }

    pub(super) fn real(&mut self, suffix: &str, real: f64) {
        self.insert(suffix, real as f32);
    }

    pub(super) fn text(&mut self, suffix: &str, text: &str) {
        self.insert(suffix, text);
    }

    pub(super) fn flag(&mut self, suffix: &str, flag: bool) {
        self.insert(suffix, flag);
    }

    pub(super) fn flags(&mut self, suffix: &str, flags: Vec<bool>) {
        self.insert(suffix, flags);
    }

    pub(super) fn array(&mut self, suffix: &str, array: gguf_rs_lite::Array) {
        self.insert(suffix, gguf_rs_lite::Value::Array(array));
    }

    fn insert(&mut self, suffix: &str, value: impl Into<gguf_rs_lite::Value>) {
        self.metadata.insert(format!("{}.{suffix}", self.architecture), value);
    }
}
