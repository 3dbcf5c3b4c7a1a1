//! Kernel launches of a pass, in order, for every model family (the switches of its decoder).

use std::sync::Arc;

use ruvllm_adapters::Site;
use ruvllm_gpu::{
    Activation, Activations, AttentionKernel, Buffer, CutGatesKernel, Dispatch, Format, Gpu, HeadNormKernel,
    LowRank, LowRankRows, MAX_BATCH, PositionTables, Queries, Result, RopeKernel, RopeKvKernel, RowOutput,
    Sequences, stored_head_dim,
};
use ruvllm_models::ModelConfig;

use super::adapters::{Adapted, Place};
use super::final_states::FinalStates;
use super::heads::{last_writer, reads_others};
use super::inputs::Input;
use super::pool::{Angles, KvPool};
use super::rows::Rows;
use super::states::DeviceState;
use super::streams::DeviceLayerStreams;
use super::uploads::{Norm, Projection, Stored};
use super::weights::{DeviceAttention, DeviceLayer, DeviceWeights, Network};

/// Kind of a pass: selects GEMM or GEMV kernels (ADR-0033).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Prompt tokens of one sequence.
    Prefill,
    /// A generated token of each row's sequence.
    Decode,
}

/// Model, device and buffers shared by all passes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) config: &'a ModelConfig,
    pub(super) activation: Activation,
    pub(super) weights: &'a DeviceWeights,
    pub(super) pool: &'a KvPool,
    pub(super) angles: &'a Angles,
    /// Ids that the tokenizer has.
    pub(super) ids: u32,
    /// Products of decode as GEMM (ADR-0088).
    pub(super) decode_gemm: bool,
}

/// Prepared launches of a pass, for one number of rows and one size of the block table.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) rows: Arc<Rows>,
    /// Buffers of the rows whose logits are computed: the last one of a prompt, all in decode.
    pub(super) last: Arc<Rows>,
    /// Logits of these rows, `[rows, vocab_size]`.
    pub(super) values: Buffer,
    /// Launches up to the keys and values, or the states, of the last layer that has some of its
    /// own.
    pub(super) keys: Vec<Dispatch>,
    /// Remaining launches, for the rows of `last` only.
    pub(super) logits: Vec<Dispatch>,
    /// Argmax of the logits, written to the tokens of `last`.
    pub(super) argmax: [Dispatch; 2],
    /// The same among the ids of the tokenizer.
    pub(super) tokenizer_argmax: [Dispatch; 2],
    /// Lists of the adapters of the rows.
    pub(super) adapted: Option<Adapted>,
    /// Behind the launches, in models with a prediction head and in heads.
    pub(super) hidden: Option<FinalStates>,
}

impl Pass {
    /// All launches up to the logits.
    pub(super) fn launches(&self) -> impl Iterator<Item = &Dispatch> {
        self.keys.iter().chain(&self.logits)
    }
}

/// Buffers shared by passes of one size.
#[derive(Debug)]
pub(super) struct Operands {
    pub(super) rows: Arc<Rows>,
    pub(super) last: Arc<Rows>,
    pub(super) table: Buffer,
    pub(super) scratch: Buffer,
    pub(super) logits: Buffer,
    /// Use of the second RoPE frequencies (`LongRoPE`).
    pub(super) long: bool,
    /// Adapters of the rows; `None` for a pass whose rows have none.
    pub(super) adapted: Option<Adapted>,
    /// Memory for final hidden states.
    pub(super) hidden: Option<Buffer>,
}

/// Attention kernel of a layer; `one_sequence`: of queries that share a block table.
pub(super) fn attention(config: &ModelConfig, layer: usize, one_sequence: bool) -> AttentionKernel {
    let (heads, decoder) = (config.heads(layer), &config.decoder);
    let head_dim = stored_head_dim(heads.head_dim as u32);
    let key = AttentionKernel::new(heads.n_heads as u32, heads.n_kv_heads as u32, head_dim)
        .scale(decoder.attention_scale);
    let values_from = decoder.latent.map(|latent| latent.rotary_dim as u32);
    let mut key = AttentionKernel { one_sequence, values_from, ..key };
    if let Some(cap) = decoder.attention_soft_cap {
        key = key.soft_cap(cap);
    }
    match (decoder.window.chunk_of_layer(layer), decoder.window.of_layer(layer)) {
        (Some(tokens), _) => key.chunk(tokens as u32),
        (None, Some(tokens)) => key.window(tokens as u32),
        (None, None) => key,
    }
}

