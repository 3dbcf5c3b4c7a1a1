//! Rewrites a template's source by its syntax tree, so that what it does is bounded, its text is
//! told from that of messages, and operators do what Jinja2's do.
//!
//! * Text between tags and string literals that can get into the prompt are written with the
//!   template's own characters (`origin`). Literals that something is compared with, or found by,
//!   stay plain.
//! * Operands of comparisons, searches and look-ups go through filters that count the work and see
//!   plain characters: [`PLAIN`], [`ITEM`].
//! * New values go through [`CHECKED`], [`LITERAL`] and [`STORED`], which count them. (Results of
//!   filters, tests and methods are counted where those are.)
//! * Slices, sums, `~` and `%` become filters: the engine has them otherwise or not at all.

use std::borrow::Cow;

use minijinja::{
    Error, ErrorKind,
    machinery::{
        ast::{CallArg, Expr, Macro, Set, Stmt},
        parse,
    },
    syntax::SyntaxConfig,
};

use super::{bounds::NAME, origin};

mod expressions;
mod offsets;
#[cfg(test)]
mod tests;

/// Name of the filter that results of operators and calls go through.
pub(super) const CHECKED: &str = "__checked";

/// Name of the filter that literals of lists and mappings go through.
pub(super) const LITERAL: &str = "__literal";

/// Name of the filter that values go through which namespaces keep.
pub(super) const STORED: &str = "__stored";

/// Name of the filter that operands of comparisons and keys go through.
pub(super) const PLAIN: &str = "__plain";

/// Name of the filter that values go through whose items are taken by their place.
pub(super) const ITEM: &str = "__item";

/// Name of the filter that slices become: the engine's own are wrong for steps backwards, and for
/// what has no slices.
pub(super) const SLICE: &str = "__slice";

/// Name of the filter that sums become: in templates that mark texts as safe they escape.
pub(super) const SUM: &str = "__sum";

/// Name of the filter that `~` becomes: the engine writes numbers in other ways than Python.
pub(super) const CONCAT: &str = "__concat";

/// Name of the filter that remainders become: `%` also writes values into a text.
pub(super) const REMAINDER: &str = "__remainder";

/// A rewritten template.
#[derive(Debug)]
pub(super) struct Rewritten {
    pub(super) source: String,
    /// Bytes of text between tags.
    pub(super) text_bytes: usize,
}

/// Rewrites a source whose nesting was checked. Lines stay where they are.
///
/// # Errors
/// Errors of the parser, and a syntax error for statements that Jinja2 as transformers runs it has
/// not.
pub(super) fn rewrite(source: &str, syntax: SyntaxConfig) -> Result<Rewritten, Error> {
    let mut rewriter = Rewriter { source, marks: Vec::new(), text_bytes: 0, refused: None };
    rewriter.statement(&parse(source, NAME, syntax)?);
    if let Some((statement, line)) = rewriter.refused {
        let message = format!("the statement {statement} is not supported (line {line})");
        return Err(Error::new(ErrorKind::SyntaxError, message));
    }
    let mut marks = rewriter.marks;
    // Marks of an inner expression come before those of the one around it; with equal offsets the
    // order of insertion decides.
    marks.sort_by_key(|mark| mark.at);
    let mut out = String::with_capacity(source.len() * 4 + 16 * marks.len());
    let mut at = 0;
    for Mark { at: offset, replaced, text } in marks {
        out.push_str(source.get(at..offset).unwrap_or_default());
        out.push_str(&text);
        at = offset + replaced;
    }
    out.push_str(source.get(at..).unwrap_or_default());
    Ok(Rewritten { source: out, text_bytes: rewriter.text_bytes })
}

/// True if a template has filters that mark a text as safe. Jinja2 escapes what is added to such a
/// text, also where it escapes nothing else.
pub(super) fn escapes(source: &str) -> bool {
    source.split('|').skip(1).any(|filter| {
        let filter = filter.trim_start();
        let end = filter.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(filter.len());
        matches!(&filter[..end], "safe" | "e" | "escape" | "forceescape")
    })
}

/// Insertion into a template.
struct Mark {
    at: usize,
    /// Bytes that it takes the place of.
    replaced: usize,
    text: Cow<'static, str>,
}

/// Destination of an expression's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Perhaps into the prompt: literals are the template's text.
    Written,
    /// It is compared or looked up: literals are plain.
    Compared,
}

struct Rewriter<'a> {
    source: &'a str,
    marks: Vec<Mark>,
    /// Length of the text between tags.
    text_bytes: usize,
    /// The first statement that is not supported, and its line.
    refused: Option<(&'static str, u16)>,
}

