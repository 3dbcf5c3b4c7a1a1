//! Calibration of the 3-bit KV-cache format `nuq3` (`KVQuant`, arXiv 2401.18079).

use std::ops::ControlFlow;

use ruvllm_kernels::attention::{KvFormat, NuqTraining};
use ruvllm_kv_cache::{KeyRopes, KvCalibration, KvPolicy, Sequence};
use ruvllm_models::{LogitsRows, Segment, Workspace};
use ruvllm_text::TokenId;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::plan::{kv_pool, sequence_budget};

/// Window length in tokens.
const WINDOW: usize = 2048;

/// Minimum tokens of a text: the range of a dimension excludes one value in 200 as an outlier on
/// each side.
const LEAST_TOKENS: usize = 512;

/// First tokens of a window, which are skipped: attention sinks, whose keys are unlike all others.
const SINK_TOKENS: usize = 4;

impl Engine {
    /// Trains the `nuq3` codebooks of every layer on a text, given as token ids. The text should
    /// resemble the model's training data, and must not be the text of a later evaluation.
    ///
    /// The ids are cut into windows of 2048 (or the model's context length) that begin at
    /// position 0. Memory: keys and values of one window in f32, and 2 bytes per key value of all
    /// windows.
    ///
    /// `progress` gets the number of processed ids and their total; `Break` ends the calibration.
    ///
    /// # Errors
    /// [`Error::CalibrationText`], [`Error::TokenOutOfRange`], [`Error::Cancelled`] after a
    /// `Break`; [`Error::Calibration`] if `nuq3` does not take the model's heads or a key or value
    /// is not finite; [`Error::Open`] if the model file is gone; [`Error::KvBudget`],
    /// [`Error::Cache`] and [`Error::Forward`] from the run.
    pub fn calibrate_kv(
        &self,
        tokens: &[TokenId],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<KvCalibration> {
        if tokens.len() < LEAST_TOKENS {
            return Err(Error::CalibrationText { tokens: tokens.len(), least: LEAST_TOKENS });
        }
        self.check_tokens(tokens)?;
        let failed = |source: ruvllm_kernels::Error| Error::Calibration(source.into());
        let shape = self.config().kv_shape();
        let untrained = NuqTraining::new(shape.n_kv_heads, shape.head_dim).map_err(failed)?;
        let mut trainings = vec![untrained; shape.n_layers];
        let window = WINDOW.min(self.config().context_length);
        let key_ropes = self.core().model.kv_ropes().key_ropes(window, window);
        let mut cache = self.exact_sequence(window)?;
        let mut workspace = Workspace::new();
        let mut done = 0;
        for window in tokens.chunks(window) {
            for piece in window.chunks(self.core().prefill_chunk) {
                if progress(done, tokens.len()).is_break() {
                    return Err(Error::Cancelled);
                }
                Segment::new(&self.core().compute, piece, &mut cache, LogitsRows::None)
                    .and_then(|segment| {
                        self.core().model.forward(&self.core().compute, &mut workspace, [segment])
                    })
                    .map_err(|source| Error::Forward { start: done, tokens: piece.len(), source })?;
                done += piece.len();
            }
            observe(&cache, &key_ropes, &mut trainings);
            cache.clear();
        }
        // The calibration is complete: a `Break` changes nothing.
        let _ = progress(done, done);
        let layers = trainings.into_iter().map(NuqTraining::finish).collect::<Result<_, _>>();
        KvCalibration::new(self.fingerprint()?, shape, layers.map_err(failed)?).map_err(Error::Calibration)
    }

    /// A sequence with an F32 cache in a page pool of its own.
    pub(crate) fn exact_sequence(&self, capacity: usize) -> Result<Sequence> {
        let policy = KvPolicy::from(KvFormat::F32);
        let pool = kv_pool(self.config(), &policy, sequence_budget(self.config(), &policy, capacity))?;
        self.core()
            .model
            .kv_store(&policy, &pool)
            .and_then(|store| self.core().model.new_sequence(&store, capacity))
            .map_err(|source| Error::Cache { tokens: capacity, source })
    }
}

/// Adds keys and values of every layer to the layer's training set.
fn observe(cache: &Sequence, key_ropes: &KeyRopes, trainings: &mut [NuqTraining]) {
    let reader = cache.read();
    for (layer, training) in trainings.iter_mut().enumerate() {
        let mut blocks = Vec::new();
        let view = reader.view(layer, &mut blocks);
        training.observe(&view, key_ropes.of_layer(layer), SINK_TOKENS);
    }
}
