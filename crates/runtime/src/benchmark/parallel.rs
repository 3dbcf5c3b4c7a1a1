//! Benchmark of many requests at once: latencies and throughput through the step loop.

use std::time::{Duration, Instant};

use ruvllm_text::TokenId;

use crate::cancel::CancelToken;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::request::{GenerateRequest, Prompt};
use crate::sampler::{SamplingParams, uniform};
use crate::setters::setters;
use crate::speculation::Speculation;
use crate::step::RequestHandle;

/// Requests to run at once, and their sizes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ParallelOptions {
    /// Requests at once, each count measured on its own. Default 1, 4, 16.
    pub parallel: Vec<usize>,
    /// Tokens of each prompt. Default 128.
    pub prompt_tokens: usize,
    /// First tokens of the prompts that all of them have in common. Default 0.
    pub shared_prefix: usize,
    /// Tokens that each request generates. Default 64.
    pub new_tokens: usize,
    /// Rounds of each count: in each, all requests begin at the same time. Default 3.
    pub runs: usize,
    /// Speculative decoding. Default: off, so that latencies are those of a token per step; the
    /// prompts are random tokens, which few drafts foretell.
    pub speculation: Speculation,
}

setters! {
    ParallelOptions {
        set with_parallel(parallel: Vec<usize>);
        set with_prompt_tokens(prompt_tokens: usize);
        set with_shared_prefix(shared_prefix: usize);
        set with_new_tokens(new_tokens: usize);
        set with_runs(runs: usize);
        set with_speculation(speculation: Speculation);
    }
}

impl Default for ParallelOptions {
    fn default() -> Self {
        Self {
            parallel: vec![1, 4, 16],
            prompt_tokens: 128,
            shared_prefix: 0,
            new_tokens: 64,
            runs: 3,
            speculation: Speculation::Off,
        }
    }
}

/// Percentiles of measured values, by the nearest rank.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Percentiles {
    /// Percentiles of the values; `None` if there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let rank = |percent: usize| (values.len() * percent).div_ceil(100).saturating_sub(1);
        let at = |percent| values.get(rank(percent)).copied();
        Some(Self { p50: at(50)?, p95: at(95)?, p99: at(99)? })
    }
}

/// Result for one number of requests at once.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ParallelResult {
    /// Requests at once.
    pub parallel: usize,
    /// Requests that were measured, of all rounds.
    pub requests: usize,
    /// Tokens per second that all requests generated together, from the start of a round to its
    /// end; the median of the rounds.
    pub tokens_per_s: f64,
    /// Tokens per second of decode: from the last first token of a round to the first last one,
    /// while all requests decode; the median of the rounds. Absent if they never did.
    pub decode_tokens_per_s: Option<f64>,
    /// Time to first token in milliseconds.
    pub ttft_ms: Percentiles,
    /// Inter-token latency: the time from one piece of text to the next, by its tokens. Absent for
    /// one token.
    pub itl_ms: Option<Percentiles>,
    /// Prompt tokens served from the prefix cache.
    pub cached_tokens: usize,
    /// Requests that yielded their memory and waited again.
    pub preemptions: u64,
    /// Drafted tokens that were verified.
    pub drafted_tokens: usize,
    /// Drafted tokens that became output.
    pub accepted_tokens: usize,
}

/// Arrivals of one request's text.
pub(crate) struct Arrivals {
    pub(crate) submitted: Instant,
    /// Time of each piece, and tokens since the one before.
    pub(crate) pieces: Vec<(Instant, usize)>,
    pub(crate) cached_tokens: usize,
    /// Drafted and accepted tokens.
    pub(crate) drafts: (usize, usize),
}

