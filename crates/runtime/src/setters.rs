//! `with_*` methods of structs whose fields grow: they take the struct and give it back, so that
//! callers need neither a mutable binding nor a literal that names every field.

/// Writes setters: `set` for a field of its own type, `some` for one that is an `Option`, which
/// takes a value or an `Option`.
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
