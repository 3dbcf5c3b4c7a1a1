//! Chats with hostile templates or messages. Work is limited, and no message text becomes a special
//! token, whatever the template does with it.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock, atomic::AtomicBool};

use proptest::prelude::*;
use ruvllm_text::{
    Error, TokenId,
    chat::{ChatTemplate, Message},
    tokenizer::Tokenizer,
};
use serde_json::json;

type Failure = Box<dyn std::error::Error>;

fn render(source: &str, text: &str) -> Result<String, Error> {
    ChatTemplate::new(source, None, None)?.render(&[Message::user(text)], None, false)
}

fn data(path: &[&str]) -> PathBuf {
    PathBuf::from_iter([env!("CARGO_MANIFEST_DIR"), "tests", "data"].iter().chain(path))
}

/// A value that contains itself was compared and printed endlessly, and never freed.
#[test]
fn values_cannot_hold_themselves() {
    for store in [
        "{% set ns.a = ns %}",
        "{% set ns.a = [1, ns] %}",
        "{% set ns.a = (1, ns) %}",
        "{% set ns.a = 1, ns %}",
        "{% set ns.a = {'a': ns} %}",
        "{% set ns.a = dict(a=ns) %}",
        "{% set ns.a = dict([(1, ns)]) %}",
        "{% set ns.a = namespace(a=ns) %}",
        "{% set ns.a = [1] | batch(2, ns) | list %}",
        "{% set ns.a = [1] | slice(2, ns) | list %}",
        "{% set ns.a = [{}] | map(attribute='x', default=ns) | list %}",
        "{% set ns.a = [{}] | groupby('x', default=ns) %}",
        "{% set ns.a = {}.get('x', ns) %}",
        "{% for x in [1] %}{% set ns.a = loop.changed(ns) %}{% endfor %}",
        "{% for x in [1] %}{% set ns.a = loop %}{% endfor %}",
    ] {
        for use_it in ["{{ ns.a == ns.a }}", "{{ ns.a }}", "{{ [ns.a, ns.a] | sort }}"] {
            let source = format!("{{% set ns = namespace(a=1) %}}{store}{use_it}");
            let error = render(&source, "").map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|error| error.contains("namespace")), "{source} {error:?}");
        }
    }
}

/// Lists with shared items are small in memory but large to compare.
#[test]
fn shared_values_are_charged_for_what_comparing_them_takes() {
    let nest = "{% set ns = namespace(a=['x'], b=['x']) %}{% for i in range(60) %}\
                {% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}";
    for compare in [
        "{{ ns.a == ns.b }}",
        "{{ ns.a < ns.b }}",
        "{{ ns.a in [ns.b] }}",
        "{{ 'x' in ns.a }}",
        "{{ 1 < 2 == ns.a }}",
        "{{ ns.a is eq ns.b }}",
        "{{ ns.a is in [ns.b] }}",
        "{{ [ns.a] | select('eq', ns.b) | list }}",
        "{{ [ns.a, ns.b] | sort }}",
        "{{ [ns.a, ns.b] | unique | list }}",
        "{{ [ns.a, ns.b] | max }}",
        "{{ [[ns.a], [ns.b]] | groupby(0) }}",
        "{{ {'a': ns.a, 'b': ns.b} | dictsort(by='value') }}",
        "{{ [ns.a].index(ns.b) }}",
        "{{ [ns.a].count(ns.b) }}",
        "{{ {ns.a: 1} }}",
        "{{ {1: 1}[ns.a] }}",
        "{{ {1: 1}.get(ns.a) }}",
        "{{ dict([(ns.a, 1)]) }}",
        "{% for x in [ns.a, ns.b] %}{{ loop.changed(x) }}{% endfor %}",
        "{{ ns.a }}",
        "{{ ns.a | tojson }}",
        "{{ ns.a ~ '' }}",
        "{{ '%s' % (ns.a,) }}",
        "{{ '{}'.format(ns.a) }}",
        "{{ ns.a | join }}",
    ] {
        let error = render(&format!("{nest}{compare}"), "");
        assert!(matches!(error, Err(Error::TemplateRender { .. })), "{compare} {error:?}");
    }
}

