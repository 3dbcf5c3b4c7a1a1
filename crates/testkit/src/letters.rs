//! A tokenizer of single letters, for folders of models without one.

/// `tokenizer.json` of 65 tokens: three special ones, and one for each letter and digit.
pub fn letters_tokenizer() -> String {
    let special = ["<pad>", "<s>", "</s>"].map(str::to_owned);
    let letters = ('a'..='z').chain('A'..='Z').chain('0'..='9').map(String::from);
    let added: Vec<String> = (0..)
        .zip(&special)
        .map(|(id, token): (usize, _)| {
            format!(
                r#"{{"id": {id}, "content": "{token}", "special": true, "single_word": false,
                     "lstrip": false, "rstrip": false, "normalized": false}}"#
            )
        })
        .collect();
    let vocabulary: Vec<String> = special
        .iter()
        .cloned()
        .chain(letters)
        .enumerate()
        .map(|(id, token)| format!(r#""{token}": {id}"#))
        .collect();
    format!(
        r#"{{
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
            "added_tokens": [{}],
            "pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                               "use_regex": true}},
            "decoder": {{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                         "use_regex": true}},
            "model": {{"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                       "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                       "vocab": {{{}}}, "merges": []}}
        }}"#,
        added.join(","),
        vocabulary.join(",")
    )
}
