//! Limits on the nesting of a template's source, checked before anything recurses over it.
//!
//! The engine's parser limits the nesting of brackets and statements to 150, but not nesting
//! without brackets: `- - - 1`, `not not a`, `a|b|c`, `a.b.c`, `a if b else c if d`, chains of
//! `elif`. Each of these is one level of the syntax tree, over which parser, compiler and
//! destructors recurse. So the tokens are counted first, in a loop.

use minijinja::{
    Error, ErrorKind,
    machinery::{Token, Tokenizer},
    syntax::SyntaxConfig,
};

use super::bounds::NAME;

/// Maximum number of tokens in one tag that can nest its expression. Published templates have up to
/// some 60.
const MOST_OPERATORS: usize = 500;

/// Maximum number of `elif` in a template; each nests the later ones. Published templates have up
/// to 30.
const MOST_ELIF: usize = 500;

/// Rejects a source whose syntax tree could be too deep to recurse over.
///
/// # Errors
/// Errors of the lexer, and a syntax error that names the limit.
pub(super) fn check(source: &str, syntax: SyntaxConfig) -> Result<(), Error> {
    let too_deep =
        |message: String, line: u16| Error::new(ErrorKind::SyntaxError, format!("{message} (line {line})"));
    let mut tokens = Tokenizer::new(source, NAME, false, syntax);
    let (mut operators, mut elifs) = (0, 0);
    let mut begins_statement = false;
    while let Some((token, span)) = tokens.next_token()? {
        match token {
            Token::BlockStart | Token::VariableStart => operators = 0,
            Token::Ident("elif") if begins_statement => elifs += 1,
            ref token if nests(token) => operators += 1,
            _ => {}
        }
        begins_statement = matches!(token, Token::BlockStart);
        if operators > MOST_OPERATORS {
            let message = format!("a tag has more than {MOST_OPERATORS} operators and brackets");
            return Err(too_deep(message, span.start_line));
        }
        if elifs > MOST_ELIF {
            return Err(too_deep(format!("more than {MOST_ELIF} elif"), span.start_line));
        }
    }
    Ok(())
}

/// True if a token can add a level to the syntax tree. Each level needs at least one of these.
fn nests(token: &Token<'_>) -> bool {
    match token {
        Token::Ident(name) => matches!(*name, "not" | "if" | "else" | "and" | "or" | "is" | "in"),
        Token::TemplateData(_)
        | Token::VariableStart
        | Token::VariableEnd
        | Token::BlockStart
        | Token::BlockEnd
        | Token::Str(_)
        | Token::String(_)
        | Token::Int(_)
        | Token::Int128(_)
        | Token::Float(_)
        | Token::Comma
        | Token::Colon
        | Token::Assign
        | Token::BracketClose
        | Token::ParenClose
        | Token::BraceClose => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(source: &str) -> bool {
        check(source, SyntaxConfig::default()).is_err_and(|error| error.to_string().contains("more than"))
    }

    #[test]
    fn what_nests_without_brackets_is_counted() {
        for (before, step, after) in [
            ("{{ ", "-", "1 }}"),
            ("{{ ", "not ", "1 }}"),
            ("{{ 1", "|int", " }}"),
            ("{{ a", ".b", " }}"),
            ("{{ a", "[0]", " }}"),
            ("{{ a", "()", " }}"),
            ("{{ 2", "**2", " }}"),
            ("{{ a", " if b else c", " }}"),
            ("{{ a", " is none", " }}"),
            ("{{ a", " == b", " }}"),
            ("{{ a", " ~ b", " }}"),
            ("{{ ", "{1:", "1 }}"),
            ("{% if a %}", "{% elif b %}", "{% endif %}"),
            ("{% set a ", "|upper", "%}{% endset %}"),
        ] {
            let source = |times: usize| format!("{before}{}{after}", step.repeat(times));
            assert!(!refused(&source(100)), "{step}");
            assert!(refused(&source(501)), "{step}");
        }
        // Neither tags nor siblings add up.
        assert!(!refused(&"{{ - - 1 }}".repeat(2000)));
        assert!(!refused(&format!("{{{{ [{}] }}}}", "'a', ".repeat(5000))));
    }

    #[test]
    fn what_is_no_template_is_an_error_of_the_lexer() {
        assert!(check("{{ 'a", SyntaxConfig::default()).is_err());
    }
}
