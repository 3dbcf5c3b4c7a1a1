//! Byte offsets of expressions in a source, and classes of expressions.

use minijinja::machinery::{
    Span,
    ast::{BinOpKind, Expr, UnaryOpKind},
};

/// End of an expression, without brackets around it.
pub(super) fn end_of(expression: &Expr<'_>) -> usize {
    expression.span().end_offset as usize
}

/// Start of an expression. Brackets that open there may be before or after the offset: an inserted
/// bracket works in either place.
pub(super) fn start_of(expression: &Expr<'_>) -> usize {
    let own = expression.span().start_offset as usize;
    match expression {
        // Spans of these start at the token before them, or at their operator.
        Expr::IfExpr(choice) => start_of(&choice.true_expr),
        Expr::Compare(comparison) => start_of(&comparison.expr),
        Expr::BinOp(operation) if is_comparison(operation.op) => start_of(&operation.left),
        Expr::Filter(filter) => filter.expr.as_ref().map_or(own, start_of),
        Expr::Test(test) => start_of(&test.expr),
        Expr::UnaryOp(operation) => own.min(start_of(&operation.expr)),
        // Without brackets the span starts after the first comma.
        Expr::Tuple(tuple) => tuple.items.first().map_or(own, |first| own.min(start_of(first))),
        Expr::Slice(_) | Expr::GetAttr(_) | Expr::GetItem(_) | Expr::Call(_) => {
            start_of_chain(expression).unwrap_or(own)
        }
        Expr::Var(_) | Expr::Const(_) | Expr::BinOp(_) | Expr::List(_) | Expr::Map(_) => own,
    }
}

/// Start of a chain of slices, attributes, subscripts and calls. The span of the innermost one
/// starts at the operand.
fn start_of_chain(mut expression: &Expr<'_>) -> Option<usize> {
    let mut span: Option<Span> = None;
    loop {
        (span, expression) = match expression {
            Expr::Slice(slice) => (Some(slice.span()), &slice.expr),
            Expr::GetAttr(attribute) => (Some(attribute.span()), &attribute.expr),
            Expr::GetItem(item) => (Some(item.span()), &item.expr),
            Expr::Call(call) => (Some(call.span()), &call.expr),
            _ => return span.map(|span| span.start_offset as usize),
        };
    }
}

/// True if a tuple has its own brackets.
pub(super) fn has_brackets(expression: &Expr<'_>) -> bool {
    match expression {
        Expr::Tuple(tuple) => {
            let own = tuple.span().start_offset as usize;
            tuple.items.first().is_none_or(|first| own < start_of(first))
        }
        _ => true,
    }
}

pub(super) fn is_comparison(operator: BinOpKind) -> bool {
    matches!(
        operator,
        BinOpKind::Eq
            | BinOpKind::Ne
            | BinOpKind::Lt
            | BinOpKind::Lte
            | BinOpKind::Gt
            | BinOpKind::Gte
            | BinOpKind::In
    )
}

/// True if the compiler can fold the value.
pub(super) fn is_constant(expression: &Expr<'_>) -> bool {
    match expression {
        Expr::Const(_) => true,
        Expr::List(list) => list.items.iter().all(is_constant),
        Expr::Tuple(tuple) => tuple.items.iter().all(is_constant),
        Expr::Map(map) => map.keys.iter().chain(&map.values).all(is_constant),
        Expr::UnaryOp(operation) => is_constant(&operation.expr),
        Expr::BinOp(operation) => is_constant(&operation.left) && is_constant(&operation.right),
        Expr::Compare(comparison) => {
            is_constant(&comparison.expr)
                && comparison.ops.iter().all(|operation| is_constant(&operation.expr))
        }
        _ => false,
    }
}

/// True if the value is a number, a boolean or none, so that comparing with it takes constant work.
pub(super) fn is_small(expression: &Expr<'_>) -> bool {
    match expression {
        Expr::Const(constant) => constant.value.as_str().is_none(),
        Expr::Test(_) | Expr::Compare(_) => true,
        Expr::UnaryOp(operation) => match operation.op {
            UnaryOpKind::Not => true,
            UnaryOpKind::Neg => is_small(&operation.expr),
        },
        Expr::BinOp(operation) => {
            is_comparison(operation.op)
                || matches!(
                    operation.op,
                    BinOpKind::Sub | BinOpKind::Div | BinOpKind::FloorDiv | BinOpKind::Pow
                )
        }
        Expr::Filter(filter) => matches!(filter.name, "length" | "count" | "int" | "float" | "abs" | "round"),
        _ => false,
    }
}
