//! Passkey retrieval: recall of a random key from a long text.
//!
//! A sentence with a random key is inserted into real text, and the prompt ends with the same
//! sentence without the key (Mohtashami and Jaggi, arXiv 2305.16300). Small models seldom generate
//! a whole key; the negative log-likelihood (NLL) of the key, compared with that after the same
//! text without the sentence, shows retrieval too.
//!
//! Each digit is one token, even if the tokenizer would merge digits, so that all models predict
//! equally many tokens.

use std::ops::{ControlFlow, Range};

use ruvllm_models::LogitsRows;
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::evaluate::LossSum;
use crate::sampler::uniform;
use crate::session::Session;
use crate::setters::setters;

/// Text before the key, in the inserted sentence and at the end of the prompt.
const CUE: &str = "\n\nThe pass key is ";

/// Text after the key in the inserted sentence.
const END: &str = ".\n\n";

/// Digits of a key.
const KEY_DIGITS: usize = 5;

/// Length, needle positions and number of passkey prompts.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PasskeyOptions {
    /// Tokens of prompt and key together.
    pub context: usize,
    /// Depths of the key: share of the text before it, each in [0, 1].
    pub depths: Vec<f32>,
    /// Keys per depth, each in a different part of the text; at least 1.
    pub trials: usize,
    /// Seed of the keys, which do not depend on context and depths.
    pub seed: u64,
}

impl PasskeyOptions {
    /// One key at depth 0.5 of prompts of `context` tokens.
    pub fn new(context: usize) -> Self {
        Self { context, depths: vec![0.5], trials: 1, seed: 0 }
    }
}

setters! {
    PasskeyOptions {
        set with_depths(depths: Vec<f32>);
        set with_trials(trials: usize);
        set with_seed(seed: u64);
    }
}

/// Retrieval result at one depth.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct PasskeyResult {
    /// Depth of the keys.
    pub depth: f32,
    /// Number of keys.
    pub trials: usize,
    /// Keys that greedy decoding reproduces completely.
    pub found: usize,
    /// NLL of the keys: mean of `-ln p` over their tokens, in nats.
    pub nll: f64,
    /// Baseline: NLL of the keys after the text without the inserted sentence.
    pub nll_without: f64,
}

