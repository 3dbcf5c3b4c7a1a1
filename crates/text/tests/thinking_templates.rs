//! Templates of reasoning models against goldens of transformers (`tests/data/chat/thinking.json`):
//! switches, efforts, thinking of earlier answers, tools.

use std::{fs, path::PathBuf};

use ruvllm_text::{
    Error,
    chat::{ChatTemplate, Message},
    reasoning::{Phase, ReasoningFormat},
};
use serde_json::Value;

type Failure = Box<dyn std::error::Error>;

fn data(file: &str) -> PathBuf {
    PathBuf::from_iter([env!("CARGO_MANIFEST_DIR"), "tests", "data", "chat", file])
}

fn goldens() -> Result<Value, Failure> {
    Ok(serde_json::from_slice(&fs::read(data("thinking.json"))?)?)
}

/// Template of a family, with its BOS and EOS.
fn template(golden: &Value) -> Result<ChatTemplate, Failure> {
    let source = fs::read_to_string(data(golden["template"].as_str().ok_or("a file")?))?;
    let token = |name: &str| golden[name].as_str().map(str::to_owned);
    Ok(ChatTemplate::new(&source, token("bos_token"), token("eos_token"))?)
}

#[test]
fn conversations_render_as_in_transformers() -> Result<(), Failure> {
    let goldens = goldens()?;
    let (mut texts, mut refused) = (0, 0);
    for (family, golden) in goldens["families"].as_object().ok_or("families")? {
        for conversation in goldens["conversations"].as_array().ok_or("conversations")? {
            let name = conversation["name"].as_str().ok_or("a name")?;
            let variables = conversation["kwargs"].as_object().cloned().unwrap_or_default();
            let template = variables
                .into_iter()
                .fold(template(golden)?, |template, (name, value)| template.with_variable(name, value));
            let messages: Vec<Message> = serde_json::from_value(conversation["messages"].clone())?;
            let tools = conversation.get("tools").filter(|tools| !tools.is_null());
            let rendered = template.render(&messages, tools, conversation["gen"] == true);
            let expected = &golden["expected"][name];
            match (rendered, expected["text"].as_str()) {
                (Ok(text), Some(expected)) => {
                    assert_eq!(text, expected, "{family} {name}");
                    texts += 1;
                }
                (Err(Error::TemplateRefused { message }), None) => {
                    assert_eq!(expected["error"], message, "{family} {name}");
                    refused += 1;
                }
                (Err(_), None) => assert_ne!(expected["error_type"], "TemplateError", "{family} {name}"),
                (rendered, expected) => panic!("{family} {name}: {rendered:?}, expected {expected:?}"),
            }
        }
    }
    assert!(texts > 150 && refused > 0, "{texts} texts, {refused} refused");
    Ok(())
}

#[test]
fn templates_tell_the_format_and_prompts_the_phase() -> Result<(), Failure> {
    let goldens = goldens()?;
    let families = goldens["families"].as_object().ok_or("families")?;
    let (start, thinking, answer) = (Phase::Start, Phase::Thinking, Phase::Answer);
    // Phases behind the prompt: without the switch, on, off.
    let expected = [
        ("deepseek_r1", ReasoningFormat::THINK, [thinking, thinking, thinking]),
        ("deepseek_v31", ReasoningFormat::THINK, [answer, thinking, answer]),
        ("exaone4", ReasoningFormat::THINK, [answer, thinking, answer]),
        ("glm45", ReasoningFormat::THINK, [start, start, answer]),
        ("gpt_oss", ReasoningFormat::HARMONY, [start, start, start]),
        ("granite", ReasoningFormat::THINK, [start, start, start]),
        ("qwen3", ReasoningFormat::THINK, [start, start, answer]),
        ("smollm3", ReasoningFormat::THINK, [start, start, answer]),
    ];
    assert_eq!(families.keys().collect::<Vec<_>>(), expected.map(|(family, ..)| family));
    for (family, format, phases) in expected {
        let golden = &families[family];
        assert_eq!(ReasoningFormat::of_template(template(golden)?.source()), Some(format), "{family}");
        for (conversation, phase) in ["question", "question_on", "question_off"].into_iter().zip(phases) {
            let prompt = golden["expected"][conversation]["text"].as_str().ok_or("a text")?;
            assert_eq!(format.phase_after(prompt), phase, "{family} {conversation}");
        }
    }
    Ok(())
}