impl Parts<'_> {
    /// Prepares the launches of a pass.
    pub(super) fn pass(&self, phase: Phase, operands: Operands) -> Result<Pass> {
        let mut builder = Builder {
            parts: *self,
            phase,
            rows: Arc::clone(&operands.rows),
            operands: &operands,
            pending: None,
            launches: Vec::new(),
        };
        if let Some(pairing) = &self.weights.pairing {
            builder.pair(pairing)?;
        } else {
            let scale = self.config.decoder.embedding_scale;
            let Rows { tokens, residual, .. } = &*operands.rows;
            builder.launches.push(self.weights.embedding.gather_scaled(self.gpu, tokens, residual, scale)?);
        }
        if let Some(per_layer) = &self.weights.per_layer {
            builder.embed_per_layer(per_layer)?;
        }
        builder.split_streams()?;
        let (mut keys, last_writer) = (Vec::new(), last_writer(self.config));
        for (index, layer) in self.weights.layers.iter().enumerate() {
            builder.keys(index, layer)?;
            if index == last_writer {
                keys = std::mem::take(&mut builder.launches);
                builder.take_last(index)?;
            }
            builder.attend(index)?;
            builder.feed_forward(index, layer)?;
            builder.end_layer(index, layer)?;
        }
        builder.merge_streams()?;
        builder.output()?;
        let logits = std::mem::take(&mut builder.launches);
        let hidden =
            operands.hidden.as_ref().map(|out| builder.final_states(out, last_writer)).transpose()?;
        let Operands { rows, last, logits: values, adapted, .. } = operands;
        let argmax = |ids| self.gpu.argmax(&values, ids, &last.tokens);
        let (argmax, tokenizer_argmax) = (argmax(self.config.vocab_size as u32)?, argmax(self.ids)?);
        Ok(Pass { rows, last, values, keys, logits, argmax, tokenizer_argmax, adapted, hidden })
    }
}

pub(super) struct Builder<'a> {
    pub(super) parts: Parts<'a>,
    pub(super) phase: Phase,
    /// Rows of the pass, later only those whose logits are computed.
    pub(super) rows: Arc<Rows>,
    operands: &'a Operands,
    /// Output of attention or FFN that is not added to the residual stream yet.
    pub(super) pending: Option<Buffer>,
    pub(super) launches: Vec<Dispatch>,
}

