//! Distillation of a larger model's distributions into factors of a smaller one.

use sha2::{Digest as _, Sha256};

use ruvllm_kernels::quant::PackedMatrix;
use ruvllm_models::{Compute, Linear, Model};

use super::text::{add_mean_gradients, check_data};
use super::{Batch, BatchLoss, Objective, digest_sequences};
use crate::batch::Sequence;
use crate::error::{Error, Result};
use crate::lora::Lora;
use crate::pass::{Backprop, BackpropOptions, DistillationConfig, TeacherStates, check_vocabularies};

/// Rows of each matrix that a teacher's checksum reads.
const SAMPLED_ROWS: usize = 16;

/// A model that is computed forward only, and whose distributions a student learns.
pub struct Teacher<'t> {
    backprop: Backprop<'t>,
    lora: Option<&'t Lora>,
}

/// Knowledge distillation (Hinton et al., arXiv 1503.02531): the mean over scored tokens of
/// `(1 - a) CE(token) + a T^2 KL(teacher_T || student_T)`, in nats.
///
/// The divergence is exact, over the whole vocabulary. The teacher is computed anew for each pass:
/// its states of all data would be larger than most adapters.
pub struct Distillation<'d, 't> {
    teacher: &'d mut Teacher<'t>,
    data: &'d [Sequence],
    validation: &'d [Sequence],
    config: DistillationConfig,
}

/// Agreement of a student with its teacher; means over scored tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Agreement {
    /// `KL(teacher || student)` in nats.
    pub kl: f64,
    /// Acceptance rate of speculative sampling at temperature 1 with the student as draft model,
    /// `sum_x min(p(x), q(x))` (Leviathan et al., arXiv 2211.17192).
    pub acceptance: f64,
    /// Share of tokens at which both have the same likeliest token: the acceptance rate of greedy
    /// decoding.
    pub same_argmax: f64,
}

impl<'t> Teacher<'t> {
    /// A teacher without factors.
    ///
    /// # Errors
    /// As [`Backprop::new`].
    pub fn new(model: &'t Model, compute: &'t Compute) -> Result<Self> {
        Ok(Self { backprop: Backprop::new(model, compute, BackpropOptions::default())?, lora: None })
    }

    /// The teacher with factors of its own. Factors of another model are an error of the first
    /// pass.
    #[must_use]
    pub fn with_lora(self, lora: &'t Lora) -> Self {
        Self { lora: Some(lora), ..self }
    }

    /// Checksum of configuration, factors, biases, norms, and [`SAMPLED_ROWS`] rows of each matrix:
    /// a checkpoint that differs in other rows only is not told apart.
    fn digest(&self) -> String {
        let (mut sample, weights) = (Sample(Sha256::new()), self.backprop.model().weights());
        sample.0.update(format!("{:?}", self.backprop.model().config()));
        sample.add(&weights.output_norm);
        sample.add_rows(&weights.embedding);
        weights.output.iter().for_each(|output| sample.add_linear(output));
        for layer in &weights.layers {
            // Models with other mixers were refused before.
            let attention = layer.mixer.attention();
            let head_norms = attention.into_iter().flat_map(|of| [&of.query_norm, &of.key_norm]);
            let norms = [&layer.attention_norm, &layer.ffn_norm].into_iter().chain(head_norms);
            let norms = norms.chain([&layer.attention_post_norm, &layer.ffn_post_norm]);
            norms.flatten().for_each(|norm| sample.add(norm));
            let attention = attention.into_iter().flat_map(|of| {
                let inputs = [&of.query, &of.key].into_iter().chain(&of.value);
                inputs.chain([&of.output])
            });
            let network = layer.feed_forward.iter();
            let network = network.flat_map(|ffn| ffn.gate.iter().chain([&ffn.up, &ffn.down]));
            attention.chain(network).for_each(|linear| sample.add_linear(linear));
        }
        if let Some(lora) = self.lora {
            sample.add(&[lora.scale()]);
            sample.add(lora.values());
        }
        sample.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn states(&mut self, sequences: &[&Sequence]) -> Result<TeacherStates<'t>> {
        self.backprop.teacher_states(self.lora, sequences)
    }
}

/// Checksum of some values of a model.
struct Sample(Sha256);

impl Sample {
    fn add(&mut self, values: &[f32]) {
        values.iter().for_each(|value| self.0.update(value.to_le_bytes()));
    }

    /// Adds evenly spread rows of a matrix.
    fn add_rows(&mut self, matrix: &PackedMatrix) {
        let mut row = vec![0.0; matrix.cols()];
        let n = matrix.rows().min(SAMPLED_ROWS);
        for index in 0..n {
            matrix.dequantize_row(index * matrix.rows() / n, &mut row);
            self.add(&row);
        }
    }

    fn add_linear(&mut self, linear: &Linear) {
        self.add_rows(&linear.weights);
        linear.bias.iter().for_each(|bias| self.add(bias));
    }
}

