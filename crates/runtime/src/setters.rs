//! Builder methods `with_*` for `#[non_exhaustive]` structs: they take and return the struct, so
//! that callers need neither a mutable binding nor a literal with every field.

/// Generates setters: `set` takes the field's type, `some` a value or an `Option` for an `Option`
/// field.
macro_rules! setters {
    ($type:ty { $($kind:ident $method:ident($field:ident: $value:ty);)+ }) => {
        impl $type {
            $($crate::setters::setters!(@$kind $method $field $value);)+
        }
    };
    (@set $method:ident $field:ident $value:ty) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $method(mut self, $field: $value) -> Self {
            self.$field = $field;
            self
        }
    };
    (@some $method:ident $field:ident $value:ty) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $method(mut self, $field: impl Into<Option<$value>>) -> Self {
            self.$field = $field.into();
            self
        }
    };
}

pub(crate) use setters;
