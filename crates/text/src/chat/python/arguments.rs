//! Arguments of filters, functions and methods as in Python: by position or by name.

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, Rest, ValueOrKwargs, from_args},
};

use super::values::to_str;

/// Remaining arguments of a call. Parameters are taken in their order.
pub(super) struct Arguments {
    by_place: std::vec::IntoIter<Value>,
    by_name: Kwargs,
}

impl Arguments {
    /// # Errors
    /// An argument that is an invalid value.
    pub(super) fn new(args: &[Value]) -> Result<Self, Error> {
        let (by_place, by_name): (&[Value], Kwargs) = from_args(args)?;
        let by_place = by_place.to_vec();
        Ok(Self { by_place: by_place.into_iter(), by_name })
    }

    /// Collects the arguments of a filter or function.
    pub(super) fn of(args: Rest<ValueOrKwargs>) -> Result<Self, Error> {
        Self::new(&args.into_values())
    }

    /// Takes the next parameter, if given.
    pub(super) fn value(&mut self, name: &str) -> Result<Option<Value>, Error> {
        match self.by_place.next() {
            Some(value) => Ok(Some(value)),
            None if self.by_name.has(name) => self.by_name.get(name).map(Some),
            None => Ok(None),
        }
    }

    /// Takes the next parameter, if given and not none.
    pub(super) fn get<T: TryFrom<Value, Error = Error>>(&mut self, name: &str) -> Result<Option<T>, Error> {
        let value = self.value(name)?.filter(|value| !value.is_none());
        value.map(T::try_from).transpose()
    }

    /// Takes the next parameter as a string, if given and not none.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, Error> {
        let value = self.value(name)?.filter(|value| !value.is_none());
        value.map(|value| to_str(&value)).transpose()
    }

    /// Takes the next parameter as a condition; `default` if not given.
    pub(super) fn flag(&mut self, name: &str, default: bool) -> Result<bool, Error> {
        Ok(self.value(name)?.map_or(default, |value| value.is_true()))
    }

    /// Takes the next parameter, which is required.
    pub(super) fn required(&mut self, name: &str) -> Result<Value, Error> {
        let missing = || Error::new(ErrorKind::MissingArgument, format!("the argument {name} is missing"));
        self.value(name)?.ok_or_else(missing)
    }

    /// Returns the remaining arguments: by position and by name.
    pub(super) fn rest(self) -> (Vec<Value>, Kwargs) {
        (self.by_place.collect(), self.by_name)
    }

    /// # Errors
    /// Arguments that were not taken.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        match self.by_place.next() {
            Some(_) => Err(Error::from(ErrorKind::TooManyArguments)),
            None => self.by_name.assert_all_used(),
        }
    }
}

/// Both operands of an operator, passed as a list.
pub(super) fn operands(list: &Value) -> Result<[Value; 2], Error> {
    let operands: Vec<Value> = list.try_iter()?.collect();
    operands.try_into().map_err(|_| Error::from(ErrorKind::MissingArgument))
}
