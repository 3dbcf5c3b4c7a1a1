//! JSON documents of generated texts.

use ruvllm::{Completion, KvQuality, Logprobs, Timings, TokenId, TokenLogprob, Tokenizer};
use serde::Serialize;

use crate::output;
use crate::tools::CallDocument;

/// The JSON document: fields of the only result, or a list of choices.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    #[serde(flatten)]
    only: Option<ResultDocument<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    choices: Vec<ChoiceDocument<'a>>,
    timings: TimingsDocument,
}

/// A generated text.
#[derive(Serialize)]
struct ResultDocument<'a> {
    text: &'a str,
    /// Present if the model thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_tokens: Option<usize>,
    tokens: &'a [TokenId],
    prompt_tokens: usize,
    cached_tokens: usize,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    /// Present if there were tools to call.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Vec<CallDocument<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_quality: Option<KvQualityDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped_tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<SpeculationDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_logprob: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<LogprobsDocument>>,
}

/// A generated text among several.
#[derive(Serialize)]
struct ChoiceDocument<'a> {
    #[serde(flatten)]
    result: ResultDocument<'a>,
    timings: GenerationTimings,
}

/// Log-probabilities at one position.
#[derive(Serialize)]
struct LogprobsDocument {
    #[serde(flatten)]
    token: TokenDocument,
    top: Vec<TokenDocument>,
}

/// A token with its log-probability; null for an impossible token.
#[derive(Serialize)]
struct TokenDocument {
    token: TokenId,
    text: String,
    logprob: Option<f64>,
}

/// Outcome of a quality target.
#[derive(Serialize)]
struct KvQualityDocument {
    hot_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<f32>,
    samples: usize,
}

/// Counts of drafted tokens.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct SpeculationDocument {
    drafted_tokens: usize,
    accepted_tokens: usize,
}

/// Timings of the JSON document.
#[derive(Serialize)]
struct TimingsDocument {
    load_ms: f64,
    #[serde(flatten)]
    generation: Option<GenerationTimings>,
}

/// Timings of a generation; values that were not measured are absent.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct GenerationTimings {
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill_tok_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_tok_s: Option<f64>,
}

impl From<Timings> for GenerationTimings {
    fn from(timings: Timings) -> Self {
        let Timings { ttft_ms, prefill_tok_s, decode_tok_s, .. } = timings;
        let rounded = |x: Option<f64>| x.map(output::rounded);
        Self {
            ttft_ms: rounded(ttft_ms),
            prefill_tok_s: rounded(prefill_tok_s),
            decode_tok_s: rounded(decode_tok_s),
        }
    }
}

impl SpeculationDocument {
    /// Counts of drafted and accepted tokens; `None` where nothing was drafted.
    pub(in crate::commands) fn of(drafted_tokens: usize, accepted_tokens: usize) -> Option<Self> {
        (drafted_tokens > 0).then_some(Self { drafted_tokens, accepted_tokens })
    }
}

/// Content of the documents that flags decide.
#[derive(Clone, Copy)]
pub(super) struct Contents<'t> {
    pub(super) has_tools: bool,
    /// True if tokens were drawn, so that the seed matters.
    pub(super) drawn: bool,
    /// True if choices were ranked by their mean log-probability.
    pub(super) ranked: bool,
    /// Tokenizer for texts of tokens, if log-probabilities were asked for.
    pub(super) logprobs: Option<&'t Tokenizer>,
}

impl<'a> Document<'a> {
    /// The document of the only result, or of several.
    pub(super) fn new(completions: &'a [Completion], load_ms: f64, contents: Contents<'_>) -> Self {
        let result = |completion| ResultDocument::new(completion, contents);
        let only = match completions {
            [only] => Some(only),
            _ => None,
        };
        let choice = |completion: &'a Completion| ChoiceDocument {
            result: result(completion),
            timings: completion.timings.into(),
        };
        Self {
            only: only.map(result),
            choices: if only.is_some() { Vec::new() } else { completions.iter().map(choice).collect() },
            timings: TimingsDocument {
                load_ms: output::rounded(load_ms),
                generation: only.map(|only| only.timings.into()),
            },
        }
    }
}

impl<'a> ResultDocument<'a> {
    fn new(completion: &'a Completion, contents: Contents<'_>) -> Self {
        let Contents { has_tools, drawn, ranked, logprobs } = contents;
        let mean_logprob = completion.mean_logprob().filter(|mean| mean.is_finite());
        Self {
            text: completion.content(),
            reasoning: completion.reasoning(),
            reasoning_tokens: (completion.reasoning_tokens > 0).then_some(completion.reasoning_tokens),
            tokens: &completion.tokens,
            prompt_tokens: completion.prompt_tokens,
            cached_tokens: completion.cached_tokens,
            finish_reason: completion.finish_reason.name(),
            seed: drawn.then_some(completion.seed),
            tool_calls: has_tools.then(|| completion.tool_calls.iter().map(CallDocument::from).collect()),
            dropped_tokens: (completion.dropped_tokens > 0).then_some(completion.dropped_tokens),
            speculation: SpeculationDocument::of(completion.drafted_tokens, completion.accepted_tokens),
            kv_quality: completion.kv_quality.map(|KvQuality { hot_tokens, error, samples, .. }| {
                KvQualityDocument { hot_tokens, error, samples }
            }),
            mean_logprob: mean_logprob.filter(|_| ranked || logprobs.is_some()),
            logprobs: logprobs.map(|tokenizer| {
                completion.logprobs.iter().map(|all| LogprobsDocument::new(all, tokenizer)).collect()
            }),
        }
    }
}

impl LogprobsDocument {
    fn new(logprobs: &Logprobs, tokenizer: &Tokenizer) -> Self {
        let document = |&TokenLogprob { token, logprob }: &TokenLogprob| TokenDocument {
            token,
            text: super::logprobs::text_of(token, tokenizer),
            logprob: Some(logprob).filter(|logprob| logprob.is_finite()),
        };
        Self { token: document(&logprobs.token), top: logprobs.top.iter().map(document).collect() }
    }
}
