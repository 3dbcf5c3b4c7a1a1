//! Grammar of an answer made of messages (harmony, of gpt-oss): thinking, a word before the call,
//! and a call or the answer, each behind a header of special tokens.

/// Markers of the format; none of them may stand in the text of a message, since the parser of the
/// answer reads texts.
const MARKERS: &str = r"<\|(start|channel|constrain|message|end|call|return)\|>";

/// Rules of an answer down to `header`, which stands between the name of a tool and its arguments;
/// calls refer to `tool`. `marker` gives a marker as its special token, or its text.
///
/// The header of a call has its recipient behind the channel, as models write it, or before, as
/// templates do. Thinking and the word before a call are allowed once.
pub(super) fn rules(marker: &dyn Fn(&str) -> String, requires_call: bool) -> String {
    let [channel, constrain, message] = ["<|channel|>", "<|constrain|>", "<|message|>"].map(marker);
    let next = format!("{} {} \"assistant\"", marker("<|end|>"), marker("<|start|>"));
    let answer = format!("{channel} \"final\" {message} TEXT?");
    let last = if requires_call { "call".to_owned() } else { format!("(call | {answer})") };
    format!(
        "start: thinking? preamble? {last}\n\
         thinking: {channel} \"analysis\" {message} TEXT? {next}\n\
         preamble: {channel} \"commentary\" {message} TEXT? {next}\n\
         call: ({channel} \"commentary\")? \" to=functions.\" tool\n\
         header: ({channel} \"commentary\")? (\" \"? {constrain})? (\" \"? \"json\")? {message}\n\
         TEXT: /(?s:.+)/ & ~/(?s:.*){MARKERS}(?s:.*)/\n"
    )
}
