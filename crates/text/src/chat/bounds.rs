//! What a rendering may spend on values. The engine counts instructions, but one instruction can
//! double a text, so a template of a few lines could fill the memory.
//!
//! So sizes are added up and have an end: those of results of operators and filters by the filter
//! [`CHECKED`], which the template's syntax tree says where to put; of what is printed; of text in
//! loops; of methods that make texts.
//!
//! The same way through the tree puts filters for operators whose results the engine has wrong or
//! not at all: [`SLICE`], [`SUM`], [`CONCAT`] and [`REMAINDER`].

use std::cell::Cell;

use minijinja::{
    Error, ErrorKind, Value,
    machinery::{
        ast::{BinOp, BinOpKind, CallArg, Expr, Macro, Slice, Spanned, Stmt},
        parse,
    },
    syntax::SyntaxConfig,
};

/// Name of the filter that results go through.
pub(super) const CHECKED: &str = "__checked";

/// Name of the filter that slices become: the engine's own are wrong for steps backwards, and for
/// what has no slices.
pub(super) const SLICE: &str = "__slice";

/// Name of the filter that sums become in templates that mark texts as safe.
pub(super) const SUM: &str = "__sum";

/// Name of the filter that `~` becomes: the engine writes numbers in other ways than Python.
pub(super) const CONCAT: &str = "__concat";

/// Name of the filter that remainders become: `%` also writes values into a text.
pub(super) const REMAINDER: &str = "__remainder";

/// Bytes of values that one rendering may make, in all. Templates copy a message a few times.
const MOST_BYTES: usize = 128 << 20;

/// Longest prompt, and longest text that a value is printed as, in bytes.
pub(super) const LONGEST_TEXT: usize = 16 << 20;

/// What is said of a prompt or a value of more than [`LONGEST_TEXT`].
pub(super) const TOO_LONG: &str = "the text is longer than 16 MiB";

/// Name of a model's template in its environment, shown in error messages.
pub(super) const NAME: &str = "chat_template";

/// What an element of a list counts.
const ELEMENT_BYTES: usize = size_of::<Value>();

thread_local! {
    /// What the rendering of this thread has made. Each rendering has a thread of its own.
    static SPENT: Cell<usize> = const { Cell::new(0) };
}

/// Longest template. The largest published ones have some 30 KB.
pub(super) const LONGEST_SOURCE: usize = 256 << 10;

/// Counts elements of lists that are about to be made.
pub(super) fn charge_elements(count: usize) -> Result<(), Error> {
    charge(count.saturating_mul(ELEMENT_BYTES))
}

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

/// The source with every growing expression in [`CHECKED`] and the operators and slices as filters,
/// and how many bytes of it are text. Lines stay where they are.
///
/// # Errors
/// Those of the parser.
pub(super) fn rewrite(source: &str, syntax: SyntaxConfig) -> Result<(String, usize), Error> {
    let escapes = escapes(source);
    let mut growing = Growing { source, escapes, marks: Vec::new(), text_bytes: 0 };
    growing.statement(&parse(source, NAME, syntax)?);
    let mut marks = growing.marks;
    // What belongs to an inner expression comes before what belongs to the one around it; the order
    // of insertion says which is which where two end in one place.
    marks.sort_by_key(|mark| mark.at);
    let mut out = String::with_capacity(source.len() + 16 * marks.len());
    let mut at = 0;
    for Mark { at: offset, replaced, text } in marks {
        out.push_str(source.get(at..offset).unwrap_or_default());
        out.push_str(text);
        at = offset + replaced;
    }
    out.push_str(&source[at..]);
    Ok((out, growing.text_bytes))
}

/// Whether a template has filters that mark a text as safe. Jinja2 escapes what is added to such a
/// text, also where it escapes nothing else.
fn escapes(source: &str) -> bool {
    source.split('|').skip(1).any(|filter| {
        let filter = filter.trim_start();
        let end = filter.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(filter.len());
        matches!(&filter[..end], "safe" | "e" | "escape" | "forceescape")
    })
}

/// Where an expression ends, without brackets around it.
fn end_of(expression: &Expr<'_>) -> usize {
    expression.span().end_offset as usize
}

