//! What a rendering may spend on values. The engine counts instructions, but one instruction can double a text, so a
//! template of a few lines could fill the memory.
//!
//! So sizes are added up and have an end: those of results of operators and filters by the filter [`CHECKED`], which the
//! template's syntax tree says where to put; of what is printed; of text in loops; of methods that make texts.

use std::cell::Cell;

use minijinja::{
    Error, ErrorKind, Value,
    machinery::{
        ast::{BinOpKind, CallArg, Expr, Macro, Stmt},
        parse,
    },
    syntax::SyntaxConfig,
};

/// Name of the filter that results go through.
pub(super) const CHECKED: &str = "__checked";

/// Bytes of values that one rendering may make, in all. Templates copy a message a few times.
const MOST_BYTES: usize = 128 << 20;

/// What an element of a list counts.
const ELEMENT_BYTES: usize = size_of::<Value>();

thread_local! {
    /// What the rendering of this thread has made. Each rendering has a thread of its own.
    static SPENT: Cell<usize> = const { Cell::new(0) };
}

/// Longest template. The largest published ones have some 30 KB.
pub(super) const LONGEST_SOURCE: usize = 256 << 10;

/// Counts bytes that are about to be made, or were made.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    let spent = SPENT.get().saturating_add(bytes);
    SPENT.set(spent);
    if spent > MOST_BYTES {
        let most = MOST_BYTES >> 20;
        let message = format!("the template makes values of more than {most} MiB in all");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    Ok(())
}

/// The filter: counts a value and gives it back.
pub(super) fn checked(value: Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => charge(text.len())?,
        None => charge(value.len().unwrap_or(0).saturating_mul(ELEMENT_BYTES))?,
    }
    Ok(value)
}

/// The source with every growing expression in [`CHECKED`], and how many bytes of it are text. Lines stay where they
/// are.
///
/// # Errors
/// Those of the parser.
pub(super) fn rewrite(source: &str, syntax: SyntaxConfig) -> Result<(String, usize), Error> {
    let mut growing = Growing::default();
    growing.statement(&parse(source, super::NAME, syntax)?);
    let mut marks = growing.marks;
    // What belongs to an inner expression comes before what belongs to the one around it; the order of insertion says
    // which is which where two end in one place.
    marks.sort_by_key(|&(offset, _)| offset);
    let mut out = String::with_capacity(source.len() + 16 * marks.len());
    let mut at = 0;
    for (offset, mark) in marks {
        out.push_str(&source[at..offset]);
        out.push_str(mark);
        at = offset;
    }
    out.push_str(&source[at..]);
    Ok((out, growing.text_bytes))
}

/// Where the growing expressions of a template are.
#[derive(Default)]
struct Growing {
    /// What is to be put in, and where.
    marks: Vec<(usize, &'static str)>,
    /// Length of the text between tags.
    text_bytes: usize,
}

impl Growing {
    fn statements(&mut self, statements: &[Stmt<'_>]) {
        statements.iter().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &Stmt<'_>) {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitExpr(emit) => self.expression(&emit.expr),
            Stmt::ForLoop(each) => {
                self.expression(&each.iter);
                self.optional(each.filter_expr.as_ref());
                self.statements(&each.body);
                self.statements(&each.else_body);
            }
            Stmt::IfCond(condition) => {
                self.expression(&condition.expr);
                self.statements(&condition.true_body);
                self.statements(&condition.false_body);
            }
            Stmt::WithBlock(with) => {
                with.assignments.iter().for_each(|(_, value)| self.expression(value));
                self.statements(&with.body);
            }
            Stmt::Set(set) => self.expression(&set.expr),
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
                self.expression(&call.call.expr);
                self.arguments(&call.call.args);
                self.definition(&call.macro_decl);
            }
            Stmt::Do(done) => {
                self.expression(&done.call.expr);
                self.arguments(&done.call.args);
            }
            Stmt::EmitRaw(text) => self.text_bytes += text.raw.len(),
            Stmt::Continue(_)
            | Stmt::Break(_)
            | Stmt::Import(_)
            | Stmt::FromImport(_)
            | Stmt::Extends(_)
            | Stmt::Include(_) => {}
        }
    }

    fn definition(&mut self, definition: &Macro<'_>) {
        definition.defaults.iter().for_each(|value| self.expression(value));
        self.statements(&definition.body);
    }

