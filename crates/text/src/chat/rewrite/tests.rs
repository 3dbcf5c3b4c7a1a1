use super::*;

fn rewritten(source: &str) -> String {
    origin::plain_text(&rewrite(source, SyntaxConfig::default()).unwrap().source).into_owned()
}

#[test]
fn text_and_literals_get_their_origin() {
    let marked = origin::marked;
    for (source, expected) in [
        ("a <b>{{ c }}".to_owned(), format!("{} {}{{{{ c }}}}", marked("a"), marked("<b>"))),
        ("{{ 'a' + b }}".to_owned(), format!("{{{{ (['{}' , b])|__sum }}}}", marked("a"))),
        (
            "{% if a == 'b' %}c{% endif %}".to_owned(),
            format!("{{% if a|__plain == 'b' %}}{}{{% endif %}}", marked("c")),
        ),
        (
            "{{ a['b'].split('c')[0] ~ \"d'\\n\" 'e' }}".to_owned(),
            format!(
                "{{{{ ([((a['b'].split('c'))|__checked)[0] , '{}\\'\\n{}'])|__concat }}}}",
                marked("d"),
                marked("e")
            ),
        ),
    ] {
        let found = rewrite(&source, SyntaxConfig::default()).unwrap().source;
        // The quote is a marked character too.
        assert_eq!(found.replace("\u{F0027}", "\\'"), expected.replace("\u{F0027}", "\\'"), "{source}");
    }
}

#[test]
fn values_that_are_made_are_counted() {
    for (source, expected) in [
        ("{{ a ~ b }}", "{{ ([a , b])|__concat }}"),
        ("{{ a + b * c }}", "{{ ([a , (b * c)|__checked])|__sum }}"),
        ("{{ a ~ b ~ c }}", "{{ ([a , b , c])|__concat }}"),
        ("{{ (a ~ b) ~ c }}", "{{ ([(([a , b])|__concat) , c])|__concat }}"),
        ("{{ (a) ~ b ~ f(c + d) }}", "{{ ([(a) , b , ((f(([c , d])|__sum))|__checked)])|__concat }}"),
        ("{{ a + b - c + d }}", "{{ ([([a , b])|__sum - c , d])|__sum }}"),
        ("{{ a | trim | upper }}", "{{ a | trim | upper }}"),
        ("{% set a = b ~ x if c - 1 else d %}", "{% set a = ([b , x])|__concat if c - 1 else d %}"),
        ("{{ a % b + (c)%(d) }}", "{{ ([([a , b])|__remainder , ([(c),(d)])|__remainder])|__sum }}"),
        ("{{ 2 * 3 }}", "{{ ((2)|__checked * 3)|__checked }}"),
        ("{% set a.b = c %}", "{% set a.b = (c)|__stored %}"),
        ("{% set a.b = true %}", "{% set a.b = true %}"),
        ("{% set a.b = (c if d else e) %}", "{% set a.b = ((c if d else e)|__stored) %}"),
        ("{{ f([a, 1]) }}", "{{ f(([a, 1]|__literal)) }}"),
        ("{% set a = b, 1 %}", "{% set a = ((b, 1)|__literal) %}"),
        ("{% set a = (b, 1) %}", "{% set a = ((b, 1)|__literal) %}"),
        ("{% set a = [1, 2] %}", "{% set a = [1, 2] %}"),
        ("{% set a = {1: b} %}", "{% set a = ({1: b}|__literal) %}"),
        ("{% set a = f(b) %}", "{% set a = ((f(b))|__checked) %}"),
        ("{{ f(b) }}{{ loop(a) }}", "{{ f(b) }}{{ loop(a|__characters) }}"),
        ("{{ self.b() }}", "{{ ((self.b())|__checked) }}"),
        ("{{ f(*a) }}", "{{ f(*a|__checked) }}"),
    ] {
        assert_eq!(rewritten(source), expected);
    }
}

