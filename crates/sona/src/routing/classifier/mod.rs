//! A small recurrent classifier of prompts that learns online.
//!
//! `network.rs`: FastGRNN and its gradients; `matrix.rs`: whole and low-rank matrices.

mod matrix;
mod network;

use serde::{Deserialize, Serialize};

use super::bits;
use super::vector::{add_scaled, normalized};
use crate::error::{Error, Result};
use crate::random::Random;
use network::{Network, sigmoid};

/// Version of [`SavedClassifier`].
const VERSION: u32 = 1;
/// Decay of the first and second moments (Kingma and Ba 2015).
const MOMENTS: [f64; 2] = [0.9, 0.999];
/// Largest norm of a gradient.
const MAX_NORM: f64 = 1.0;

/// Settings of a [`Classifier`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassifierSettings {
    /// Values per row of a sequence, 1 to 8192.
    pub inputs: usize,
    /// Values of the recurrent state, 1 to 512.
    pub hidden: usize,
    /// Number of classes, 1 to 256: the arms of a router, for example.
    pub classes: usize,
    /// Rank of the input matrix; absent for a whole matrix.
    pub input_rank: Option<usize>,
    /// Rank of the recurrent matrix; absent for a whole matrix.
    pub recurrent_rank: Option<usize>,
    /// Rows of a sequence that are read: the last ones, 1 to 1024.
    pub max_rows: usize,
    /// Learning rate, above 0 to 1.
    pub learning_rate: f64,
    /// Seed of the initial parameters.
    pub seed: u64,
}

impl ClassifierSettings {
    /// Default settings: 16 hidden values; an input matrix of rank 8 if `inputs` is larger.
    pub fn new(inputs: usize, classes: usize) -> Self {
        let (hidden, max_rows) = (16, 32);
        let input_rank = (inputs > hidden).then_some(8);
        let (recurrent_rank, learning_rate) = (None, 0.01);
        Self { inputs, hidden, classes, input_rank, recurrent_rank, max_rows, learning_rate, seed: 0 }
    }

    fn check(&self) -> Result<()> {
        let input_rank = self.input_rank.unwrap_or(1);
        let recurrent_rank = self.recurrent_rank.unwrap_or(1);
        for (name, value, most, range) in [
            ("inputs", self.inputs, 8192, "1 to 8192"),
            ("hidden", self.hidden, 512, "1 to 512"),
            ("classes", self.classes, 256, "1 to 256"),
            ("max_rows", self.max_rows, 1024, "1 to 1024"),
            ("input_rank", input_rank, self.inputs.min(self.hidden), "1 to the smaller side"),
            ("recurrent_rank", recurrent_rank, self.hidden, "1 to `hidden`"),
        ] {
            if !(1..=most).contains(&value) {
                return Err(Error::Setting { name, value: value.to_string(), range });
            }
        }
        if !(f64::MIN_POSITIVE..=1.0).contains(&self.learning_rate) {
            let value = self.learning_rate.to_string();
            return Err(Error::Setting { name: "learning_rate", value, range: "above 0 to 1" });
        }
        Ok(())
    }
}

/// FastGRNN over a sequence of embeddings, with an independent probability per class.
///
/// Classes are independent so that a router's reward, known for the chosen arm alone, teaches that
/// arm and no other. It learns by Adam from single sequences.
#[derive(Debug, Clone)]
pub struct Classifier {
    settings: ClassifierSettings,
    network: Network,
    parameters: Vec<f64>,
    first: Vec<f64>,
    second: Vec<f64>,
    trained: u64,
}

impl Classifier {
    /// Makes a classifier that has learned nothing: all probabilities are 1/2.
    ///
    /// # Errors
    /// [`Error::Setting`] names a setting out of range.
    pub fn new(settings: ClassifierSettings) -> Result<Self> {
        settings.check()?;
        let ClassifierSettings { inputs, hidden, classes, input_rank, recurrent_rank, seed, .. } = settings;
        let network = Network::new(inputs, hidden, classes, [input_rank, recurrent_rank]);
        let parameters = network.initial(&mut Random::new(seed));
        let zeros = vec![0.0; network.count()];
        Ok(Self { settings, network, parameters, first: zeros.clone(), second: zeros, trained: 0 })
    }

    /// Sequences learned from.
    pub fn trained(&self) -> u64 {
        self.trained
    }

    /// Probability of each class for a sequence: rows of `inputs` values, at least one. Rows are
    /// scaled to norm 1.
    ///
    /// # Errors
    /// [`Error::Dimension`], [`Error::NotFinite`].
    pub fn probabilities(&self, sequence: &[f32]) -> Result<Vec<f32>> {
        let pass = self.network.forward(&self.parameters, self.rows(sequence)?.into_iter());
        Ok(pass.logits.iter().map(|&logit| sigmoid(logit) as f32).collect())
    }

