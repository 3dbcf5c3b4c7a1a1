//! Names the pre-tokenizer of a `tokenizer.json`, which describes rules without a name.
//!
//! The same rules can be written in many ways, so their effect is compared: both split the same
//! probe texts, of which any two known types split one differently.

use serde_json::Value;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizerWrapper};

use super::rules::{KNOWN, Rules};
use super::{PreTokenizer, known_names};
use crate::error::{Error, Result};
use crate::tokenizer::{library::guarded, limits::check_steps, steps::PreTokenizers};

/// Texts that distinguish the known types.
const PROBES: &[&str] = &[
    "Hello world, it's IT'S we'll WE'LL I'm don't DON'T x'y o'tis 'tis 'ſ",
    "helloWorld HTTPServer ABCdef camelCase's X's ÀÉcolé ǅungla ªº ʰello ſtart 𝒜𝒷c ℝeal",
    "1 12 123 1234 12345 123456 1234567 a1b22c333 ²³¹ ١٢٣٤ Ⅷ ½ 3.14 1,000,000 x=10;",
    "a  b   c    d\t\te \n f\n\ng\r\nh\r\n\r\n  i \u{a0}j \u{3000}k\u{2028}l\u{85}m  ",
    "\n\nx\n  \n   y\t\n\tz \r w \n \n",
    "!? ... --- $5 a+b <=> ^~|`` {x}[y](z) \"q\" 'r' @s #t %u &v *w /x\\y\n/z/\n\n!!\n\n?\r\n",
    "a.b,c;d:e!f?g-h_i/j\\k|l`m~n@o#p$q%r^s&t*u(v)w+x=y{z}",
    "你好世界，今天天气。こんにちは カタカナ 한국어 조선말 中文abc日本123 ㄅㄆ 々〇",
    "ｆｕｌｌ ＷＩＤＴＨ １２３！？ “quotes” ‘single’ 「brackets」 … — – • ✓ ™ € £ ° § ¶",
    "नमस्ते ภาษาไทย العربية، עברית؟ հայերեն ქართული ελληνικά кириллица e\u{301}o\u{308} \u{300}x a\u{20d7}b",
    "🚀 😀👍🏽 👨\u{200d}👩\u{200d}👧 🇩🇪 a🚀b ☺\u{fe0f} ",
    "<sentinel:12> IMGIMGABZ <|im_start|> <s> [INST] x<y>z ।॥ ۔ 、，",
    "word\u{200b}word \u{feff}bom ᏣᎳᎩ Ꮳ Ა Ⰰ ⱥ ᶀ ꭰ ﬁ ﬀ Ⓐ ⅰ",
    " leading  two   three trailing ",
    "tab\tword  \tword \t word\n    indented(x):\n\treturn  y  # c\n",
    "a  1   22 b\n 333    4444  \u{b2}",
    "(a) ((b)) |x| !a ?b .c ,d 。e ;f 1a a1 1.a $a $1 +1 -1",
];

/// Finds the `tokenizer.ggml.pre` value for the pre-tokenizer of a `tokenizer.json`.
/// `ignores_merges`: a piece that is a token as a whole takes precedence over merges.
///
/// # Errors
/// [`Error::TokenizerDefinition`] if the definition cannot be run, [`Error::UnknownPreTokenizer`]
/// if no known type splits as it does.
pub fn name(definition: &Value, ignores_merges: bool) -> Result<&'static str> {
    let invalid =
        |message: String| Error::TokenizerDefinition { message: format!("pre_tokenizer: {message}") };
    check_steps(&[definition]).map_err(invalid)?;
    let pre_tokenizer: PreTokenizerWrapper =
        serde_json::from_value(definition.clone()).map_err(|error| invalid(error.to_string()))?;
    let pre_tokenizer = PreTokenizers::new(&pre_tokenizer).map_err(|error| invalid(error.to_string()))?;
    let expected: Vec<Vec<usize>> =
        PROBES.iter().map(|text| library_cuts(&pre_tokenizer, text)).collect::<Result<_>>()?;
    let mut found: Option<&Rules> = None;
    for rules in KNOWN {
        let known = PreTokenizer::build(rules)?;
        let agrees = PROBES.iter().zip(&expected).all(|(text, expected)| cuts(&known, text) == *expected);
        if agrees && (found.is_none() || rules.ignore_merges == ignores_merges) {
            found = Some(rules);
            if rules.ignore_merges == ignores_merges {
                break;
            }
        }
    }
    found.map(|rules| rules.names[0]).ok_or_else(|| Error::UnknownPreTokenizer {
        found: definition.to_string().chars().take(200).collect(),
        known: known_names(),
    })
}

