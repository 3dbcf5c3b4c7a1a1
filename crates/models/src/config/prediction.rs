//! Configuration of a layer that predicts further tokens (multi-token prediction).

use super::{CacheLayers, ModelConfig};
use crate::family::{DecoderSpec, Experts, LayerKinds, Window};

impl ModelConfig {
    /// The first layer that predicts further tokens as a model of one layer: attention to all
    /// tokens or in the usual window, and experts if the model has any.
    ///
    /// `None` without such layers, and where layers differ in more than their mixers and networks,
    /// so that the form of another one does not follow.
    pub(crate) fn of_prediction_layer(&self) -> Option<Self> {
        let decoder = &self.decoder;
        let is_alike = decoder.layers == LayerKinds::default()
            && self.local_rope.is_none()
            && matches!(decoder.window, Window::Full | Window::Sliding(_))
            && decoder.recurrent.as_ref().is_none_or(|recurrent| !recurrent.beside_attention);
        if self.prediction_layers == 0 || !is_alike {
            return None;
        }
        let experts = decoder.experts.clone();
        let experts = experts.map(|experts| Experts { layers: vec![true], dense_dim: 0, ..experts });
        let decoder = DecoderSpec { recurrent: None, experts, ..decoder.clone() };
        let cache = CacheLayers::new(&decoder, 1);
        Some(Self { n_layers: 1, prediction_layers: 0, cache, decoder, ..self.clone() })
    }
}
