#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod attention;
mod batch;
mod error;
mod fisher;
mod frozen;
mod layer;
mod lora;
mod objective;
mod optimizer;
mod parallel;
mod pass;
mod preference;
mod product;
mod random;
mod trainer;

pub use crate::batch::Sequence;
pub use crate::error::{Error, Result};
pub use crate::fisher::{Penalty, fisher};
pub use crate::frozen::GradientFormat;
pub use crate::lora::{Lora, LoraConfig};
pub use crate::objective::{
    Agreement, Answer, Batch, BatchLoss, Contrastive, CrossEntropy, Distillation, GroupRelative, Objective,
    Pair, Preferences, Retrieval, RewardConfig, Rollout, Teacher, advantages, agreement, mean_loss,
    retrieval,
};
pub use crate::optimizer::{Adam, AdamConfig, Schedule, clip, gradient_norm};
pub use crate::pass::{Backprop, BackpropOptions, DistillationConfig, LogProbabilities, Pass};
pub use crate::preference::{Preference, PreferenceLoss, preference_gradients, preference_loss, reference};
pub use crate::trainer::{Curriculum, Outcome, Point, StepReport, TrainConfig, Trainer};