    /// Learns probabilities of some classes, each with its target in 0 to 1: a reward of the chosen
    /// arm, or 1 for a label and 0 for all others. Returns the binary cross-entropy before the
    /// step, in nats, summed over the targets.
    ///
    /// # Errors
    /// Errors of [`probabilities`](Self::probabilities), [`Error::Input`] for an unknown class or a
    /// target out of range. The classifier stays as it was.
    pub fn train(&mut self, sequence: &[f32], targets: &[(usize, f32)]) -> Result<f64> {
        for &(class, target) in targets {
            if class >= self.settings.classes {
                return Err(Error::Input { what: "class", value: class as f64, range: "below `classes`" });
            }
            if !(0.0..=1.0).contains(&target) {
                return Err(Error::Input { what: "target", value: f64::from(target), range: "0 to 1" });
            }
        }
        let pass = self.network.forward(&self.parameters, self.rows(sequence)?.into_iter());
        let mut dlogits = vec![0.0; self.settings.classes];
        let mut loss = 0.0;
        for &(class, target) in targets {
            let (logit, target) = (pass.logits[class], f64::from(target));
            dlogits[class] += sigmoid(logit) - target;
            // ln(1 + e^x) without overflow.
            loss += logit.max(0.0) + (-logit.abs()).exp().ln_1p() - target * logit;
        }
        let gradient = self.network.backward(&self.parameters, &pass, &dlogits);
        self.step(&gradient);
        Ok(loss)
    }

    fn step(&mut self, gradient: &[f64]) {
        let norm = gradient.iter().map(|v| v * v).sum::<f64>().sqrt();
        let clip = if norm > MAX_NORM { MAX_NORM / norm } else { 1.0 };
        self.trained += 1;
        let time = i32::try_from(self.trained).unwrap_or(i32::MAX);
        let correction = MOMENTS.map(|decay| 1.0 - decay.powi(time));
        for (i, value) in gradient.iter().enumerate() {
            let value = value * clip;
            self.first[i] += (1.0 - MOMENTS[0]) * (value - self.first[i]);
            self.second[i] += (1.0 - MOMENTS[1]) * (value * value - self.second[i]);
            let (mean, square) = (self.first[i] / correction[0], self.second[i] / correction[1]);
            self.parameters[i] -= self.settings.learning_rate * mean / (square.sqrt() + 1e-8);
        }
    }

    fn rows(&self, sequence: &[f32]) -> Result<Vec<Vec<f64>>> {
        let inputs = self.settings.inputs;
        if sequence.is_empty() || !sequence.len().is_multiple_of(inputs) {
            let expected = sequence.len().div_ceil(inputs).max(1) * inputs;
            return Err(Error::Dimension { what: "sequence", expected, got: sequence.len() });
        }
        if !sequence.iter().all(|v| v.is_finite()) {
            return Err(Error::NotFinite { what: "sequence" });
        }
        let skipped = (sequence.len() / inputs).saturating_sub(self.settings.max_rows);
        let rows = sequence.chunks_exact(inputs).skip(skipped);
        Ok(rows.map(|row| normalized(row).into_iter().map(f64::from).collect()).collect())
    }

    /// Means of at most `chunks` runs of consecutive token embeddings of `dim` values each: a short
    /// sequence of a long prompt.
    ///
    /// # Errors
    /// [`Error::Dimension`] if `tokens` is empty or no multiple of `dim`.
    pub fn chunked(tokens: &[f32], dim: usize, chunks: usize) -> Result<Vec<f32>> {
        if dim == 0 || tokens.is_empty() || !tokens.len().is_multiple_of(dim) {
            let expected = tokens.len().div_ceil(dim.max(1)).max(1) * dim;
            return Err(Error::Dimension { what: "token embeddings", expected, got: tokens.len() });
        }
        let per_chunk = (tokens.len() / dim).div_ceil(chunks.max(1));
        let mut means = Vec::new();
        for chunk in tokens.chunks(per_chunk * dim) {
            let mut mean = vec![0.0; dim];
            let factor = dim as f32 / chunk.len() as f32;
            chunk.chunks_exact(dim).for_each(|token| add_scaled(&mut mean, factor, token));
            means.extend(mean);
        }
        Ok(means)
    }

    /// State of this classifier.
    pub fn save(&self) -> SavedClassifier {
        SavedClassifier {
            version: VERSION,
            settings: self.settings.clone(),
            parameters: self.parameters.clone(),
            first: self.first.clone(),
            second: self.second.clone(),
            trained: self.trained,
        }
    }

    /// Restores a classifier.
    ///
    /// # Errors
    /// [`Error::Version`], [`Error::Damaged`], and those of [`new`](Self::new).
    pub fn load(saved: SavedClassifier) -> Result<Self> {
        if saved.version != VERSION {
            let (found, supported) = (saved.version, VERSION);
            return Err(Error::Version { what: "saved classifier", found, supported });
        }
        let fresh = Self::new(saved.settings)?;
        let SavedClassifier { parameters, first, second, trained, .. } = saved;
        let is_valid = |values: &[f64]| {
            values.len() == fresh.network.count() && values.iter().all(|value| value.is_finite())
        };
        if ![&parameters, &first, &second].into_iter().all(|values| is_valid(values)) {
            return Err(Error::Damaged { what: "saved classifier" });
        }
        Ok(Self { parameters, first, second, trained, ..fresh })
    }
}