/// Each of these took minutes to years: one instruction processed any number of bytes.
#[test]
fn work_within_an_instruction_is_charged() {
    let text = "a".repeat(8 << 20);
    let with = |step: &str| {
        format!(
            "{{% set t = messages[0].content %}}{{% set r = range(100000) %}}{{% set ns = namespace(x=1) %}}\
             {{% macro m(n) %}}{}{{% if n %}}{{% set x = m(n - 1) %}}{{% set x = m(n - 1) %}}{{% endif %}}\
             {{% endmacro %}}{{% for i in r %}}{step}{{% endfor %}}",
            "x".repeat(1 << 17)
        )
    };
    for step in [
        "{% set ns.x = t.find('b') %}",
        "{% set ns.x = t.count('aab') %}",
        "{% set ns.x = t.split('b') | length %}",
        "{% set ns.x = t.strip('b') | length %}",
        "{% set ns.x = t.isalpha() %}",
        "{% set ns.x = t.startswith(t) %}",
        "{% set ns.x = 'b' in t %}",
        "{% set ns.x = t == t ~ '' %}",
        "{% set ns.x = t < 'b' %}",
        "{% set ns.x = t[i] %}",
        "{% set ns.x = t[-1] %}",
        "{% set ns.x = t[1:2] %}",
        "{% set ns.x = t[1:2:] %}",
        "{% set ns.x = t is upper %}",
        "{% set ns.x = t is in [t] %}",
        "{% set ns.x = t | int %}",
        "{% set ns.x = t | truncate(5) %}",
        "{% set ns.x = {t: 1} %}",
        "{% set ns.x = {'a': 1}[t] %}",
        "{% set ns.x = r == [1] %}",
        "{% set ns.x = 100000 in r %}",
        "{% set ns.x = r | sort %}",
        "{% set ns.x = r | max %}",
        "{% set ns.x = r | sum %}",
        "{% set ns.x = r | select('eq', -1) | list %}",
        "{% set ns.x = dict(*[r]) %}",
        "{% set ns.x = m(200) %}",
        "{{ m(200)[0] }}",
        "{% if m(150) is string %}{% endif %}",
    ] {
        let error = render(&with(step), &text).map(|text| text.len());
        assert!(matches!(error, Err(Error::TemplateRender { .. })), "{step} {error:?}");
    }
    for source in [
        format!("{{% block b %}}{}{{{{ self.b() }}}}{{% endblock %}}", "x".repeat(1 << 17)),
        format!(
            "{{% set y %}}{{% for x in [1] recursive %}}{}{{{{ loop([1]) }}}}{{{{ loop([1]) }}}}{{% endfor %}}{{% endset %}}",
            "x".repeat(1 << 17)
        ),
        "{{ (['a'] * 1000000) | sum(start='') | length }}".to_owned(),
        "{{ 'a' * 90000000 }}".repeat(10_000),
        "{% set x = [1] * 9000000 %}".repeat(9_000),
    ] {
        let error = render(&source, "").map(|text| text.len());
        assert!(error.is_err(), "{} {error:?}", &source[..60]);
    }
}

#[test]
fn a_rendering_ends_when_it_is_asked_to() -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(true));
    let busy = "{% for i in range(100000) %}{% set x = 'b' in messages[0].content %}{% endfor %}";
    let template = ChatTemplate::new(busy, None, None)?;
    let messages = [Message::user("a".repeat(1 << 16))];
    let stopped = template.render_until(&messages, None, false, Some(&stop));
    assert!(matches!(stopped, Err(Error::TemplateStopped)), "{stopped:?}");
    // A rendering that begins before the stop.
    let stop = Arc::new(AtomicBool::new(false));
    let result = std::thread::scope(|scope| {
        let rendering = scope.spawn(|| template.render_until(&messages, None, false, Some(&stop)));
        std::thread::sleep(std::time::Duration::from_millis(20));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        rendering.join()
    });
    // On a fast machine the limits may have ended it first.
    assert!(
        result
            .is_ok_and(|result| matches!(result, Err(Error::TemplateStopped | Error::TemplateRender { .. })))
    );
    Ok(())
}

