//! Rewrites a template by its syntax tree. The result limits its work, marks its own text, and has
//! operators with Jinja2's semantics.
//!
//! * Text between tags, and string literals that can reach the prompt, are marked as template text
//!   (`origin`). Literals used for comparison or look-up stay plain.
//! * Operands of comparisons, searches and look-ups go through filters that charge the work and see
//!   plain characters: [`PLAIN`], [`ITEM`].
//! * New values go through [`CHECKED`], [`LITERAL`] and [`STORED`], which charge them. (Results of
//!   filters, tests and methods are charged where those are registered.)
//! * Slices, sums, `~` and `%` become filters: the engine lacks them or differs from Jinja2.

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

/// Name of the filter for results of operators and calls.
pub(super) const CHECKED: &str = "__checked";

/// Name of the filter for literal lists, tuples and mappings.
pub(super) const LITERAL: &str = "__literal";

/// Name of the filter for values that namespaces store.
pub(super) const STORED: &str = "__stored";

/// Name of the filter for operands of comparisons, and for keys.
pub(super) const PLAIN: &str = "__plain";

/// Name of the filter for values that are indexed by position.
pub(super) const ITEM: &str = "__item";

/// Name of the filter that replaces slices. The engine's own are wrong for negative steps and for
/// values without slices.
pub(super) const SLICE: &str = "__slice";

/// Name of the filter that replaces sums: in templates that mark texts as safe, it escapes.
pub(super) const SUM: &str = "__sum";

/// Name of the filter that replaces `~`: the engine formats numbers differently from Python.
pub(super) const CONCAT: &str = "__concat";

/// Name of the filter that replaces `%`, which also formats strings.
pub(super) const REMAINDER: &str = "__remainder";

/// A rewritten template.
#[derive(Debug)]
pub(super) struct Rewritten {
    pub(super) source: String,
    /// Bytes of text between tags.
    pub(super) text_bytes: usize,
}

/// Rewrites a source whose nesting was checked. Line numbers stay the same.
///
/// # Errors
/// Errors of the parser, and a syntax error for statements that Jinja2 in transformers lacks.
pub(super) fn rewrite(source: &str, syntax: SyntaxConfig) -> Result<Rewritten, Error> {
    let mut rewriter = Rewriter { source, marks: Vec::new(), text_bytes: 0, refused: None };
    rewriter.statement(&parse(source, NAME, syntax)?);
    if let Some((statement, line)) = rewriter.refused {
        let message = format!("the statement {statement} is not supported (line {line})");
        return Err(Error::new(ErrorKind::SyntaxError, message));
    }
    let mut marks = rewriter.marks;
    // Insertions of an inner expression precede those of the outer one; the sort is stable.
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

/// True if a template has filters that mark a text as safe. Jinja2 escapes strings that are added
/// to such a text, even without autoescape.
pub(super) fn escapes(source: &str) -> bool {
    source.split('|').skip(1).any(|filter| {
        let filter = filter.trim_start();
        let end = filter.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(filter.len());
        matches!(&filter[..end], "safe" | "e" | "escape" | "forceescape")
    })
}

/// Insertion or replacement in a template.
struct Mark {
    at: usize,
    /// Number of bytes that it replaces.
    replaced: usize,
    text: Cow<'static, str>,
}

/// Destination of an expression's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// May reach the prompt: literals are template text.
    Written,
    /// Is compared or looked up: literals are plain.
    Compared,
}

struct Rewriter<'a> {
    source: &'a str,
    marks: Vec<Mark>,
    /// Length of the text between tags in bytes.
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
                // The call is part of the statement's syntax.
                self.call(&call.call);
                self.definition(&call.macro_decl);
            }
            Stmt::EmitRaw(text) => self.text(text.raw),
            Stmt::Continue(_) | Stmt::Break(_) => {}
            // Jinja2 has no such statement, or transformers provides no templates to load.
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

    /// Marks text between tags.
    fn text(&mut self, raw: &str) {
        let text = origin::marked(raw);
        self.text_bytes += raw.len();
        // The engine returns slices of the source.
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

    /// Rewrites the filters of a block: they have no input value, only argument expressions.
    fn block_filter(&mut self, filter: Option<&Expr<'_>>) {
        if let Some(Expr::Filter(filter)) = filter {
            self.block_filter(filter.expr.as_ref());
            self.arguments(&filter.args, expressions::use_in_filter(filter.name));
        }
    }

    fn insert(&mut self, at: usize, text: &'static str) {
        self.marks.push(Mark { at, replaced: 0, text: Cow::Borrowed(text) });
    }

    /// Replaces one character by a text.
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
