//! Models with another chat template.

/// Key of the template in GGUF files.
const KEY: &[u8] = b"tokenizer.chat_template";

/// A GGUF file whose chat template is another one, padded with a comment to the length of its own.
///
/// # Panics
/// If the file has no chat template, or one that is too short.
#[must_use]
pub fn with_chat_template(gguf: &[u8], template: &str) -> Vec<u8> {
    let key = gguf.windows(KEY.len()).position(|window| window == KEY).expect("a chat template");
    // Behind the key: its type, 4 bytes, and its length, 8 bytes.
    let start = key + KEY.len() + 12;
    let bytes = gguf[start - 8..start].try_into().expect("8 bytes");
    let length = usize::try_from(u64::from_le_bytes(bytes)).expect("a length");
    let room = length.checked_sub(template.len() + 6).expect("a longer template");
    let padded = format!("{template}{{#-{}-#}}", " ".repeat(room));
    let mut changed = gguf.to_vec();
    changed[start..start + length].copy_from_slice(padded.as_bytes());
    changed
}
