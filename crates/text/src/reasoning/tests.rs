//! Splits of outputs by hand and by chance: every division into pieces, every format.

use proptest::prelude::*;

use super::{AnswerEvent, AnswerParser, Part, Phase, ReasoningFormat, ReasoningParser};
use crate::tool_call::{ToolCallFormat, ToolCallParser};

const THINK: ReasoningFormat = ReasoningFormat::THINK;
const HARMONY: ReasoningFormat = ReasoningFormat::HARMONY;

/// Neighbouring pieces of one part, joined, and the phase at the end.
fn split<'t>(
    format: ReasoningFormat,
    phase: Phase,
    pieces: impl IntoIterator<Item = &'t str>,
) -> (Vec<(Part, String)>, Phase) {
    let mut parser = ReasoningParser::new(format, phase);
    let mut parts: Vec<(Part, String)> = Vec::new();
    let mut sink = |part: Part, text: &str| match parts.last_mut() {
        Some((last, all)) if *last == part => all.push_str(text),
        _ => parts.push((part, text.to_owned())),
    };
    for piece in pieces {
        parser.push(piece, &mut sink);
    }
    parser.finish(&mut sink);
    let phase = parser.phase();
    (parts, phase)
}

/// Thinking, answer, and the phase at the end.
fn parts(format: ReasoningFormat, phase: Phase, text: &str) -> (String, String, Phase) {
    let (parts, phase) = split(format, phase, [text]);
    let of = |wanted| parts.iter().filter(|(part, _)| *part == wanted).map(|(_, text)| &**text).collect();
    (of(Part::Thinking), of(Part::Answer), phase)
}

#[test]
fn tags_may_be_opened_by_the_model_or_by_the_prompt() {
    for (phase, text, thinking, answer, end) in [
        (Phase::Start, "<think>\nSo.\n</think>\n\nYes", "So.", "Yes", Phase::Answer),
        (Phase::Start, " \n<think>So</think>Yes", "So", "Yes", Phase::Answer),
        (Phase::Thinking, "\nSo.\n</think>\n\nYes\n", "So.", "Yes\n", Phase::Answer),
        (Phase::Answer, "\n\nYes", "", "Yes", Phase::Answer),
        // White space of an output without thinking stays.
        (Phase::Start, "  Yes ", "", "  Yes ", Phase::Answer),
        (Phase::Start, "<think>\n\n</think>\n\nYes", "", "Yes", Phase::Answer),
        // Unfinished thinking, also with a part of the marker.
        (Phase::Start, "<think>So </thi", "So </thi", "", Phase::Thinking),
        (Phase::Thinking, "So", "So", "", Phase::Thinking),
        (Phase::Start, "<thi", "", "<thi", Phase::Start),
        (Phase::Start, "<thin air>", "", "<thin air>", Phase::Answer),
        // Thinking goes on behind its end only.
        (Phase::Start, "<think>a</think>\n<think>b</think>c", "ab", "c", Phase::Answer),
        (Phase::Start, "Use <think>a</think>.", "", "Use <think>a</think>.", Phase::Answer),
        (Phase::Start, "<think>a</think>Use </think>.", "a", "Use </think>.", Phase::Answer),
        (Phase::Thinking, "a <b> </th> c</think>d", "a <b> </th> c", "d", Phase::Answer),
    ] {
        let expected = (thinking.to_owned(), answer.to_owned(), end);
        assert_eq!(parts(THINK, phase, text), expected, "{phase:?} {text:?}");
    }
    let magistral = parts(ReasoningFormat::MISTRAL, Phase::Start, "[THINK]So[/THINK]Yes");
    assert_eq!(magistral, ("So".to_owned(), "Yes".to_owned(), Phase::Answer));
}