impl Engine {
    /// Measures requests that run at once. `progress` gets the number of finished rounds and their
    /// total. The prompts are random token ids; EOS does not end a request.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a zero, [`Error::ContextTooLong`] beyond the context; those of
    /// the requests.
    pub fn bench_parallel(
        &self,
        options: &ParallelOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<ParallelResult>> {
        check(options)?;
        let longest = options.prompt_tokens.saturating_add(options.new_tokens);
        self.check_context("a parallel request", longest.saturating_sub(1))?;
        let total = options.parallel.len() * options.runs;
        let mut done = 0;
        // The first pass touches the weights.
        self.round(options, 1, 0)?;
        let mut results = Vec::with_capacity(options.parallel.len());
        for &parallel in &options.parallel {
            let before = self.step_statistics().preemptions;
            let mut rounds = Vec::with_capacity(options.runs);
            for run in 0..options.runs {
                progress(done, total);
                rounds.push(self.round(options, parallel, (parallel * options.runs + run + 1) as u64)?);
                done += 1;
            }
            let preemptions = self.step_statistics().preemptions - before;
            results.extend(summary(parallel, options.new_tokens, &rounds, preemptions));
        }
        progress(total, total);
        Ok(results)
    }

    /// Runs `parallel` requests that begin at the same time.
    fn round(&self, options: &ParallelOptions, parallel: usize, seed: u64) -> Result<Vec<Arrivals>> {
        let submit = |request: GenerateRequest| {
            let submitted = Instant::now();
            Ok((submitted, self.submit_in(&request, None, &CancelToken::new())?))
        };
        let requests = requests(self.config().vocab_size, options, parallel, seed);
        let handles: Vec<(Instant, RequestHandle)> = requests.map(submit).collect::<Result<_>>()?;
        std::thread::scope(|scope| {
            let readers: Vec<_> = handles
                .into_iter()
                .map(|(submitted, handle)| scope.spawn(move || read(submitted, handle)))
                .collect();
            let joined = readers.into_iter().map(|reader| reader.join().unwrap_or(Err(Error::EngineStopped)));
            joined.collect()
        })
    }
}

/// Requests of a round.
pub(crate) fn requests(
    vocab_size: usize,
    options: &ParallelOptions,
    parallel: usize,
    seed: u64,
) -> impl Iterator<Item = GenerateRequest> {
    (0..parallel as u64).map(move |index| {
        GenerateRequest::new(Prompt::Tokens(prompt(vocab_size, options, seed * 1000 + index)))
            .with_max_tokens(options.new_tokens)
            .with_sampling(SamplingParams::greedy())
            .with_ignore_eos(true)
            .with_speculation(options.speculation)
    })
}

/// Checks that nothing is zero.
pub(crate) fn check(options: &ParallelOptions) -> Result<()> {
    let zero = |name| Err(Error::InvalidOption { name, value: 0, expected: "at least 1" });
    match options {
        ParallelOptions { runs: 0, .. } => zero("runs"),
        ParallelOptions { prompt_tokens: 0, .. } => zero("prompt_tokens"),
        ParallelOptions { new_tokens: 0, .. } => zero("new_tokens"),
        ParallelOptions { parallel, .. } if parallel.is_empty() || parallel.contains(&0) => zero("parallel"),
        _ => Ok(()),
    }
}

/// Random ids of a prompt; the shared ones are the same for every seed.
fn prompt(vocab_size: usize, options: &ParallelOptions, seed: u64) -> Vec<TokenId> {
    let id = |(seed, index)| (uniform(seed, index) * vocab_size as f64) as TokenId;
    let seed = |index: u64| if index < options.shared_prefix as u64 { u64::MAX } else { seed };
    (0..options.prompt_tokens as u64).map(|index| id((seed(index), index))).collect()
}

/// Reads a request to its end.
fn read(submitted: Instant, mut handle: RequestHandle) -> Result<Arrivals> {
    let mut pieces = Vec::new();
    for chunk in &mut handle {
        pieces.push((Instant::now(), chunk?.tokens.len()));
    }
    let (cached_tokens, drafts) = handle.completion().map_or((0, (0, 0)), |completion| {
        (completion.cached_tokens, (completion.drafted_tokens, completion.accepted_tokens))
    });
    Ok(Arrivals { submitted, pieces, cached_tokens, drafts })
}

/// Result of the rounds with `parallel` requests.
pub(crate) fn summary(
    parallel: usize,
    new_tokens: usize,
    rounds: &[Vec<Arrivals>],
    preemptions: u64,
) -> Option<ParallelResult> {
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let all = || rounds.iter().flatten();
    let ttft = all().filter_map(|request| Some(ms(request.pieces.first()?.0 - request.submitted)));
    let latencies = all().flat_map(|request| {
        request.pieces.windows(2).flat_map(|pair| {
            let [(before, _), (now, tokens)] = [pair[0], pair[1]];
            std::iter::repeat_n(ms(now - before) / tokens.max(1) as f64, tokens)
        })
    });
    Some(ParallelResult {
        parallel,
        requests: all().count(),
        tokens_per_s: median(rounds.iter().filter_map(|round| throughput(round, new_tokens)))?,
        decode_tokens_per_s: median(rounds.iter().filter_map(|round| decode_throughput(round))),
        ttft_ms: Percentiles::of(ttft.collect())?,
        itl_ms: Percentiles::of(latencies.collect()),
        cached_tokens: all().map(|request| request.cached_tokens).sum(),
        preemptions,
        drafted_tokens: all().map(|request| request.drafts.0).sum(),
        accepted_tokens: all().map(|request| request.drafts.1).sum(),
    })
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    super::Spread::of(values.collect()).map(|spread| spread.median)
}

/// Generated tokens per second of a round.
fn throughput(round: &[Arrivals], new_tokens: usize) -> Option<f64> {
    let start = round.iter().map(|request| request.submitted).min()?;
    let end = round.iter().filter_map(|request| request.pieces.last()).map(|piece| piece.0).max()?;
    Some((round.len() * new_tokens) as f64 / (end - start).as_secs_f64().max(1e-9))
}

/// Tokens per second while all requests of a round decode.
fn decode_throughput(round: &[Arrivals]) -> Option<f64> {
    let ends = |request: &Arrivals| Some((request.pieces.first()?.0, request.pieces.last()?.0));
    let spans: Vec<(Instant, Instant)> = round.iter().filter_map(ends).collect();
    let start = spans.iter().map(|span| span.0).max()?;
    let end = spans.iter().map(|span| span.1).min()?;
    let length = end.checked_duration_since(start).filter(|length| !length.is_zero())?;
    let within = |piece: &&(Instant, usize)| piece.0 > start && piece.0 <= end;
    let pieces = round.iter().flat_map(|request| request.pieces.iter().filter(within));
    Some(pieces.map(|piece| piece.1).sum::<usize>() as f64 / length.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_the_nearest_rank() {
        let hundred = Percentiles::of((1..=100).rev().map(f64::from).collect());
        assert_eq!(hundred, Some(Percentiles { p50: 50.0, p95: 95.0, p99: 99.0 }));
        assert_eq!(Percentiles::of(vec![7.0]), Some(Percentiles { p50: 7.0, p95: 7.0, p99: 7.0 }));
        assert_eq!(Percentiles::of(Vec::new()), None);
    }

    #[test]
    fn decode_counts_from_the_last_first_token_to_the_first_last_one() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let request = |times: &[u64]| Arrivals {
            submitted: start,
            pieces: times.iter().map(|&ms| (at(ms), 1)).collect(),
            cached_tokens: 0,
            drafts: (0, 0),
        };
        let round = [request(&[10, 20, 30, 40]), request(&[20, 30, 40, 50])];
        // 2 + 2 tokens in 20 ms.
        assert!((decode_throughput(&round).expect("both decode") - 200.0).abs() < 1e-6);
        assert!((throughput(&round, 4).expect("pieces") - 160.0).abs() < 1e-6);
        assert_eq!(decode_throughput(&[request(&[10]), request(&[20, 30])]), None);
    }

    #[test]
    fn shared_prefixes_are_the_same_and_the_rest_is_not() {
        let options = ParallelOptions::default().with_shared_prefix(100);
        let [a, b] = [1, 2].map(|seed| prompt(500, &options, seed));
        assert_eq!((a.len(), &a[..100]), (128, &b[..100]));
        assert_ne!(a[100..], b[100..]);
    }
}
