//! Choices of one prompt: flags, generation and output.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::ControlFlow;

use clap::Args;
use ruvllm::{CancelToken, Completion, Engine, GenerateRequest, InferenceBackend, TextCodec};

use crate::answer_filter::AnswerFilter;
use crate::args;
use crate::args::ThinkingView;
use crate::device::{Device, DeviceArgs, DeviceError, Loaded};
use crate::error::{Error, Result};
use crate::output::TextSink;

/// Flags of choices and of log-probabilities.
#[derive(Debug, Args)]
#[command(next_help_heading = "Choices")]
pub(super) struct ChoiceArgs {
    /// Texts of the prompt, 1 to 128, with the seeds S, S+1, ..
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::choices)]
    n: usize,

    /// Generate N choices, print the --n with the highest mean log-probability
    #[arg(long, value_name = "N", value_parser = args::choices)]
    best_of: Option<usize>,

    /// Log-probabilities of each token and of the N most likely ones; 0 to 128
    #[arg(long, value_name = "N", value_parser = args::logprobs)]
    pub(super) logprobs: Option<usize>,
}

/// Command with the flag that ranks choices.
const RANKED: &str = "generate --best-of";

/// Largest number of contexts that a GPU reserves for choices.
const MOST_GPU_CONTEXTS: usize = 4;

/// Number of choices, and of those that they are the best of.
#[derive(Debug, Clone, Copy)]
pub(in crate::commands) struct Choices {
    n: usize,
    best_of: Option<usize>,
}

impl Choices {
    /// The one choice of a request.
    pub(in crate::commands) const ONE: Self = Self { n: 1, best_of: None };

    /// Choices of the flags.
    ///
    /// # Errors
    /// [`Error::Conflict`]: fewer generated choices than printed ones; several that are the same.
    pub(super) fn new(args: &ChoiceArgs, temperature: f32) -> Result<Self> {
        let ChoiceArgs { n, best_of, .. } = *args;
        let conflict = |flag, reason| Err(Error::Conflict { flag, reason });
        if let Some(best_of) = best_of.filter(|&best_of| best_of < n) {
            return conflict(
                "--best-of",
                format!("{best_of} choices cannot give --n {n}; generate at least {n}"),
            );
        }
        let flag = if n > 1 { "--n" } else { "--best-of" };
        if temperature == 0.0 && best_of.unwrap_or(n) > 1 {
            let reason = "with --temperature 0 all choices are the same; raise it, or print one choice";
            return conflict(flag, reason.to_owned());
        }
        Ok(Self { n, best_of })
    }

    /// True if choices are ranked.
    pub(super) fn are_ranked(self) -> bool {
        self.best_of.is_some()
    }

    /// Rejects a GPU for ranked choices, before the model is loaded.
    ///
    /// # Errors
    /// [`DeviceError::CpuOnly`].
    pub(super) fn check_device(self, device: &DeviceArgs) -> Result<()> {
        if self.are_ranked() { device.cpu_only(RANKED) } else { Ok(()) }
    }

    /// Contexts that a GPU reserves: choices for which that is not enough wait for others.
    pub(super) fn gpu_sequences(self) -> usize {
        self.n.min(MOST_GPU_CONTEXTS)
    }

    /// True if the request is generated once, by any backend.
    fn is_one(self) -> bool {
        self.n == 1 && self.best_of.is_none()
    }

    /// Generates the choices and shows them one after the other.
    ///
    /// # Errors
    /// [`DeviceError::CpuOnly`] for ranked ones on a GPU; those of the engine or backend.
    pub(super) fn generate(
        self,
        model: &Loaded,
        request: &GenerateRequest,
        cancel: &CancelToken,
        shown: &mut Shown<'_>,
    ) -> Result<Vec<Completion>> {
        let Self { n, best_of } = self;
        if self.is_one() {
            let mut filter = shown.filter(request, cancel)?;
            let mut show = |text: &str| filter.push(text, &mut |voice, text| shown.sink.speak(voice, text));
            let completion = model.backend().generate_with(request, cancel, &mut show)?;
            shown.end(filter, &completion)?;
            return Ok(vec![completion]);
        }
        match (model.engine(), best_of) {
            (Some(engine), Some(best_of)) => best(engine, request, (n, best_of), cancel, shown),
            (Some(engine), None) => each(engine, request, n, cancel, shown),
            (None, None) => together(model.backend(), request, n, cancel, shown),
            (None, Some(_)) => Err(DeviceError::CpuOnly { command: RANKED, device: Device::Auto }.into()),
        }
    }
}