#[test]
fn channels_of_harmony_become_thinking_and_answer() {
    let next = "<|end|><|start|>assistant";
    for (text, thinking, answer, end) in [
        (
            format!("<|channel|>analysis<|message|>So.{next}<|channel|>final<|message|>Yes"),
            "So.",
            "Yes",
            Phase::Answer,
        ),
        ("<|channel|>final<|message|>Yes".to_owned(), "", "Yes", Phase::Answer),
        (
            format!(
                "<|channel|>analysis<|message|>a{next}<|channel|>commentary<|message|>First.{next}\
                 <|channel|>analysis<|message|>b{next}<|channel|>final<|message|>Yes"
            ),
            "ab",
            "First.Yes",
            Phase::Answer,
        ),
        // The header of a call stays with its arguments, from the recipient on.
        (
            format!(
                "<|channel|>analysis<|message|>a{next}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{}}"
            ),
            "a",
            "to=functions.f <|constrain|>json<|message|>{}",
            Phase::Answer,
        ),
        (
            format!(
                "<|channel|>analysis<|message|>a{next} to=functions.f<|channel|>commentary json<|message|>{{}}"
            ),
            "a",
            "to=functions.f<|channel|>commentary json<|message|>{}",
            Phase::Answer,
        ),
        (
            " to=functions.f<|channel|>commentary json<|message|>{}".to_owned(),
            "",
            " to=functions.f<|channel|>commentary json<|message|>{}",
            Phase::Answer,
        ),
        // A recipient without a message.
        (
            format!("<|channel|>final<|message|>a{next} to=f{}<|channel|>final<|message|>b", "x".repeat(300)),
            "",
            "ab",
            Phase::Answer,
        ),
        ("<|channel|>analysis<|message|>So".to_owned(), "So", "", Phase::Thinking),
        ("<|channel|>analysis".to_owned(), "", "", Phase::Start),
        ("Yes".to_owned(), "", "Yes", Phase::Answer),
        // A header without an end is text.
        (format!("<|channel|>{}", "x".repeat(300)), "", "", Phase::Answer),
    ] {
        let (thought, said, phase) = parts(HARMONY, Phase::Start, &text);
        assert_eq!((thought.as_str(), phase), (thinking, end), "{text:?}");
        let answer = if text.starts_with("<|channel|>xx") { &text } else { answer };
        assert_eq!(said, answer, "{text:?}");
    }
}

#[test]
fn templates_tell_the_format_and_prompts_the_phase() {
    for (source, format) in [
        ("{{ '<think>\\n' }}", None),
        ("{{ m.content.split('</think>')[-1] }}", Some(THINK)),
        ("{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}", Some(HARMONY)),
        ("{{ '[THINK]' + t + '[/THINK]' }}", Some(ReasoningFormat::MISTRAL)),
        ("{{ '<|assistant|>' + m.content + '<|end|>' }}", None),
    ] {
        assert_eq!(ReasoningFormat::of_template(source), format, "{source}");
    }
    for (format, prompt, phase) in [
        (THINK, "<|im_start|>assistant\n", Phase::Start),
        (THINK, "<|im_start|>assistant\n<think>\n", Phase::Thinking),
        (THINK, "<|im_start|>assistant\n<think>\n\n</think>\n\n", Phase::Answer),
        (THINK, "<｜Assistant｜></think>", Phase::Answer),
        (THINK, "Use <think> and </think>, then<|assistant|>", Phase::Start),
        (HARMONY, "<|start|>user<|message|>Hi<|end|><|start|>assistant", Phase::Start),
        (HARMONY, "<|start|>assistant<|channel|>analysis<|message|>", Phase::Thinking),
        (HARMONY, "<|start|>assistant<|channel|>final<|message|>", Phase::Answer),
        (HARMONY, "<|channel|>final<|message|>x<|end|><|start|>user<|message|>", Phase::Start),
    ] {
        assert_eq!(format.phase_after(prompt), phase, "{prompt:?}");
    }
    for format in ReasoningFormat::ALL {
        assert_eq!(format.name().parse(), Ok(format));
        // The forced text ends the thinking and begins the answer.
        let forced = format!("So{}Yes", format.forced_close());
        let expected = ("So".to_owned(), "Yes".to_owned(), Phase::Answer);
        assert_eq!(parts(format, Phase::Thinking, &forced), expected);
    }
    assert!("xml".parse::<ReasoningFormat>().unwrap_err().to_string().contains("think, thought"));
}

