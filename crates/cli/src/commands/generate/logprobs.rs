//! Log-probabilities of generated tokens, for people.

use ruvllm::{Logprobs, TokenId, TokenLogprob, Tokenizer};

use crate::output;

/// Text of a token; bytes that are no whole characters become U+FFFD.
pub(super) fn text_of(token: TokenId, tokenizer: &Tokenizer) -> String {
    String::from_utf8_lossy(&tokenizer.token_bytes(token).unwrap_or_default()).into_owned()
}

/// Table with a row for each generated token.
pub(super) fn table(logprobs: &[Logprobs], tokenizer: &Tokenizer) -> String {
    let has_top = logprobs.iter().any(|all| !all.top.is_empty());
    let mut header = vec!["token", "text", "logprob", "probability"];
    header.extend(has_top.then_some("most likely"));
    let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for Logprobs { token, top, .. } in logprobs {
        let mut row = vec![
            token.token.to_string(),
            quoted(token.token, tokenizer),
            format!("{:.4}", token.logprob),
            percent(token),
        ];
        let other = |top: &TokenLogprob| format!("{} {}", quoted(top.token, tokenizer), percent(top));
        if has_top {
            row.push(top.iter().map(other).collect::<Vec<_>>().join(", "));
        }
        rows.push(row);
    }
    let right = [0, 2, 3];
    if output::goes_elsewhere() {
        output::table_of_lines(&rows, &right)
    } else {
        output::table(&rows, &right)
    }
}

/// Text in quotes, with line breaks and control characters as escapes.
fn quoted(token: TokenId, tokenizer: &Tokenizer) -> String {
    format!("{:?}", text_of(token, tokenizer))
}

fn percent(token: &TokenLogprob) -> String {
    format!("{:.1} %", token.logprob.exp() * 100.0)
}
