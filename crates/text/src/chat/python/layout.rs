//! Filters that cut, wrap and fill texts.

use super::{
    Arguments,
    methods::{MAX_WIDTH, centered, is_space, lines},
    to_str,
};
use crate::chat::bounds::charge;
use minijinja::{
    Error, ErrorKind, Value,
    value::{Rest, StringInput, ValueOrKwargs},
};

/// The filter `indent`: a line break at the end stays, and the width may be a text.
pub(super) fn indent(value: StringInput<'_>, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let mut args = Arguments::of(args)?;
    let (width, first) = (args.value("width")?, args.flag("first", false)?);
    let blank = args.flag("blank", false)?;
    args.finish()?;
    let too_far = || Error::new(ErrorKind::InvalidOperation, "the text is indented too far");
    let indentation = match width.as_ref().map(|width| (width, width.as_str())) {
        None => " ".repeat(4),
        Some((_, Some(text))) => text.to_owned(),
        Some((width, None)) => match i64::try_from(width.clone())? {
            width if width > MAX_WIDTH as i64 => return Err(too_far()),
            width => " ".repeat(usize::try_from(width).unwrap_or(0)),
        },
    };
    let text = format!("{}\n", value.as_str());
    let lines = lines(&text, false);
    charge(text.len() + lines.len().saturating_mul(indentation.len()))?;
    let mut out = String::new();
    for (i, line) in lines.into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let is_indented = if i == 0 { first } else { blank || !line.is_empty() };
        out.extend(is_indented.then_some(indentation.as_str()).into_iter().chain([line]));
    }
    Ok(out)
}

/// The filter `truncate`.
pub(super) fn truncate(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut args = Arguments::of(args)?;
    let length: usize = args.get("length")?.unwrap_or(255);
    let cuts_words = args.flag("killwords", false)?;
    let end = args.text("end")?.unwrap_or_else(|| "...".to_owned());
    let leeway: usize = args.get("leeway")?.unwrap_or(5);
    args.finish()?;
    let kept = length.checked_sub(end.chars().count());
    let too_short =
        || Error::new(ErrorKind::InvalidOperation, "truncate leaves no room for what ends the text");
    let kept = kept.ok_or_else(too_short)?;
    // A list that is short enough stays one.
    let len = if value.is_undefined() { Some(0) } else { value.len() };
    if len.is_some_and(|len| len <= length.saturating_add(leeway)) {
        return Ok(value.clone());
    }
    let not_a_text = || Error::new(ErrorKind::InvalidOperation, "truncate takes a text");
    let text = value.as_str().ok_or_else(not_a_text)?;
    let kept = &text[..text.char_indices().nth(kept).map_or(text.len(), |(at, _)| at)];
    let words = kept.rsplit_once(' ').filter(|_| !cuts_words);
    Ok(Value::from(words.map_or(kept, |(words, _)| words).to_owned() + &end))
}

/// The filter `center`.
pub(super) fn center(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let mut args = Arguments::of(args)?;
    let width = args.get("width")?.unwrap_or(80);
    args.finish()?;
    Ok(centered(&to_str(value)?, width, ' '))
}

/// The filter `filesizeformat`.
pub(super) fn filesizeformat(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let mut args = Arguments::of(args)?;
    let (base, kilo, between) =
        if args.flag("binary", false)? { (1024.0, 'K', "i") } else { (1000.0, 'k', "") };
    args.finish()?;
    let not_a_number = || Error::new(ErrorKind::InvalidOperation, "a size in bytes must be a number");
    let bytes: f64 = match value.as_str() {
        Some(text) => text.trim().parse().map_err(|_| not_a_number())?,
        None => f64::try_from(value.clone())?,
    };
    if bytes == 1.0 {
        return Ok("1 Byte".to_owned());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc() as i64));
    }
    let prefixes = [kilo, 'M', 'G', 'T', 'P', 'E', 'Z', 'Y'];
    let mut unit = base;
    let mut prefixes = prefixes.into_iter().peekable();
    while let Some(prefix) = prefixes.next() {
        if bytes < unit * base || prefixes.peek().is_none() {
            return Ok(format!("{:.1} {prefix}{between}B", bytes / unit));
        }
        unit *= base;
    }
    Err(not_a_number())
}

/// The filter `wordwrap`: Python's `textwrap.wrap` of each line.
pub(super) fn wordwrap(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let mut args = Arguments::of(args)?;
    let width: usize = args.get("width")?.unwrap_or(79);
    let cuts_words = args.flag("break_long_words", true)?;
    let between = args.text("wrapstring")?.unwrap_or_else(|| "\n".to_owned());
    let cuts_at_hyphens = args.flag("break_on_hyphens", true)?;
    args.finish()?;
    if width == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "a text cannot be wrapped to no width"));
    }
    let text = to_str(value)?;
    let mut out = Vec::new();
    for line in lines(&text, false) {
        let wrapped = Wrapped { line: line.chars().collect(), width, cuts_words, cuts_at_hyphens }.lines();
        charge(wrapped.iter().map(|line| line.len() + between.len()).sum())?;
        out.push(wrapped.join(&between));
    }
    charge(out.len().saturating_mul(between.len()))?;
    Ok(out.join(&between))
}

