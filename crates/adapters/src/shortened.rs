//! Names of strangers in messages.

/// Characters of a name that a message shows.
const SHOWN: usize = 64;

/// Beginning of a name from outside, without control characters, for messages.
pub(crate) fn shortened(name: &str) -> String {
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let mut text: String = name.chars().take(SHOWN).map(shown).collect();
    if text.len() < name.len() && name.chars().nth(SHOWN).is_some() {
        text.push_str("...");
    }
    text
}
