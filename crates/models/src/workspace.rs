//! The buffers of a forward pass. They grow to the largest step seen and are then reused, so that a
//! decode step allocates nothing.

use ruvllm_kernels::attention::{AttentionCall, AttentionScratch, KvBlock};
use ruvllm_kernels::low_rank::{LowRankScratch, LowRankTerm};
use ruvllm_kernels::matmul::Activations;

use crate::batch::BatchRows;
use crate::config::ModelConfig;
use crate::decoder::{ExpertBuffers, Gates, LatentBuffers, PerLayerBuffers, RecurrentBuffers, StreamBuffers};
use crate::error::{Error, Result};
use crate::importance::InputSquares;

/// Reusable memory of forward passes; one per concurrent caller.
#[derive(Default)]
pub struct Workspace {
    pub(crate) batch: BatchRows,
    pub(crate) buffers: Buffers,
    /// `[tokens with logits, vocab_size]`
    pub(crate) logits: Vec<f32>,
    /// Final hidden states that are kept, `[tokens, model_dim]`.
    pub(crate) hidden: Vec<f32>,
}

/// Activations that the layers read and write. Widths are per token of the step.
#[derive(Default)]
pub(crate) struct Buffers {
    /// The residual stream, of several the active one, `[tokens, model_dim]`.
    pub(crate) hidden: Vec<f32>,
    /// Normed rows, the input of projections, `[tokens, model_dim]`.
    pub(crate) normed: Activations,
    /// Embeddings beside hidden states, the input of prediction heads, `[tokens, 2, model_dim]`.
    pub(crate) pairs: Activations,
    /// `[tokens, n_heads, head_dim]`
    pub(crate) queries: Vec<f32>,
    /// Queries of one segment at later positions, if its cache wants them: `[tokens, n_heads,
    /// head_dim]`.
    pub(crate) later_queries: Vec<f32>,
    /// Queries beside their gates as one product makes them, `[tokens, n_heads, 2, head_dim]`;
    /// empty in models without.
    pub(crate) gated_queries: Vec<f32>,
    /// Gates of the output of attention, `[tokens, n_heads, head_dim]`.
    pub(crate) query_gates: Vec<f32>,
    /// Of latent attention; empty in models without.
    pub(crate) latent: LatentBuffers,
    /// Of embeddings per layer; empty in models without.
    pub(crate) per_layer: PerLayerBuffers,
    /// Of several residual streams; empty in models with one.
    pub(crate) streams: StreamBuffers,
    /// Of layers with a state.
    pub(crate) recurrent: RecurrentBuffers,
    /// `[tokens, n_kv_heads, head_dim]`
    pub(crate) keys: Vec<f32>,
    /// `[tokens, n_kv_heads, head_dim]`
    pub(crate) values: Vec<f32>,
    /// Attention output, `[tokens, n_heads, head_dim]`.
    pub(crate) attended: Activations,
    /// `activation(gate) * up`, `[tokens, ffn_dim]`.
    pub(crate) gated: Activations,
    /// `[tokens, ffn_dim]`
    pub(crate) up: Vec<f32>,
    /// Rows whose norm takes their place, `[tokens, n_heads * head_dim]` or `[tokens, model_dim]`;
    /// empty in models without.
    pub(crate) unnormed: Vec<f32>,
    /// Update of the residual stream by a projection, `[tokens, model_dim]`.
    pub(crate) update: Vec<f32>,
    pub(crate) experts: ExpertBuffers,
    pub(crate) adapted: Adapted,
    pub(crate) scratch: AttentionScratch,
    pub(crate) calls: CallList,
    pub(crate) kept: KeptQueries,
}

/// Scratch of LoRA updates, and what else is kept of the products of a pass.
#[derive(Default)]
pub(crate) struct Adapted {
    pub(crate) gates: Gates,
    pub(crate) terms: TermList,
    pub(crate) scratch: LowRankScratch,
    /// Squared inputs of the products, if they are summed.
    pub(crate) squares: Option<InputSquares>,
}

