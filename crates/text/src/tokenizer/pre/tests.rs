//! Every type compared with the tokenizers library on generated texts, and with another reader of
//! such files.

use std::sync::OnceLock;

use proptest::prelude::*;
use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, SplitDelimiterBehavior,
    pre_tokenizers::split::{Split, SplitPattern},
};

use super::*;

fn pieces<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    let split = PreTokenizer::named(name).map(|pre| pre.split(text, &mut |piece| pieces.push(piece)));
    assert!(split.is_ok(), "{name}: {split:?}");
    pieces
}

#[test]
fn every_known_type_compiles_and_loses_no_text() {
    let text = "Hello  world's 12345 a\u{300}\r\n\n  x\t\u{a0}y!?\u{3000}你好 ｆｏｏ… ";
    for name in KNOWN.iter().flat_map(|rules| rules.names) {
        assert_eq!(pieces(name, text).concat(), text, "{name}");
        assert!(pieces(name, "").is_empty());
    }
}

/// Pattern with its look-aheads written out.
fn written_out(pattern: &str, after: After) -> String {
    let pattern = pattern.replace(CASED_MARK, &cased_class());
    let before_spaces = || {
        assert!(pattern.ends_with(r"|\s+"), "{pattern}");
        &pattern[..pattern.len() - r"\s+".len()]
    };
    match after {
        After::Keep => pattern,
        After::LeaveLast | After::LeaveLastNoNewline => format!(r"{}\s+(?!\S)|\s+", before_spaces()),
        After::LeaveLastInPowers => {
            let powers: String = (2..10).rev().map(|n| format!(r"\s{{{}}}(?!\S)|", 1 << n)).collect();
            format!(r"{}{powers}\s{{1,2}}(?!\S)|\s{{1}}", before_spaces())
        }
        After::GroupsOfThree => match pattern.strip_suffix(r"+\b") {
            Some(digit) => format!(r"{digit}{{1,3}}(?=(?:{digit}{{3}})*\b)"),
            None => {
                let digit = pattern.trim_end_matches('+');
                format!(r"{digit}{{1,3}}(?=(?:{digit}{{3}})*(?!{digit}))")
            }
        },
    }
}

/// The same patterns in the tokenizers library.
fn library_cuts(rules: &Rules) -> Vec<Split> {
    let split = |&(pattern, after): &(&str, After)| {
        let pattern = SplitPattern::Regex(written_out(pattern, after));
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
    };
    rules.cuts.iter().filter_map(|cut| split(cut).ok()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64 * ProptestConfig::default().cases / 256))]
    #[test]
    fn look_aheads_are_what_the_library_makes_of_them(
        parts in prop::collection::vec(
            prop_oneof![
                "[ \\t\\n\\r]{1,5}",
                " {1,20}",
                "[a-zA-Z']{1,6}",
                "[0-9]{1,5}",
                "[\u{a0}\u{3000}\u{2028}\u{85} \n]{1,4}",
                "[!-/:-@]{1,4}",
                "[你好éÉß\u{301}ǅ١²]{1,4}",
                "\\PC{1,3}",
                any::<char>().prop_map(String::from),
            ],
            1..12,
        )
    ) {
        let text = parts.concat();
        for (name, cuts, pre_tokenizer) in both_readers() {
            let mut split = PreTokenizedString::from(text.as_str());
            for cut in cuts {
                prop_assert!(cut.pre_tokenize(&mut split).is_ok());
            }
            let expected: Vec<&str> = split
                .get_splits(OffsetReferential::Normalized, OffsetType::Byte)
                .into_iter()
                .map(|(piece, ..)| piece)
                .collect();
            let mut found = Vec::new();
            pre_tokenizer.split(&text, &mut |piece| found.push(piece));
            prop_assert_eq!(found, expected, "{}", name);
        }
    }
}