/// State of a [`Classifier`], for any format of serde; numbers are stored as their bits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedClassifier {
    version: u32,
    settings: ClassifierSettings,
    #[serde(with = "bits")]
    parameters: Vec<f64>,
    #[serde(with = "bits")]
    first: Vec<f64>,
    #[serde(with = "bits")]
    second: Vec<f64>,
    trained: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sequences whose class is the order of two directions: no mean of rows can tell them apart.
    fn ordered(random: &mut Random, dim: usize) -> (Vec<f32>, usize) {
        let (class, length) = (random.below(2), 4 + random.below(5));
        let mut sequence = Vec::new();
        for row in 0..length {
            let is_first = row < length / 2;
            let direction = usize::from(is_first == (class == 1));
            sequence.extend((0..dim).map(|i| {
                let signal = if i == direction { 1.0 } else { 0.0 };
                (signal + 0.3 * random.normal()) as f32
            }));
        }
        (sequence, class)
    }

    #[test]
    fn order_of_a_sequence_is_learned_online() {
        let (dim, mut random) = (8, Random::new(4));
        let mut classifier = Classifier::new(ClassifierSettings::new(dim, 2)).unwrap();
        for _ in 0..1500 {
            let (sequence, class) = ordered(&mut random, dim);
            classifier.train(&sequence, &[(class, 1.0), (1 - class, 0.0)]).unwrap();
        }
        let correct = (0..300).filter(|_| {
            let (sequence, class) = ordered(&mut random, dim);
            let p = classifier.probabilities(&sequence).unwrap();
            (p[1] > p[0]) == (class == 1)
        });
        let correct = correct.count();
        assert!(correct >= 285, "{correct} of 300");
    }

    #[test]
    fn untaught_classes_keep_their_probability_where_outputs_are_apart() {
        let mut classifier = Classifier::new(ClassifierSettings::new(4, 3)).unwrap();
        assert_eq!(classifier.probabilities(&[1.0; 8]).unwrap(), [0.5; 3]);
        (0..200).for_each(|_| assert!(classifier.train(&[1.0; 8], &[(1, 0.9)]).unwrap() > 0.0));
        let p = classifier.probabilities(&[1.0; 8]).unwrap();
        assert_eq!((p[0], p[2]), (0.5, 0.5));
        assert!((p[1] - 0.9).abs() < 0.05, "{p:?}");
    }

    #[test]
    fn bad_sequences_and_targets_change_nothing() {
        let mut classifier = Classifier::new(ClassifierSettings::new(4, 3)).unwrap();
        let before = classifier.save();
        for (sequence, targets) in [
            (&[][..], (0, 1.0)),
            (&[1.0; 5][..], (0, 1.0)),
            (&[1.0, f32::NAN, 0.0, 0.0][..], (0, 1.0)),
            (&[1.0; 4][..], (3, 1.0)),
            (&[1.0; 4][..], (0, f32::NAN)),
            (&[1.0; 4][..], (0, 1.5)),
        ] {
            assert!(classifier.train(sequence, &[targets]).is_err());
        }
        assert_eq!(classifier.save(), before);
        let settings = ClassifierSettings { input_rank: Some(99), ..ClassifierSettings::new(4, 3) };
        let error = Classifier::new(settings).unwrap_err().to_string();
        assert_eq!(error, "input_rank is 99; it must be 1 to the smaller side");
    }

    #[test]
    fn loaded_classifiers_go_on_bit_for_bit() {
        let (dim, mut random) = (8, Random::new(4));
        let mut classifier = Classifier::new(ClassifierSettings::new(dim, 2)).unwrap();
        let mut data: Vec<_> = (0..40).map(|_| ordered(&mut random, dim)).collect();
        let train = |classifier: &mut Classifier, data: &[(Vec<f32>, usize)]| {
            for (sequence, class) in data {
                classifier.train(sequence, &[(*class, 1.0)]).unwrap();
            }
        };
        let rest = data.split_off(20);
        train(&mut classifier, &data);
        let text = serde_json::to_string(&classifier.save()).unwrap();
        let mut loaded = Classifier::load(serde_json::from_str(&text).unwrap()).unwrap();
        train(&mut classifier, &rest);
        train(&mut loaded, &rest);
        assert_eq!(classifier.save(), loaded.save());
        let mut damaged = classifier.save();
        damaged.first.pop();
        assert!(matches!(Classifier::load(damaged), Err(Error::Damaged { .. })));
    }

    #[test]
    fn chunks_are_means_of_all_tokens() {
        let tokens: Vec<f32> = (0..10).map(|i| i as f32).collect();
        assert_eq!(Classifier::chunked(&tokens, 2, 2).unwrap(), [2.0, 3.0, 7.0, 8.0]);
        assert_eq!(Classifier::chunked(&tokens, 2, 9).unwrap(), tokens);
        assert_eq!(Classifier::chunked(&tokens, 2, 0).unwrap(), [4.0, 5.0]);
        assert!(Classifier::chunked(&tokens, 3, 2).is_err() && Classifier::chunked(&[], 2, 2).is_err());
    }
}
