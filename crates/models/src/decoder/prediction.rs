//! Prediction heads (multi-token prediction): a layer of its own behind the model, whose input is
//! the embedding of a token beside the final hidden state of the one before it.

use ruvllm_kernels::matmul::MatmulJob;
use ruvllm_kv_cache::{KvPolicy, KvShape, KvStore, Sequence};
use ruvllm_memory::PagePool;

use super::Model;
use super::ending::Ending;
use super::entry::{embed, prepare};
use super::layer::Layer;
use crate::batch::{BatchRows, Segment};
use crate::compute::Compute;
use crate::error::{Error, Result};
use crate::projection::{add_bias, finish, project};
use crate::weights::PredictionHead;
use crate::workspace::{Buffers, Workspace};

impl PredictionHead {
    /// The size of a token's keys and values: those of one layer.
    pub fn kv_shape(&self) -> KvShape {
        self.config().kv_shape()
    }

    /// Makes the store for keys and values of the head, as
    /// [`Model::kv_store`](crate::Model::kv_store).
    ///
    /// # Errors
    /// [`Error::KvCache`] if the policy does not fit the head or the pool its blocks.
    pub fn kv_store(&self, policy: &KvPolicy, pool: &PagePool) -> Result<KvStore> {
        self.config().kv_store(policy, pool)
    }

    /// An empty sequence of at most `capacity` tokens of the head, which may begin at any token of
    /// a text: attention depends on distances alone.
    ///
    /// # Errors
    /// [`Error::CacheCapacity`] if `capacity` is 0 or beyond the model's context length.
    pub fn new_sequence(&self, store: &KvStore, capacity: usize) -> Result<Sequence> {
        self.config().new_sequence(store, capacity)
    }
}

impl Model {
    /// Runs the prediction head over the tokens of all `segments`, whose sequences are the head's,
    /// commits their steps and returns the logits asked for, `[rows, vocab_size]`: of the token
    /// behind each token.
    ///
    /// Row `i` of `hidden`, `[tokens, model_dim]`, goes with token `i`: the final hidden state
    /// ([`Workspace::hidden`]) of the token before it. The head's own final states of the rows with
    /// logits, and of those that segments keep, are in [`Workspace::hidden`] then: they go with the
    /// token that is drafted next. Adapters of segments do not change the head.
    ///
    /// A token's result depends on its sequence alone, as in [`forward`](Self::forward).
    ///
    /// # Errors
    /// [`Error::NoPredictionHead`], [`Error::HiddenStates`] for another number of states than
    /// tokens, and as `forward`. No step was committed then.
    pub fn predict<'s, 'w>(
        &self,
        compute: &Compute,
        workspace: &'w mut Workspace,
        mut segments: impl AsMut<[Segment<'s>]> + IntoIterator<Item = Segment<'s>>,
        hidden: &[f32],
    ) -> Result<&'w [f32]> {
        let head = self.prediction_head().ok_or(Error::NoPredictionHead)?;
        let list = segments.as_mut();
        list.iter_mut().for_each(|segment| segment.adapters = &[]);
        let config = head.config();
        workspace.batch.fill(config, list)?;
        workspace.batch.keeps_hidden = true;
        let tokens = workspace.batch.n_tokens();
        let (expected, found) = (tokens.saturating_mul(config.model_dim), hidden.len());
        if found != expected {
            return Err(Error::HiddenStates { tokens, expected, found });
        }
        workspace.prepare_results(config)?;
        workspace.count_squares_for_head(self.config.n_layers);
        let done = self.run_head(head, compute, (&workspace.batch, hidden), &mut workspace.buffers, list);
        let done = done.map(|()| self.ending_of_head(head).finish(compute, list, workspace));
        workspace.count_squares_for_head(0);
        done?;
        segments.into_iter().for_each(|segment| segment.step.commit());
        Ok(&workspace.logits)
    }

    /// Norm and matrix behind the layer of the head: its own, or those of the model.
    fn ending_of_head<'a>(&'a self, head: &'a PredictionHead) -> Ending<'a> {
        let of_model = self.ending();
        Ending {
            config: head.config(),
            norm: head.output_norm.as_ref().map_or(of_model.norm, |own| (own, None)),
            output: head.output.as_ref().map_or(of_model.output, |own| (&own.weights, own.bias.as_deref())),
        }
    }

    /// Sends the tokens of a checked batch through the layer of the head; the rows of the wanted
    /// ones are then the first of the residual stream.
    fn run_head(
        &self,
        head: &PredictionHead,
        compute: &Compute,
        (batch, hidden): (&BatchRows, &[f32]),
        buffers: &mut Buffers,
        segments: &mut [Segment<'_>],
    ) -> Result<()> {
        let config = head.config();
        prepare(config, buffers, batch.n_tokens())?;
        buffers.kept.layers.clear();
        self.pair(head, compute, hidden, buffers, segments);
        let Buffers { hidden: stream, pairs, adapted, .. } = &mut *buffers;
        if let Some(squares) = &mut adapted.squares {
            squares.add_pairs(pairs);
        }
        let mut jobs = [MatmulJob { weights: &head.projection.weights, out: &mut *stream }];
        project(compute, pairs, &mut jobs);
        add_bias(compute, stream, head.projection.bias.as_deref());
        let ropes = self.ropes.tables(batch.n_positions());
        let (weights, heads, cache_index) = (&head.layer, config.heads(0), config.cache_layer(0));
        let layer = Layer { config, weights, index: 0, heads, cache_index, ropes: &ropes, compute };
        layer.forward(buffers, segments, &batch.all, &batch.wanted).map_err(|error| match error {
            Error::RouterLogits { segment, position, .. } => {
                Error::RouterLogits { layer: self.config.n_layers, segment, position }
            }
            other => other,
        })
    }

    /// Normed embeddings of the tokens beside normed hidden states, the input of the projection.
    fn pair(
        &self,
        head: &PredictionHead,
        compute: &Compute,
        hidden: &[f32],
        buffers: &mut Buffers,
        segments: &[Segment<'_>],
    ) {
        let (config, width) = (head.config(), head.config().model_dim);
        let embedding = head.embedding.as_ref().unwrap_or(&self.weights.embedding);
        let Buffers { update: embedded, pairs, .. } = buffers;
        embed(config, embedding, embedded, segments);
        pairs.resize(embedded.len() / width, 2 * width);
        finish(compute, pairs, head.projection.weights.format().uses_q8(), &|rows, out| {
            for (row, pair) in rows.zip(out.chunks_exact_mut(2 * width)) {
                let (left, right) = pair.split_at_mut(width);
                let of_row = row * width..(row + 1) * width;
                compute.rms_norm(&embedded[of_row.clone()], &head.embedding_norm, config.norm_eps, left);
                compute.rms_norm(&hidden[of_row], &head.hidden_norm, config.norm_eps, right);
            }
        });
    }
}
