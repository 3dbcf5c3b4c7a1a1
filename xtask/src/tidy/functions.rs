//! Lengths of functions.

use super::lexer::{Kind, Token};

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    /// Line of its `fn`.
    pub(super) line: usize,
    /// Lines from there to the closing brace, inclusive.
    pub(super) lines: usize,
}

/// Every function of a file, nested ones too.
pub(super) fn functions<'a>(tokens: &[Token<'a>]) -> Vec<Function<'a>> {
    let code: Vec<&Token<'a>> =
        tokens.iter().filter(|token| !matches!(token.kind, Kind::Comment(_))).collect();
    let named = code.windows(2).enumerate().filter_map(|(at, pair)| match (pair[0].kind, pair[1].kind) {
        (Kind::Word("fn"), Kind::Word(name)) => Some((at, pair[0].line, name)),
        _ => None,
    });
    named
        .filter_map(|(at, line, name)| {
            let last = body_end(&code[at..])?;
            Some(Function { name, line, lines: last + 1 - line })
        })
        .collect()
}

/// Line of the closing brace of the body; `None` for a declaration.
fn body_end(code: &[&Token<'_>]) -> Option<usize> {
    let (mut braces, mut brackets) = (0, 0);
    for token in code {
        match token.kind {
            Kind::Mark('(' | '[') => brackets += 1,
            Kind::Mark(')' | ']') => brackets -= 1,
            Kind::Mark(';') if braces == 0 && brackets == 0 => return None,
            Kind::Mark('{') => braces += 1,
            Kind::Mark('}') => {
                braces -= 1;
                if braces == 0 && brackets == 0 {
                    return Some(token.line);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::lexer::tokens;
    use super::*;

    #[test]
    fn bodies_are_measured_and_declarations_are_not() {
        let source = "trait T {\n  fn a(x: [u8; 2]);\n  fn b(\n    x: u8,\n  ) -> u8 {\n    fn c() {}\n    x\n  }\n}\n";
        let found = functions(&tokens(source));
        let found: Vec<_> = found.iter().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(found, [("b", 3, 6), ("c", 6, 1)]);
    }
}