/// Ends of the pieces of a text, in bytes.
fn cuts(pre_tokenizer: &PreTokenizer, text: &str) -> Vec<usize> {
    let mut ends = Vec::new();
    pre_tokenizer.split(text, &mut |piece| ends.push(ends.last().copied().unwrap_or(0) + piece.len()));
    ends
}

/// As [`cuts`], with the library.
fn library_cuts(pre_tokenizer: &PreTokenizers, text: &str) -> Result<Vec<usize>> {
    let pieces = guarded(|| {
        let mut pieces = PreTokenizedString::from(text);
        pre_tokenizer.apply(&mut pieces)?;
        Ok(pieces)
    });
    let pieces = pieces.map_err(|message| Error::TokenizerDefinition { message })?;
    let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
    Ok(splits.into_iter().map(|(_, (_, end), _)| end).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn any_two_known_types_cut_a_probe_differently() {
        let known: Vec<(&Rules, Vec<Vec<usize>>)> = KNOWN
            .iter()
            .map(|rules| {
                let built = PreTokenizer::build(rules).expect("it compiles");
                (rules, PROBES.iter().map(|text| cuts(&built, text)).collect())
            })
            .collect();
        let mut alike = Vec::new();
        for (i, (a, cuts_of_a)) in known.iter().enumerate() {
            for (b, cuts_of_b) in &known[..i] {
                if a.cuts != b.cuts && cuts_of_a == cuts_of_b {
                    alike.push((b.names[0], a.names[0]));
                }
            }
        }
        // This pair is two spellings of the same rules.
        assert_eq!(alike, [("qwen2", "bailingmoe")]);
    }

    fn split(pattern: &str) -> Value {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
    }

    fn byte_level(use_regex: bool) -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
    }

    fn sequence(parts: Vec<Value>) -> Value {
        json!({"type": "Sequence", "pretokenizers": parts})
    }

    #[test]
    fn published_definitions_get_their_names() {
        let words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|";
        let rest = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let llama3 = sequence(vec![split(&format!(r"{words}\p{{N}}{{1,3}}{rest}")), byte_level(false)]);
        let qwen2 = sequence(vec![split(&format!(r"{words}\p{{N}}{rest}")), byte_level(false)]);
        let digits = json!({"type": "Digits", "individual_digits": true});
        for (definition, ignores_merges, expected) in [
            (&llama3, true, "llama-bpe"),
            (&llama3, false, "dbrx"),
            (&qwen2, false, "qwen2"),
            (&qwen2, true, "qwen2"),
            (&byte_level(true), false, "gpt-2"),
            (&sequence(vec![digits, byte_level(true)]), false, "starcoder"),
        ] {
            assert_eq!(name(definition, ignores_merges).ok(), Some(expected), "{definition}");
        }
    }

    #[test]
    fn unknown_rules_are_refused_with_the_known_names() {
        let error = name(&sequence(vec![split("[a-z]+"), byte_level(false)]), false);
        let message = error.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message.contains("[a-z]+") && message.contains("qwen2"), "{message}");
        assert!(name(&Value::Null, false).is_err());
        assert!(name(&json!({"type": "Nothing"}), false).is_err());
    }
}
