//! Greedy tokens and largest logits that a backend finds: when they are asked for, and the requests
//! that get them.

use std::ops::ControlFlow;
use std::sync::Mutex;

use ruvllm::{
    BackendBatch, BackendSession, CancelToken, Decoded, Error, GenerateRequest, InferenceBackend,
    ModelConfig, NextToken, OnDecoded, Result, SamplerOrder, SamplingParams, TextCodec, TokenId, TokenLogit,
    Wanted,
};

use crate::common::{complete, greedy, tiny};

const STORY: &str = "Once upon a time, there was a little fox.";

/// The tiny engine, whose batches choose greedy tokens and find the largest logits.
#[derive(Default)]
struct Chooser {
    /// Results that were wanted, in order.
    wanted: Mutex<Vec<Wanted>>,
    /// True if it finds no token possible.
    finds_none: bool,
}

impl Chooser {
    fn take_wanted(&self) -> Vec<Wanted> {
        std::mem::take(&mut *self.wanted.lock().expect("no panic"))
    }
}

impl InferenceBackend for Chooser {
    fn name(&self) -> &str {
        "chooser"
    }

    fn config(&self) -> &ModelConfig {
        tiny().config()
    }

    fn codec(&self) -> &TextCodec {
        InferenceBackend::codec(tiny())
    }

    fn context_length(&self) -> usize {
        tiny().context_length()
    }

    fn session(&self, capacity: usize) -> Result<Box<dyn BackendSession + '_>> {
        InferenceBackend::session(tiny(), capacity)
    }

    fn batch(&self) -> Box<dyn BackendBatch + '_> {
        Box::new(Choices { chooser: self, sequences: Vec::new() })
    }
}

struct Choices<'c> {
    chooser: &'c Chooser,
    sequences: Vec<Option<Box<dyn BackendSession + 'c>>>,
}

impl BackendBatch for Choices<'_> {
    fn begin(&mut self, capacity: usize) -> Result<usize> {
        self.sequences.push(Some(self.chooser.session(capacity)?));
        Ok(self.sequences.len() - 1)
    }

    fn sequence(&mut self, number: usize) -> Option<&mut dyn BackendSession> {
        match self.sequences.get_mut(number)? {
            Some(session) => Some(&mut **session),
            None => None,
        }
    }

    fn end(&mut self, number: usize) {
        self.sequences[number] = None;
    }

    fn decode(&mut self, tokens: &[NextToken], on_decoded: &mut OnDecoded<'_>) -> Result<()> {
        for (row, next) in tokens.iter().enumerate() {
            self.chooser.wanted.lock().expect("no panic").push(next.wanted);
            let session = self.sequences[next.sequence].as_mut().expect("it began");
            let logits = session.forward(&[next.token])?;
            match next.wanted {
                Wanted::Logits => on_decoded(&[row], Decoded::Logits(logits)),
                Wanted::Greedy { .. } => {
                    let best =
                        (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
                    let token = Some(best as TokenId).filter(|_| !self.chooser.finds_none);
                    on_decoded(&[row], Decoded::Greedy(&[token]));
                }
                Wanted::Largest(n) => {
                    // More than are wanted.
                    let most = n + 3;
                    let entry = |(token, &logit)| TokenLogit { token, logit };
                    let mut all: Vec<_> = (0..).zip(logits).map(entry).collect();
                    all.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token)));
                    if self.chooser.finds_none {
                        all.iter_mut().for_each(|entry| entry.logit = f32::NEG_INFINITY);
                    }
                    on_decoded(&[row], Decoded::Largest { most, logits: &all[..most] });
                }
            }
        }
        Ok(())
    }
}

const GREEDY: Wanted = Wanted::Greedy { goes_on: true };