/// Memory of the terms of a site, which borrow other adapters at every use.
#[derive(Default)]
pub(crate) struct TermList(Vec<LowRankTerm<'static>>);

impl TermList {
    /// An empty list of terms in this memory.
    pub(crate) fn take<'a>(&mut self) -> Vec<LowRankTerm<'a>> {
        recycle_terms(std::mem::take(&mut self.0))
    }

    /// Gives the memory back.
    pub(crate) fn put(&mut self, terms: Vec<LowRankTerm<'_>>) {
        self.0 = recycle_terms(terms);
    }
}

/// Queries kept for attention samples.
#[derive(Default)]
pub(crate) struct KeptQueries {
    /// Layer of each segment of the last pass that asked for one.
    pub(crate) layers: Vec<Option<usize>>,
    /// Query of the last token of each segment in its layer, `[segments, n_heads, head_dim]`; not
    /// written for segments without a layer. Empty if no segment has one.
    pub(crate) queries: Vec<f32>,
}

impl Workspace {
    /// A workspace without any memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sums the squared inputs of the products of all following passes, from zero.
    ///
    /// The products behind the last layer that writes keys and values see the rows with logits
    /// only.
    pub fn observe_inputs(&mut self) {
        self.buffers.adapted.squares = Some(InputSquares::default());
    }

    /// Ends [`observe_inputs`](Self::observe_inputs) and returns the sums.
    pub fn take_input_squares(&mut self) -> InputSquares {
        self.buffers.adapted.squares.take().unwrap_or_default()
    }

    /// Sums inputs as those of a prediction head in this layer of the file, or with 0 of the model.
    pub(crate) fn count_squares_for_head(&mut self, layer: usize) {
        if let Some(squares) = &mut self.buffers.adapted.squares {
            squares.count_for_head(layer);
        }
    }

    /// Sizes the logits and hidden states of a batch.
    pub(crate) fn prepare_results(&mut self, config: &ModelConfig) -> Result<()> {
        let n_hidden = if self.batch.keeps_hidden { self.batch.n_wanted() } else { 0 };
        resize(&mut self.hidden, n_hidden.saturating_mul(config.model_dim), "hidden states")?;
        resize(&mut self.logits, self.batch.n_scored().saturating_mul(config.vocab_size), "logits")
    }

    /// Logits of the last [`Model::forward`](crate::Model::forward), `[rows, vocab_size]`.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Final hidden states of the last [`Model::forward`](crate::Model::forward) with
    /// [`Segment::with_hidden`](crate::Segment::with_hidden) or
    /// [`Model::predict`](crate::Model::predict), behind the final norm, `[rows, model_dim]`: of
    /// the tokens that have logits or whose states were asked for, in the order of segments and
    /// tokens. Empty if no segment of the last pass asked.
    pub fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    /// Final hidden states of the last [`Model::forward`](crate::Model::forward), behind the final
    /// norm and with the updates of adapters, `[rows, model_dim]`: the rows with logits. Of no
    /// meaning after a pass without logits.
    pub fn final_hidden(&self) -> &[f32] {
        self.buffers.normed.values()
    }
}

/// Makes `buffer` hold `n_values` numbers of any value.
pub(crate) fn resize(buffer: &mut Vec<f32>, n_values: usize, what: &'static str) -> Result<()> {
    if let Some(more) = n_values.checked_sub(buffer.len()) {
        buffer
            .try_reserve(more)
            .map_err(|_| Error::OutOfMemory { what, bytes: n_values.saturating_mul(size_of::<f32>()) })?;
    }
    buffer.resize(n_values, 0.0);
    Ok(())
}

/// Memory of the attention calls of a step and of their lists of blocks, which borrow other caches
/// at every use.
#[derive(Default)]
pub(crate) struct CallList {
    calls: Vec<AttentionCall<'static>>,
    blocks: Vec<Vec<KvBlock<'static>>>,
}

impl CallList {
    /// An empty list of calls, and `n_calls` lists of blocks to fill, in this memory.
    pub(crate) fn take<'v, 'b>(&mut self, n_calls: usize) -> (Vec<AttentionCall<'v>>, Vec<Vec<KvBlock<'b>>>) {
        self.blocks.resize_with(self.blocks.len().max(n_calls), Vec::new);
        (recycle_calls(std::mem::take(&mut self.calls)), recycle_blocks(std::mem::take(&mut self.blocks)))
    }

    /// Gives the memory back; that of the calls first, which borrow the blocks.
    pub(crate) fn put_calls(&mut self, calls: Vec<AttentionCall<'_>>) {
        self.calls = recycle_calls(calls);
    }

    pub(crate) fn put_blocks(&mut self, blocks: Vec<Vec<KvBlock<'_>>>) {
        self.blocks = recycle_blocks(blocks);
    }
}

/// Empties a list and changes the lifetime of its elements. Collecting a vector's own iterator into
/// the same layout reuses the allocation.
fn recycle_calls<'a>(mut calls: Vec<AttentionCall<'_>>) -> Vec<AttentionCall<'a>> {
    calls.clear();
    calls.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

/// Empties a list, as [`recycle_calls`].
fn recycle_terms<'a>(mut terms: Vec<LowRankTerm<'_>>) -> Vec<LowRankTerm<'a>> {
    terms.clear();
    terms.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

/// Empties each list, as [`recycle_calls`].
fn recycle_blocks<'a>(lists: Vec<Vec<KvBlock<'_>>>) -> Vec<Vec<KvBlock<'a>>> {
    let recycle = |mut blocks: Vec<KvBlock<'_>>| {
        blocks.clear();
        blocks.into_iter().map(|_| unreachable!("the list is empty")).collect()
    };
    lists.into_iter().map(recycle).collect()
}
