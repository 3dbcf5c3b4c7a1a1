//! Lessons of a bank in the system message of a conversation.

use ruvllm::Message;

use super::transcript::Transcript;
use crate::commands::sona::bank::recall::{RecallArgs, with_items};
use crate::error::Result;

/// Lessons for the task of a conversation, its first message. They stay the same until the task is
/// another one: with other lessons all keys and values of the conversation would be computed again.
pub(super) struct Memory {
    recall: RecallArgs,
    json: bool,
    /// Message that the lessons were found for.
    task: Option<String>,
    /// The lessons by the bank's template.
    items: Option<String>,
    /// Tasks so far.
    tasks: usize,
}

impl Memory {
    /// Lessons of the bank of the flags; none if they name no bank.
    pub(super) fn new(recall: RecallArgs, json: bool) -> Self {
        Self { recall, json, task: None, items: None, tasks: 0 }
    }

    /// Finds lessons for the first message, unless those of the last call are for it.
    ///
    /// # Errors
    /// A bank that cannot be opened, or a text that cannot be embedded.
    pub(super) fn find(&mut self, transcript: &Transcript) -> Result<()> {
        let first = transcript.messages().iter().find(|message| message.role == "user");
        let task = first.and_then(|message| message.content.as_ref()?.as_str()).unwrap_or_default();
        if self.task.as_deref() != Some(task) {
            self.items = self.recall.items(task, self.tasks + 1, self.json)?;
            self.task = Some(task.to_owned());
            self.tasks += 1;
        }
        Ok(())
    }

    /// The messages with the lessons at the end of the system message, which is begun if there is
    /// none.
    pub(super) fn add_to(&self, mut messages: Vec<Message>) -> Vec<Message> {
        let Some(items) = self.items.as_deref() else { return messages };
        let own = messages.first().filter(|first| first.role == "system");
        let own = own.and_then(|system| system.content.as_ref()?.as_str()).map(str::to_owned);
        let replaced = usize::from(own.is_some());
        let system = with_items(own.as_deref(), Some(items)).map(Message::system);
        messages.splice(..replaced, system);
        messages
    }

    /// Begins another conversation: its first message is a task of its own.
    pub(super) fn clear(&mut self) {
        (self.task, self.items) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lessons_end_the_system_message_or_begin_one() {
        let mut memory = Memory::new(RecallArgs::default(), false);
        let plain = vec![Message::user("a")];
        assert_eq!(memory.add_to(plain.clone()), plain);
        memory.items = Some("Notes".to_owned());
        assert_eq!(memory.add_to(plain), [Message::system("Notes"), Message::user("a")]);
        let with_system = vec![Message::system("Be brief."), Message::user("a")];
        assert_eq!(memory.add_to(with_system), [Message::system("Be brief.\n\nNotes"), Message::user("a")]);
        memory.clear();
        assert_eq!(memory.add_to(vec![Message::user("a")]), [Message::user("a")]);
    }

    #[test]
    fn a_task_is_looked_up_once_until_it_changes() {
        let mut memory = Memory::new(RecallArgs::default(), false);
        let mut transcript = Transcript::new(Vec::new());
        for (text, tasks) in [("first", 1), ("second", 1)] {
            transcript.ask(text.to_owned());
            memory.find(&transcript).unwrap();
            assert_eq!((memory.task.as_deref(), memory.tasks), (Some("first"), tasks));
        }
        memory.clear();
        memory.find(&transcript).unwrap();
        assert_eq!(memory.tasks, 2, "the same message of another conversation is another task");
    }
}
