//! Rewriting of expressions: literals, operators, subscripts and calls.

use std::borrow::Cow;
use std::mem::discriminant;

use minijinja::machinery::{
    Span,
    ast::{BinOp, BinOpKind, Call, CallArg, CallType, Const, Expr, GetItem, Slice, Spanned, Test},
};

use super::{
    Mark, Rewriter, Use,
    offsets::{end_of, has_brackets, is_comparison, is_constant, is_small, start_of},
};
use crate::chat::origin;

/// Use of literals in arguments of a filter.
pub(super) fn use_in_filter(name: &str) -> Use {
    match name {
        "default" | "d" | "replace" | "join" | "format" | "indent" | "truncate" => Use::Written,
        _ => Use::Compared,
    }
}

/// Use of literals in arguments of a method.
fn use_in_method(name: &str) -> Use {
    match name {
        "replace" | "format" | "get" | "cycle" => Use::Written,
        _ => Use::Compared,
    }
}

/// Use of literals in arguments of a function. Macros are functions too.
fn use_in_function(name: &str) -> Use {
    match name {
        "range" | "strftime_now" | "raise_exception" => Use::Compared,
        _ => Use::Written,
    }
}

/// Positions from this one on are charged: a string is searched for them from its start.
const NEAR: i64 = 64;