/// First name of each type, with the library's splitters and ours.
fn both_readers() -> &'static [(&'static str, Vec<Split>, PreTokenizer)] {
    static READERS: OnceLock<Vec<(&'static str, Vec<Split>, PreTokenizer)>> = OnceLock::new();
    READERS.get_or_init(|| {
        let readers = KNOWN.iter().map(|rules| {
            let cuts = library_cuts(rules);
            assert_eq!(cuts.len(), rules.cuts.len());
            (rules.names[0], cuts, PreTokenizer::build(rules).unwrap())
        });
        readers.collect()
    })
}

#[test]
fn no_pattern_matches_nothing() {
    for name in KNOWN.iter().map(|rules| rules.names[0]) {
        let matches_empty = PreTokenizer::named(name).map(|pre| pre.cuts.iter().any(|(r, _)| r.is_match("")));
        assert!(matches!(matches_empty, Ok(false)), "{name}");
    }
}

#[test]
fn names_are_unique() {
    let names: Vec<_> = KNOWN.iter().flat_map(|rules| rules.names).collect();
    let unique: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len());
}

#[test]
fn the_last_space_before_a_word_belongs_to_the_word() {
    assert_eq!(pieces("gpt-2", "a   b\n\n c "), ["a", "  ", " b", "\n\n", " c", " "]);
    assert_eq!(pieces("llama3", "a   b\n\n c "), ["a", "  ", " b", "\n\n", " c", " "]);
    assert_eq!(pieces("llama3", "a \n  \n   b"), ["a", " \n  \n", "  ", " b"]);
    assert_eq!(pieces("gpt-2", "\n\n\nx"), ["\n\n", "\n", "x"]);
    assert_eq!(pieces("llama3", "\t\u{3000}x"), ["\t", "\u{3000}x"]);
}

#[test]
fn numbers_are_grouped_as_the_type_says() {
    assert_eq!(pieces("llama3", "12345"), ["123", "45"]);
    assert_eq!(pieces("qwen2", "123"), ["1", "2", "3"]);
    assert_eq!(pieces("gpt-2", "12345"), ["12345"]);
    assert_eq!(pieces("falcon", "12345"), ["123", "45"]);
    assert_eq!(pieces("starcoder", "1a 2"), ["1", "a", " ", "2"]);
    assert_eq!(pieces("superbpe", "a 12345 1"), ["a ", "12", "345", " ", "1"]);
    assert_eq!(pieces("afmoe", "1234567a"), ["1", "234", "567", "a"]);
    assert_eq!(pieces("tiny_aya", "1234 1234a"), ["1", "234", " ", "123", "4", "a"]);
}

#[test]
fn runs_of_spaces_in_powers_of_two() {
    let lengths = |text: &str| pieces("jais-2", text).iter().map(|piece| piece.len()).collect::<Vec<_>>();
    assert_eq!(lengths(&(" ".repeat(1000) + "x")), [512, 256, 128, 64, 32, 4, 2, 1, 2]);
    assert_eq!(lengths("x  "), [1, 2]);
    assert_eq!(lengths("x \n y"), [1, 2, 2]);
}

#[test]
fn contractions_in_capitals() {
    assert_eq!(pieces("gpt-2", "IT'S"), ["IT", "'", "S"]);
    assert_eq!(pieces("llama3", "IT'S"), ["IT", "'S"]);
    assert_eq!(pieces("gpt-4o", "helloWorld's"), ["hello", "World's"]);
}

#[test]
fn an_unknown_type_is_an_error_that_lists_the_known_ones() {
    let error = PreTokenizer::named("nope").map(|_| ()).map_err(|error| error.to_string());
    let message = error.err().unwrap_or_default();
    assert!(message.contains("`nope`") && message.contains("llama-bpe, ") && message.contains("qwen2"));
}

#[test]
fn texts_are_cut_as_by_another_reader() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/vocab/cuts.json");
    let goldens: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let texts: Vec<&str> =
        goldens["texts"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str).collect();
    let mut checked = 0;
    for cut in goldens["cuts"].as_array().into_iter().flatten() {
        for name in cut["types"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str) {
            let pre_tokenizer = PreTokenizer::named(name).unwrap();
            for (text, lengths) in texts.iter().zip(cut["lengths"].as_array().unwrap()) {
                let mut found = Vec::new();
                pre_tokenizer.split(text, &mut |piece| found.push(piece.len()));
                assert_eq!(serde_json::json!(found), *lengths, "{name} {text:?}");
                checked += 1;
            }
        }
    }
    assert!(checked > 3000, "{checked}");
}