impl<'d, 't> Distillation<'d, 't> {
    /// Loss over `data`; `validation` may be empty.
    ///
    /// # Errors
    /// [`Error::Setting`]; [`Error::Vocabularies`] for a teacher with another vocabulary; errors of
    /// sequences that teacher or student cannot read; [`Error::NothingScored`].
    pub fn new(
        backprop: &Backprop<'_>,
        teacher: &'d mut Teacher<'t>,
        data: &'d [Sequence],
        validation: &'d [Sequence],
        config: DistillationConfig,
    ) -> Result<Self> {
        let DistillationConfig { teacher_share, temperature } = config;
        let wrong = |name, value: f64, range| Err(Error::Setting { name, value: value.to_string(), range });
        if !(0.0..=1.0).contains(&teacher_share) {
            return wrong("teacher_share", teacher_share, "between 0 and 1");
        }
        // Logits are divided in f32, where smaller numbers are 0.
        if !(temperature as f32 > 0.0 && (temperature as f32).is_finite()) {
            return wrong("temperature", temperature, "positive");
        }
        check_vocabularies(teacher.backprop.model(), backprop.model())?;
        for model in [backprop.model(), teacher.backprop.model()] {
            check_data(model.config(), data, validation)?;
        }
        Ok(Self { teacher, data, validation, config })
    }

    /// Losses of some sequences, by their scored tokens.
    fn losses(
        &mut self,
        backprop: &mut Backprop<'_>,
        lora: Option<&Lora>,
        sequences: &[&Sequence],
    ) -> Result<Vec<f64>> {
        let states = self.teacher.states(sequences)?;
        let scores = backprop.distillation_scores(lora, sequences, &states, self.config)?;
        Ok(scores.into_iter().map(|score| -score).collect())
    }
}

impl Objective for Distillation<'_, '_> {
    fn label(&self) -> &'static str {
        "distillation loss (nats per token)"
    }

    fn n_examples(&self) -> usize {
        self.data.len()
    }

    fn add_gradients(
        &mut self,
        backprop: &mut Backprop<'_>,
        lora: &Lora,
        batch: &Batch<'_>,
        gradients: &mut [f32],
    ) -> Result<BatchLoss> {
        let Self { teacher, data, config, .. } = self;
        add_mean_gradients(backprop, lora, (data, batch), gradients, |pass, sequences| {
            let states = teacher.states(sequences)?;
            Ok(-pass.distillation_scores(&states, *config)?.iter().sum::<f64>())
        })
    }

    fn validate(&mut self, backprop: &mut Backprop<'_>, lora: &Lora, per_pass: usize) -> Result<Option<f64>> {
        if self.validation.is_empty() {
            return Ok(None);
        }
        let (mut sum, mut n) = (0.0, 0);
        for sequences in self.validation.chunks(per_pass.max(1)) {
            let losses = self.losses(backprop, Some(lora), &sequences.iter().collect::<Vec<_>>())?;
            sum += losses.iter().sum::<f64>();
            n += losses.len();
        }
        Ok(Some(sum / n.max(1) as f64))
    }

    /// Mean loss per scored token.
    fn difficulty(&mut self, backprop: &mut Backprop<'_>, _: &Lora, per_pass: usize) -> Result<Vec<f64>> {
        let mut means = Vec::with_capacity(self.data.len());
        for sequences in self.data.chunks(per_pass.max(1)) {
            let losses = self.losses(backprop, None, &sequences.iter().collect::<Vec<_>>())?;
            let mut losses = losses.into_iter();
            means.extend(sequences.iter().map(|sequence| {
                let n = sequence.n_scored();
                losses.by_ref().take(n).sum::<f64>() / n.max(1) as f64
            }));
        }
        Ok(means)
    }

    fn settings(&self) -> String {
        let DistillationConfig { teacher_share, temperature } = self.config;
        format!("distillation {teacher_share:?} {temperature:?} {}", self.teacher.digest())
    }

    fn data_digest(&self) -> [u8; 32] {
        let [data, validation] = [self.data, self.validation].map(|list| list.iter().collect::<Vec<_>>());
        digest_sequences(&[&data, &validation])
    }
}

/// Agreement with a teacher on some sequences. `lora` = `None` is the model alone.
///
/// # Errors
/// [`Error::Vocabularies`]; errors of passes of both models; [`Error::NothingScored`].
pub fn agreement(
    backprop: &mut Backprop<'_>,
    lora: Option<&Lora>,
    teacher: &mut Teacher<'_>,
    sequences: &[Sequence],
    per_pass: usize,
) -> Result<Agreement> {
    let (mut total, mut n) = (Agreement::default(), 0);
    for sequences in sequences.chunks(per_pass.max(1)) {
        let sequences: Vec<&Sequence> = sequences.iter().collect();
        let states = teacher.states(&sequences)?;
        for token in backprop.token_agreements(lora, &sequences, &states)? {
            total.kl += token.kl;
            total.acceptance += token.acceptance;
            total.same_argmax += f64::from(u8::from(token.is_same_argmax));
            n += 1;
        }
    }
    if n == 0 {
        return Err(Error::NothingScored { what: "the sequences" });
    }
    let n = f64::from(n);
    let Agreement { kl, acceptance, same_argmax } = total;
    Ok(Agreement { kl: kl / n, acceptance: acceptance / n, same_argmax: same_argmax / n })
}
