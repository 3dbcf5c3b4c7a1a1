//! Default measurements of backends: perplexity, logits of given tokens, benchmarks.
//!
//! A backend returns logits of the last token of a pass only, so scored tokens take a pass each.

use std::ops::ControlFlow;
use std::time::Instant;

use ruvllm_kernels::ThreadPool;
use ruvllm_text::TokenId;

use super::queue::sampling_pool;
use super::sequence::BackendSession;
use super::{InferenceBackend, many};
use crate::benchmark::parallel::{self, Arrivals};
use crate::benchmark::{
    self, BenchOptions, BenchResult, BenchTest, Measurement, ParallelOptions, ParallelResult,
};
use crate::cancel::CancelToken;
use crate::error::{Error, Result};
use crate::evaluate::{LossSum, Perplexity, Windows, log_sum_exp};
use crate::request::Completion;

/// See [`InferenceBackend::perplexity`].
pub(super) fn perplexity<B: InferenceBackend + ?Sized>(
    backend: &B,
    tokens: &[TokenId],
    (context, limit): (usize, Option<usize>),
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Perplexity> {
    let windows = Windows::new(tokens, context, limit)?;
    check_context(backend, "a perplexity window", context)?;
    backend.codec().check_tokens(windows.tokens())?;
    // The last token of a window is never an input.
    let mut session = backend.session(context - 1)?;
    let mut sum = LossSum::default();
    let complete = windows.score(1, progress, &mut |pass| {
        if pass.start == 0 {
            session.truncate(0)?;
        }
        let logits = session.forward(pass.inputs)?;
        sum.add(log_sum_exp(logits) - f64::from(logits[pass.targets[0] as usize]));
        Ok(())
    })?;
    let kv_bytes_per_token = kv_bytes(backend, context - 1)? as f64 / (context - 1) as f64;
    Perplexity::new(&sum, kv_bytes_per_token, complete)
}

/// See [`InferenceBackend::logits`].
pub(super) fn logits<B: InferenceBackend + ?Sized>(
    backend: &B,
    tokens: &[TokenId],
    positions: &[usize],
) -> Result<Vec<f32>> {
    check_context(backend, "the sequence", tokens.len())?;
    backend.codec().check_tokens(tokens)?;
    if let Some(&position) = positions.iter().find(|&&position| position >= tokens.len()) {
        return Err(Error::PositionOutOfRange { position, tokens: tokens.len() });
    }
    let Some(&last) = positions.iter().max() else { return Ok(Vec::new()) };
    let vocab_size = backend.config().vocab_size;
    let mut wanted = positions.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    let mut out = vec![0.0; positions.len() * vocab_size];
    let mut session = backend.session(last + 1)?;
    for position in wanted {
        let inputs = &tokens[session.len()..=position];
        let logits = match inputs {
            [_] => session.forward(inputs)?,
            _ => {
                let go_on = &mut || ControlFlow::Continue(());
                session.prefill(inputs, backend.prefill_chunk(), go_on)?.ok_or(Error::Cancelled)?
            }
        };
        for (slot, _) in out.chunks_exact_mut(vocab_size).zip(positions).filter(|(_, at)| **at == position) {
            slot.copy_from_slice(logits);
        }
    }
    Ok(out)
}

/// See [`InferenceBackend::bench`].
pub(super) fn bench<B: InferenceBackend + ?Sized>(
    backend: &B,
    options: &BenchOptions,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Vec<BenchResult>> {
    let capacity = options.depth.saturating_add(benchmark::check(options)?);
    check_context(backend, "the benchmark", capacity)?;
    let tokens = benchmark::fixed_tokens(capacity, backend.config().vocab_size);
    let mut session = backend.session(capacity)?;
    let mut measurements: Vec<_> = options.tests.iter().map(|&test| Measurement::new(test, 0)).collect();
    // Warm-up by whole runs, not single steps: they compile kernels and raise clocks.
    for measurement in &measurements {
        run(&mut *session, measurement.test, &tokens, options)?;
    }
    let total = options.runs * measurements.len();
    let mut done = 0;
    for _ in 0..options.runs {
        for measurement in &mut measurements {
            if progress(done, total).is_break() {
                return Err(Error::Cancelled);
            }
            let seconds = run(&mut *session, measurement.test, &tokens, options)?;
            measurement.record_seconds(seconds);
            done += 1;
        }
    }
    let _ = progress(done, total);
    let kv = backend.kv_policy();
    Ok(measurements.into_iter().filter_map(|measurement| measurement.result(options, 1, kv)).collect())
}

/// Seconds of one run at the given depth; tokens missing from the depth are prefilled first,
/// untimed.
fn run(
    session: &mut dyn BackendSession,
    test: BenchTest,
    tokens: &[TokenId],
    options: &BenchOptions,
) -> Result<f64> {
    let go_on = &mut || ControlFlow::Continue(());
    let kept = session.truncate(options.depth)?;
    if kept < options.depth {
        session.prefill(&tokens[kept..options.depth], options.batch, go_on)?;
    }
    let tokens = &tokens[options.depth..][..test.tokens()];
    let start = Instant::now();
    match test {
        BenchTest::Prefill(_) => {
            session.prefill(tokens, options.batch, go_on)?;
        }
        BenchTest::Decode(_) => {
            for token in tokens {
                session.forward(std::slice::from_ref(token))?;
            }
        }
        BenchTest::Greedy(n) => session.greedy(&tokens[..1], n, &mut |_| ControlFlow::Continue(()))?,
    }
    Ok(start.elapsed().as_secs_f64())
}

/// See [`InferenceBackend::bench_parallel`].
pub(super) fn bench_parallel<B: InferenceBackend + ?Sized>(
    backend: &B,
    options: &ParallelOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<ParallelResult>> {
    parallel::check(options)?;
    check_context(backend, "a parallel request", options.prompt_tokens.saturating_add(options.new_tokens))?;
    let pool = sampling_pool()?;
    let total = options.parallel.len() * options.runs;
    let mut done = 0;
    let mut results = Vec::with_capacity(options.parallel.len());
    for &at_once in &options.parallel {
        let seed = |run: usize| (at_once * (options.runs + 1) + run) as u64;
        // Compiles kernels and raises clocks.
        round(backend, &pool, options, at_once, seed(0))?;
        let mut rounds = Vec::with_capacity(options.runs);
        for run in 0..options.runs {
            progress(done, total);
            rounds.push(round(backend, &pool, options, at_once, seed(run + 1))?);
            done += 1;
        }
        results.extend(parallel::summary(at_once, options.new_tokens, &rounds, 0));
    }
    progress(total, total);
    Ok(results)
}

/// Runs `at_once` requests that begin at the same time.
fn round<B: InferenceBackend + ?Sized>(
    backend: &B,
    pool: &ThreadPool,
    options: &ParallelOptions,
    at_once: usize,
    seed: u64,
) -> Result<Vec<Arrivals>> {
    let vocab_size = backend.config().vocab_size;
    let requests: Vec<_> = parallel::requests(vocab_size, options, at_once, seed).collect();
    let mut pieces: Vec<Vec<(Instant, usize)>> = requests.iter().map(|_| Vec::new()).collect();
    let submitted = Instant::now();
    let completions = many::run(backend, pool, &requests, &CancelToken::new(), &mut |index, chunk| {
        pieces[index].push((Instant::now(), chunk.tokens.len()));
        ControlFlow::Continue(())
    });
    let arrivals = |(pieces, completion): (_, Result<Completion>)| {
        let Completion { cached_tokens, drafted_tokens, accepted_tokens, .. } = completion?;
        Ok(Arrivals { submitted, pieces, cached_tokens, drafts: (drafted_tokens, accepted_tokens) })
    };
    pieces.into_iter().zip(completions).map(arrivals).collect()
}

fn check_context<B: InferenceBackend + ?Sized>(backend: &B, what: &str, tokens: usize) -> Result<()> {
    let model_context = backend.context_length();
    if tokens > model_context {
        return Err(Error::ContextTooLong { what: what.to_owned(), tokens, model_context });
    }
    Ok(())
}

/// Bytes of keys and values of `tokens` tokens, in whole blocks.
pub(super) fn kv_bytes<B: InferenceBackend + ?Sized>(backend: &B, tokens: usize) -> Result<usize> {
    let (policy, config) = (backend.kv_policy(), backend.config());
    let block = policy.block_tokens();
    let bytes = policy
        .hot
        .block_bytes(config.kv_shape(), block)
        .map_err(|source| Error::KvPolicy { policy: policy.to_string(), source: source.into() })?;
    Ok(tokens.div_ceil(block) * bytes)
}