/// Requests, and the result that each wants of its decode steps.
fn requests() -> Vec<(GenerateRequest, Wanted)> {
    let story = || greedy(STORY, 9).with_ignore_eos(true);
    let with = |sampling: SamplingParams| story().with_sampling(sampling);
    let params = SamplingParams::greedy;
    let sampled = || SamplingParams::default().with_seed(Some(5));
    let order = |text: &str| text.parse::<SamplerOrder>().expect("an order");
    let mut requests = vec![
        (story(), GREEDY),
        (story().with_stop([" a"]), GREEDY),
        (story().with_prompt_logprobs(1), GREEDY),
        // At temperature 0 filters have no effect.
        (with(params().with_top_k(5).with_top_p(0.5)), GREEDY),
        (story().with_logprobs(0), Wanted::Logits),
        (with(params().with_repeat_penalty(1.3)), Wanted::Logits),
        (with(params().with_frequency_penalty(0.5)), Wanted::Logits),
        (with(params().with_dry_multiplier(0.8)), Wanted::Logits),
        (with(params().with_logit_bias([(7, 3.0)].into())), Wanted::Logits),
        (with(sampled()), Wanted::Largest(40)),
        (with(sampled().with_top_k(3).with_temperature(2.0)), Wanted::Largest(3)),
        (with(sampled().with_xtc_probability(0.5).with_typical_p(0.9)), Wanted::Largest(40)),
        // A temperature before the filters needs no other logits, penalties behind them neither.
        (with(sampled().with_samplers(order("temperature;top_k;penalties"))), Wanted::Largest(40)),
        (with(sampled().with_samplers(order("top_p;top_k;temperature"))), Wanted::Logits),
        (with(sampled().with_dynatemp_range(0.5)), Wanted::Largest(40)),
        (with(sampled().with_top_k(0)), Wanted::Logits),
        (with(sampled().with_repeat_penalty(1.3)), Wanted::Logits),
        (with(sampled().with_logit_bias([(7, 3.0)].into())), Wanted::Logits),
        (with(sampled().with_mirostat(true)), Wanted::Logits),
        (with(sampled()).with_logprobs(2), Wanted::Logits),
    ];
    #[cfg(feature = "structured-output")]
    {
        let constraint = ruvllm::Constraint::regex("[a-z]+( [a-z]+)*").expect("a pattern");
        requests.push((story().with_constraint(constraint), Wanted::Logits));
    }
    requests
}

#[test]
fn logits_are_asked_for_only_where_they_are_read() {
    let chooser = Chooser::default();
    let (cancel, go_on) = (CancelToken::new(), &mut |_: &str| ControlFlow::Continue(()));
    let (requests, wanted): (Vec<GenerateRequest>, Vec<Wanted>) = requests().into_iter().unzip();
    let mut expected = Vec::new();
    for (index, (request, wanted)) in requests.iter().zip(wanted).enumerate() {
        let found = chooser.generate_with(request, &cancel, go_on).expect("text");
        let by_engine = complete(tiny(), request);
        assert_eq!((&found.tokens, &found.text), (&by_engine.tokens, &by_engine.text), "request {index}");
        assert_eq!(found.finish_reason, by_engine.finish_reason, "request {index}");
        let seen = chooser.take_wanted();
        // The last token of the length that was asked for has none behind it.
        let is_last = |at: usize| at + 2 == 9 && wanted == GREEDY;
        let wanted = |at| if is_last(at) { Wanted::Greedy { goes_on: false } } else { wanted };
        let expected_of = |(at, &seen): (usize, &Wanted)| seen == wanted(at);
        assert!(!seen.is_empty() && seen.iter().enumerate().all(expected_of), "request {index}: {seen:?}");
        expected.push(found.tokens);
    }
    // Together, in steps with results of both kinds.
    let found = chooser.generate_many(&requests, &cancel, &mut |_, _| ControlFlow::Continue(()));
    let found: Vec<_> = found.expect("threads").into_iter().map(|r| r.expect("text").tokens).collect();
    assert_eq!(found, expected);
}

#[test]
fn no_possible_token_is_an_error_of_its_request() {
    let chooser = Chooser { finds_none: true, ..Chooser::default() };
    let sampled = greedy(STORY, 4).with_sampling(SamplingParams::default());
    let requests = [greedy(STORY, 4), greedy(STORY, 4).with_logprobs(1), greedy(STORY, 1), sampled];
    let found = chooser.generate_many(&requests, &CancelToken::new(), &mut |_, _| ControlFlow::Continue(()));
    let found = found.expect("threads");
    for request in [0, 3] {
        assert!(matches!(found[request], Err(Error::NoCandidate)), "{:?}", found[request]);
    }
    // Log-probabilities need the logits, and the first token comes from those of the prompt.
    assert!(found[1].is_ok() && found[2].is_ok(), "{found:?}");
}
