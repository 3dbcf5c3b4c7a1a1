//! Formats of strings as regular expressions.

/// Treatment of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// The whole string matches this expression.
    Pattern(&'static str),
    /// Formats of the grammar engine.
    Engine,
    /// A format of JSON Schema that is not generated.
    Refused,
    /// A format that JSON Schema does not define.
    Ignored,
}

/// Date of the years 1000 to 2999, without the 29th of February: whether it exists depends on the
/// year.
macro_rules! date {
    () => {
        r"[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    };
}

/// Time of day, without leap seconds, with fractions of up to nine digits.
macro_rules! time {
    () => {
        r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
    };
}

/// One label of a host name, of at most 30 characters, so that eight of them stay below the limit
/// of 253 characters.
macro_rules! label {
    () => {
        "[a-z0-9](?:[a-z0-9]{0,28}[a-z0-9])?"
    };
}

/// Source of the expressions: RFC 3339, RFC 1123, RFC 5322, RFC 3986, each in a narrow form.
pub(super) fn format(name: &str) -> Format {
    match name {
        "date" => Format::Pattern(concat!("^", date!(), "$")),
        "time" => Format::Pattern(concat!("^", time!(), "$")),
        "date-time" => Format::Pattern(concat!("^", date!(), "T", time!(), "$")),
        "hostname" => Format::Pattern(concat!("^", label!(), r"(?:\.", label!(), "){0,7}$")),
        "email" => Format::Pattern(concat!(
            r"^[a-zA-Z0-9_+-]{1,32}(?:\.[a-zA-Z0-9_+-]{1,30})?@",
            label!(),
            r"(?:\.",
            label!(),
            "){1,5}$"
        )),
        "uri" => Format::Pattern(concat!(
            "^[a-z][a-z0-9+.-]{0,15}://",
            label!(),
            r"(?:\.",
            label!(),
            "){0,7}",
            r"(?::[1-9][0-9]{0,3})?(?:/[A-Za-z0-9._~-]*)*(?:\?[A-Za-z0-9._~=&-]*)?(?:#[A-Za-z0-9._~-]*)?$"
        )),
        "duration" | "ipv4" | "ipv6" | "uuid" => Format::Engine,
        "idn-email"
        | "idn-hostname"
        | "uri-reference"
        | "iri"
        | "iri-reference"
        | "uri-template"
        | "json-pointer"
        | "relative-json-pointer"
        | "regex" => Format::Refused,
        _ => Format::Ignored,
    }
}
