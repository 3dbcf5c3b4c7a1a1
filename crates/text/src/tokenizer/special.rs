//! Search for tokens written out in a text: special tokens such as `<|im_end|>`, user-defined ones.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::token::TokenId;

/// Part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment<'t> {
    /// A token written out.
    Token(TokenId),
    /// Text between such tokens, never empty.
    Text(&'t str),
}

/// Set of token texts; matches are leftmost, then longest.
#[derive(Debug, Clone)]
pub(crate) struct TokenMatcher {
    /// Trie; node 0 is the root.
    nodes: Vec<Node>,
    /// True for bytes that a token begins with.
    begins: Box<[bool; 256]>,
}

#[derive(Debug, Clone, Default)]
struct Node {
    /// Next bytes and their nodes.
    children: BTreeMap<u8, u32>,
    /// Token that ends here.
    end: Option<End>,
}

#[derive(Debug, Clone, Copy)]
struct End {
    id: TokenId,
    /// True if white space after the token belongs to it.
    takes_space_after: bool,
}

impl TokenMatcher {
    /// Builds the matcher of tokens: text, id, and true if white space after the token belongs to
    /// it. Empty texts are ignored; of equal texts the first counts.
    pub(crate) fn new<'t>(tokens: impl Iterator<Item = (&'t str, TokenId, bool)>) -> Self {
        let mut nodes = vec![Node::default()];
        for (text, id, takes_space_after) in tokens.filter(|(text, ..)| !text.is_empty()) {
            let mut at = 0;
            for &byte in text.as_bytes() {
                let next = nodes.len() as u32;
                let child = *nodes[at].children.entry(byte).or_insert(next);
                if child == next {
                    nodes.push(Node::default());
                }
                at = child as usize;
            }
            nodes[at].end.get_or_insert(End { id, takes_space_after });
        }
        let mut begins = Box::new([false; 256]);
        for &byte in nodes[0].children.keys() {
            begins[usize::from(byte)] = true;
        }
        Self { nodes, begins }
    }

    /// Longest token at the start of `text`, with its length in bytes.
    fn longest(&self, text: &[u8]) -> Option<(usize, End)> {
        let mut at = 0;
        let mut found = None;
        for (i, byte) in text.iter().enumerate() {
            match self.nodes[at].children.get(byte) {
                Some(&child) => at = child as usize,
                None => break,
            }
            if let Some(end) = self.nodes[at].end {
                found = Some((i + 1, end));
            }
        }
        found
    }

    /// Splits a text at the tokens written out in it.
    pub(crate) fn fragments<'m, 't>(&'m self, text: &'t str) -> Fragments<'m, 't> {
        Fragments { matcher: self, text, at: 0, token: None }
    }

    /// Appends the tokens written out in a text, with their byte ranges. White space that belongs
    /// to a token is included.
    pub(crate) fn markers(&self, text: &str, found: &mut Vec<(Range<usize>, TokenId)>) {
        let mut fragments = self.fragments(text);
        let mut start = 0;
        while let Some(fragment) = fragments.next() {
            match fragment {
                // Text is returned before the token that ends it.
                Fragment::Text(text) => start += text.len(),
                Fragment::Token(id) => {
                    found.push((start..fragments.at, id));
                    start = fragments.at;
                }
            }
        }
    }

    /// True if a token is written out at byte `at` of a text.
    pub(crate) fn is_at(&self, text: &str, at: usize) -> bool {
        self.longest(&text.as_bytes()[at..]).is_some()
    }
}

/// Iterator of [`TokenMatcher::fragments`].
#[derive(Debug)]
pub(crate) struct Fragments<'m, 't> {
    matcher: &'m TokenMatcher,
    text: &'t str,
    /// End of the text returned so far, including the token in `token`.
    at: usize,
    /// Token after the text that was returned last.
    token: Option<TokenId>,
}

impl<'t> Iterator for Fragments<'_, 't> {
    type Item = Fragment<'t>;

    fn next(&mut self) -> Option<Fragment<'t>> {
        if let Some(id) = self.token.take() {
            return Some(Fragment::Token(id));
        }
        let (text, start) = (self.text, self.at);
        let bytes = text.as_bytes();
        let mut from = start;
        while from < bytes.len() {
            if self.matcher.begins[usize::from(bytes[from])]
                && let Some((len, end)) = self.matcher.longest(&bytes[from..])
            {
                let mut after = from + len;
                if end.takes_space_after {
                    after += text[after..].len() - text[after..].trim_start().len();
                }
                self.at = after;
                if from == start {
                    return Some(Fragment::Token(end.id));
                }
                self.token = Some(end.id);
                return Some(Fragment::Text(&text[start..from]));
            }
            from += 1;
        }
        self.at = bytes.len();
        (start < bytes.len()).then(|| Fragment::Text(&text[start..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher() -> TokenMatcher {
        let tokens =
            [("<s>", 1, false), ("\n", 2, false), ("\n\n", 3, false), ("<end>", 4, true), ("é", 5, false)];
        TokenMatcher::new(tokens.into_iter())
    }

    fn cut(text: &str) -> Vec<Fragment<'_>> {
        matcher().fragments(text).collect()
    }

    #[test]
    fn takes_the_leftmost_and_of_those_the_longest() {
        use Fragment::{Text, Token};
        assert_eq!(cut(""), []);
        assert_eq!(cut("plain"), [Text("plain")]);
        assert_eq!(cut("<s>a<s>"), [Token(1), Text("a"), Token(1)]);
        assert_eq!(cut("a\n\n\nb"), [Text("a"), Token(3), Token(2), Text("b")]);
        assert_eq!(cut("<s<s>"), [Text("<s"), Token(1)]);
        assert_eq!(cut("naïveté"), [Text("naïvet"), Token(5)]);
    }

    #[test]
    fn space_after_some_tokens_belongs_to_them() {
        use Fragment::{Text, Token};
        assert_eq!(cut("<end> \n\u{3000}x<s> y"), [Token(4), Text("x"), Token(1), Text(" y")]);
    }

    #[test]
    fn markers_have_places() {
        let mut found = Vec::new();
        matcher().markers("<s>a\n\n<end> b\n", &mut found);
        assert_eq!(found, [(0..3, 1), (4..6, 3), (6..12, 4), (13..14, 2)]);
        assert!(matcher().is_at("a<s>b", 1) && !matcher().is_at("a<s>b", 2) && !matcher().is_at("a<en", 1));
    }
}
