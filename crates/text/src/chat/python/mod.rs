//! Python's manners in templates: [`register`] gives every template the filters, functions and
//! tests of Jinja2 where the engine has none or other ones; methods are Python's.

use minijinja::{Environment, Value};

use super::bounds;

mod arguments;
mod filters;
mod format;
mod globals;
mod html;
mod json;
mod layout;
mod methods;
mod slices;
mod strings;
mod values;

pub(super) use self::filters::characters;
pub(super) use self::values::{from_json, to_str};

/// Gives an environment Python's methods, and the filters, functions and tests of Jinja2 that the
/// engine has not.
pub(super) fn register(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(methods::unknown_method);
    environment.add_filter(bounds::SLICE, slices::slice_by);
    environment.add_filter(bounds::SUM, filters::sum);
    environment.add_filter(bounds::CONCAT, filters::concat);
    environment.add_filter(bounds::REMAINDER, format::remainder);
    environment.add_filter("string", |value: &Value| to_str(value));
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("trim", filters::trim);
    environment.add_filter("replace", filters::replace);
    environment.add_filter("join", filters::join);
    for name in ["length", "count"] {
        environment.add_filter(name, filters::length);
    }
    for name in ["default", "d"] {
        environment.add_filter(name, filters::default);
    }
    environment.add_filter("first", filters::first);
    environment.add_filter("last", filters::last);
    environment.add_filter("items", filters::items);
    environment.add_filter("dictsort", filters::dictsort);
    environment.add_filter("groupby", filters::groupby);
    environment.add_filter("batch", filters::batch);
    environment.add_filter("slice", filters::slice);
    environment.add_filter("int", filters::int);
    environment.add_filter("float", filters::float);
    environment.add_filter("format", format::format);
    // The engine's own does not print as Python does.
    environment.remove_filter("pprint");
    environment.add_filter("indent", layout::indent);
    environment.add_filter("truncate", layout::truncate);
    for name in ["e", "escape"] {
        environment.add_filter(name, html::escape);
    }
    environment.add_test("iterable", filters::is_iterable);
    environment.add_test("sequence", filters::is_sequence);
    environment.add_function("dict", globals::dict);
    environment.add_function("namespace", globals::namespace);
}
