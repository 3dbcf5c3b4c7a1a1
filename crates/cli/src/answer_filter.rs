//! Generated text for people: thinking as they want to see it, the answer, no tool calls.

use std::ops::ControlFlow;
use std::time::Instant;

use ruvllm::{AnswerEvent, AnswerParser, CancelToken, GenerateRequest, TextCodec};

use crate::args::ThinkingView;
use crate::error::Result;

/// Kind of text that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Voice {
    Answer,
    /// Thinking, or a line about it.
    Thinking,
}

/// Receiver of text that is shown.
pub(crate) type OnText<'f> = &'f mut dyn FnMut(Voice, &str) -> ControlFlow<()>;

/// Passes the shown text of one answer on, as it arrives.
pub(crate) struct AnswerFilter {
    /// `None` passes everything.
    parser: Option<AnswerParser>,
    events: Vec<AnswerEvent>,
    view: ThinkingView,
    /// Arrival of the first thinking, until its line is shown.
    folded: Option<Instant>,
}

impl AnswerFilter {
    /// The filter of a request's answer.
    ///
    /// # Errors
    /// A prompt or tools that cannot be used.
    pub(crate) fn new(
        codec: &TextCodec,
        request: &GenerateRequest,
        view: ThinkingView,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let parser = codec.answer_parser(request, cancel)?;
        Ok(Self { parser, events: Vec::new(), view, folded: None })
    }

    /// Passes the next piece of text on.
    pub(crate) fn push(&mut self, text: &str, on_text: OnText<'_>) -> ControlFlow<()> {
        let Some(parser) = &mut self.parser else { return on_text(Voice::Answer, text) };
        parser.push(text, &mut self.events);
        self.give(on_text)
    }

    /// Passes on what was held back.
    pub(crate) fn finish(&mut self, on_text: OnText<'_>) -> ControlFlow<()> {
        if let Some(parser) = &mut self.parser {
            parser.finish(&mut self.events);
        }
        self.give(on_text)?;
        self.unfold(on_text)
    }

    fn give(&mut self, on_text: OnText<'_>) -> ControlFlow<()> {
        for event in std::mem::take(&mut self.events) {
            match (event, self.view) {
                (AnswerEvent::Reasoning(text), ThinkingView::Show) => on_text(Voice::Thinking, &text)?,
                (AnswerEvent::Reasoning(_), ThinkingView::Fold) => {
                    _ = self.folded.get_or_insert_with(Instant::now);
                }
                (AnswerEvent::Content(text), _) => {
                    self.unfold(on_text)?;
                    on_text(Voice::Answer, &text)?;
                }
                _ => {}
            }
        }
        ControlFlow::Continue(())
    }

    /// Shows the line about thinking that has ended.
    fn unfold(&mut self, on_text: OnText<'_>) -> ControlFlow<()> {
        let Some(since) = self.folded.take() else { return ControlFlow::Continue(()) };
        on_text(Voice::Thinking, &format!("[thought for {:.1} s]", since.elapsed().as_secs_f64()))
    }
}
