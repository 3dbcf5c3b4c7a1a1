//! One step of a conversation: the answer to a message, or the effect of a command.

use ruvllm::FinishReason;

use super::dialogue::{Dialogue, Outcome, Question};
use super::entry::{self, Command};
use crate::error::Result;
use crate::output::{self, Reader, TextSink, counted};
use crate::signal::Interrupts;

/// A conversation and the signal handling of its answers.
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
    /// Generates an answer into `sink` and notes anything unusual on standard error. Also returns
    /// the state of the reader.
    pub(super) fn answer(&mut self, question: Question, mut sink: TextSink) -> Result<(Outcome, Reader)> {
        let remark = self.same_answer().filter(|_| question == Question::Again);
        let cancel = self.interrupts.begin();
        let outcome = self.dialogue.answer(question, &cancel, &mut |voice, text| sink.speak(voice, text));
        self.interrupts.end();
        let reader = sink.finish()?;
        let outcome = outcome?;
        self.dialogue.keep()?;
        if let Some(remark) = remark {
            output::note(remark);
        }
        if outcome.forgotten_messages > 0 {
            output::note(&format!(
                "[the context is full: the {} oldest messages are not sent any more]",
                outcome.forgotten_messages
            ));
        }
        Ok((outcome, reader))
    }

    /// Remark on settings that make a regenerated answer identical: temperature 0, a fixed seed.
    fn same_answer(&self) -> Option<&'static str> {
        let sampling = &self.dialogue.settings.sampling;
        if sampling.temperature == 0.0 {
            Some("[temperature is 0: the answer stays the same; /set temperature 0.8 changes that]")
        } else {
            let is_set = sampling.seed.is_some();
            is_set.then_some("[a seed is set: the answer stays the same; /set seed off draws another one]")
        }
    }

    /// Executes a command and confirms it on standard error.
    pub(super) fn obey(&mut self, command: Command) -> Result<Step> {
        let dialogue = &mut self.dialogue;
        let said = match command {
            Command::Help(command) => entry::help(command),
            Command::System(None) => dialogue.system().unwrap_or("[there are no instructions]").to_owned(),
            Command::System(Some(text)) => {
                dialogue.set_system(&text);
                if text.is_empty() {
                    "[no instructions]".to_owned()
                } else {
                    format!("[instructions: {text}]")
                }
            }
            // Handled by the callers, which generate the answer.
            Command::Regenerate => return Ok(Step::GoOn),
            Command::Undo => {
                let left = dialogue.undo()?;
                format!("[last message and answer dropped; {} left]", counted(left, "message"))
            }
            Command::Clear => {
                dialogue.clear();
                "[new conversation; instructions and settings stay]".to_owned()
            }
            Command::Save(path) => {
                let n = dialogue.save(&path)?;
                format!("[{} saved to {}]", counted(n, "message"), path.display())
            }
            Command::Load(path) => {
                let n = dialogue.load(&path)?;
                format!("[{} loaded from {}]", counted(n, "message"), path.display())
            }
            Command::Set(None) => dialogue.settings.table(),
            Command::Set(Some((name, value))) => format!("[{}]", dialogue.settings.set(&name, &value)?),
            Command::Adapter(None) => dialogue.adapters.table(),
            Command::Adapter(Some(text)) => {
                dialogue.adapters.choose(&text)?;
                format!("[{}]", dialogue.adapters.used())
            }
            Command::Stats => dialogue.statistics(),
            Command::Exit => return Ok(Step::Leave),
        };
        dialogue.keep()?;
        output::note(&said);
        Ok(Step::GoOn)
    }
}

/// Remark on an answer that did not end by itself.
pub(super) fn remark(outcome: &Outcome) -> Option<&'static str> {
    match outcome.finish {
        FinishReason::Stop | FinishReason::ToolCalls => None,
        FinishReason::Cancelled if outcome.taken_back => {
            Some("[stopped before it began; the conversation is as it was]")
        }
        FinishReason::Cancelled => Some("[stopped]"),
        FinishReason::Length if outcome.context_full => {
            Some("[cut off: the context is full; /clear begins anew, --context N gives more room]")
        }
        FinishReason::Length => Some("[cut off: /set max_tokens N allows more]"),
    }
}