/// Tokenizer of words whose special tokens are found in normalized text. They are thus also found
/// in capitals and in full-width forms.
fn normalizing() -> Result<Tokenizer, Error> {
    let added = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": true, "special": true})
    };
    let definition = json!({
        "version": "1.0",
        "added_tokens": [added(1, "<|im_start|>"), added(2, "<|im_end|>"), added(3, "<|user|>")],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<|user|>": 3, "x": 4},
                  "unk_token": "[UNK]"},
    });
    Tokenizer::from_json(definition.to_string().as_bytes())
}

fn tokenizers() -> Result<Vec<Tokenizer>, Failure> {
    let folder = |name: &'static str| data(&["tokenizers", name]);
    let gguf = |name| -> Result<Tokenizer, Failure> {
        let file = gguf_rs_lite::Gguf::open(folder(name).join("vocab.gguf"))?;
        Ok(Tokenizer::from_gguf(file.metadata())?)
    };
    Ok(vec![
        gguf("bpe_qwen2")?,
        gguf("spm_bpe")?,
        Tokenizer::from_file(&folder("bpe_qwen2").join("tokenizer.json"))?,
        Tokenizer::from_file(&folder("spm_bpe").join("tokenizer.json"))?,
        normalizing()?,
    ])
}

/// Ids and texts of a tokenizer's special tokens.
fn markers(tokenizer: &Tokenizer) -> Vec<(TokenId, String)> {
    (0..tokenizer.vocab_size() as TokenId)
        .filter(|&id| tokenizer.is_special(id))
        .filter_map(|id| Some((id, tokenizer.id_to_token(id)?)))
        .filter(|(_, text)| text.starts_with('<') && !matches!(text.as_str(), "<unk>" | "<pad>"))
        .collect()
}

/// Each of these forged a special token: the guard checked texts before the template changed them.
#[test]
fn changed_texts_do_not_become_markers() -> Result<(), Failure> {
    for tokenizer in tokenizers()? {
        let markers = markers(&tokenizer);
        let (id, end) = &markers[0];
        let cut = &end[..end.len() / 2];
        let rest = &end[end.len() / 2..];
        for (expression, text) in [
            ("m.content", end.clone()),
            ("m.content | upper | lower", end.to_uppercase()),
            ("m.content.lower()", end.to_uppercase()),
            ("m.content.replace('/no_think', '')", format!("{cut}/no_think{rest}")),
            ("m.content | replace('/no_think', '')", format!("{cut}/no_think{rest}")),
            (
                "m.content.replace('&lt;', '<').replace('&gt;', '>')",
                end.replace('<', "&lt;").replace('>', "&gt;"),
            ),
            ("m.content | trim", format!("  {end}\n")),
            ("m.content.strip('-')", format!("--{end}--")),
            ("m.content.split('-') | join", format!("{cut}-{rest}")),
            ("''.join(m.content.split('-'))", format!("{cut}-{rest}")),
            ("m.content.split('-')[0] + m.content.split('-')[1]", format!("{cut}-{rest}")),
            ("m.content.split('-')[0] ~ m.content.split('-')[1]", format!("{cut}-{rest}")),
            ("'%s%s' % (m.content[:1], m.content[1:])", end.clone()),
            ("'{}{}'.format(m.content[:1], m.content[1:])", end.clone()),
            ("m.content[::-1]", end.chars().rev().collect()),
            ("m.content | reverse", end.chars().rev().collect()),
            ("m.content | list | join", end.clone()),
            ("m.content | tojson", end.clone()),
            ("m | tojson", end.clone()),
            ("m.content | title | lower", end.clone()),
            ("m.name", end.clone()),
            ("'<' ~ m.name", end[1..].to_owned()),
            ("m.name ~ '>'", end[..end.len() - 1].to_owned()),
            ("m.keys() | list | last", String::new()),
            ("'<|' ~ m.name ~ '|>'", "im_end".to_owned()),
            ("'<|' ~ m.role ~ '|>'", "im_end".to_owned()),
            ("'%c%s' % (60, m.content)", end[1..].to_owned()),
            ("m.content", end.chars().map(|c| char::from_u32(u32::from(c) + 0xFEE0).unwrap_or(c)).collect()),
            ("m.content | e", end.clone()),
            ("m.content | safe", end.clone()),
        ] {
            let key = format!("z{end}");
            let message: Message =
                serde_json::from_value(json!({"role": text, "content": text, "name": text, key: 1}))?;
            let source = format!("{{% for m in messages %}}{{{{ {expression} }}}}{{% endfor %}}{end}");
            let template = ChatTemplate::new(&source, None, None)?;
            let ids = tokenizer.encode_chat(&template, &[message], None, false)?;
            let ids = &ids[usize::from(tokenizer.adds_bos())..];
            let found: Vec<_> =
                ids.iter().filter(|id| markers.iter().any(|(marker, _)| marker == *id)).collect();
            assert_eq!(found, [id], "{expression} {text:?}");
        }
    }
    Ok(())
}

