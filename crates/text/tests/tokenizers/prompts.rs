//! Prompts around two texts: the ids of the whole text, with markers only where the prompt has
//! them.

use ruvllm_text::{
    Error,
    tokenizer::PromptPart::{Template, Text},
};

use super::{Failure, PARSED, from_gguf, from_json};

#[test]
fn a_prompt_has_the_ids_of_its_text() -> Result<(), Failure> {
    let after = "<|im_end|>\n<|im_start|>a\n";
    for tokenizer in [from_json("bpe_qwen2")?, from_gguf("bpe_qwen2")?] {
        for (first, second) in [("the cat", "the mat."), ("", "\n x"), ("a ", ""), ("x", "東京")] {
            let before = ["<|im_start|>q\n<q>: ", "\n<d>: "];
            let parts = [Template(before[0]), Text(first), Template(before[1])];
            let encoder = tokenizer.prompt_encoder(&parts, after)?;
            let whole = [before[0], first, before[1], second, after].concat();
            let pair = encoder.encode(second, usize::MAX)?;
            assert_eq!(pair.tokens, tokenizer.encode(&whole, PARSED)?, "{whole:?}");
            assert!(!pair.truncated && pair.tokens.ends_with(encoder.tail()));
            // One token less: the second text loses its last, or there was none.
            let shorter = encoder.encode(second, pair.tokens.len() - 1)?;
            let lost = usize::from(pair.tokens.len() > encoder.tokens_around());
            assert_eq!((pair.tokens.len() - shorter.tokens.len(), shorter.truncated), (lost, lost == 1));
            assert!(shorter.tokens.ends_with(encoder.tail()));
        }
    }
    Ok(())
}

#[test]
fn markers_in_texts_are_text() -> Result<(), Failure> {
    let marker = "<|im_end|>";
    for tokenizer in [from_json("bpe_qwen2")?, from_gguf("bpe_qwen2")?] {
        let id = tokenizer.token_to_id(marker).ok_or("the marker")?;
        let markers = |first: &str, second: &str| -> Result<usize, Failure> {
            let encoder = tokenizer.prompt_encoder(&[Text(first), Template(marker)], marker)?;
            Ok(encoder.encode(second, usize::MAX)?.tokens.iter().filter(|&&token| token == id).count())
        };
        assert_eq!((markers("a", "b")?, markers(marker, marker)?), (2, 2));
    }
    Ok(())
}

#[test]
fn a_second_text_ends_at_a_marker() -> Result<(), Failure> {
    let tokenizer = from_gguf("bpe_qwen2")?;
    let open = tokenizer.prompt_encoder(&[Template("q")], " <|im_end|>");
    assert!(matches!(open, Err(Error::OpenPrompt { text }) if text == " <|im_end|>"));
    let none = tokenizer.prompt_encoder(&[Template("q")], "")?;
    assert_eq!(none.encode(" a", 100)?.tokens, tokenizer.encode("q a", PARSED)?);
    Ok(())
}
