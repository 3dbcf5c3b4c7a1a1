//! Python behaviour of templates: Jinja2's filters, functions and tests, and Python's methods.
//! [`register`] adds them, with own versions where the engine's are missing or differ.

use minijinja::{Environment, filters as engine, functions, tests};

use self::calls::{Cost, filter, function, test};
use super::rewrite;

mod arguments;
mod calls;
mod filters;
mod format;
mod globals;
mod html;
mod json;
mod layout;
mod methods;
mod plain;
mod slices;
mod strings;
mod sums;
mod values;

pub(super) use self::filters::characters;
pub(super) use self::sums::add;
pub(super) use self::values::{from_json, to_str};

/// Adds the filters, functions and tests of Jinja2, and Python's methods, to an empty environment.
pub(super) fn register(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(methods::unknown_method);
    environment.add_filter(rewrite::CHECKED, plain::checked);
    environment.add_filter(rewrite::LITERAL, plain::literal);
    environment.add_filter(rewrite::STORED, plain::stored);
    environment.add_filter(rewrite::PLAIN, plain::plain);
    environment.add_filter(rewrite::ITEM, plain::item);
    environment.add_filter(rewrite::SLICE, slices::slice_by);
    environment.add_filter(rewrite::CONCAT, sums::concat);
    environment.add_filter(rewrite::REMAINDER, format::remainder);
    register_filters(environment);
    register_tests(environment);
    function(environment, "dict", globals::dict);
    function(environment, "namespace", globals::namespace);
    function(environment, "range", functions::range);
}

fn register_filters(environment: &mut Environment<'static>) {
    use Cost::{Items, Order, Texts};
    filter(environment, "abs", Texts, engine::abs);
    filter(environment, "attr", Texts, engine::attr);
    filter(environment, "batch", Items, filters::batch);
    filter(environment, "capitalize", Texts, filters::capitalize);
    filter(environment, "dictsort", Order, filters::dictsort);
    filter(environment, "first", Texts, filters::first);
    filter(environment, "float", Texts, filters::float);
    filter(environment, "format", Texts, format::format);
    filter(environment, "groupby", Order, filters::groupby);
    filter(environment, "indent", Texts, layout::indent);
    filter(environment, "int", Texts, filters::int);
    filter(environment, "items", Items, filters::items);
    filter(environment, "join", Items, filters::join);
    filter(environment, "last", Texts, filters::last);
    filter(environment, "list", Items, filters::list);
    filter(environment, "lower", Texts, filters::lower);
    filter(environment, "map", Items, engine::map);
    filter(environment, "max", Order, engine::max);
    filter(environment, "min", Order, engine::min);
    filter(environment, "reject", Items, engine::reject);
    filter(environment, "rejectattr", Items, engine::rejectattr);
    filter(environment, "replace", Texts, filters::replace);
    filter(environment, "reverse", Items, engine::reverse);
    filter(environment, "round", Texts, engine::round);
    filter(environment, "safe", Texts, engine::safe);
    filter(environment, "select", Items, engine::select);
    filter(environment, "selectattr", Items, engine::selectattr);
    filter(environment, "slice", Items, filters::slice);
    filter(environment, "sort", Order, engine::sort);
    filter(environment, "string", Texts, values::string);
    filter(environment, "sum", Items, sums::sum);
    filter(environment, "title", Texts, filters::title);
    filter(environment, "tojson", Items, json::tojson);
    filter(environment, "trim", Texts, filters::trim);
    filter(environment, "truncate", Texts, layout::truncate);
    filter(environment, "unique", Order, engine::unique);
    filter(environment, "upper", Texts, filters::upper);
    for name in ["length", "count"] {
        filter(environment, name, Texts, filters::length);
    }
    for name in ["default", "d"] {
        filter(environment, name, Texts, filters::default);
    }
    for name in ["e", "escape"] {
        filter(environment, name, Texts, html::escape);
    }
}

fn register_tests(environment: &mut Environment<'static>) {
    // These read no more than the kind of a value, so nothing is charged.
    environment.add_test("undefined", tests::is_undefined);
    environment.add_test("defined", tests::is_defined);
    environment.add_test("none", tests::is_none);
    environment.add_test("boolean", tests::is_boolean);
    environment.add_test("odd", tests::is_odd);
    environment.add_test("even", tests::is_even);
    environment.add_test("divisibleby", tests::is_divisibleby);
    environment.add_test("number", tests::is_number);
    environment.add_test("integer", tests::is_integer);
    environment.add_test("float", tests::is_float);
    environment.add_test("string", tests::is_string);
    environment.add_test("iterable", filters::is_iterable);
    environment.add_test("sequence", filters::is_sequence);
    environment.add_test("mapping", tests::is_mapping);
    environment.add_test("sameas", tests::is_sameas);
    environment.add_test("true", tests::is_true);
    environment.add_test("false", tests::is_false);
    for name in ["safe", "escaped"] {
        environment.add_test(name, tests::is_safe);
    }
    test(environment, "lower", tests::is_lower);
    test(environment, "upper", tests::is_upper);
    test(environment, "filter", tests::is_filter);
    test(environment, "test", tests::is_test);
    test(environment, "in", tests::is_in);
    for name in ["eq", "equalto", "=="] {
        test(environment, name, tests::is_eq);
    }
    for name in ["ne", "!="] {
        test(environment, name, tests::is_ne);
    }
    for name in ["lt", "lessthan", "<"] {
        test(environment, name, tests::is_lt);
    }
    for name in ["le", "<="] {
        test(environment, name, tests::is_le);
    }
    for name in ["gt", "greaterthan", ">"] {
        test(environment, name, tests::is_gt);
    }
    for name in ["ge", ">="] {
        test(environment, name, tests::is_ge);
    }
}