impl Builder<'_> {
    /// Norm, keys and values of all rows, and their way through states; nothing in a layer without
    /// a mixer.
    pub(super) fn keys(&mut self, index: usize, layer: &DeviceLayer) -> Result<()> {
        if !layer.has_mixer() {
            return Ok(());
        }
        let attention = layer.attention.iter().flat_map(|attention| attention.qkv.formats());
        let state = layer.state.iter().flat_map(DeviceState::formats);
        // The branch beside the mixer reads f32 too.
        let branch = layer.streams.iter().flat_map(DeviceLayerStreams::projections);
        let branch = branch.flat_map(Projection::formats).chain(layer.streams.iter().map(|_| Format::F16));
        if let Some(streams) = &layer.streams {
            self.predict_streams(streams)?;
        }
        self.norm(layer.attention_norm.as_ref(), attention.chain(state).chain(branch))?;
        if let Some(streams) = &layer.streams {
            self.branch_off(streams)?;
        }
        if let Some(state) = &layer.state {
            self.advance_states(index, state)?;
        }
        let Some(attention) = &layer.attention else { return Ok(()) };
        match &attention.latent {
            Some(latent) => self.latent_keys(index, attention, latent),
            None => self.attention_keys(index, attention),
        }
    }

    /// Queries, keys and values, RoPE, KV write.
    fn attention_keys(&mut self, index: usize, layer: &DeviceAttention) -> Result<()> {
        let Parts { gpu, config, pool, angles, .. } = self.parts;
        let rows = Arc::clone(&self.rows);
        let own = rows.heads(config, index);
        let out = rows.gates.as_ref().map_or(&own.qkv, |gates| &gates.projected);
        self.project(&layer.qkv, |format| rows.normed.of(format), out)?;
        self.adapt((index, Site::AttentionInput), &layer.qkv, (&rows.normed, true), out)?;
        if let Some(gates) = &rows.gates {
            self.split_gates(gates)?;
        }
        let heads = config.heads(index);
        let (heads, kv_heads, head_dim) =
            (heads.n_heads as u32, heads.n_kv_heads as u32, heads.head_dim as u32);
        if let Some(norms) = &layer.head_norms {
            let (eps_bits, together, values) = (config.norm_eps.to_bits(), norms.together, norms.values);
            let key = HeadNormKernel { heads, kv_heads, head_dim, eps_bits, together, values };
            self.launches.push(gpu.head_norm(key, &own.qkv, &norms.weights)?);
        }
        let rotary_dim = angles.rotary_dim(index);
        let rope = RopeKernel { heads, head_dim, rotary_dim, layout: self.layout() };
        let tables =
            PositionTables { angles: angles.of(index, self.operands.long), factors: angles.factors(index) };
        let key = RopeKvKernel { rope, kv_heads, format: pool.format, scaled: false };
        let kv = pool.layer(index);
        // Layers without keys and values of their own write to the block of padding rows.
        let slots = rows.unwritten.as_ref().filter(|_| reads_others(config, index)).unwrap_or(&rows.kv);
        self.launches.push(gpu.rope_kv(key, &own.qkv, tables, slots, kv, &own.queries)?);
        Ok(())
    }

    /// Rows of the whole pass.
    pub(super) fn all_rows(&self) -> Arc<Rows> {
        Arc::clone(&self.operands.rows)
    }

    /// True for the second RoPE frequencies (`LongRoPE`).
    pub(super) fn long(&self) -> bool {
        self.operands.long
    }

    /// Memory for partial sums of attention.
    pub(super) fn scratch(&self) -> &Buffer {
        &self.operands.scratch
    }

    /// Continues with the last row only, in a prompt. Queries are those of `layer`.
    fn take_last(&mut self, layer: usize) -> Result<()> {
        let (rows, last) = (Arc::clone(&self.rows), Arc::clone(&self.operands.last));
        if Arc::ptr_eq(&rows, &last) {
            return Ok(());
        }
        let (gpu, config) = (self.parts.gpu, self.parts.config);
        let queries = |rows| &Rows::heads(rows, config, layer).queries;
        let mut copied = vec![(queries(&rows), queries(&last)), (&rows.residual, &last.residual)];
        let inputs = rows.per_layer.iter().zip(&last.per_layer);
        copied.extend(inputs.map(|(from, to)| (&from.inputs, &to.inputs)));
        let streams = rows.streams.iter().zip(&last.streams);
        copied.extend(streams.flat_map(|(from, to)| [(&from.values, &to.values), (&from.side, &to.side)]));
        let gates = rows.gates.iter().zip(&last.gates);
        copied.extend(gates.map(|(from, to)| (&from.projected, &to.projected)));
        let states = rows.states.iter().zip(&last.states);
        copied.extend(states.flat_map(|(from, to)| from.behind(to)));
        for (from, to) in copied {
            self.launches.push(gpu.copy_row(from, &rows.last, to)?);
        }
        self.rows = last;
        if self.parts.config.decoder.latent.is_some() {
            self.launches.push(self.rows.latent().sort(gpu)?);
        }
        Ok(())
    }

    /// Attention, what has a state, or both, with their output projections, if the layer has any.
    pub(super) fn attend(&mut self, index: usize) -> Result<()> {
        let layer = &self.parts.weights.layers[index];
        if !layer.has_mixer() {
            return Ok(());
        }
        let rows = Arc::clone(&self.rows);
        if let Some(attention) = &layer.attention {
            self.attention_output(index, attention)?;
        }
        match &layer.state {
            Some(state) if layer.attention.is_some() => {
                let beside = &rows.state().beside;
                self.mix_states(state, beside)?;
                self.launches.push(self.parts.gpu.add(&rows.delta, beside)?);
            }
            Some(state) => self.mix_states(state, &rows.delta)?,
            None => (),
        }
        self.behind(layer.attention_post_norm.as_ref())?;
        match layer.streams {
            Some(_) => self.merge_branch(),
            None => Ok(()),
        }
    }

    /// Attention and its output projection.
    fn attention_output(&mut self, index: usize, layer: &DeviceAttention) -> Result<()> {
        let Parts { gpu, config, pool, .. } = self.parts;
        let rows = Arc::clone(&self.rows);
        let sequences =
            Sequences { positions: rows.kv.positions.clone(), table: self.operands.table.clone() };
        // The last row of a prompt is alone in the last layer, whatever its chunks.
        let is_alone = rows.n == 1;
        let key = attention(config, index, self.phase == Phase::Prefill || is_alone);
        let scratch = &self.operands.scratch;
        let output = &layer.output;
        let has_latent = layer.latent.is_some();
        let own = rows.heads(config, index);
        let direct = config.heads(index).head_dim.is_multiple_of(32) && rows.gates.is_none() && !has_latent;
        if let Some(latent) = &layer.latent {
            self.attend_latents(index, latent, &sequences, output.formats())?;
            return self.behind_attention(index, output, direct);
        }
        self.launches.extend(own.attended.fill(gpu, output.formats(), direct, |out| {
            let kv = pool.layer(index);
            let queries = Queries { rows: &own.queries, sinks: layer.sinks.as_ref() };
            let attend = |out: &RowOutput| {
                if self.phase == Phase::Prefill && !is_alone {
                    gpu.prefill_attention(key, queries, kv, &sequences, scratch, out)
                } else {
                    gpu.attention(key, queries, kv, &sequences, scratch, out)
                }
            };
            if let Some(filled) = &rows.filled {
                let mut launches = attend(&filled.attended.clone().into())?;
                launches.push(filled.cut(gpu, own.attended.values())?);
                return Ok(launches);
            }
            let Some(gates) = &rows.gates else { return attend(out) };
            let mut launches = attend(&gates.attended.clone().into())?;
            launches.push(gates.apply(gpu, config, own.attended.values())?);
            Ok(launches)
        })?);
        self.behind_attention(index, output, direct)
    }

    /// Output projection of attention; `direct`: as its rows were filled.
    fn behind_attention(&mut self, index: usize, output: &Projection, direct: bool) -> Result<()> {
        let rows = Arc::clone(&self.rows);
        let attended = &rows.heads(self.parts.config, index).attended;
        self.project(output, |format| attended.of(format), &rows.delta)?;
        self.adapt((index, Site::AttentionOutput), output, (attended, direct), &rows.delta)
    }

    /// The feed-forward network, the experts or both, if the layer has any.
    pub(super) fn feed_forward(&mut self, index: usize, layer: &DeviceLayer) -> Result<()> {
        if !layer.has_network() {
            return Ok(());
        }
        let network = layer.network.iter().flat_map(|network| network.gate_up.formats());
        // Routers read f32, as matrices in F16.
        let behind = || layer.experts.iter().filter(|experts| experts.beside.is_none());
        let router = behind().map(|_| Format::F16);
        let experts = behind().flat_map(|experts| experts.gate_up.formats());
        self.norm(layer.ffn_norm.as_ref(), network.chain(router).chain(experts))?;
        if let Some(network) = &layer.network {
            self.network(index, network)?;
        }
        if let Some(experts) = &layer.experts {
            match &experts.beside {
                Some(beside) => self.mixture_beside(experts, beside)?,
                None => self.mixture(experts, layer.network.is_some())?,
            }
        }
        self.behind(layer.ffn_post_norm.as_ref())
    }

    /// A feed-forward network.
    fn network(&mut self, index: usize, network: &Network) -> Result<()> {
        let Parts { gpu, activation, .. } = self.parts;
        let (rows, cols) = (Arc::clone(&self.rows), network.gate_up.outputs / activation.inputs());
        let own = rows.network(cols);
        self.project(&network.gate_up, |format| rows.normed.of(format), &own.gate_up)?;
        self.adapt((index, Site::FeedForwardInput), &network.gate_up, (&rows.normed, true), &own.gate_up)?;
        if let Some(deviations) = self.parts.config.decoder.gate_cutoff(index) {
            let deviations_bits = deviations.to_bits();
            let key = CutGatesKernel { cols, width: 2 * cols, deviations_bits };
            self.launches.push(gpu.cut_gates(key, &own.gate_up)?);
        }
        self.launches.extend(own.gated.fill(gpu, network.down.formats(), true, |out| {
            Ok(vec![gpu.gated(activation, &own.gate_up, rows.n, cols, out)?])
        })?);
        self.project(&network.down, |format| own.gated.of(format), &rows.delta)?;
        self.adapt((index, Site::FeedForwardOutput), &network.down, (&own.gated, true), &rows.delta)
    }

    /// Final norm and logits.
    fn output(&mut self) -> Result<()> {
        let weights = self.parts.weights;
        let is_adapted = self.factors((0, Site::FinalHidden)).is_some();
        if is_adapted {
            self.adapted_norm(&weights.output_norm, &weights.output)?;
        } else {
            self.norm(Some(&weights.output_norm), weights.output.formats())?;
        }
        let rows = Arc::clone(&self.rows);
        // Rows of decode in both phases.
        self.phase = Phase::Decode;
        let logits = &self.operands.logits;
        self.project(&weights.output, |format| rows.normed.of(format), logits)?;
        self.adapt((0, Site::Logits), &weights.output, (&rows.normed, !is_adapted), logits)
    }

    /// The final norm, with the updates of its output in f32.
    fn adapted_norm(&mut self, norm: &Norm, before: &Projection) -> Result<()> {
        let start = self.launches.len();
        self.norm_as(Some(norm), before.formats(), false)?;
        let quantize = self.launches.split_off(start + 1);
        let rows = Arc::clone(&self.rows);
        let hidden = rows.normed.values();
        if let Some((factors, lists)) = self.factors((0, Site::FinalHidden)) {
            let updates = factors.add(self.parts.gpu, &hidden.clone().into(), lists, hidden)?;
            self.launches.extend(updates);
        }
        self.launches.extend(quantize);
        Ok(())
    }

    /// Factors of the adapters at a site, and the lists of the rows; `None` without any.
    pub(super) fn factors(&self, at: Place) -> Option<(&LowRank, &LowRankRows)> {
        let Adapted { sites, rows, last } = self.operands.adapted.as_ref()?;
        let is_last = Arc::ptr_eq(&self.rows, &self.operands.last);
        Some((sites.get(&at)?, if is_last { last } else { rows }))
    }

    /// Adds the updates of adapters to the products of a projection. `direct`: as `input` was
    /// filled.
    pub(super) fn adapt(
        &mut self,
        at: Place,
        projection: &Projection,
        (input, direct): (&Input, bool),
        out: &Buffer,
    ) -> Result<()> {
        if let Some((factors, lists)) = self.factors(at) {
            let x = input.best(projection.formats(), direct);
            let updates = factors.add(self.parts.gpu, &x, lists, out)?;
            self.launches.extend(updates);
        }
        Ok(())
    }

    /// Adds the pending output to the residual stream and normalizes it, if there are weights for
    /// that, for matrices of `formats`.
    pub(super) fn norm(&mut self, norm: Option<&Norm>, formats: impl Iterator<Item = Format>) -> Result<()> {
        self.norm_as(norm, formats, true)
    }

    /// As [`norm`](Self::norm); `direct`: in 8 bits alone if the matrices read nothing else.
    fn norm_as(
        &mut self,
        norm: Option<&Norm>,
        formats: impl Iterator<Item = Format>,
        direct: bool,
    ) -> Result<()> {
        let (rows, pending) = (Arc::clone(&self.rows), self.pending.take());
        let norm = |out: &RowOutput| self.normalized(norm, pending.as_ref(), out);
        self.launches.extend(rows.normed.fill(self.parts.gpu, formats, direct, norm)?);
        Ok(())
    }

    /// Launches that add an output to the residual stream and normalize it.
    pub(super) fn normalized(
        &self,
        norm: Option<&Norm>,
        pending: Option<&Buffer>,
        out: &RowOutput,
    ) -> Result<Vec<Dispatch>> {
        let Parts { gpu, config, .. } = self.parts;
        let (eps, n, x) = (config.norm_eps, self.rows.n, &self.rows.residual);
        // Post-norms have the factor in their weights.
        let scale = if config.decoder.post_norms { 1.0 } else { config.decoder.residual_scale };
        let layer_norm = norm.and_then(|norm| Some((&norm.weight, norm.bias.as_ref()?)));
        let weight = norm.map(|norm| &norm.weight);
        if let Some(parameters) = layer_norm {
            return Ok(vec![match pending {
                Some(delta) => gpu.add_layer_norm((x, delta), parameters, eps, n, out)?,
                None => gpu.layer_norm(x, parameters, eps, n, out)?,
            }]);
        }
        Ok(match (weight, pending) {
            (Some(weight), Some(delta)) if scale != 1.0 => {
                vec![gpu.add_scaled_rms_norm(x, (delta, scale), weight, eps, n, out)?]
            }
            (Some(weight), Some(delta)) => vec![gpu.add_rms_norm(x, delta, weight, eps, n, out)?],
            (Some(weight), None) => vec![gpu.rms_norm(x, weight, eps, n, out)?],
            (None, Some(delta)) => vec![gpu.add(x, delta)?, gpu.copy_rows(x, n, out)?],
            (None, None) => vec![gpu.copy_rows(x, n, out)?],
        })
    }

    /// Makes the output of a branch pending, after its post-norm if the layer has one.
    pub(super) fn behind(&mut self, post_norm: Option<&Buffer>) -> Result<()> {
        let Parts { gpu, config, .. } = self.parts;
        let Rows { delta, post, n, .. } = &*self.rows;
        self.pending = Some(match post_norm {
            Some(weight) => {
                let out = RowOutput::F32(post.clone());
                self.launches.push(gpu.rms_norm(delta, weight, config.norm_eps, *n, &out)?);
                post.clone()
            }
            None => delta.clone(),
        });
        Ok(())
    }

    /// Products of an input with the matrices of a projection, plus bias.
    pub(super) fn project(
        &mut self,
        projection: &Projection,
        input: impl Fn(ruvllm_gpu::Format) -> Activations,
        out: &Buffer,
    ) -> Result<()> {
        let (gpu, n, width) = (self.parts.gpu, self.rows.n, projection.outputs);
        let is_gemm = self.phase == Phase::Prefill || self.parts.decode_gemm;
        for part in &projection.parts {
            let Stored { matrix, staged } = &part.matrix;
            let (mut matrix, x, first) = (matrix, input(matrix.format()), part.first);
            if let Some(staged) = staged.as_ref().filter(|_| is_gemm || n > MAX_BATCH) {
                self.launches.extend(matrix.copy_to(gpu, staged)?);
                matrix = staged;
            }
            self.launches.push(if is_gemm {
                matrix.gemm_into(gpu, &x, out, n, first, width)?
            } else {
                matrix.product_into(gpu, &x, out, n, first, width)?
            });
        }
        if let Some(bias) = &projection.bias {
            self.launches.push(gpu.add(out, bias)?);
        }
        Ok(())
    }
}