impl Rewriter<'_> {
    fn statements(&mut self, statements: &[Stmt<'_>]) {
        statements.iter().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &Stmt<'_>) {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitExpr(emit) => self.direct(&emit.expr),
            Stmt::ForLoop(each) => {
                self.direct(&each.iter);
                self.optional(each.filter_expr.as_ref(), Use::Compared);
                self.statements(&each.body);
                self.statements(&each.else_body);
            }
            Stmt::IfCond(condition) => {
                self.expression(&condition.expr, Use::Compared);
                self.statements(&condition.true_body);
                self.statements(&condition.false_body);
            }
            Stmt::WithBlock(with) => {
                with.assignments.iter().for_each(|(_, value)| self.expression(value, Use::Written));
                self.statements(&with.body);
            }
            Stmt::Set(set) => self.set(set),
            Stmt::SetBlock(set) => {
                self.block_filter(set.filter.as_ref());
                self.statements(&set.body);
            }
            Stmt::AutoEscape(escape) => self.statements(&escape.body),
            Stmt::FilterBlock(filter) => {
                self.block_filter(Some(&filter.filter));
                self.statements(&filter.body);
            }
            Stmt::Block(block) => self.statements(&block.body),
            Stmt::Macro(definition) => self.definition(definition),
            Stmt::CallBlock(call) => {
                // The call itself is part of the statement's syntax.
                self.call(&call.call);
                self.definition(&call.macro_decl);
            }
            Stmt::EmitRaw(text) => self.text(text.raw),
            Stmt::Continue(_) | Stmt::Break(_) => {}
            // Jinja2 has no such statement, or transformers gives it no templates to load.
            Stmt::Do(statement) => self.refuse("do", statement.span().start_line),
            Stmt::Import(statement) => self.refuse("import", statement.span().start_line),
            Stmt::FromImport(statement) => self.refuse("import", statement.span().start_line),
            Stmt::Extends(statement) => self.refuse("extends", statement.span().start_line),
            Stmt::Include(statement) => self.refuse("include", statement.span().start_line),
        }
    }

    fn refuse(&mut self, statement: &'static str, line: u16) {
        self.refused.get_or_insert((statement, line));
    }

    /// Text between tags.
    fn text(&mut self, raw: &str) {
        let text = origin::marked(raw);
        self.text_bytes += raw.len();
        // The engine gives parts of the source as they are.
        let at = (raw.as_ptr() as usize).wrapping_sub(self.source.as_ptr() as usize);
        if self.source.get(at..at.saturating_add(raw.len())) == Some(raw) {
            self.marks.push(Mark { at, replaced: raw.len(), text: Cow::Owned(text) });
        }
    }

    fn set(&mut self, set: &Set<'_>) {
        let is_kept = matches!(set.target, Expr::GetAttr(_)) && !offsets::is_constant(&set.expr);
        if is_kept {
            self.insert(offsets::start_of(&set.expr), "(");
        }
        self.expression(&set.expr, Use::Written);
        if is_kept {
            self.insert(offsets::end_of(&set.expr), ")|__stored");
        }
    }

    fn definition(&mut self, definition: &Macro<'_>) {
        definition.defaults.iter().for_each(|value| self.expression(value, Use::Written));
        self.statements(&definition.body);
    }

    /// The filters of a block have no value before them; only their arguments are expressions.
    fn block_filter(&mut self, filter: Option<&Expr<'_>>) {
        if let Some(Expr::Filter(filter)) = filter {
            self.block_filter(filter.expr.as_ref());
            self.arguments(&filter.args, expressions::use_in_filter(filter.name));
        }
    }

    fn insert(&mut self, at: usize, text: &'static str) {
        self.marks.push(Mark { at, replaced: 0, text: Cow::Borrowed(text) });
    }

    /// Puts a text in the place of a character.
    fn replace(&mut self, at: usize, text: &'static str) {
        self.marks.push(Mark { at, replaced: 1, text: Cow::Borrowed(text) });
    }

    fn optional(&mut self, expression: Option<&Expr<'_>>, goes: Use) {
        expression.into_iter().for_each(|expression| self.expression(expression, goes));
    }

    fn arguments(&mut self, arguments: &[CallArg<'_>], goes: Use) {
        for argument in arguments {
            match argument {
                CallArg::Pos(value) | CallArg::Kwarg(_, value) => self.expression(value, goes),
                CallArg::PosSplat(value) | CallArg::KwargSplat(value) => {
                    self.wrapped(value, goes, "|__checked", ")|__checked");
                }
            }
        }
    }
}