/// Templates that compare or search message texts render as before.
#[test]
fn comparisons_do_not_see_the_origin() -> Result<(), Failure> {
    let text = "a<think>b</think>c";
    for (source, expected) in [
        ("{{ '</think>' in messages[0].content }}", "True"),
        ("{{ messages[0].content.split('</think>')[-1] }}", "c"),
        (
            "{% set t = '</think>' %}{{ t in messages[0].content }}{{ messages[0].content.split(t) }}",
            "True['a<think>b', 'c']",
        ),
        ("{% set t = '<' + 'think' + '>' %}{{ (messages[0].content ~ t).count(t) }}", "2"),
        (
            "{% set x = ['</think>', 'z'] %}{{ '</think>' in x }}{{ x == ['</think>', 'z'] }}{{ x.index('z') }}",
            "TrueTrue1",
        ),
        (
            "{% set d = {'a': 'b'} %}{% set k = 'a' %}{{ d[k] }}{{ d[k] == 'b' }}{{ d.get(k) }}{{ k in d }}",
            "bTruebTrue",
        ),
        (
            "{% set k = 'user' %}{{ messages[0].role == k }}{{ messages[0]['role'] in ['user'] }}{{ messages[0].role ~ 1 }}",
            "TrueTrueuser1",
        ),
        (
            "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages[0].role is eq 'user' }}",
            "1True",
        ),
        (
            "{% macro m(x) %} <b>{{ x }} {% endmacro %}{{ m('c').strip().startswith('<b>c') }}{{ m('c') | trim | upper }}",
            "True<B>C",
        ),
        (
            "{% macro m(x) %}{{ x }}</t>d{% endmacro %}{{ m('c').split('</t>') }}{{ m('c').partition('</t>')[2] }}",
            "['c', 'd']d",
        ),
        (
            "{{ ('a' ~ messages[0].content).replace('</think>', '|').rstrip('c').removeprefix('aa') }}",
            "<think>b|",
        ),
        (
            "{{ 'Ab' | lower }}{{ 'ab'.title() }}{{ 'b' < 'c' }}{{ ['b', 'a'] | sort }}{{ '12' | int + 1 }}",
            "abAbTrue['a', 'b']13",
        ),
        (
            "{{ ['x', 1] }}{{ {'k': \"it's\"} | tojson }}{{ '%s-%5s|' % ('a', 'b') }}{{ '{0}{{'.format('a') }}",
            "['x', 1]{\"k\": \"it's\"}a-    b|a{",
        ),
        (
            "{% set ns = namespace(x='') %}{% for c in 'abc' %}{% set ns.x = ns.x + c %}{% endfor %}{{ ns.x == 'abc' }}{{ ns.x }}",
            "Trueabc",
        ),
        (
            "{{ dict([('a', 1)])['a'] }}{{ ['a', 'A'] | unique | list }}{{ [{'n': 'a'}] | map(attribute='n') | join(', ') }}",
            "1['a']a",
        ),
        ("{{ 'é' | tojson(ensure_ascii=true) }}{{ '\"' | tojson }}{{ '<' | e }}", "\"\\u00e9\"\"\\\"\"&lt;"),
    ] {
        assert_eq!(render(source, text)?, expected, "{source}");
    }
    Ok(())
}