#[test]
fn calls_are_found_behind_the_thinking_alone() {
    let call = r#"<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>"#;
    let parser = AnswerParser::new(
        Some(ReasoningParser::new(THINK, Phase::Start)),
        Some(ToolCallParser::new(ToolCallFormat::Hermes)),
    );
    let parsed = parser.clone().parse(&format!("<think>\nI could {call}.\n</think>\n\nWell. {call}"));
    assert_eq!(parsed.reasoning, Some(format!("I could {call}.")));
    assert_eq!((parsed.output.content.as_str(), parsed.output.calls.len()), ("Well.", 1));
    let parsed = parser.parse(&format!("<think>\nI could {call}"));
    assert!(parsed.is_thinking && parsed.output.calls.is_empty() && parsed.output.content.is_empty());
    let mut events = Vec::new();
    let mut plain = AnswerParser::new(None, None);
    plain.push("<think>a", &mut events);
    plain.finish(&mut events);
    assert_eq!(events, [AnswerEvent::Content("<think>a".to_owned())]);
}

/// The end of the output decides that it was no marker; the space before it is none either.
#[test]
fn an_answer_may_end_like_the_beginning_of_a_marker() {
    let found = parts(ReasoningFormat::THINK, Phase::Start, "<think>a</think> <");
    assert_eq!(found, ("a".to_owned(), "<".to_owned(), Phase::Answer));
}

/// Texts of markers, parts of them, white space and words.
fn fragments() -> impl Strategy<Value = String> {
    let fragment = prop::sample::select(vec![
        "<think>",
        "</think>",
        "<th",
        "ink>",
        "</",
        "<|channel|>",
        "analysis",
        "final",
        "commentary to=f",
        " to=",
        "<|message|>",
        "<|end|>",
        "<|start|>assistant",
        "<|",
        "[THINK]",
        "[/THINK]",
        "<seed:think>",
        "</seed:think>",
        " ",
        "\n",
        "\n\n",
        "a",
        "Wörter 世界",
        "<",
        ">",
        "<thought>",
        "</thought>",
    ]);
    prop::collection::vec(fragment, 0..24).prop_map(|fragments| fragments.concat())
}

fn phases() -> impl Strategy<Value = Phase> {
    prop::sample::select(vec![Phase::Start, Phase::Thinking, Phase::Answer])
}

proptest! {
    #[test]
    fn any_division_into_pieces_gives_the_same_and_loses_nothing(
        format in prop::sample::select(ReasoningFormat::ALL.to_vec()),
        phase in phases(),
        text in fragments(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..16),
    ) {
        let mut borders: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut chosen: Vec<usize> = cuts.iter().map(|cut| borders[cut.index(borders.len())]).collect();
        chosen.extend([0, text.len()]);
        chosen.sort_unstable();
        let whole = split(format, phase, [text.as_str()]);
        let pieces = chosen.windows(2).map(|pair| &text[pair[0]..pair[1]]);
        prop_assert_eq!(&split(format, phase, pieces), &whole);
        borders.dedup();
        let characters = borders.windows(2).map(|pair| &text[pair[0]..pair[1]]);
        prop_assert_eq!(&split(format, phase, characters), &whole);
        let joined: String = whole.0.iter().map(|(_, text)| text.as_str()).collect();
        prop_assert_eq!(joined, text);
    }

    #[test]
    fn well_formed_outputs_come_apart_where_they_were_joined(
        format in prop::sample::select(ReasoningFormat::ALL.to_vec()),
        opened in any::<bool>(),
        thinking in "[a-z<>/|\n ]{0,40}",
        answer in "[a-z<>/|\n ]{0,40}",
        space in "[\n ]{0,3}",
    ) {
        let header = if format.has_headers() { "analysis<|message|>" } else { "" };
        let opening = if opened { String::new() } else { format!("{}{header}", format.open()) };
        let phase = if opened { Phase::Thinking } else { Phase::Start };
        let text = format!("{opening}{thinking}{space}{}{answer}", format.forced_close());
        // White space at the edges of the thinking, and before an answer behind tags, is dropped.
        let said = if format.has_headers() { answer.as_str() } else { answer.trim_start() };
        let expected = (thinking.trim().to_owned(), said.to_owned(), Phase::Answer);
        prop_assert_eq!(parts(format, phase, &text), expected);
    }
}
