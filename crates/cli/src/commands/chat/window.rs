//! Selection of the messages sent when the conversation outgrows the context (ADR-0020).

/// Token limits of a conversation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Context length: tokens of prompt and answer.
    pub(super) context: usize,
    /// Maximum number of tokens of an answer.
    pub(super) answer: usize,
}

impl Room {
    /// Longest prompt that leaves room for the answer, or for a quarter of the context if that is
    /// less.
    fn prompt(self) -> usize {
        self.context - self.answer.min(self.context / 4)
    }
}

/// Index of the oldest message to send from now on; so far it was `oldest`.
///
/// While the prompt leaves room for an answer, nothing changes. Otherwise turns are dropped from
/// the beginning until half of the context is free: dropping as few as possible would drop again
/// with each message, and each time change the start of the prompt, so that the KV cache is lost.
/// `turns` are the indices of the user messages after `oldest`, the last of which is always sent;
/// `count` returns the tokens of a prompt that begins at a message.
///
/// # Errors
/// Errors of `count`, which is called O(log turns) times (binary search).
pub(super) fn oldest_sent<E>(
    room: Room,
    oldest: usize,
    turns: &[usize],
    count: &mut dyn FnMut(usize) -> Result<usize, E>,
) -> Result<usize, E> {
    if turns.is_empty() || count(oldest)? <= room.prompt() {
        return Ok(oldest);
    }
    let half = room.context / 2;
    let (mut low, mut high) = (0, turns.len() - 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if count(turns[middle])? <= half { high = middle } else { low = middle + 1 }
    }
    Ok(turns[low])
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Turns of 10 tokens and 2 messages each; `n` messages in all, the last one from the user.
    fn oldest(room: Room, oldest: usize, n: usize) -> usize {
        let turns: Vec<usize> = (oldest + 1..n).filter(|at| at % 2 == 0).collect();
        let found = oldest_sent(room, oldest, &turns, &mut |first| Ok::<_, Infallible>((n - first) * 5));
        found.unwrap_or_else(|never| match never {})
    }

    #[test]
    fn nothing_is_left_out_while_an_answer_has_room() {
        let room = Room { context: 100, answer: 20 };
        assert_eq!(oldest(room, 0, 1), 0);
        assert_eq!(oldest(room, 0, 15), 0, "75 tokens");
        assert_eq!(oldest(room, 4, 19), 4);
    }

    #[test]
    fn half_of_the_context_is_freed_at_once() {
        let room = Room { context: 100, answer: 20 };
        // 85 tokens are too many; the prompt from user message 8 on has 45.
        assert_eq!(oldest(room, 0, 17), 8);
        // However long an answer may be, only a quarter of the context is reserved for it.
        assert_eq!(oldest(Room { context: 100, answer: usize::MAX }, 0, 15), 0);
        assert_eq!(oldest(Room { context: 100, answer: usize::MAX }, 0, 17), 8);
    }

    #[test]
    fn the_last_message_is_always_sent() {
        let room = Room { context: 8, answer: 2 };
        assert_eq!(oldest(room, 0, 5), 4);
        assert_eq!(oldest(room, 4, 5), 4, "there is nothing to leave out");
    }

    #[test]
    fn errors_of_counting_are_passed_on() {
        let room = Room { context: 8, answer: 2 };
        assert_eq!(oldest_sent(room, 0, &[2], &mut |_| Err("no")), Err("no"));
    }
}
