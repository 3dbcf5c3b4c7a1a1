//! Regular expressions of JSON Schema (ECMA-262, Unicode mode) in the syntax of the grammar engine.

/// White space of ECMA-262 within a class.
const SPACE: &str =
    r"\t\n\x0B\x0C\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}";
const DIGIT: &str = "0-9";
const WORD: &str = "0-9A-Za-z_";
/// `.` of ECMA-262: all but line terminators.
const ANY: &str = r"[^\n\r\x{2028}\x{2029}]";

/// Rewrites a pattern.
///
/// # Errors
/// The construct that is not supported.
pub(super) fn translate(pattern: &str) -> Result<String, String> {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    let mut in_class = false;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => rest = escape(rest, in_class, &mut out)?,
            '[' if !in_class => {
                in_class = true;
                let negated = rest.strip_prefix('^');
                out.push_str(if negated.is_some() { "[^" } else { "[" });
                rest = negated.unwrap_or(rest);
                if rest.starts_with(']') {
                    return Err("a class without characters".to_owned());
                }
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            // The engine's classes have operators that ECMA-262 has not.
            '[' | '&' | '~' if in_class => out.extend(['\\', c]),
            '.' if !in_class => out.push_str(ANY),
            '(' if !in_class => rest = group(rest, &mut out)?,
            _ => out.push(c),
        }
    }
    if in_class {
        return Err("a class that is not closed".to_owned());
    }
    Ok(out)
}

/// Writes what an escape stands for and gives the text after it.
fn escape<'p>(rest: &'p str, in_class: bool, out: &mut String) -> Result<&'p str, String> {
    let Some(c) = rest.chars().next() else { return Err("a backslash at the end".to_owned()) };
    let after = &rest[c.len_utf8()..];
    let class = |out: &mut String, members: &str| {
        out.push_str(&if in_class { members.to_owned() } else { format!("[{members}]") });
    };
    let complement = |out: &mut String, members: &str| {
        out.push_str(&format!("[^{members}]"));
    };
    match c {
        'd' => class(out, DIGIT),
        'w' => class(out, WORD),
        's' => class(out, SPACE),
        'D' => complement(out, DIGIT),
        'W' => complement(out, WORD),
        'S' => complement(out, SPACE),
        'n' | 'r' | 't' | 'p' | 'P' => out.extend(['\\', c]),
        'v' => out.push_str("\\x0B"),
        'f' => out.push_str("\\x0C"),
        '0' if !after.starts_with(|c: char| c.is_ascii_digit()) => out.push_str("\\x00"),
        'b' if in_class => out.push_str("\\x08"),
        'x' | 'u' => return code_point(c, after, out),
        'b' | 'B' => return Err("the word boundary \\b".to_owned()),
        'k' | '1'..='9' => return Err("a back-reference".to_owned()),
        'c' => return Err("the escape \\c".to_owned()),
        _ if c.is_ascii_alphanumeric() => return Err(format!("the escape \\{c}")),
        _ if c.is_ascii_punctuation() => out.extend(['\\', c]),
        _ => out.push(c),
    }
    Ok(after)
}

/// Writes the character of `\xHH`, `\uHHHH` or `\u{H...}`; two `\u` escapes can be one character in
/// UTF-16.
fn code_point<'p>(kind: char, rest: &'p str, out: &mut String) -> Result<&'p str, String> {
    let wrong = || format!("the escape \\{kind}");
    let digits = |text: &'p str, n: usize| {
        let hex = text.get(..n).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit())).ok_or_else(wrong)?;
        Ok::<_, String>((u32::from_str_radix(hex, 16).map_err(|_| wrong())?, &text[n..]))
    };
    let (code, rest) = if kind == 'x' {
        digits(rest, 2)?
    } else if let Some(braced) = rest.strip_prefix('{') {
        let end = braced.find('}').filter(|end| (1..=6).contains(end)).ok_or_else(wrong)?;
        let (code, _) = digits(braced, end)?;
        (code, &braced[end + 1..])
    } else {
        let (code, rest) = digits(rest, 4)?;
        match rest.strip_prefix("\\u") {
            Some(low) if (0xd800..0xdc00).contains(&code) => {
                let (low, rest) = digits(low, 4)?;
                if !(0xdc00..0xe000).contains(&low) {
                    return Err(wrong());
                }
                (0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00), rest)
            }
            _ => (code, rest),
        }
    };
    let c = char::from_u32(code).ok_or_else(wrong)?;
    out.push_str(&format!("\\x{{{:x}}}", u32::from(c)));
    Ok(rest)
}

/// Writes the beginning of a group and gives the text after it.
fn group<'p>(rest: &'p str, out: &mut String) -> Result<&'p str, String> {
    for look_around in ["?=", "?!", "?<=", "?<!"] {
        if rest.starts_with(look_around) {
            return Err(format!("the look-around ({look_around}"));
        }
    }
    let rest = match rest.strip_prefix("?<") {
        Some(named) => named.split_once('>').ok_or("a group name that is not closed")?.1,
        None => rest.strip_prefix("?:").unwrap_or(rest),
    };
    if rest.starts_with('?') {
        return Err("a group with flags".to_owned());
    }
    out.push_str("(?:");
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_escapes_and_groups_are_rewritten() {
        for (pattern, expected) in [
            (r"^\d{3}-[\w.]+$", "^[0-9]{3}-[0-9A-Za-z_.]+$"),
            ("a.b", r"a[^\n\r\x{2028}\x{2029}]b"),
            (r"[^\D]", "[^[^0-9]]"),
            ("(?<year>[0-9]{4})(x)(?:y)", "(?:[0-9]{4})(?:x)(?:y)"),
            (
                r"\x41é\u{1F600}\uD83D\uDE00",
                r"\x{41}\x{e9}\x{1f600}\x{1f600}".replace(r"\x{e9}", "é").as_str(),
            ),
            ("[[&&~.]", r"[\[\&\&\~.]"),
            (r"\/\-\.", r"\/\-\."),
            (r"[\b]", r"[\x08]"),
        ] {
            assert_eq!(translate(pattern).as_deref(), Ok(expected));
        }
        assert_eq!(translate(r"\s").unwrap(), format!("[{SPACE}]"));
    }

    #[test]
    fn unsupported_constructs_are_named() {
        for (pattern, piece) in [
            ("(?=a)", "(?="),
            ("(?<!a)", "(?<!"),
            (r"(a)\1", "back-reference"),
            (r"\bword\b", "word boundary"),
            ("[a", "not closed"),
            ("[]", "without characters"),
            (r"a\", "at the end"),
            (r"\ud800", "escape"),
            (r"\q", r"\q"),
            ("(?i)a", "flags"),
        ] {
            assert!(translate(pattern).unwrap_err().contains(piece), "{pattern}");
        }
    }
}