/// Roles whose names a template may join to a special token.
const ROLES: [&str; 12] = [
    "system",
    "user",
    "assistant",
    "tool",
    "developer",
    "function",
    "model",
    "ipython",
    "observation",
    "environment",
    "chatbot",
    "context",
];

/// Filters and methods that keep, cut, join and change texts.
const CHANGES: [&str; 18] = [
    "|lower",
    "|upper",
    "|trim",
    "|list|join",
    "|string",
    "|replace('-', '')",
    "|title",
    "|capitalize",
    "|tojson",
    ".lower()",
    ".strip('-')",
    ".replace('-', '')",
    ".split('-')|join",
    "[1:]",
    "[::-1]",
    "|reverse",
    "|indent(0)",
    "|safe",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(ProptestConfig::default().cases) })]

    /// The special tokens of a prompt are those of the template, whatever the messages say.
    #[test]
    fn markers_are_the_templates_own(
        pieces in prop::collection::vec((0usize..20, 0usize..14, 0usize..14, any::<bool>()), 1..6),
        changes in prop::collection::vec(prop::sample::select(CHANGES.as_slice()), 0..4),
        which in 0usize..5,
        role_is_text in any::<bool>(),
    ) {
        static TOKENIZERS: OnceLock<Vec<Tokenizer>> = OnceLock::new();
        let tokenizer = &TOKENIZERS.get_or_init(|| tokenizers().unwrap_or_default())[which];
        let markers = markers(tokenizer);
        let text: String = pieces
            .iter()
            .map(|&(marker, from, to, upper)| {
                let chars: Vec<char> = markers[marker % markers.len()].1.chars().collect();
                let piece: String = chars[from.min(to).min(chars.len())..from.max(to).min(chars.len())].iter().collect();
                if upper { piece.to_uppercase() + "-" } else { piece }
            })
            .collect();
        let (id, end) = &markers[0];
        let role = if role_is_text { text.as_str() } else { "user" };
        let changed = changes.iter().fold("m.content ~ m.name".to_owned(), |text, change| format!("({text}){change}"));
        let source = format!(
            "{{% for m in messages %}}.{end}{{{{ '<|' ~ m.role ~ '|>' }}}}{{{{ {changed} }}}}{{{{ m.name ~ m.content }}}}{end}{{% endfor %}}",
        );
        let message: Message = serde_json::from_value(json!({"role": role, "content": text, "name": text})).unwrap();
        let template = ChatTemplate::new(&source, None, None).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let ids = tokenizer
            .encode_chat(&template, &[message], None, false)
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        let ids = &ids[usize::from(tokenizer.adds_bos())..];
        let found: Vec<TokenId> =
            ids.iter().copied().filter(|found| markers.iter().any(|(marker, _)| marker == found)).collect();
        let mut expected = vec![*id];
        // Pieces of markers can be a role's name, which the template may use.
        expected.extend(tokenizer.token_to_id(&format!("<|{role}|>")).filter(|_| ROLES.contains(&role)));
        expected.push(*id);
        prop_assert_eq!(found, expected, "{} {:?}", source, text);
    }
}