#[test]
fn values_that_are_compared_are_counted() {
    for (source, expected) in [
        ("{{ a == b }}", "{{ a|__plain == b|__plain }}"),
        ("{{ a == 'b' }}", "{{ a|__plain == 'b' }}"),
        ("{{ a == 1 }}{{ a == none }}", "{{ a == 1 }}{{ a == none }}"),
        ("{{ a < b + c }}", "{{ a|__plain < (([b , c])|__sum)|__plain }}"),
        ("{{ (a if b else c) == d }}", "{{ ((a if b else c)|__plain) == d|__plain }}"),
        ("{{ (a|upper) in b.c }}", "{{ (a|upper|__plain) in b.c|__plain }}"),
        ("{{ a not in ['b', 'c'] }}", "{{ a|__plain not in ['b', 'c'] }}"),
        ("{{ a in [b, 'c'] }}", "{{ a|__plain in ([b, 'c']|__literal)|__plain }}"),
        ("{{ 1 < a < b }}", "{{ 1 < a|__plain < b|__plain }}"),
        ("{{ f(a) == b }}", "{{ f(a)|__plain == b|__plain }}"),
        ("{{ a[b] }}{{ a[0] }}{{ a['b'] }}", "{{ (a|__item)[b|__plain] }}{{ a[0] }}{{ a['b'] }}"),
        ("{{ a.b[-1].c }}", "{{ (a.b|__item)[-1].c }}"),
        ("{{ a[b - 1] }}", "{{ (a|__item)[b - 1] }}"),
        ("{{ (a.b)[c] }}", "{{ ((a.b|__item))[c|__plain] }}"),
        ("{% set x = {a: b} %}", "{% set x = ({a|__plain: b}|__literal) %}"),
        ("{{ a is eq b }}{{ a is eq(b) }}", "{{ a is eq (b) }}{{ a is eq(b) }}"),
        ("{{ a is in [b[c]] }}", "{{ a is in (([(b|__item)[c|__plain]]|__literal)) }}"),
        ("{{ loop.changed(a) }}", "{{ loop.changed(a|__plain|__stored) }}"),
    ] {
        assert_eq!(rewritten(source), expected);
    }
}

#[test]
fn slices_become_filters() {
    for (source, expected) in [
        ("{{ a[::-1] }}", "{{ (a|__slice(none,none,-1)) }}"),
        ("{{ (a) [ 1 :(2): b ].c }}", "{{ ((a) |__slice( 1 ,(2), b )).c }}"),
        (
            "{{ f(a[1:]) [b[::2] : : -1] }}",
            "{{ (f((a|__slice(1,none))) |__slice((b|__slice(none,none,2)) , none, -1)) }}",
        ),
        ("{{ a.b[1:][::-1] }}", "{{ ((a.b|__slice(1,none))|__slice(none,none,-1)) }}"),
        ("{{ a[:1] }}{{ a[:] }}", "{{ (a|__slice(none,1)) }}{{ (a|__slice(none,none)) }}"),
        ("{{ (a | f)[1:].b }}", "{{ ((a | f)|__slice(1,none)).b }}"),
        ("{{ -(a if b else c)[0][:1] }}", "{{ -((a if b else c)[0]|__slice(none,1)) }}"),
        (
            "{{ (a.b)[1:] ~ (c(d)[e])[f:] }}",
            "{{ ([((a.b)|__slice(1,none)) , (((c(d)|__item)[e|__plain])|__slice(f,none))])|__concat }}",
        ),
        ("{{ a[1:2:] }}{{ '[::-1]' }}", "{{ (a|__slice(1,2,none)) }}{{ '[::-1]' }}"),
        (
            "{% for a in b[1:] + c %}é{{ a }}{% endfor %}",
            "{% for a in ([(b|__slice(1,none)) , c])|__sum %}é{{ a }}{% endfor %}",
        ),
    ] {
        assert_eq!(rewritten(source), expected);
    }
}

#[test]
fn statements_without_a_meaning_are_refused() {
    for source in [
        "{% do a() %}",
        "{% include 'a' %}",
        "{% import 'a' as b %}",
        "{% extends 'a' %}",
        "{% from 'a' import b %}",
    ] {
        let error = rewrite(source, SyntaxConfig::default()).unwrap_err().to_string();
        assert!(error.contains("is not supported (line 1)"), "{source}: {error}");
    }
    assert_eq!(rewrite("ab{{ 'c' }}\n", SyntaxConfig::default()).unwrap().text_bytes, 2);
}
