//! Losses of pieces of text and their gradients, for training over many lessons.

use std::ops::Range;
use std::sync::Arc;

use super::learner::{InstantLearner, limit_norms};
use super::observation::Observations;
use super::optimizer::Moments;
use super::parameters::Shape;
use crate::continual::{Learner, ParameterLayout};
use crate::error::{Error, Result};

/// Aim of training at a piece of text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Aim {
    /// A correction: the loss is the mean negative log-likelihood.
    Likelihood,
    /// A rating: the log-likelihood moves from that of the base model in its direction, at each
    /// position by at most `clip` nats. The loss is minus that way, times the size of the rating.
    Rating {
        /// The rating.
        value: f32,
        /// Most nats.
        clip: f64,
    },
    /// Ordinary text: the loss is the mean divergence from the base model, times the weight.
    Base {
        /// The weight.
        weight: f32,
    },
}

/// Positions of one text with an aim.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) observations: Arc<Observations>,
    pub(crate) range: Range<usize>,
    pub(crate) aim: Aim,
}

impl Piece {
    /// Each of its positions alone, with the likelihood as its aim.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = Self> + use<'_> {
        self.range.clone().map(|at| Self {
            observations: Arc::clone(&self.observations),
            range: at..at + 1,
            aim: Aim::Likelihood,
        })
    }

    /// These positions of a text; there must be one.
    pub(crate) fn new(observations: Arc<Observations>, range: Range<usize>, aim: Aim) -> Result<Self> {
        match range.start < range.end && range.end <= observations.len() {
            true => Ok(Self { observations, range, aim }),
            false => Err(Error::Empty { what: "piece of a text: it has no positions" }),
        }
    }
}

/// An instant learner whose parameters are trained at pieces of text.
pub(crate) struct PieceLearner {
    learner: InstantLearner,
    layout: ParameterLayout,
}

impl PieceLearner {
    /// A learner with the parameters of `learner`.
    pub(crate) fn new(learner: InstantLearner) -> Result<Self> {
        Ok(Self { layout: layout(learner.shape())?, learner })
    }

    /// Mean negative log-likelihood of a piece under the base model.
    pub(crate) fn base_loss(&mut self, piece: &Piece) -> Result<f64> {
        self.learner.check(&piece.observations)?;
        let losses = self.learner.forward_piece(piece, |score| -score.base_log_probability);
        Ok(losses / piece.range.len().max(1) as f64)
    }
}

/// Groups of the parameters of the instant loop: the factors that are there.
pub(crate) fn layout(shape: &Shape) -> Result<ParameterLayout> {
    let factors = [
        ("hidden.A", shape.hidden_a()),
        ("hidden.B", shape.hidden_b()),
        ("logits.C", shape.logits_a()),
        ("logits.D", shape.logits_b()),
    ];
    let factors = factors.into_iter().filter(|(_, range)| !range.is_empty());
    ParameterLayout::new(factors.map(|(name, range)| (name, range.len())))
}

impl Learner for PieceLearner {
    type Example = Piece;

    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn parameters(&self) -> &[f32] {
        self.learner.parameters()
    }

    fn set_parameters(&mut self, parameters: &[f32]) -> Result<()> {
        self.layout.check_finite("parameters", parameters)?;
        self.learner.parameters.copy_from_slice(parameters);
        Ok(())
    }

    fn loss(&mut self, piece: &Piece) -> Result<f64> {
        self.learner.check(&piece.observations)?;
        let aim = piece.aim;
        Ok(self.learner.forward_piece(piece, |score| aim.loss(score)) / piece.range.len().max(1) as f64)
    }

    fn gradient(&mut self, piece: &Piece, gradient: &mut [f32]) -> Result<f64> {
        self.layout.check("gradient", gradient)?;
        let loss = self.loss(piece)?;
        self.learner.backward_piece(piece);
        gradient.copy_from_slice(self.learner.scratch.gradient.values());
        Ok(loss)
    }
}

impl Aim {
    /// Loss at a position.
    fn loss(self, score: &super::pass::Score) -> f64 {
        match self {
            Self::Likelihood => -score.log_probability,
            Self::Rating { value, clip } => -f64::from(value.abs()) * way(score, value).min(clip),
            Self::Base { weight } => f64::from(weight) * score.divergence,
        }
    }

    /// Weights of the log-likelihood and of the divergence in the gradient at a position.
    fn weights(self, score: &super::pass::Score) -> (f32, f32) {
        match self {
            Self::Likelihood => (1.0, 0.0),
            Self::Rating { value, clip } => (if way(score, value) < clip { value } else { 0.0 }, 0.0),
            Self::Base { weight } => (0.0, weight),
        }
    }
}

/// Nats from the base model in the direction of a rating.
fn way(score: &super::pass::Score, rating: f32) -> f64 {
    (score.log_probability - score.base_log_probability) * f64::from(rating.signum())
}

impl InstantLearner {
    /// Takes parameters that were trained elsewhere: moments begin again, the norms are within
    /// their limits.
    pub(crate) fn adopt(&mut self, parameters: &[f32]) -> Result<()> {
        layout(&self.shape)?.check_finite("parameters", parameters)?;
        self.parameters.copy_from_slice(parameters);
        self.moments = Moments::new(self.shape.len());
        let tokens = if self.shape.logits_rank > 0 { self.shape.vocab_size } else { 0 };
        let Self { shape, settings, parameters, head, .. } = self;
        let tokens = (0..tokens).map(|token| token as u32);
        limit_norms((shape, settings), &head.kernels(), parameters, tokens);
        Ok(())
    }

    /// Kept ordinary positions.
    pub(crate) fn ordinary(&self) -> &Observations {
        &self.anchors
    }

    /// Sum of a value at the positions of a piece under the current parameters.
    fn forward_piece(&mut self, piece: &Piece, value: impl Fn(&super::pass::Score) -> f64) -> f64 {
        let Piece { observations, range, .. } = piece;
        self.prepare(observations, range);
        let Self { head, parameters, scratch, .. } = self;
        let mut sum = 0.0;
        let positions = range.clone().filter_map(|index| observations.get(index));
        for (at, position) in positions.zip(&mut scratch.taught) {
            scratch.pass.forward((&**head, &scratch.table), parameters, at, position);
            sum += value(position.score());
        }
        sum
    }

    /// Gradient of the mean loss of a piece, behind its [`forward_piece`](Self::forward_piece).
    fn backward_piece(&mut self, piece: &Piece) {
        let Piece { observations, range, aim } = piece;
        let Self { shape, parameters, scratch, .. } = self;
        scratch.gradient.clear(shape);
        let count = range.len().max(1) as f32;
        let positions = range.clone().filter_map(|index| observations.get(index));
        for (at, position) in positions.zip(&scratch.taught) {
            let (likelihood, divergence) = aim.weights(position.score());
            if likelihood != 0.0 || divergence != 0.0 {
                let weights = (likelihood / count, divergence / count);
                let gradient = &mut scratch.gradient;
                scratch.pass.backward(&scratch.table, parameters, (at, position), weights, gradient);
            }
        }
    }
}
