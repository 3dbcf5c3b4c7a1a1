//! Chat templates that nest, grow and never end.

use super::Expected::{Error, Success};
use super::{Files, check};
use crate::program::argument;

const MESSAGES: &str = r#"[{"role": "user", "content": "Hi"}]"#;

/// Sources that exhausted the stack when a model was loaded.
fn deep() -> [(&'static str, String); 9] {
    [
        ("minus", format!("{{{{ {}1 }}}}", "-".repeat(33_000))),
        ("not", format!("{{{{ {}1 }}}}", "not ".repeat(60_000))),
        ("filters", format!("{{{{ 1{} }}}}", "|int".repeat(60_000))),
        ("attributes", format!("{{{{ a{} }}}}", ".b".repeat(60_000))),
        ("items", format!("{{{{ a{} }}}}", "[0]".repeat(60_000))),
        ("powers", format!("{{{{ 1{} }}}}", "**2".repeat(60_000))),
        ("calls", format!("{{{{ a{} }}}}", "()".repeat(120_000))),
        ("branches", format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(20_000))),
        ("statements", "{% if 1 %}".repeat(20_000)),
    ]
}

/// A hostile template in a model file fails chats only.
#[test]
fn deep_templates_stop_chats_alone() {
    let files = Files::new();
    for (name, source) in deep() {
        let model = files.model(&format!("{name}.gguf"), |metadata| {
            metadata.insert("tokenizer.chat_template", source);
        });
        let generate = ["generate", "--temperature", "0", "-n", "2", "--model", argument(&model), "a"];
        check(&format!("{name}, text"), &generate, Success(""));
        let chat = [&generate[..], &["--chat"]].concat();
        check(&format!("{name}, chat"), &chat, Error("chat template of the model cannot be used"));
        check(&format!("{name}, inspect"), &["inspect", argument(&model)], Success(""));
    }
}

#[test]
fn templates_that_never_end_are_stopped() {
    let files = Files::new();
    let messages = files.write("messages.json", MESSAGES);
    let double = "{% set ns = namespace(a=['x'], b=['x']) %}{% for i in range(60) %}\
                  {% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}";
    let text =
        "{% set ns = namespace(t='a') %}{% for i in range(20) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}";
    let cycle = "{% set ns = namespace(a=1) %}{% set ns.a = [1, ns] %}";
    for (name, source, piece) in [
        ("a namespace in itself, printed", format!("{cycle}{{{{ ns.a }}}}"), "namespace"),
        ("a namespace in itself, compared", format!("{cycle}{{{{ ns.a == ns.a }}}}"), "namespace"),
        ("a namespace in itself, sorted", format!("{cycle}{{{{ [ns.a, ns.a] | sort }}}}"), "namespace"),
        ("2^60 values compared", format!("{double}{{{{ ns.a == ns.b }}}}"), "cannot make a prompt"),
        ("2^60 values printed", format!("{double}{{{{ ns.a }}}}"), "cannot make a prompt"),
        ("2^60 values as JSON", format!("{double}{{{{ ns.a | tojson }}}}"), "cannot make a prompt"),
        (
            "a long text, searched again and again",
            format!("{text}{{% for i in range(100000) %}}{{% set x = ns.t.find('b') %}}{{% endfor %}}"),
            "cannot make a prompt",
        ),
        (
            "a long text, split again and again",
            format!("{text}{{% for i in range(100000) %}}{{% set x = ns.t.split('b') %}}{{% endfor %}}"),
            "cannot make a prompt",
        ),
        (
            "a long list, sorted again and again",
            "{% set r = range(100000) %}{% for i in r %}{% set x = r | sort %}{% endfor %}".to_owned(),
            "cannot make a prompt",
        ),
        ("a text of 90 MB", "{{ 'a' * 90000000 }}".repeat(10_000), "cannot make a prompt"),
        (
            "loops within loops",
            "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = 1 %}{% endfor %}{% endfor %}"
                .to_owned(),
            "cannot make a prompt",
        ),
        (
            "a macro that calls itself",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
            "cannot make a prompt",
        ),
    ] {
        let template = files.write("template.jinja", source);
        let arguments = ["template", "--messages", argument(&messages), "--template", argument(&template)];
        check(name, &arguments, Error(piece));
    }
}
