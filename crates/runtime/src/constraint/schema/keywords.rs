//! The keywords of JSON Schema and what generation makes of them.

/// Treatment of a keyword.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keyword {
    /// Asserts something that the grammar enforces.
    Enforced,
    /// Asserts nothing about values, or nothing that is defined.
    Ignored,
    /// Asserts something that the grammar does not enforce; the text is the alternative.
    Refused(&'static str),
}

/// The treatment of a keyword. Keywords that no vocabulary of JSON Schema defines are annotations,
/// as section 6.5 of the core specification (2020-12) says.
pub(super) fn keyword(name: &str) -> Keyword {
    const REMOVE: &str = "leave it out and check the value afterwards";
    match name {
        "type"
        | "enum"
        | "const"
        | "anyOf"
        | "oneOf"
        | "allOf"
        | "$ref"
        | "properties"
        | "required"
        | "additionalProperties"
        | "patternProperties"
        | "minProperties"
        | "maxProperties"
        | "items"
        | "prefixItems"
        | "minItems"
        | "maxItems"
        | "uniqueItems"
        | "minLength"
        | "maxLength"
        | "pattern"
        | "format"
        | "minimum"
        | "maximum"
        | "exclusiveMinimum"
        | "exclusiveMaximum"
        | "multipleOf"
        | "$id" => Keyword::Enforced,
        "not" => Keyword::Refused("state the values that are allowed"),
        "if" | "then" | "else" => Keyword::Refused("use anyOf, with the cases as alternatives"),
        "contains" | "minContains" | "maxContains" => Keyword::Refused("place the element with prefixItems"),
        "dependentRequired" | "dependentSchemas" | "dependencies" => {
            Keyword::Refused("use anyOf, with and without the property")
        }
        "propertyNames" => Keyword::Refused("use patternProperties with additionalProperties false"),
        "unevaluatedItems" => Keyword::Refused("use items false beside prefixItems"),
        "unevaluatedProperties" => Keyword::Refused("use additionalProperties in each alternative"),
        "$dynamicRef" | "$recursiveRef" => Keyword::Refused("use $ref"),
        "additionalItems" => Keyword::Refused("use prefixItems and items"),
        "extends" => Keyword::Refused("use allOf"),
        "disallow" | "divisibleBy" => Keyword::Refused(REMOVE),
        _ => Keyword::Ignored,
    }
}
