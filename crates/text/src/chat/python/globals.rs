//! Functions that Jinja2 offers every template, and the test `callable`.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, Object, ObjectRepr, Rest, ValueKind, ValueOrKwargs, from_args},
};

use super::{Arguments, filters::charge_elements};

/// The function `cycler`.
pub(super) fn cycler(items: Rest<Value>) -> Result<Value, Error> {
    if items.is_empty() {
        return Err(Error::new(ErrorKind::MissingArgument, "at least one item has to be provided"));
    }
    Ok(Value::from_object(Cycler { items: items.0, next: AtomicUsize::new(0) }))
}

/// Values that take turns.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    next: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Value {
        self.items.get(self.next.load(Ordering::Relaxed)).cloned().unwrap_or_default()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        let () = from_args(args)?;
        let current = self.current();
        match method {
            "next" => {
                let next = self.next.load(Ordering::Relaxed) + 1;
                self.next.store(next % self.items.len(), Ordering::Relaxed);
                Ok(current)
            }
            "reset" => {
                self.next.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// The function `joiner`.
pub(super) fn joiner(args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut args = Arguments::of(args)?;
    let separator = args.value("sep")?.unwrap_or_else(|| Value::from(", "));
    args.finish()?;
    Ok(Value::from_object(Joiner { separator, is_used: AtomicBool::new(false) }))
}

/// A function that gives a text, but nothing the first time.
#[derive(Debug)]
struct Joiner {
    separator: Value,
    is_used: AtomicBool,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let () = from_args(args)?;
        let is_used = self.is_used.swap(true, Ordering::Relaxed);
        Ok(if is_used { self.separator.clone() } else { Value::from("") })
    }
}

/// The function `dict`: of a mapping or of pairs, and of named values.
pub(super) fn dict(value: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let is_pairs = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    let Some(items) = value.as_ref().filter(|value| is_pairs(value)) else {
        return minijinja::functions::dict(value, named);
    };
    let mut pairs = Vec::new();
    for item in items.try_iter()? {
        let pair: Vec<Value> = item.try_iter()?.collect();
        let [key, value] = pair.as_slice() else {
            return Err(Error::new(ErrorKind::InvalidOperation, "dict takes a mapping or pairs"));
        };
        charge_elements(2)?;
        pairs.push((key.clone(), value.clone()));
    }
    minijinja::functions::dict(Some(Value::from_pairs(pairs)), named)
}

/// The function `namespace`.
pub(super) fn namespace(value: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    minijinja::functions::namespace(Some(dict(value, named)?.into()))
}

/// The test `callable`. What is undefined can be called in Jinja2, which is an error then.
pub(super) fn is_callable(value: &Value) -> bool {
    let is_macro =
        |value: &Value| value.as_object().is_some_and(|object| object.type_name().ends_with("::Macro"));
    match value.kind() {
        ValueKind::Undefined => true,
        ValueKind::Plain => value.downcast_object_ref::<Cycler>().is_none(),
        _ => is_macro(value),
    }
}
