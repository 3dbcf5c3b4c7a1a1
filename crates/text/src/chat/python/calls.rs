//! Registration of filters, tests and functions. Arguments and results are charged around each
//! call.

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

/// Cost model of a call: work charged for its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cost {
    /// Reads strings only, not the items of lists.
    Texts,
    /// Reads each item of the first argument once, and strings.
    Items,
    /// Compares values, at full depth.
    Values,
    /// Sorts values.
    Order,
}

impl Cost {
    /// Charges the arguments of a call; compared values are converted to their plain form.
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
                    // Named arguments are a special value, which the conversion would lose.
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

/// Rejects mutable arguments, which could come to contain themselves.
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

/// Registers a filter.
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

/// Registers a test.
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

/// Registers a function.
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
