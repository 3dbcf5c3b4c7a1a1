//! The parser's faults, and the language of what the writer makes of a grammar.

use proptest::prelude::*;

use super::{parse, to_lark};
use crate::constraint::tests::{matches, random_walk, refused};
use crate::constraint::{Constraint, ConstraintError};

fn language(grammar: &str, inside: &[&str], outside: &[&str]) {
    let constraint = Constraint::gbnf(grammar).unwrap();
    for text in inside {
        assert!(
            matches(&constraint, text),
            "{text:?} is in\n{grammar}\n{}",
            to_lark(&parse(grammar).unwrap())
        );
    }
    for text in outside {
        assert!(!matches(&constraint, text), "{text:?} is outside of\n{grammar}");
    }
}

#[test]
fn all_expressions_have_their_meaning() {
    language(
        r#"root ::= "a" [b-d]+ (e | "f")? # comment
e ::= "e"{2,3}"#,
        &["ab", "abcd", "acee", "aceee", "adf"],
        &["a", "ace", "aceeee", "adff", ""],
    );
    language("root ::= [^a-c\\n\\]]{2} .", &["xyz"], &["axz", "x\nz", "]yz", "xy"]);
    language(r#"root ::= "\x41\u00e9\U0001F600\"\\\n\t""#, &["Aé😀\"\\\n\t"], &["A"]);
    language("root ::= \"a\"{,2} \"b\"{2,} |\n  \"\"", &["", "bb", "aabbb"], &["b", "aaabb"]);
    language("root ::= (\n \"a\"\n | \"b\" # x\n)\r\n\r\n", &["a", "b"], &["ab"]);
}

#[test]
fn recursion_is_supported_on_either_side() {
    let left = r#"root ::= root "+" term | term
term ::= [0-9]+ | "(" root ")""#;
    language(left, &["1", "1+22", "(1+2)+3", "((1))"], &["+1", "1+", "(1", "1++2"]);
    let right = r#"root ::= term ("+" root)?
term ::= [0-9]+ | "(" root ")""#;
    language(right, &["1", "1+22", "(1+2)+3"], &["+1", "1+"]);
    let mutual = "root ::= \"a\" b\nb ::= \"b\" root | ws\nws ::= [ ]*";
    language(mutual, &["a", "aba", "aba  "], &["ab", "b"]);
}

#[test]
fn json_grammar_of_llama_cpp_matches_json() {
    let json = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;
    let inside = [r#"{}"#, r#"{"a": [1, -2.5e3, "x\u00e9"], "b": {"c": null}}"#];
    language(json, &inside, &["[]", r#"{"a"}"#, r#"{"a": 1,}"#, r#"{"a": tru}"#]);
}

#[test]
fn special_tokens_are_taken_by_name_and_by_id() {
    let tokenizer = crate::constraint::tests::tokenizer();
    let ends = tokenizer.end_of_generation();
    let is_special = |&id: &u32| tokenizer.is_special(id) && !ends.contains(&id);
    let special = (0..tokenizer.vocab_size() as u32).find(is_special).unwrap();
    let name = tokenizer.id_to_token(special).unwrap();
    for token in [format!("<[{special}]>"), name] {
        let constraint = Constraint::gbnf(&format!("root ::= \"a\" {token} root | \"b\"")).unwrap();
        let mut state = crate::constraint::tests::compiler().start(&constraint).unwrap();
        let text = |text: &str| tokenizer.token_to_id(text).unwrap();
        state.accept(text("a")).unwrap();
        assert_eq!(state.mask().unwrap().ids().collect::<Vec<_>>(), [special], "{token}");
        state.accept(special).unwrap();
        state.accept(text("b")).unwrap();
        assert!(state.is_ended());
    }
}

#[test]
fn faults_have_a_place() {
    for (grammar, line, column, piece) in [
        ("", 1, 1, "no rule `root`"),
        ("a ::= \"x\"", 1, 1, "no rule `root`"),
        ("root ::= x", 1, 10, "no rule `x`"),
        ("root ::= \"a\n", 1, 10, "not closed"),
        ("root ::= [a", 1, 10, "not closed"),
        ("root ::= []", 1, 10, "no characters"),
        ("root ::= [z-a]", 1, 11, "ends before"),
        ("root ::= (\"a\"", 1, 10, "not closed"),
        ("root ::= \"a\" )", 1, 14, "unexpected ')'"),
        ("root = \"a\"", 1, 6, "expected ::="),
        ("root ::= \"a\"\nroot ::= \"b\"", 2, 1, "defined twice"),
        ("root ::= \"\\q\"", 1, 11, "unknown escape"),
        ("root ::= \"\\ud800\"", 1, 11, "hexadecimal"),
        ("root ::= \"é\\u12\"", 1, 12, "hexadecimal"),
        ("root ::= \"a\"{3,2}", 1, 13, "end before"),
        ("root ::= \"a\"{99999999999999999999}", 1, 13, "repetitions"),
        ("root ::= \"a\"**", 1, 14, "parentheses"),
        ("root ::= *", 1, 10, "unexpected '*'"),
        ("root ::= !<a>", 1, 10, "`!`"),
        ("root ::= <a", 1, 10, "<name>"),
        ("%", 1, 1, "name of a rule"),
    ] {
        match Constraint::gbnf(grammar) {
            Err(ConstraintError::Gbnf { line: l, column: c, reason }) => {
                assert!((l, c) == (line, column) && reason.contains(piece), "{grammar:?}: {l}:{c} {reason}");
            }
            other => panic!("{grammar:?}: {other:?}"),
        }
    }
}

#[test]
fn hostile_grammars_are_errors() {
    let nested = format!("root ::= {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000));
    let many: String = (0..3000).map(|i| format!("r{i} ::= r{}\n", i + 1)).collect();
    let many = format!("root ::= r0\n{many}r3000 ::= \"a\"");
    for (grammar, piece) in [
        (nested.as_str(), "nested parentheses"),
        (many.as_str(), "rules"),
        ("root ::= \"a\"{10000}{10000}", "parentheses"),
        (&"x".repeat(2 << 20), "bytes"),
    ] {
        let error = Constraint::gbnf(grammar).unwrap_err().to_string();
        assert!(error.contains(piece), "{error}");
    }
    let _ = random_walk(
        &Constraint::gbnf("root ::= (([a-z]{9000} | \"x\"){9000} | \"y\"){9000}").unwrap(),
        1,
        20,
    );
    // Rules that double each other and rules without a text meet the compiler's limits.
    let doubled: String = (0..40).map(|i| format!("r{i} ::= r{0} r{0}\n", i + 1)).collect();
    for grammar in [
        format!("root ::= r0\n{doubled}r40 ::= [a-z]{{1,9}}"),
        "root ::= root".to_owned(),
        "root ::= a\na ::= b\nb ::= a".to_owned(),
    ] {
        refused(&Constraint::gbnf(&grammar).unwrap(), &grammar);
    }
    // A chain of as many rules as are allowed.
    for last in ["\"a\"", "\"a\" root"] {
        let chain: String = (0..1990).map(|i| format!("r{i} ::= (\"x\" r{})*\n", i + 1)).collect();
        let chain = format!("root ::= r0 | \"y\"\n{chain}r1990 ::= {last}");
        let _ = crate::constraint::tests::compiler().start(&Constraint::gbnf(&chain).unwrap());
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "(root|a| |::=|\\||\\(|\\)|\"|\\[|\\]|\\^|-|\\{|\\}|,|[0-9]|\\*|\\?|<|>|\\\\|u|x|\n|#|é){0,40}") {
        if let Ok(rules) = parse(&text) {
            prop_assert!(to_lark(&rules).starts_with("start: "));
        }
    }
}
