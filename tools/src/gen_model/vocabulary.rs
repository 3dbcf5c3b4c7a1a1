//! A SentencePiece vocabulary that real tokenizers accept: special tokens, all bytes, letters,
//! filler words.

use std::collections::HashSet;

use gguf_rs_lite::{Array, Metadata, Value};

/// Token types of the format's vocabulary section.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

/// The word boundary mark of SentencePiece.
const MARK: char = '\u{2581}';

/// Writes the vocabulary section for `vocab_size` tokens.
pub(super) fn describe(vocab_size: usize, metadata: &mut Metadata) {
    let pieces = pieces(vocab_size);
    let types = pieces.iter().map(|piece| piece.kind).collect();
    let scores = pieces.iter().map(|piece| piece.score).collect();
    let tokens = pieces.into_iter().map(|piece| piece.text).collect();
    metadata.insert("tokenizer.ggml.model", "llama");
    metadata.insert("tokenizer.ggml.pre", "default");
    metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(scores)));
    metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    metadata.insert("tokenizer.ggml.unknown_token_id", 0u32);
    metadata.insert("tokenizer.ggml.bos_token_id", 1u32);
    metadata.insert("tokenizer.ggml.eos_token_id", 2u32);
    metadata.insert("tokenizer.ggml.add_bos_token", true);
    metadata.insert("tokenizer.ggml.add_eos_token", false);
}

struct Piece {
    text: String,
    score: f32,
    kind: i32,
}

/// Unknown, begin, end, 256 bytes, single characters, then words of two and more letters until it
/// is full.
fn pieces(vocab_size: usize) -> Vec<Piece> {
    let special = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)];
    let mut pieces: Vec<Piece> = special
        .into_iter()
        .map(|(text, kind)| Piece { text: text.to_owned(), score: 0.0, kind })
        .chain((0..256).map(|b| Piece { text: format!("<0x{b:02X}>"), score: 0.0, kind: BYTE }))
        .collect();
    let mut seen: HashSet<String> = pieces.iter().map(|piece| piece.text.clone()).collect();
    let singles = ('a'..='z').chain('A'..='Z').chain('0'..='9').chain(".,;:!?'\"()-_/\n".chars());
    let singles =
        std::iter::once(MARK.to_string()).chain(singles.flat_map(|c| [c.to_string(), format!("{MARK}{c}")]));
    let words = (0u64..).map(word).flat_map(|word| [format!("{MARK}{word}"), word]);
    // Scores fall with the rank, so that merging prefers earlier pieces.
    for text in singles.chain(words) {
        if pieces.len() >= vocab_size {
            break;
        }
        if seen.insert(text.clone()) {
            let score = -(pieces.len() as f32);
            pieces.push(Piece { text, score, kind: NORMAL });
        }
    }
    pieces
}

/// The `n`-th word over a-z of two or more letters: aa, ab, ... zz, aaa, ...
fn word(mut n: u64) -> String {
    let mut letters = 2;
    while n >= 26u64.pow(letters) {
        n -= 26u64.pow(letters);
        letters += 1;
    }
    let letter = |place| char::from(b'a' + (n / 26u64.pow(place) % 26) as u8);
    (0..letters).rev().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_count_up() {
        assert_eq!([word(0), word(1), word(26), word(675), word(676)], ["aa", "ab", "ba", "zz", "aaa"]);
    }

    #[test]
    fn vocabularies_are_full_and_without_repeats() {
        for size in [512, 32_000, 128_256] {
            let pieces = pieces(size);
            assert_eq!(pieces.len(), size);
            assert_eq!(pieces.iter().map(|piece| &piece.text).collect::<HashSet<_>>().len(), size);
            assert_eq!(pieces[3 + 0x0A].text, "<0x0A>");
        }
    }
}
