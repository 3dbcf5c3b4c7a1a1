//! `--loss distill`: the distributions of a larger model, learned by a smaller one.

use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_models::Compute;
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::Tokenizer;
use ruvllm_training::{
    Agreement, Backprop, Distillation, DistillationConfig, Lora, Sequence, Teacher, agreement,
};

use super::report::{Change, Measured};
use super::{Examples, Loss, Run, TrainArgs, load_model, perplexity, text_examples, train};
use crate::commands::offer;
use crate::commands::sona::data::Encoder;
use crate::error::{Error, Result};

/// Flags of --loss distill.
#[derive(Debug, Args)]
pub(super) struct DistillArgs {
    /// Larger model with the same vocabulary that --loss distill learns from
    #[arg(long, value_name = "MODEL")]
    teacher: Option<PathBuf>,

    /// Share of the teacher in the loss of --loss distill, 0 to 1 [default: 0.9]
    #[arg(long, value_name = "A", value_parser = teacher_share)]
    teacher_share: Option<f64>,
}

/// Parses a share: 0 to 1, both included.
fn teacher_share(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    value.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

impl DistillArgs {
    /// Compares the flags with the loss.
    ///
    /// # Errors
    /// [`Error::Conflict`] for flags of a teacher with another loss.
    pub(super) fn check(&self, loss: Loss) -> Result<()> {
        let flags =
            [("--teacher", self.teacher.is_some()), ("--teacher-share", self.teacher_share.is_some())];
        match flags.into_iter().find(|(_, is_given)| *is_given && loss != Loss::Distill) {
            Some((flag, _)) => {
                let reason = "only --loss distill has a teacher; name that loss, or leave it out".to_owned();
                Err(Error::Conflict { flag, reason })
            }
            None => Ok(()),
        }
    }

    /// The teacher.
    ///
    /// # Errors
    /// [`Error::Conflict`] without one.
    fn teacher(&self) -> Result<&Path> {
        let reason = "distill needs a larger model to learn from; name one with --teacher".to_owned();
        self.teacher.as_deref().ok_or(Error::Conflict { flag: "--loss", reason })
    }
}

/// Distillation; perplexity of held-out data, and agreement with the teacher on it.
pub(super) fn run(
    args: &TrainArgs,
    encoder: &Encoder,
    compute: &Compute,
    backprop: &mut Backprop<'_>,
) -> Result<Run> {
    let choice = offer::model(Some(args.distill.teacher()?))?;
    let checkpoint = choice.open()?;
    let tokenizer =
        checkpoint.tokenizer().map_err(|source| Error::Tokenizer { model: choice.name(), source })?;
    compare(&tokenizer, encoder.tokenizer()).map_err(|reason| Error::Conflict {
        flag: "--teacher",
        reason: format!("{}: {reason}", choice.name()),
    })?;
    let Examples { data, levels, test, counts } = text_examples(args, encoder)?;
    let model = load_model(&choice, &*checkpoint)?;
    let mut teacher = Teacher::new(&model, compute)?;
    let default = DistillationConfig::default();
    let config = DistillationConfig {
        teacher_share: args.distill.teacher_share.unwrap_or(default.teacher_share),
        temperature: args.temperature.unwrap_or(default.temperature),
    };
    // Errors of the data come before the first measurement.
    Distillation::new(backprop, &mut teacher, &data, &test, config)?;
    let measure = |backprop: &mut Backprop<'_>, teacher: &mut Teacher<'_>, lora: Option<&Lora>| {
        measure(backprop, teacher, lora, &test, args.batch)
    };
    let before = measure(backprop, &mut teacher, None)?;
    let objective = Box::new(Distillation::new(backprop, &mut teacher, &data, &test, config)?);
    let (lora, trained) = train(args, backprop, objective, &levels)?;
    let after = measure(backprop, &mut teacher, Some(&lora))?;
    let mut measured = Measured::default();
    if let (Some((before, old)), Some((after, new))) = (before, after) {
        measured.perplexity = Change::of(Some(before), Some(after));
        measured.add("kl", old.kl, new.kl);
        measured.add("acceptance", old.acceptance, new.acceptance);
        measured.add("same_argmax", old.same_argmax, new.same_argmax);
    }
    Ok((trained, counts, measured))
}

/// Perplexity of held-out data and agreement with the teacher on it; `None` without any.
fn measure(
    backprop: &mut Backprop<'_>,
    teacher: &mut Teacher<'_>,
    lora: Option<&Lora>,
    test: &[Sequence],
    batch: usize,
) -> Result<Option<(f64, Agreement)>> {
    let Some(perplexity) = perplexity(backprop, lora, test, batch)? else { return Ok(None) };
    Ok(Some((perplexity, agreement(backprop, lora, teacher, test, batch)?)))
}

/// Compares the tokens of both models; the first difference.
fn compare(teacher: &Tokenizer, student: &Tokenizer) -> Result<(), String> {
    let (found, expected) = (teacher.text_vocab_size(), student.text_vocab_size());
    if found != expected {
        return Err(format!("the teacher has {found} tokens, the model {expected}; distill needs the same"));
    }
    let differs = |id: &TokenId| teacher.id_to_token(*id) != student.id_to_token(*id);
    match (0..expected as TokenId).find(differs) {
        None => Ok(()),
        Some(id) => {
            let [found, expected] =
                [teacher, student].map(|tokenizer| tokenizer.id_to_token(id).unwrap_or_default());
            Err(format!("token {id} is {found:?}, and {expected:?} in the model's vocabulary"))
        }
    }
}