/// A line that is wrapped.
struct Wrapped {
    line: Vec<char>,
    width: usize,
    cuts_words: bool,
    cuts_at_hyphens: bool,
}

impl Wrapped {
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let is_blank = |start: usize, end: usize| self.line[start..end].iter().all(|&c| is_space(c));
        // Pieces that are still to come, as starts and ends, the next one last.
        let mut pieces = self.pieces();
        pieces.reverse();
        while let Some(&(mut start, end)) = pieces.last() {
            if !lines.is_empty() && is_blank(start, end) {
                pieces.pop();
                let Some(&(next, _)) = pieces.last() else { break };
                start = next;
            }
            let (mut stop, mut last) = (start, start);
            while let Some(&(from, to)) = pieces.last().filter(|(_, to)| to - start <= self.width) {
                pieces.pop();
                (last, stop) = (from, to);
            }
            if let Some(piece) = pieces.last_mut().filter(|(from, to)| to - from > self.width) {
                let room = self.width - (stop - start);
                // Where no room is left Python adds an empty piece, and so keeps the white space before it.
                if self.cuts_words {
                    last = stop;
                    stop += self.cut(&self.line[piece.0..piece.1], room);
                    piece.0 = stop;
                } else if stop == start {
                    stop = piece.1;
                    pieces.pop();
                }
            }
            if last < stop && is_blank(last, stop) {
                stop = last;
            }
            if start < stop {
                lines.push(self.line[start..stop].iter().collect());
            }
        }
        lines
    }

    /// How much of a piece that is longer than a line goes into the room that is left: up to a hyphen if there is one.
    fn cut(&self, piece: &[char], room: usize) -> usize {
        let hyphen = piece[..room].iter().rposition(|&c| c == '-').filter(|_| self.cuts_at_hyphens);
        let hyphen = hyphen.filter(|&at| piece[..at].iter().any(|&c| c != '-'));
        hyphen.map_or(room, |at| at + 1)
    }

    /// White space, words, parts of words up to a hyphen, and dashes between words.
    fn pieces(&self) -> Vec<(usize, usize)> {
        let is_white = |at: usize| matches!(self.line[at], '\t' | '\n' | '\u{b}' | '\u{c}' | '\r' | ' ');
        let mut pieces = Vec::new();
        let mut start = 0;
        for at in 1..=self.line.len() {
            let ends = at == self.line.len()
                || is_white(at) != is_white(at - 1)
                || self.cuts_at_hyphens && !is_white(at) && self.is_hyphenated(start, at);
            if ends {
                pieces.push((start, at));
                start = at;
            }
        }
        pieces
    }

    /// Whether a piece that starts at `start` ends before `at` within a word.
    fn is_hyphenated(&self, start: usize, at: usize) -> bool {
        let c = |at: Option<usize>| at.and_then(|at| self.line.get(at)).copied().unwrap_or(' ');
        let before = |count: usize| c(at.checked_sub(count));
        let after = |count: usize| c(at.checked_add(count));
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let is_letter = |c: char| is_word(c) && !c.is_numeric();
        let is_word_or_mark = |c: char| is_word(c) || matches!(c, '!' | '"' | '\'' | '&' | '.' | ',' | '?');
        let hyphens = |from: usize| self.line[from..].iter().take_while(|&&c| c == '-').count();
        if before(1) == '-' {
            // The end of a dash, which started a piece. Asked last, since it goes through the piece.
            let is_dash = || at - start >= 2 && self.line[start..at].iter().all(|&c| c == '-');
            let follows_word = start > 0 && is_word_or_mark(self.line[start - 1]);
            if is_word(after(0)) && follows_word && is_dash() {
                return true;
            }
            let is_second = is_letter(before(3)) && is_letter(before(2));
            let is_third = is_letter(before(4)) && before(3) == '-' && is_letter(before(2));
            let continues =
                is_letter(after(0)) && (is_letter(after(1)) || after(1) == '-' && is_letter(after(2)));
            return at - start >= 2 && (is_second || is_third) && continues;
        }
        // A dash begins.
        let dash = hyphens(at);
        dash >= 2 && is_word_or_mark(before(1)) && is_word(after(dash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_as_in_python() {
        let wrap = |text: &str, width: usize, cuts_words: bool, cuts_at_hyphens: bool| {
            Wrapped { line: text.chars().collect(), width, cuts_words, cuts_at_hyphens }.lines().join("|")
        };
        assert_eq!(wrap("  the quick  brown fox ", 9, true, true), "  the|quick|brown fox");
        assert_eq!(wrap("a well-known fact--it is", 7, true, true), "a well-|known|fact--|it is");
        assert_eq!(wrap("a well-known fact--it is", 7, true, false), "a well-|known f|act--it|is");
        assert_eq!(wrap("abcdefgh ij", 3, false, true), "abcdefgh|ij");
        assert_eq!(wrap("x-2-def a-b-cd", 5, true, true), "x-2-|def|a-b-|cd");
        assert_eq!(wrap("ab cdef", 3, true, true), "ab |cde|f");
        assert_eq!(wrap("", 3, true, true), "");
        assert_eq!(wrap("   ", 3, true, true), "");
    }
}