/// Where what is sliced starts. Of several things that follow an operand, the first has the span
/// that starts there.
fn start_of(slice: &Spanned<Slice<'_>>) -> usize {
    let (mut span, mut expression) = (slice.span(), &slice.expr);
    loop {
        (span, expression) = match expression {
            Expr::Slice(slice) => (slice.span(), &slice.expr),
            Expr::GetAttr(attribute) => (attribute.span(), &attribute.expr),
            Expr::GetItem(item) => (item.span(), &item.expr),
            Expr::Call(call) => (call.span(), &call.expr),
            _ => return span.start_offset as usize,
        };
    }
}

/// What is to be put into a template.
struct Mark {
    at: usize,
    /// Bytes that it takes the place of.
    replaced: usize,
    text: &'static str,
}

/// Where the growing expressions of a template are.
struct Growing<'a> {
    source: &'a str,
    /// Sums may have to escape what is added to a text that is marked as safe.
    escapes: bool,
    marks: Vec<Mark>,
    /// Length of the text between tags.
    text_bytes: usize,
}

impl Growing<'_> {
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

    fn insert(&mut self, at: usize, text: &'static str) {
        self.marks.push(Mark { at, replaced: 0, text });
    }

    /// Puts a text in the place of a character.
    fn replace(&mut self, at: usize, text: &'static str) {
        self.marks.push(Mark { at, replaced: 1, text });
    }

    /// Where a character is, if only brackets that close around what ends at `from`, and white
    /// space, come before it.
    fn find(&self, from: usize, wanted: char) -> Option<usize> {
        let rest = self.source.get(from..)?;
        let at = rest.find(|c: char| !(c == ')' || c.is_whitespace()))?;
        rest[at..].starts_with(wanted).then_some(from + at)
    }

    /// Where the brackets and colons of a slice are, those before a step only if there is one.
    fn places(&self, slice: &Spanned<Slice<'_>>) -> Option<(usize, usize, Option<usize>, usize)> {
        let open = self.find(end_of(&slice.expr), '[')?;
        let first = self.find(slice.start.as_ref().map_or(open + 1, end_of), ':')?;
        let second = self.find(slice.stop.as_ref().map_or(first + 1, end_of), ':');
        let close = (slice.span().end_offset as usize).checked_sub(1)?;
        let is_whole = second.is_some() == slice.step.is_some() && self.find(close, ']').is_some();
        is_whole.then_some((open, first, second, close))
    }

    /// `a[b:c]` becomes `(a|__slice(b,c))`, and `a[b:c:d]` `(a|__slice(b,c,d))`.
    fn slice(&mut self, slice: &Spanned<Slice<'_>>) {
        let places = self.places(slice);
        if places.is_some() {
            self.insert(start_of(slice), "(");
        }
        self.expression(&slice.expr);
        for bound in [&slice.start, &slice.stop, &slice.step] {
            self.optional(bound.as_ref());
        }
        let Some((open, first, second, close)) = places else { return };
        let comma = |bound: &Option<Expr<'_>>| if bound.is_some() { "," } else { "none," };
        let end = if second.is_some() || slice.stop.is_some() { "))" } else { "none))" };
        self.replace(open, "|__slice(");
        self.replace(first, comma(&slice.start));
        if let Some(second) = second {
            self.replace(second, comma(&slice.stop));
        }
        self.replace(close, end);
    }

    /// `a ~ b` becomes `([a,b])|__concat`, other growing operators `(a * b)|__checked`.
    fn operation(&mut self, operation: &Spanned<BinOp<'_>>) {
        let pair = match operation.op {
            BinOpKind::Rem => Some(('%', "])|__remainder")),
            BinOpKind::Concat => Some(('~', "])|__concat")),
            BinOpKind::Add if self.escapes => Some(('+', "])|__sum")),
            _ => None,
        };
        // Where the operator is, and what ends the pair of its operands.
        let pair = pair.and_then(|(symbol, end)| Some((self.find(end_of(&operation.left), symbol)?, end)));
        let grows = matches!(operation.op, BinOpKind::Add | BinOpKind::Mul | BinOpKind::Concat);
        let (open, close) = match pair {
            Some((_, end)) => ("([", end),
            None if grows => ("(", ")|__checked"),
            None => ("", ""),
        };
        let span = operation.span();
        self.insert(span.start_offset as usize, open);
        self.expression(&operation.left);
        if let Some((operator, _)) = pair {
            self.replace(operator, ",");
        }
        self.expression(&operation.right);
        self.insert(span.end_offset as usize, close);
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
            Expr::Slice(slice) => self.slice(slice),
            Expr::UnaryOp(operation) => self.expression(&operation.expr),
            Expr::BinOp(operation) => self.operation(operation),
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
                self.insert(filter.span().end_offset as usize, "|__checked");
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
            ("{{ a ~ b }}", "{{ ([a , b])|__concat }}"),
            ("{{ a + b * c }}", "{{ (a + (b * c)|__checked)|__checked }}"),
            ("{{ (a) ~ b ~ f(c + d) }}", "{{ ([([(a) , b])|__concat , f((c + d)|__checked)])|__concat }}"),
            ("{{ a | trim | upper }}", "{{ a | trim|__checked | upper|__checked }}"),
            ("{{ a | f(b ~ c) }}", "{{ a | f(([b , c])|__concat)|__checked }}"),
            ("{{ a ~ b | trim }}", "{{ ([a , b | trim|__checked])|__concat }}"),
            ("{% set a = b ~ 'x' if c - 1 else d %}", "{% set a = ([b , 'x'])|__concat if c - 1 else d %}"),
            (
                "{% if a ~ b is string -%} x {%- endif %}",
                "{% if ([a , b is string])|__concat -%} x {%- endif %}",
            ),
            ("{% set a | upper %}{{ b }}{% endset %}", "{% set a | upper %}{{ b }}{% endset %}"),
            (
                "{% for a in b[1:] + c %}é{{ a + 1 }}{% endfor %}",
                "{% for a in ((b|__slice(1,none)) + c)|__checked %}é{{ (a + 1)|__checked }}{% endfor %}",
            ),
        ];
        for (source, rewritten) in cases {
            let (found, _) = rewrite(source, SyntaxConfig::default()).unwrap();
            assert_eq!(found, rewritten);
        }
        for (source, rewritten) in [
            ("{{ a[::-1] }}", "{{ (a|__slice(none,none,-1)) }}"),
            ("{{ (a) [ 1 :(2): b ].c }}", "{{ ((a) |__slice( 1 ,(2), b )).c }}"),
            (
                "{{ f(a[1:]) [b[::2] : : -1] }}",
                "{{ (f((a|__slice(1,none))) |__slice((b|__slice(none,none,2)) , none, -1)) }}",
            ),
            ("{{ a.b[1:][::-1] }}", "{{ ((a.b|__slice(1,none))|__slice(none,none,-1)) }}"),
            ("{{ [1, 2][::c + d] }}", "{{ ([1, 2]|__slice(none,none,(c + d)|__checked)) }}"),
            ("{{ a[:1] }}{{ a[:] [b] }}", "{{ (a|__slice(none,1)) }}{{ (a|__slice(none,none)) [b] }}"),
            ("{{ (a | f)[1:].b }}", "{{ ((a | f|__checked)|__slice(1,none)).b }}"),
            ("{{ -(a if b else c)[0][:1] }}", "{{ -((a if b else c)[0]|__slice(none,1)) }}"),
            (
                "{{ (a.b)[1:] ~ (c(d)[e])[f:] }}",
                "{{ ([((a.b)|__slice(1,none)) , ((c(d)[e])|__slice(f,none))])|__concat }}",
            ),
            ("{{ a[1:2:] }}{{ '[::-1]' }}", "{{ a[1:2:] }}{{ '[::-1]' }}"),
            ("{{ a % b + (c)%(d) }}", "{{ (([a , b])|__remainder + ([(c),(d)])|__remainder)|__checked }}"),
            ("{{ a % b % c.d[0] }}", "{{ ([([a , b])|__remainder , c.d[0]])|__remainder }}"),
        ] {
            assert_eq!(rewrite(source, SyntaxConfig::default()).unwrap().0, rewritten);
        }
        for (source, rewritten) in [
            ("{{ a|safe + b }}", "{{ ([a|safe|__checked , b])|__sum }}"),
            ("{{ a * b+(c) + d | e }}", "{{ ([([(a * b)|__checked,(c)])|__sum , d | e|__checked])|__sum }}"),
            ("{{ a | safer + b }}", "{{ (a | safer|__checked + b)|__checked }}"),
        ] {
            assert_eq!(rewrite(source, SyntaxConfig::default()).unwrap().0, rewritten);
        }
        assert_eq!(rewrite("ab{{ 'c' }}\n", SyntaxConfig::default()).unwrap().1, 2);
    }
}
