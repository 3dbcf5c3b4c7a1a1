//! Filters, tests and functions as templates call them: what they are given and what they give is
//! counted around each.

use minijinja::{
    Environment, Error, State, Value,
    functions::Function,
    value::{FunctionArgs, FunctionResult, Rest, ValueKind, ValueOrKwargs},
};

use super::{
    plain::{checked, plain, weigh},
    values::pairs,
};
use crate::chat::bounds::{self, VALUE_WORK, work, worked};

/// Cost model of a call: the work charged for its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cost {
    /// Looks at its texts, and at nothing in lists.
    Texts,
    /// Looks at each item once, and at its texts.
    Items,
    /// Compares values, in all their depth.
    Values,
    /// Sorts values.
    Order,
}

impl Cost {
    /// Counts the arguments of a call, and gives them as it is to see them.
    fn charge(self, args: &mut [Value]) -> Result<(), Error> {
        match self {
            Self::Texts | Self::Items => {
                for (i, value) in args.iter().enumerate() {
                    let items = if self == Self::Items && i == 0 { value.len().unwrap_or(0) } else { 0 };
                    work(value.as_str().map_or(items.saturating_mul(VALUE_WORK), str::len))?;
                }
            }
            Self::Values | Self::Order => {
                let before = worked();
                let items = args.first().and_then(Value::len).unwrap_or(0);
                for value in args.iter_mut() {
                    // Named arguments are a value of their own, which would not be one any more.
                    if value.is_kwargs() {
                        weigh(value)?;
                    } else {
                        *value = plain(std::mem::take(value))?;
                    }
                }
                if self == Self::Order {
                    let passes = items.max(1).ilog2() as usize;
                    work((worked() - before).saturating_mul(passes))?;
                }
            }
        }
        Ok(())
    }
}

/// Refuses arguments that could come to be part of themselves.
pub(super) fn refuse_stored(args: &[Value]) -> Result<(), Error> {
    for value in args {
        bounds::stored(value)?;
        if value.kind() == ValueKind::Map && value.is_kwargs() {
            for (_, value) in pairs(value).unwrap_or_default() {
                bounds::stored(&value)?;
            }
        }
    }
    Ok(())
}

/// Adds a filter.
pub(super) fn filter<F, Rv, Args>(
    environment: &mut Environment<'static>,
    name: &'static str,
    cost: Cost,
    f: F,
) where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let inner = Value::from_function(f);
    let gives_argument = matches!(name, "default" | "d");
    let call = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
        let mut args = args.into_values();
        if !gives_argument {
            refuse_stored(args.get(1..).unwrap_or_default())?;
        }
        cost.charge(&mut args)?;
        checked(inner.call(state, &args)?)
    };
    environment.add_filter(name, call);
}

/// Adds a test.
pub(super) fn test<F, Rv, Args>(environment: &mut Environment<'static>, name: &'static str, f: F)
where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let inner = Value::from_function(f);
    let call = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
        let mut args = args.into_values();
        Cost::Values.charge(&mut args)?;
        inner.call(state, &args)
    };
    environment.add_test(name, call);
}

/// Adds a function.
pub(super) fn function<F, Rv, Args>(environment: &mut Environment<'static>, name: &'static str, f: F)
where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let inner = Value::from_function(f);
    let call = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
        let mut args = args.into_values();
        refuse_stored(&args)?;
        Cost::Items.charge(&mut args)?;
        checked(inner.call(state, &args)?)
    };
    environment.add_function(name, call);
}