impl Engine {
    /// Passkey retrieval test on a text given as token ids; one result per depth.
    ///
    /// Trials use evenly spaced parts of the text, each with a new key of five random digits, in
    /// `\n\nThe pass key is 12345.\n\n`. All prompts have `context` tokens, the key at the end
    /// included, and no BOS.
    ///
    /// `progress` gets the number of processed ids and their total; `Break` ends the measurement.
    ///
    /// # Numerics
    /// Log-probabilities are f64 from f32 logits. A key is found if each of its tokens has the
    /// largest logit after the preceding ones, as greedy decoding would choose.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] without trials, [`Error::PasskeyDepth`], [`Error::PasskeyDigit`] if
    /// the vocabulary lacks a digit, [`Error::PasskeyContext`] if the sentences alone fill the
    /// context, [`Error::TextTooShort`], [`Error::ContextTooLong`], [`Error::TokenOutOfRange`];
    /// [`Error::Cancelled`] after a `Break`; [`Error::Cache`] and [`Error::Forward`] from the run.
    pub fn passkey(
        &self,
        text: &[TokenId],
        options: &PasskeyOptions,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Vec<PasskeyResult>> {
        let &PasskeyOptions { context, ref depths, trials, seed } = options;
        let sentence = Sentence::new(self.tokenizer())?;
        self.check_passkey(text, options, &sentence)?;
        let total = trials.saturating_mul((depths.len() + 1) * context);
        let key_tokens = trials as f64 * KEY_DIGITS as f64;
        let mut done = 0;
        let mut session = Session::new(self, context)?;
        let new = |&depth: &f32| PasskeyResult { depth, trials, found: 0, nll: 0.0, nll_without: 0.0 };
        let mut results: Vec<PasskeyResult> = depths.iter().map(new).collect();
        for trial in 0..trials {
            let start = trial * (text.len() - context) / trials;
            let (text, key) = (&text[start..], sentence.key(seed, trial as u64));
            let mut ask = |prompt: &[TokenId]| {
                let answer =
                    self.score_end(&mut session, prompt, &mut |position| progress(done + position, total));
                done += context;
                answer
            };
            let without = ask(&sentence.prompt_without(text, &key, context))?;
            for result in &mut results {
                let answer = ask(&sentence.prompt(text, &key, context, result.depth))?;
                result.found += usize::from(answer.is_greedy);
                result.nll += answer.loss.sum / key_tokens;
                result.nll_without += without.loss.sum / key_tokens;
            }
        }
        // The measurement is complete: a `Break` changes nothing.
        let _ = progress(total, total);
        Ok(results)
    }

    fn check_passkey(&self, text: &[TokenId], options: &PasskeyOptions, sentence: &Sentence) -> Result<()> {
        let &PasskeyOptions { context, ref depths, trials, .. } = options;
        if trials == 0 {
            return Err(Error::InvalidOption { name: "trials", value: 0, expected: "at least 1" });
        }
        if let Some(&depth) = depths.iter().find(|depth| !(0.0..=1.0).contains(*depth)) {
            return Err(Error::PasskeyDepth { depth });
        }
        let least = sentence.tokens() + 1;
        if context < least {
            return Err(Error::PasskeyContext { context, least });
        }
        if text.len() < context {
            return Err(Error::TextTooShort { tokens: text.len(), context });
        }
        self.check_context("a prompt with a pass key", context)?;
        self.check_tokens(text)
    }

    /// Scores the key at the end of `prompt`. `go_on` gets the position before each pass.
    fn score_end(
        &self,
        session: &mut Session<'_>,
        prompt: &[TokenId],
        go_on: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Answer> {
        session.truncate(0)?;
        let vocab_size = self.config().vocab_size;
        let mut answer = Answer { loss: LossSum::default(), is_greedy: true };
        // Position i predicts id i + 1, so the last id is never an input.
        for inputs in prompt[..prompt.len() - 1].chunks(self.scored_at_once()) {
            let start = session.len();
            if go_on(start).is_break() {
                return Err(Error::Cancelled);
            }
            let scored = scored(start..start + inputs.len(), prompt.len());
            let targets = &prompt[scored.start + 1..scored.end + 1];
            let rows: Vec<usize> = scored.map(|position| position - start).collect();
            let logits = session.forward(inputs, LogitsRows::At(&rows))?;
            self.add_losses(&mut answer.loss, logits, targets);
            answer.is_greedy &= logits
                .chunks_exact(vocab_size)
                .zip(targets)
                .all(|(row, &target)| row.iter().all(|&logit| logit <= row[target as usize]));
        }
        Ok(answer)
    }
}

/// Positions of `pass` that predict the key at the end of a prompt of `len` ids.
fn scored(pass: Range<usize>, len: usize) -> Range<usize> {
    (len - 1 - KEY_DIGITS).clamp(pass.start, pass.end)..pass.end
}

/// Prediction of a key.
struct Answer {
    /// `-ln p` of the key's tokens.
    loss: LossSum,
    is_greedy: bool,
}

/// The sentence around a key, tokenized for a model.
struct Sentence {
    cue: Vec<TokenId>,
    end: Vec<TokenId>,
    /// Ids of the digits 0 to 9.
    digits: Vec<TokenId>,
}

impl Sentence {
    fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let options = EncodeOptions { add_special: false, parse_special: false };
        let encode = |text: &str| tokenizer.encode(text, options).map_err(Error::Encode);
        let id = |digit: u8| tokenizer.token_to_id(&digit.to_string()).ok_or(Error::PasskeyDigit { digit });
        let digits = (0..10).map(id).collect::<Result<_>>()?;
        Ok(Self { cue: encode(CUE)?, end: encode(END)?, digits })
    }

    /// Tokens of the inserted sentence and of the question, both keys included.
    fn tokens(&self) -> usize {
        2 * (self.cue.len() + KEY_DIGITS) + self.end.len()
    }

    /// Random digits of a key.
    fn key(&self, seed: u64, trial: u64) -> Vec<TokenId> {
        let draws = (0..KEY_DIGITS as u64).map(|draw| uniform(seed, trial * KEY_DIGITS as u64 + draw));
        draws.map(|draw| self.digits[(draw * self.digits.len() as f64) as usize]).collect()
    }

    /// Prompt of `context` ids with the sentence at `depth`, ending with question and key.
    fn prompt(&self, text: &[TokenId], key: &[TokenId], context: usize, depth: f32) -> Vec<TokenId> {
        let text = &text[..context - self.tokens()];
        let (before, after) = text.split_at((text.len() as f64 * f64::from(depth)).round() as usize);
        [before, &self.cue, key, &self.end, after, &self.cue, key].concat()
    }

    /// Baseline prompt of `context` ids: question and key at the end, without the sentence.
    fn prompt_without(&self, text: &[TokenId], key: &[TokenId], context: usize) -> Vec<TokenId> {
        [&text[..context - self.cue.len() - KEY_DIGITS], &self.cue, key].concat()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::evaluate::log_sum_exp;
    use crate::options::{EngineOptions, ModelSource};

    fn sentence() -> Sentence {
        Sentence { cue: vec![1, 2, 3], end: vec![4], digits: (100..110).collect() }
    }

    #[test]
    fn keys_follow_from_seed_and_trial_and_have_every_digit() {
        let sentence = sentence();
        let keys: Vec<_> = (0..100).map(|trial| sentence.key(7, trial)).collect();
        assert!(keys.iter().all(|key| key.len() == KEY_DIGITS));
        assert_eq!(keys[3], sentence.key(7, 3));
        assert_ne!(keys[3], keys[4]);
        assert_ne!(keys[3], sentence.key(8, 3));
        assert!(sentence.digits.iter().all(|digit| keys.concat().contains(digit)));
    }

    #[test]
    fn the_end_of_a_prompt_is_scored_as_its_logits_say() {
        let path = ruvllm_testkit::model_data("tiny/llama/model-F16.gguf");
        let options = EngineOptions { prefill_chunk: 16, ..EngineOptions::default() };
        let engine = Engine::load(&ModelSource::from(path), &options, &mut |_| ()).expect("the model loads");
        let mut session = Session::new(&engine, 100).expect("room");
        let mut prompt: Vec<TokenId> = (0..70).map(|i| (i * i * 11 + i) % 500).collect();
        for _ in 0..KEY_DIGITS {
            // Greedy decoding.
            let row = engine.logits(&prompt, &[prompt.len() - 1]).expect("logits");
            let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("a row");
            prompt.push(best as TokenId);
        }
        let mut score = |prompt: &[TokenId]| {
            let answer = engine.score_end(&mut session, prompt, &mut |_| ControlFlow::Continue(()));
            answer.expect("a score")
        };
        let vocab_size = engine.config().vocab_size;
        let expected = |prompt: &[TokenId]| -> f64 {
            let positions: Vec<usize> = (69..69 + KEY_DIGITS).collect();
            let logits = engine.logits(prompt, &positions).expect("logits");
            let rows = logits.chunks_exact(vocab_size).zip(&prompt[70..]);
            rows.map(|(row, &id)| log_sum_exp(row) - f64::from(row[id as usize])).sum()
        };
        let greedy = score(&prompt);
        assert!(greedy.is_greedy && greedy.loss.sum == expected(&prompt), "{}", greedy.loss.sum);
        prompt[72] = (prompt[72] + 1) % 500;
        let other = score(&prompt);
        assert!(!other.is_greedy && other.loss.sum == expected(&prompt), "{}", other.loss.sum);
    }

    proptest! {
        #[test]
        fn prompts_fill_the_context_and_keep_the_text(depth in 0f32..=1.0, spare in 1usize..100) {
            let (sentence, text) = (sentence(), (1000..2000).collect::<Vec<_>>());
            let (key, context) = (sentence.key(7, 0), sentence.tokens() + spare);
            let prompt = sentence.prompt(&text, &key, context, depth);
            let without = sentence.prompt_without(&text, &key, context);
            prop_assert_eq!((prompt.len(), without.len()), (context, context));
            prop_assert!(prompt.ends_with(&key) && without.ends_with(&key));
            let of_text = |prompt: &[TokenId]| prompt.iter().copied().filter(|&id| id >= 1000).collect::<Vec<_>>();
            prop_assert_eq!(of_text(&prompt), &text[..spare]);
            let told = [&sentence.cue[..], &key, &sentence.end].concat();
            let at = prompt.windows(told.len()).position(|window| window == told);
            let expected = (spare as f64 * f64::from(depth)).round() as usize;
            prop_assert_eq!(at, Some(expected));
            prop_assert!(without.windows(told.len()).all(|window| window != told));
        }

        #[test]
        fn each_token_of_the_key_is_scored_once(len in KEY_DIGITS + 1..200, pass in 1usize..70) {
            let positions: Vec<usize> = (0..len - 1).collect();
            let of_pass = |inputs: &[usize]| scored(inputs[0]..inputs[0] + inputs.len(), len);
            let scored: Vec<usize> = positions.chunks(pass).flat_map(of_pass).collect();
            prop_assert_eq!(scored, (len - 1 - KEY_DIGITS..len - 1).collect::<Vec<_>>());
        }
    }
}
