//! The digest of a decision: its words without line breaks and living parts.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

const BEGIN: &str = "<!-- living:begin -->";
const END: &str = "<!-- living:end -->";

/// The digest of a Decision section; an error if a living part has no end.
pub(super) fn digest(section: &str) -> Result<String, String> {
    let mut words = String::new();
    let mut rest = section;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        push_words(&mut words, before);
        rest = after.split_once(END).ok_or_else(|| format!("`{BEGIN}` without `{END}`"))?.1;
    }
    push_words(&mut words, rest);
    Ok(Sha256::digest(words.as_bytes()).iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn push_words(words: &mut String, text: &str) {
    for word in text.split_whitespace() {
        words.push_str(word);
        words.push(' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_count_and_line_breaks_and_living_parts_do_not() {
        let base = digest("One order\nof sums.\n").expect("a digest");
        assert_eq!(digest("One order of\n\nsums."), Ok(base.clone()));
        assert_ne!(digest("Another order of sums."), Ok(base.clone()));
        let living = format!("One order\n{BEGIN}\n| a |\n{END}\nof sums.");
        assert_eq!(digest(&living), Ok(base.clone()));
        assert_eq!(digest(&living.replace("| a |", "| b |")), Ok(base));
        assert!(digest(&living.replace(END, "")).is_err());
    }
}