/// Generates choices at once and streams them, the first one first.
fn each(
    engine: &Engine,
    request: &GenerateRequest,
    n: usize,
    cancel: &CancelToken,
    shown: &mut Shown<'_>,
) -> Result<Vec<Completion>> {
    let mut completions = Vec::with_capacity(n);
    for mut handle in engine.submit_many_with(request, n, cancel)? {
        shown.begin(&format!("choice {} of {n}", completions.len() + 1));
        let mut filter = shown.filter(request, cancel)?;
        while let Some(chunk) = handle.next() {
            if filter.push(&chunk?.text, &mut |voice, text| shown.sink.speak(voice, text)).is_break() {
                // The reader is gone: the other choices end with their handles.
                completions.push(handle.finish()?);
                return Ok(completions);
            }
        }
        let completion = handle.finish()?;
        shown.end(filter, &completion)?;
        completions.push(completion);
    }
    Ok(completions)
}

/// Generates choices at once as requests of their own, on any backend. The first one is streamed,
/// the others are shown after it.
fn together(
    backend: &dyn InferenceBackend,
    request: &GenerateRequest,
    n: usize,
    cancel: &CancelToken,
    shown: &mut Shown<'_>,
) -> Result<Vec<Completion>> {
    let first = request.sampling.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish() >> 32);
    let choice = |index: u64| {
        let sampling = request.sampling.clone().with_seed(Some(first.wrapping_add(index)));
        request.clone().with_sampling(sampling)
    };
    let requests: Vec<GenerateRequest> = (0..n as u64).map(choice).collect();
    shown.begin(&format!("choice 1 of {n}"));
    let mut filter = shown.filter(request, cancel)?;
    let mut is_read = true;
    let results = backend.generate_many(&requests, cancel, &mut |index, text| {
        if index == 0 {
            is_read = filter.push(text, &mut |voice, text| shown.sink.speak(voice, text)).is_continue();
        }
        // If the reader is gone, all choices end.
        if is_read { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    let completions = results.into_iter().collect::<Result<Vec<Completion>, _>>()?;
    let mut first = Some(filter);
    for (completion, number) in completions.iter().zip(1..).take_while(|_| is_read) {
        let filter = match first.take() {
            Some(filter) => filter,
            None => {
                shown.begin(&format!("choice {number} of {n}"));
                let mut filter = shown.filter(request, cancel)?;
                // Without a reader the results are those of the document.
                let _ = filter.push(&completion.text, &mut |voice, text| shown.sink.speak(voice, text));
                filter
            }
        };
        shown.end(filter, completion)?;
    }
    Ok(completions)
}

/// Generates choices, then shows the best ones.
fn best(
    engine: &Engine,
    request: &GenerateRequest,
    (n, best_of): (usize, usize),
    cancel: &CancelToken,
    shown: &mut Shown<'_>,
) -> Result<Vec<Completion>> {
    let completions = engine.generate_best(request, n, best_of, cancel)?;
    for (completion, number) in completions.iter().zip(1..) {
        if n > 1 {
            let mean = completion.mean_logprob().map(|mean| format!(", mean log-probability {mean:.3}"));
            shown.begin(&format!("choice {number} of {n}{}", mean.unwrap_or_default()));
        }
        let mut filter = shown.filter(request, cancel)?;
        // Without a reader the results are those of the document.
        let _ = filter.push(&completion.text, &mut |voice, text| shown.sink.speak(voice, text));
        shown.end(filter, completion)?;
    }
    Ok(completions)
}

/// Output of choices for people.
pub(super) struct Shown<'a> {
    pub(super) sink: TextSink,
    pub(super) thinking: ThinkingView,
    pub(super) codec: &'a TextCodec,
    /// True if log-probabilities are shown.
    pub(super) logprobs: bool,
}

impl Shown<'_> {
    /// The filter of a choice's text.
    fn filter(&self, request: &GenerateRequest, cancel: &CancelToken) -> Result<AnswerFilter> {
        AnswerFilter::new(self.codec, request, self.thinking, cancel)
    }

    /// Begins a choice with a line that separates it from the one before.
    fn begin(&mut self, title: &str) {
        self.sink.start_line();
        // If the reader is gone, the text of the choice finds out.
        let _ = self.sink.push(&format!("--- {title} ---\n"));
    }

    /// Ends a choice: what the filter holds back, tool calls, log-probabilities.
    fn end(&mut self, mut filter: AnswerFilter, completion: &Completion) -> Result<()> {
        if filter.finish(&mut |voice, text| self.sink.speak(voice, text)).is_break() {
            return Ok(());
        }
        super::show_calls(completion, &mut self.sink)?;
        if self.logprobs {
            self.sink.start_line();
            let table = super::logprobs::table(&completion.logprobs, self.codec.tokenizer());
            let _ = self.sink.push(&format!("\n{table}"));
        }
        Ok(())
    }
}
