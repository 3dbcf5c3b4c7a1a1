//! The head that predicts further tokens among the tensors of a folder.

use std::borrow::Cow;

use gguf_rs_lite::{Array, Value};

use super::config::Hyperparameters;
use super::family::Form;
use super::prediction::Prediction;
use super::shards::Stored;
use super::stored_names::{split_layer, without_prefix};

impl Hyperparameters {
    /// Looks for the head among the tensors of the folder. In GGUF it is a layer behind the last,
    /// which its keys count.
    pub(super) fn find_prediction_head(&mut self, stored: &[Stored]) {
        let (n_layers, prediction) = (self.sizes.n_layers, self.prediction());
        let Some(prediction) = prediction.filter(|_| self.sizes.prediction_layers > 0) else { return };
        let is_of_head = |stored: &Stored| {
            let name = without_prefix(&stored.name);
            let usual = prediction.usual_name(name, n_layers);
            let layer = usual.as_deref().unwrap_or(name).strip_prefix(self.family.names.layers);
            let part = layer.and_then(|rest| split_layer(rest, n_layers + 1));
            part.is_some_and(|(layer, part)| layer == n_layers && Prediction::is_of_head(part))
        };
        self.has_prediction_head = stored.iter().any(is_of_head);
        if !self.has_prediction_head {
            return;
        }
        let key = |suffix: &str| format!("{}.{suffix}", self.family.architecture);
        self.metadata.insert(key("block_count"), u32::try_from(n_layers + 1).unwrap_or(u32::MAX));
        self.metadata.insert(key("nextn_predict_layers"), 1_u32);
        let listed = key("attention.recurrent_layers");
        if let Some(Value::Array(Array::Bool(layers))) = self.metadata.get(&listed) {
            let layers: Vec<bool> = layers.iter().copied().chain([false]).collect();
            self.metadata.insert(listed, layers);
        }
    }

    /// Layers of the folder that are read: those of the model and that of the head.
    pub(super) fn n_stored_layers(&self) -> usize {
        self.sizes.n_layers + usize::from(self.has_prediction_head)
    }

    /// The name of a tensor without the prefix of the model's class; that of a head apart is one of
    /// the layer behind the last.
    pub(super) fn usual_name<'a>(&self, name: &'a str) -> Cow<'a, str> {
        let name = without_prefix(name);
        let prediction = self.prediction().filter(|_| self.has_prediction_head);
        match prediction.and_then(|prediction| prediction.usual_name(name, self.sizes.n_layers)) {
            Some(usual) => Cow::Owned(usual),
            None => Cow::Borrowed(name),
        }
    }

    /// The name in the folder of a tensor that messages name as one of the layer behind the last.
    pub(super) fn own_name(&self, name: String) -> String {
        let own = self.prediction().and_then(|it| it.own_name(&name, self.sizes.n_layers));
        own.unwrap_or(name)
    }

    /// True for a tensor, by its usual name, of a layer behind the last one that is read, or of
    /// heads apart where none is read.
    pub(super) fn leaves_out(&self, name: &str) -> bool {
        let (read, all) = (self.n_stored_layers(), self.sizes.n_layers + self.sizes.prediction_layers);
        let layer = name.strip_prefix(self.family.names.layers).and_then(|rest| split_layer(rest, all));
        let prefix = self.prediction().and_then(|prediction| prediction.prefix);
        let is_apart = prefix.is_some_and(|prefix| name.starts_with(prefix));
        layer.is_some_and(|(layer, _)| layer >= read) || is_apart && !self.has_prediction_head
    }

    fn prediction(&self) -> Option<Prediction> {
        match &self.family.form {
            Form::Decoder(decoder) => decoder.prediction,
            Form::Encoder(_) => None,
        }
    }
}
