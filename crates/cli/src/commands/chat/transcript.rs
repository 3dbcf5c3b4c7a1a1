//! Messages of a conversation, and the operations on them: ask, answer, undo, regenerate, clear.
//!
//! Nothing here needs a model or a terminal.

use ruvllm::Message;

/// Messages, and the index of the first one sent in prompts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Transcript {
    /// All messages; the first one may be the system prompt.
    messages: Vec<Message>,
    /// Index of the first message after the system prompt that is sent.
    oldest: usize,
}

impl Transcript {
    /// Creates a conversation with these messages, all of which are sent.
    pub(super) fn new(messages: Vec<Message>) -> Self {
        let mut transcript = Self { messages, oldest: 0 };
        transcript.oldest = transcript.n_system();
        transcript
    }

    /// Creates a conversation whose first `forgotten` messages after the system prompt are not
    /// sent. If that is no place to begin at, all are.
    pub(super) fn resumed(messages: Vec<Message>, forgotten: usize) -> Self {
        let mut transcript = Self::new(messages);
        let oldest = transcript.oldest.saturating_add(forgotten);
        if transcript.messages.get(oldest).is_some_and(|message| message.role == "user") {
            transcript.oldest = oldest;
        }
        transcript
    }

    /// All messages.
    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Number of system prompts, 0 or 1.
    fn n_system(&self) -> usize {
        usize::from(self.messages.first().is_some_and(|message| message.role == "system"))
    }

    /// The system prompt.
    pub(super) fn system(&self) -> Option<&str> {
        self.messages[..self.n_system()].first()?.content.as_ref()?.as_str()
    }

    /// Sets the system prompt; an empty one removes it.
    pub(super) fn set_system(&mut self, text: &str) {
        let old = self.n_system();
        let new = (!text.is_empty()).then(|| Message::system(text));
        self.oldest = self.oldest - old + usize::from(new.is_some());
        self.messages.splice(..old, new);
    }

    /// Index of the first message after the system prompt that is sent.
    pub(super) fn oldest(&self) -> usize {
        self.oldest
    }

    /// Leaves messages before `oldest` out of later prompts.
    pub(super) fn forget_before(&mut self, oldest: usize) {
        self.oldest = oldest;
    }

    /// Number of messages left out of prompts.
    pub(super) fn forgotten(&self) -> usize {
        self.oldest - self.n_system()
    }

    /// Indices of later user messages that the prompt may begin with instead of the oldest one.
    pub(super) fn later_turns(&self) -> Vec<usize> {
        (self.oldest + 1..self.messages.len()).filter(|&at| self.messages[at].role == "user").collect()
    }

    /// The system prompt and the messages from `first` on.
    pub(super) fn from(&self, first: usize) -> Vec<Message> {
        [&self.messages[..self.n_system()], &self.messages[first..]].concat()
    }

    /// Adds a user message.
    pub(super) fn ask(&mut self, text: String) {
        self.messages.push(Message::user(text));
    }

    /// Adds a message of the model or of a tool.
    pub(super) fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Drops the last user message and all after it. Messages that were left out for lack of room
    /// are sent again.
    ///
    /// Returns the text of that message; `None`, with nothing changed, if there is none.
    pub(super) fn undo(&mut self) -> Option<String> {
        let at = self.last_question()?;
        let text = self.messages[at].content.as_ref().and_then(|text| text.as_str()).unwrap_or_default();
        let text = text.to_owned();
        self.messages.truncate(at);
        self.oldest = self.n_system();
        Some(text)
    }

    /// Drops the answer to the last user message, so that it can be generated again.
    ///
    /// Returns false, with nothing changed, if there is no user message.
    pub(super) fn drop_answer(&mut self) -> bool {
        let at = self.last_question();
        if let Some(at) = at {
            self.messages.truncate(at + 1);
        }
        at.is_some()
    }

    /// Drops all messages but the system prompt.
    pub(super) fn clear(&mut self) {
        self.messages.truncate(self.n_system());
        self.oldest = self.messages.len();
    }

    fn last_question(&self) -> Option<usize> {
        self.messages.iter().rposition(|message| message.role == "user")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk(system: Option<&str>, turns: usize) -> Transcript {
        let mut transcript = Transcript::new(system.map(Message::system).into_iter().collect());
        for turn in 0..turns {
            transcript.ask(format!("question {turn}"));
            transcript.push(Message::assistant(format!("answer {turn}")));
        }
        transcript
    }

    #[test]
    fn undo_drops_the_last_exchange_until_nothing_is_left() {
        for system in [None, Some("Be brief.")] {
            let mut transcript = talk(system, 2);
            assert_eq!(transcript.undo().as_deref(), Some("question 1"));
            assert_eq!(transcript, talk(system, 1));
            assert_eq!(transcript.undo().as_deref(), Some("question 0"));
            assert_eq!(transcript, talk(system, 0));
            assert_eq!(transcript.undo(), None);
            assert_eq!(transcript, talk(system, 0));
        }
    }

    #[test]
    fn undo_takes_back_a_question_without_answer() {
        let mut transcript = talk(None, 1);
        transcript.ask("more".to_owned());
        assert_eq!(transcript.undo().as_deref(), Some("more"));
        assert_eq!(transcript, talk(None, 1));
    }

    #[test]
    fn a_resumed_conversation_sends_what_was_sent() {
        let whole = talk(Some("Be brief."), 3);
        for (forgotten, expected) in [(0, 0), (2, 2), (4, 4), (1, 0), (6, 0), (usize::MAX, 0)] {
            let resumed = Transcript::resumed(whole.messages().to_vec(), forgotten);
            assert_eq!(resumed.forgotten(), expected, "{forgotten}");
        }
    }

    #[test]
    fn undo_sends_forgotten_messages_again() {
        let mut transcript = talk(Some("Be brief."), 3);
        transcript.forget_before(5);
        assert_eq!(transcript.forgotten(), 4);
        transcript.undo();
        assert_eq!((transcript.forgotten(), transcript.from(transcript.oldest()).len()), (0, 5));
    }

    #[test]
    fn a_dropped_answer_leaves_its_question() {
        let mut transcript = talk(Some("Be brief."), 2);
        assert!(transcript.drop_answer());
        assert_eq!(transcript.messages().last(), Some(&Message::user("question 1")));
        assert!(transcript.drop_answer(), "a question without answer is answered again");
        transcript.push(Message::assistant("answer 1"));
        assert_eq!(transcript, talk(Some("Be brief."), 2));
        assert!(!talk(Some("Be brief."), 0).drop_answer());
    }

    #[test]
    fn clear_keeps_the_system_prompt() {
        let mut transcript = talk(Some("Be brief."), 2);
        transcript.clear();
        assert_eq!(transcript, talk(Some("Be brief."), 0));
        transcript.set_system("");
        assert_eq!(transcript, Transcript::default());
    }

    #[test]
    fn the_system_prompt_is_sent_with_the_messages_that_are_left() {
        let mut transcript = talk(Some("Be brief."), 2);
        assert_eq!(transcript.later_turns(), [3]);
        transcript.forget_before(3);
        let sent = transcript.from(transcript.oldest());
        let expected =
            [Message::system("Be brief."), Message::user("question 1"), Message::assistant("answer 1")];
        assert_eq!(sent, expected);
        transcript.set_system("");
        assert_eq!(transcript.from(transcript.oldest()), expected[1..]);
    }
}