    /// The filters of a block have no value before them; only their arguments are expressions.
    fn block_filter(&mut self, filter: Option<&Expr<'_>>) {
        if let Some(Expr::Filter(filter)) = filter {
            self.block_filter(filter.expr.as_ref());
            self.arguments(&filter.args);
        }
    }

    fn optional(&mut self, expression: Option<&Expr<'_>>) {
        expression.into_iter().for_each(|expression| self.expression(expression));
    }

    fn arguments(&mut self, arguments: &[CallArg<'_>]) {
        for argument in arguments {
            match argument {
                CallArg::Pos(value)
                | CallArg::Kwarg(_, value)
                | CallArg::PosSplat(value)
                | CallArg::KwargSplat(value) => self.expression(value),
            }
        }
    }

    fn expression(&mut self, expression: &Expr<'_>) {
        match expression {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(slice) => {
                self.expression(&slice.expr);
                for bound in [&slice.start, &slice.stop, &slice.step] {
                    self.optional(bound.as_ref());
                }
            }
            Expr::UnaryOp(operation) => self.expression(&operation.expr),
            Expr::BinOp(operation) => {
                self.expression(&operation.left);
                self.expression(&operation.right);
                if matches!(operation.op, BinOpKind::Add | BinOpKind::Mul | BinOpKind::Concat) {
                    let span = operation.span();
                    self.marks.push((span.start_offset as usize, "("));
                    self.marks.push((span.end_offset as usize, ")|__checked"));
                }
            }
            Expr::Compare(comparison) => {
                self.expression(&comparison.expr);
                comparison.ops.iter().for_each(|operation| self.expression(&operation.expr));
            }
            Expr::IfExpr(choice) => {
                self.expression(&choice.test_expr);
                self.expression(&choice.true_expr);
                self.optional(choice.false_expr.as_ref());
            }
            Expr::Filter(filter) => {
                self.optional(filter.expr.as_ref());
                self.arguments(&filter.args);
                self.marks.push((filter.span().end_offset as usize, "|__checked"));
            }
            Expr::Test(test) => {
                self.expression(&test.expr);
                self.arguments(&test.args);
            }
            Expr::GetAttr(attribute) => self.expression(&attribute.expr),
            Expr::GetItem(item) => {
                self.expression(&item.expr);
                self.expression(&item.subscript_expr);
            }
            Expr::Call(call) => {
                self.expression(&call.expr);
                self.arguments(&call.args);
            }
            Expr::List(list) => list.items.iter().for_each(|item| self.expression(item)),
            Expr::Tuple(tuple) => tuple.items.iter().for_each(|item| self.expression(item)),
            Expr::Map(map) => map.keys.iter().chain(&map.values).for_each(|item| self.expression(item)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_expressions_are_checked() {
        let cases = [
            ("{{ a ~ b }}", "{{ (a ~ b)|__checked }}"),
            ("{{ a + b * c }}", "{{ (a + (b * c)|__checked)|__checked }}"),
            ("{{ (a) ~ b ~ f(c + d) }}", "{{ (((a) ~ b)|__checked ~ f((c + d)|__checked))|__checked }}"),
            ("{{ a | trim | upper }}", "{{ a | trim|__checked | upper|__checked }}"),
            ("{{ a | f(b ~ c) }}", "{{ a | f((b ~ c)|__checked)|__checked }}"),
            ("{{ a ~ b | trim }}", "{{ (a ~ b | trim|__checked)|__checked }}"),
            ("{% set a = b ~ 'x' if c - 1 else d %}", "{% set a = (b ~ 'x')|__checked if c - 1 else d %}"),
            (
                "{% if a ~ b is string -%} x {%- endif %}",
                "{% if (a ~ b is string)|__checked -%} x {%- endif %}",
            ),
            ("{% set a | upper %}{{ b }}{% endset %}", "{% set a | upper %}{{ b }}{% endset %}"),
            (
                "{% for a in b[1:] + c %}é{{ a + 1 }}{% endfor %}",
                "{% for a in (b[1:] + c)|__checked %}é{{ (a + 1)|__checked }}{% endfor %}",
            ),
        ];
        for (source, rewritten) in cases {
            let (found, _) = rewrite(source, SyntaxConfig::default()).unwrap();
            assert_eq!(found, rewritten);
        }
        assert_eq!(rewrite("ab{{ 'c' }}\n", SyntaxConfig::default()).unwrap().1, 2);
    }
}
