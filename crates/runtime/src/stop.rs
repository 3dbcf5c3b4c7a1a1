//! Stop sequences in streamed text.
//!
//! A stop sequence ends a generation as soon as it is complete, across token boundaries, and is not
//! part of the output. Text that may be the beginning of a stop sequence is held back until that is
//! decided; other text is released at once.

use crate::error::{Error, Result};

/// Cuts streamed text at the first stop sequence.
///
/// The stop sequence that ends first wins; of several with the same end, the longest. The result
/// depends on the text alone, not on its division into pieces.
///
/// ```
/// use ruvllm::StopMatcher;
///
/// # fn main() -> Result<(), ruvllm::Error> {
/// let mut matcher = StopMatcher::new(["\nUser:"])?;
/// let mut shown = String::new();
/// assert_eq!(matcher.push("Hello.\nUs", &mut shown), None);
/// assert_eq!(shown, "Hello."); // "\nUs" could become the stop string
/// assert_eq!(matcher.push("er: hi", &mut shown), Some(0));
/// assert_eq!(shown, "Hello.");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Text held back: between calls a proper prefix of a stop sequence.
    held: String,
    matched: Option<usize>,
}

impl StopMatcher {
    /// A matcher for these stop sequences; with an empty list it passes all text through.
    ///
    /// # Errors
    /// [`Error::EmptyStop`] for an empty string, which would match everywhere.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Result<Self> {
        let stops: Vec<String> = stops.into_iter().map(Into::into).collect();
        match stops.iter().position(String::is_empty) {
            Some(index) => Err(Error::EmptyStop { index }),
            None => Ok(Self { stops, held: String::new(), matched: None }),
        }
    }

    /// Takes the next piece of text and appends to `released` what is certain. Returns the index of
    /// the matched stop sequence; all later text is dropped.
    pub fn push(&mut self, text: &str, released: &mut String) -> Option<usize> {
        if self.matched.is_some() {
            return self.matched;
        }
        self.held.push_str(text);
        if let Some((start, index)) = self.first_match() {
            released.push_str(&self.held[..start]);
            self.held.clear();
            self.matched = Some(index);
        } else {
            let keep_from = self.held.len() - self.open_suffix();
            released.push_str(&self.held[..keep_from]);
            self.held.drain(..keep_from);
        }
        self.matched
    }

    /// The stop sequence that was matched.
    pub fn matched(&self) -> Option<&str> {
        self.matched.map(|index| self.stops[index].as_str())
    }

    /// Ends the text: appends the text held back to `released`.
    pub fn finish(&mut self, released: &mut String) {
        released.push_str(&self.held);
        self.held.clear();
    }

    /// Start of the match in `held` that ends first, and the index of its stop sequence.
    fn first_match(&self) -> Option<(usize, usize)> {
        self.stops
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| {
                self.held.find(stop.as_str()).map(|start| (start + stop.len(), start, index))
            })
            .min()
            .map(|(_, start, index)| (start, index))
    }

    /// Bytes of the longest suffix of `held` that is a proper prefix of a stop sequence.
    fn open_suffix(&self) -> usize {
        let held = self.held.as_bytes();
        let open = |stop: &String| {
            let longest = held.len().min(stop.len() - 1);
            (1..=longest).rev().find(|&n| held.ends_with(&stop.as_bytes()[..n])).unwrap_or(0)
        };
        self.stops.iter().map(open).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference: text before the stop sequence that ends first, searched in the whole text.
    fn naive(stops: &[String], text: &str) -> (String, bool) {
        for end in text.char_indices().map(|(i, c)| i + c.len_utf8()) {
            if let Some(stop) =
                stops.iter().filter(|s| text[..end].ends_with(s.as_str())).max_by_key(|s| s.len())
            {
                return (text[..end - stop.len()].to_string(), true);
            }
        }
        (text.to_string(), false)
    }

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(stops.iter().copied()).expect("no empty stop string")
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        assert!(matches!(StopMatcher::new(["a", ""]), Err(Error::EmptyStop { index: 1 })));
    }

    #[test]
    fn without_stop_strings_text_passes_at_once() {
        let (mut m, mut out) = (matcher(&[]), String::new());
        assert_eq!(m.push("hello", &mut out), None);
        assert_eq!((out.as_str(), m.matched()), ("hello", None));
    }

    #[test]
    fn a_match_over_piece_borders_is_cut_out() {
        let (mut m, mut out) = (matcher(&["<end>"]), String::new());
        for piece in ["one", "<", "en", "d", "> two"] {
            m.push(piece, &mut out);
        }
        m.push("three", &mut out);
        m.finish(&mut out);
        assert_eq!(out, "one");
    }

    #[test]
    fn a_beginning_that_goes_another_way_is_released() {
        let (mut m, mut out) = (matcher(&["aab"]), String::new());
        m.push("aa", &mut out);
        assert_eq!(out, "");
        m.push("a", &mut out);
        assert_eq!(out, "a");
        m.push("c", &mut out);
        assert_eq!(out, "aaac");
    }

    #[test]
    fn held_text_comes_out_at_the_end() {
        let (mut m, mut out) = (matcher(&["\n\n"]), String::new());
        m.push("a\n", &mut out);
        assert_eq!(out, "a");
        m.finish(&mut out);
        assert_eq!(out, "a\n");
    }

    #[test]
    fn the_first_complete_stop_wins_and_of_equal_ends_the_longest() {
        let mut out = String::new();
        let mut first = matcher(&["abcd", "bc"]);
        assert_eq!((first.push("xabcd", &mut out), first.matched()), (Some(1), Some("bc")));
        assert_eq!(out, "xa");
        out.clear();
        assert_eq!(matcher(&["c", "bc"]).push("abcd", &mut out), Some(1));
        assert_eq!(out, "a");
    }

    proptest! {
        #[test]
        fn any_chunking_equals_the_search_in_the_whole_text(
            stops in prop::collection::vec("[abé€𝄞]{1,4}", 0..4),
            text in "[abcé€𝄞]{0,40}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let chars: Vec<char> = text.chars().collect();
            let mut borders: Vec<usize> = cuts.iter().map(|cut| cut.index(chars.len() + 1)).collect();
            borders.extend([0, chars.len()]);
            borders.sort_unstable();
            let (expected, stopped) = naive(&stops, &text);

            let mut matcher = StopMatcher::new(stops.clone()).expect("no empty stop string");
            let (mut out, mut matched) = (String::new(), None);
            for pair in borders.windows(2) {
                let piece: String = chars[pair[0]..pair[1]].iter().collect();
                matched = matcher.push(&piece, &mut out);
                prop_assert!(expected.starts_with(&out), "{out:?} leaked beyond {expected:?}");
                // Text is held back only if it begins a stop sequence.
                let held = &matcher.held;
                prop_assert!(held.is_empty() || stops.iter().any(|s| s.len() > held.len() && s.starts_with(held)));
            }
            matcher.finish(&mut out);
            prop_assert_eq!(out, expected);
            prop_assert_eq!(matched.is_some(), stopped);
        }
    }
}
