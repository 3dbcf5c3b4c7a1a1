//! One step of a conversation: the answer to a message, or the effect of a command.

use ruvllm::FinishReason;

use super::dialogue::{Dialogue, Outcome};
use super::entry::{self, Command};
use crate::error::Result;
use crate::output::{self, Reader, TextSink};
use crate::signal::Interrupts;

/// A conversation and what stops its answers.
pub(super) struct Chat<'e> {
    pub(super) dialogue: Dialogue<'e>,
    pub(super) interrupts: Interrupts,
}

/// Next step after a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    GoOn,
    Leave,
}

impl Chat<'_> {
    /// Answers a message into `sink`, says what is unusual about the answer, and whether somebody
    /// still reads.
    pub(super) fn answer(&mut self, text: String, mut sink: TextSink) -> Result<(Outcome, Reader)> {
        let cancel = self.interrupts.begin();
        let outcome = self.dialogue.answer(text, &cancel, &mut |text| sink.push(text));
        self.interrupts.end();
        let reader = sink.finish()?;
        let outcome = outcome?;
        if outcome.forgotten_messages > 0 {
            output::note(&format!(
                "[the context is full: the {} oldest messages are not sent any more]",
                outcome.forgotten_messages
            ));
        }
        Ok((outcome, reader))
    }

    /// Does what a command asks for and says so on standard error.
    pub(super) fn obey(&mut self, command: Command) -> Result<Step> {
        let dialogue = &mut self.dialogue;
        match command {
            Command::Help => output::note(&entry::help()),
            Command::System(None) => match dialogue.system() {
                Some(text) => output::note(text),
                None => output::note("[there are no instructions]"),
            },
            Command::System(Some(text)) => dialogue.set_system(&text),
            Command::Reset => dialogue.reset(),
            Command::Save(path) => {
                let n = dialogue.save(&path)?;
                output::note(&format!("[{n} messages saved]"));
            }
            Command::Load(path) => {
                let n = dialogue.load(&path)?;
                output::note(&format!("[{n} messages loaded]"));
            }
            Command::Set(None) => output::note(&dialogue.settings.table()),
            Command::Set(Some((name, value))) => dialogue.settings.set(&name, &value)?,
            Command::Adapter(None) => output::note(&dialogue.adapters.table()),
            Command::Adapter(Some(text)) => dialogue.adapters.choose(&text)?,
            Command::Stats => output::note(&dialogue.statistics()),
            Command::Exit => return Ok(Step::Leave),
        }
        Ok(Step::GoOn)
    }
}

/// Remark on an answer that did not end by itself.
pub(super) fn remark(outcome: &Outcome) -> Option<&'static str> {
    match outcome.finish {
        FinishReason::Stop => None,
        FinishReason::Cancelled if outcome.taken_back => {
            Some("[stopped before it began; the message is taken back]")
        }
        FinishReason::Cancelled => Some("[stopped]"),
        FinishReason::Length if outcome.context_full => Some("[cut off: the context is full]"),
        FinishReason::Length => Some("[cut off: /set max_tokens N allows more]"),
    }
}