impl Rewriter<'_> {
    pub(super) fn expression(&mut self, expression: &Expr<'_>, goes: Use) {
        match expression {
            Expr::Var(_) => {}
            Expr::Const(constant) => self.literal(constant, goes),
            Expr::Slice(slice) => self.slice(slice),
            Expr::UnaryOp(operation) => self.expression(&operation.expr, Use::Compared),
            Expr::BinOp(operation) => self.operation(operation, goes),
            Expr::Compare(comparison) => {
                let operands: Vec<&Expr<'_>> = std::iter::once(&comparison.expr)
                    .chain(comparison.ops.iter().map(|operation| &operation.expr))
                    .collect();
                operands.into_iter().for_each(|operand| self.compared(operand));
            }
            Expr::IfExpr(choice) => {
                self.expression(&choice.true_expr, goes);
                self.expression(&choice.test_expr, Use::Compared);
                self.optional(choice.false_expr.as_ref(), goes);
            }
            Expr::Filter(filter) => {
                if let Some(input) = &filter.expr {
                    self.direct(input);
                }
                self.arguments(&filter.args, use_in_filter(filter.name));
            }
            Expr::Test(test) => self.test(test),
            Expr::GetAttr(attribute) => self.expression(&attribute.expr, Use::Written),
            Expr::GetItem(item) => self.item(item),
            Expr::Call(call) => {
                self.insert(start_of(expression), "((");
                self.call(call);
                self.insert(end_of(expression), ")|__checked)");
            }
            Expr::List(list) => self.collection(expression, &list.items, goes),
            Expr::Tuple(tuple) => self.collection(expression, &tuple.items, goes),
            Expr::Map(map) => {
                let is_made = !is_constant(expression);
                if is_made {
                    self.insert(start_of(expression), "(");
                }
                for (key, value) in map.keys.iter().zip(&map.values) {
                    self.compared(key);
                    self.expression(value, goes);
                }
                if is_made {
                    self.insert(end_of(expression), "|__literal)");
                }
            }
        }
    }

    /// Rewrites an expression whose value is charged by its consumer. It is printed, iterated, or
    /// passed to a filter.
    pub(super) fn direct(&mut self, expression: &Expr<'_>) {
        match expression {
            Expr::Call(call) if !matches!(call.identify_call(), CallType::Block(_)) => self.call(call),
            _ => self.expression(expression, Use::Written),
        }
    }

    /// Rewrites an expression and passes its value through a filter.
    pub(super) fn wrapped(
        &mut self,
        expression: &Expr<'_>,
        goes: Use,
        filter: &'static str,
        in_brackets: &'static str,
    ) {
        let binds = matches!(
            expression,
            Expr::Var(_)
                | Expr::Slice(_)
                | Expr::GetAttr(_)
                | Expr::GetItem(_)
                | Expr::Call(_)
                | Expr::Filter(_)
                | Expr::List(_)
                | Expr::Map(_)
        );
        if !binds {
            self.insert(start_of(expression), "(");
        }
        match (expression, goes) {
            (Expr::Call(_), _) => self.direct(expression),
            _ => self.expression(expression, goes),
        }
        self.insert(end_of(expression), if binds { filter } else { in_brackets });
    }

    /// Rewrites an operand of a comparison, or a key.
    fn compared(&mut self, expression: &Expr<'_>) {
        if is_small(expression) || is_constant(expression) {
            self.expression(expression, Use::Compared);
        } else {
            self.wrapped(expression, Use::Compared, "|__plain", ")|__plain");
        }
    }

    /// Rewrites a list or tuple.
    fn collection(&mut self, expression: &Expr<'_>, items: &[Expr<'_>], goes: Use) {
        let is_made = !items.iter().all(is_constant);
        // With its own brackets, so that a tuple without any is one operand.
        let (open, close) =
            if has_brackets(expression) { ("(", "|__literal)") } else { ("((", ")|__literal)") };
        if is_made {
            self.insert(start_of(expression), open);
        }
        items.iter().for_each(|item| self.expression(item, goes));
        if is_made {
            self.insert(end_of(expression), close);
        }
    }

    /// Rewrites a string literal; other literals stay.
    fn literal(&mut self, constant: &Spanned<Const>, goes: Use) {
        let Some(text) = constant.value.as_str() else { return };
        let Span { start_offset, end_offset, .. } = constant.span();
        let (start, end) = (start_offset as usize, end_offset as usize);
        let written = match goes {
            Use::Written => origin::marked(text),
            // Converted as message text is, with which it is compared.
            Use::Compared => match origin::shelter(text) {
                Cow::Borrowed(_) => return,
                Cow::Owned(text) => text,
            },
        };
        let is_quoted = |source: &str| source.starts_with(['\'', '"']) && source.ends_with(['\'', '"']);
        if written == text || !self.source.get(start..end).is_some_and(is_quoted) {
            return;
        }
        let lines = self.source[start..end].matches('\n').count();
        let literal = quoted(&written, lines);
        self.marks.push(Mark { at: start, replaced: end - start, text: Cow::Owned(literal) });
    }

    fn operation(&mut self, operation: &Spanned<BinOp<'_>>, goes: Use) {
        let (left, right) = (&operation.left, &operation.right);
        match operation.op {
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                self.expression(left, goes);
                self.expression(right, goes);
            }
            BinOpKind::In => {
                self.compared(left);
                self.compared(right);
            }
            op if is_comparison(op) => {
                // A comparison with a number takes constant work.
                if is_small(left) || is_small(right) {
                    self.expression(left, Use::Compared);
                    self.expression(right, Use::Compared);
                } else {
                    self.compared(left);
                    self.compared(right);
                }
            }
            BinOpKind::Concat => self.chain(operation, '~', "])|__concat"),
            BinOpKind::Add => self.chain(operation, '+', "])|__sum"),
            BinOpKind::Rem => self.chain(operation, '%', "])|__remainder"),
            BinOpKind::Mul => {
                let span = operation.span();
                self.insert(span.start_offset as usize, "(");
                // Otherwise the compiler would fold the product, without any limit.
                if is_constant(left) && is_constant(right) {
                    self.wrapped(left, Use::Written, "|__checked", ")|__checked");
                } else {
                    self.expression(left, Use::Written);
                }
                self.expression(right, Use::Written);
                self.insert(span.end_offset as usize, ")|__checked");
            }
            _ => {
                self.expression(left, Use::Written);
                self.expression(right, Use::Written);
            }
        }
    }

    /// Rewrites `a ~ b ~ c` to `([a,b,c])|__concat`.
    fn chain(&mut self, operation: &Spanned<BinOp<'_>>, symbol: char, end: &'static str) {
        // Operands from the last to the first, and the operators between them. A remainder has two
        // operands.
        let mut operands = vec![&operation.right];
        let mut operators = Vec::new();
        let mut left = &operation.left;
        let is_chain = loop {
            let Some(at) = self.find(end_of(left), symbol) else { break false };
            operators.push(at);
            match left {
                Expr::BinOp(inner)
                    if discriminant(&inner.op) == discriminant(&operation.op)
                        && symbol != '%'
                        && self.is_bare(end_of(left), at) =>
                {
                    operands.push(&inner.right);
                    left = &inner.left;
                }
                _ => {
                    operands.push(left);
                    break true;
                }
            }
        };
        if !is_chain {
            self.expression(&operation.left, Use::Written);
            self.expression(&operation.right, Use::Written);
            return;
        }
        let span = operation.span();
        self.insert(span.start_offset as usize, "([");
        for operand in operands.into_iter().rev() {
            self.expression(operand, Use::Written);
            if let Some(operator) = operators.pop() {
                self.replace(operator, ",");
            }
        }
        self.insert(span.end_offset as usize, end);
    }

    /// Offset of a character if only closing brackets and white space precede it from `from` on.
    fn find(&self, from: usize, wanted: char) -> Option<usize> {
        let rest = self.source.get(from..)?;
        let at = rest.find(|c: char| !(c == ')' || c.is_whitespace()))?;
        rest[at..].starts_with(wanted).then_some(from + at)
    }

    /// True if no bracket closes between two offsets.
    fn is_bare(&self, from: usize, to: usize) -> bool {
        self.source.get(from..to).is_some_and(|between| !between.contains(')'))
    }

    /// Offsets of the brackets and colons of a slice.
    fn places(&self, slice: &Spanned<Slice<'_>>) -> Option<(usize, usize, Option<usize>, usize)> {
        let open = self.find(end_of(&slice.expr), '[')?;
        let first = self.find(slice.start.as_ref().map_or(open + 1, end_of), ':')?;
        let second = self.find(slice.stop.as_ref().map_or(first + 1, end_of), ':');
        let close = (slice.span().end_offset as usize).checked_sub(1)?;
        self.find(close, ']').map(|close| (open, first, second, close))
    }

    /// Rewrites `a[b:c]` to `(a|__slice(b,c))`, and `a[b:c:d]` to `(a|__slice(b,c,d))`.
    fn slice(&mut self, slice: &Spanned<Slice<'_>>) {
        let places = self.places(slice);
        if places.is_some() {
            self.insert(start_of_slice(slice), "(");
        }
        self.direct(&slice.expr);
        let Some((open, first, second, close)) = places else {
            for bound in [&slice.start, &slice.stop, &slice.step] {
                self.optional(bound.as_ref(), Use::Compared);
            }
            return;
        };
        let comma = |bound: &Option<Expr<'_>>| if bound.is_some() { "," } else { "none," };
        self.replace(open, "|__slice(");
        self.optional(slice.start.as_ref(), Use::Compared);
        self.replace(first, comma(&slice.start));
        self.optional(slice.stop.as_ref(), Use::Compared);
        let last = match second {
            Some(second) => {
                self.replace(second, comma(&slice.stop));
                self.optional(slice.step.as_ref(), Use::Compared);
                &slice.step
            }
            None => &slice.stop,
        };
        self.replace(close, if last.is_some() { "))" } else { "none))" });
    }

    /// Rewrites `a[b]`: finding a position in a string takes work, and keys must be plain.
    fn item(&mut self, item: &Spanned<GetItem<'_>>) {
        let subscript = &item.subscript_expr;
        let is_near = match subscript {
            Expr::Const(constant) => match i64::try_from(constant.value.clone()) {
                Ok(place) => (0..NEAR).contains(&place),
                Err(_) => true,
            },
            _ => false,
        };
        if is_near {
            self.expression(&item.expr, Use::Written);
        } else {
            self.insert(start_of_item(item), "(");
            self.direct(&item.expr);
            self.insert(end_of(&item.expr), "|__item)");
        }
        self.compared(subscript);
    }

    fn test(&mut self, test: &Spanned<Test<'_>>) {
        self.expression(&test.expr, Use::Written);
        // An argument without brackets gets some, as it cannot have filters otherwise.
        let bare = match test.args.as_slice() {
            [CallArg::Pos(argument)] => {
                Some(argument).filter(|argument| !self.source[..start_of(argument)].trim_end().ends_with('('))
            }
            _ => None,
        };
        if let Some(argument) = bare {
            self.insert(start_of(argument), "(");
        }
        self.arguments(&test.args, Use::Compared);
        if let Some(argument) = bare {
            self.insert(end_of(argument), ")");
        }
    }

    /// Rewrites a call, without the charge for its result.
    pub(super) fn call(&mut self, call: &Spanned<Call<'_>>) {
        match call.identify_call() {
            CallType::Function("loop") => {
                // The engine iterates over it directly.
                for argument in &call.args {
                    if let CallArg::Pos(value) = argument {
                        self.wrapped(value, Use::Written, "|__characters", ")|__characters");
                    }
                }
            }
            CallType::Function(name) => self.arguments(&call.args, use_in_function(name)),
            CallType::Block(_) => self.arguments(&call.args, Use::Written),
            CallType::Method(value, "changed") => {
                self.direct(value);
                for argument in &call.args {
                    if let CallArg::Pos(value) = argument {
                        self.wrapped(value, Use::Compared, "|__plain|__stored", ")|__plain|__stored");
                    }
                }
            }
            CallType::Method(value, name) => {
                self.expression(value, Use::Written);
                self.arguments(&call.args, use_in_method(name));
            }
            CallType::Object(value) => {
                self.expression(value, Use::Written);
                self.arguments(&call.args, Use::Written);
            }
        }
    }
}

fn start_of_slice(slice: &Spanned<Slice<'_>>) -> usize {
    match &slice.expr {
        Expr::Slice(_) | Expr::GetAttr(_) | Expr::GetItem(_) | Expr::Call(_) => start_of(&slice.expr),
        _ => slice.span().start_offset as usize,
    }
}

fn start_of_item(item: &Spanned<GetItem<'_>>) -> usize {
    match &item.expr {
        Expr::Slice(_) | Expr::GetAttr(_) | Expr::GetItem(_) | Expr::Call(_) => start_of(&item.expr),
        _ => item.span().start_offset as usize,
    }
}

/// Literal for a text, with as many line breaks as the literal that it replaces.
fn quoted(text: &str, mut lines: usize) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('\'');
    for c in text.chars() {
        match c {
            '\n' if lines > 0 => {
                lines -= 1;
                literal.push('\n');
            }
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            '\\' => literal.push_str("\\\\"),
            '\'' => literal.push_str("\\'"),
            c => literal.push(c),
        }
    }
    literal.push('\'');
    literal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_keep_their_text_and_lines() {
        assert_eq!(quoted("a'\n\\\r\n", 1), "'a\\'\n\\\\\\r\\n'");
    }
}
