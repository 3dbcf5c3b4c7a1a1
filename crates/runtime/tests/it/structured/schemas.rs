//! Schemas that outputs are validated against: each keyword alone, combinations, and documents of
//! the kinds that programs ask for.

use serde_json::{Map, Value, json};

/// All schemas.
pub(super) fn all() -> Vec<Value> {
    let mut schemas = scalars();
    schemas.extend(texts());
    schemas.extend(enumerations());
    schemas.extend(arrays());
    schemas.extend(objects());
    schemas.extend(alternatives());
    schemas.extend(recursive());
    schemas.extend(nested());
    schemas.extend(documents());
    schemas.extend(combinations());
    schemas
}

fn scalars() -> Vec<Value> {
    let mut schemas: Vec<Value> = ["null", "boolean", "integer", "number", "string", "array", "object"]
        .map(|kind| json!({"type": kind}))
        .into();
    for (least, most) in
        [(0, 0), (-3, 7), (10, 99), (-1000, -1), (1_000_000, 1_000_001), (0, 255), (1900, 2100)]
    {
        schemas.push(json!({"type": "integer", "minimum": least, "maximum": most}));
        schemas.push(json!({"type": "integer", "exclusiveMinimum": least - 1, "exclusiveMaximum": most + 1}));
        schemas.push(json!({"type": "number", "minimum": least, "maximum": most}));
    }
    for bounds in [
        json!({"minimum": 0.5}),
        json!({"maximum": -0.25}),
        json!({"exclusiveMinimum": 0, "maximum": 1}),
        json!({"minimum": -1.125, "exclusiveMaximum": 3.5}),
        json!({"minimum": 0}),
        json!({"exclusiveMaximum": 100}),
    ] {
        let mut schema = json!({"type": "number"});
        schema.as_object_mut().unwrap().extend(bounds.as_object().unwrap().clone());
        schemas.push(schema);
    }
    for step in [2, 5, 10, 7] {
        schemas.push(json!({"type": "integer", "multipleOf": step, "minimum": -50, "maximum": 1000}));
    }
    schemas.push(json!({"type": ["string", "null"]}));
    schemas.push(json!({"type": ["integer", "boolean", "array"], "items": {"type": "null"}, "maxItems": 2}));
    schemas.push(json!({"minimum": 5}));
    schemas.push(json!(true));
    schemas
}

fn texts() -> Vec<Value> {
    let mut schemas = Vec::new();
    for (least, most) in [(0, 0), (1, 1), (0, 5), (3, 10), (20, 40), (64, 64)] {
        schemas.push(json!({"type": "string", "minLength": least, "maxLength": most}));
    }
    for pattern in [
        "^[A-Z]{2}[0-9]{6}$",
        "^(\\([0-9]{3}\\))?[0-9]{3}-[0-9]{4}$",
        "^\\+?[1-9]\\d{1,14}$",
        "^#[0-9a-fA-F]{6}$",
        "^v?\\d+\\.\\d+\\.\\d+(-[a-z]+(\\.\\d+)?)?$",
        "^[^@\\s]+@[^@\\s]+\\.[a-z]{2,}$",
        "abc",
        "^a.c$",
        "x$",
        "^(yes|no|maybe)$",
        "^[\\w-]+(/[\\w-]+)*$",
        "^\\p{Lu}\\p{Ll}+$",
        "^[\\u4e00-\\u9fff]{1,4}$",
        "^\"quoted\\\\ text\"$",
        "^\\S+(\\s\\S+){2}$",
    ] {
        schemas.push(json!({"type": "string", "pattern": pattern}));
    }
    for format in
        ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "int64"]
    {
        schemas.push(json!({"type": "string", "format": format}));
    }
    schemas.push(json!({"type": "string", "format": "date", "pattern": "^20[0-4]"}));
    schemas.push(json!({"type": "string", "pattern": "^[a-z]+$", "minLength": 4, "maxLength": 6}));
    schemas
}

fn enumerations() -> Vec<Value> {
    let words = |n: usize| {
        (0..n).map(|i| format!("{}-{i:03x}", ["alpha", "beta", "gamma"][i % 3])).collect::<Vec<_>>()
    };
    let mut schemas: Vec<Value> = [1, 2, 10, 100, 1000].map(|n| json!({"enum": words(n)})).into();
    schemas.push(json!({"type": "array", "items": {"enum": words(1000)}, "minItems": 1, "maxItems": 5}));
    schemas.push(json!({"enum": [null, true, 0, -1.5, "", "a \"b\" \\ \n", [1, [2]], {"k": {"l": null}}]}));
    schemas.push(json!({"type": "integer", "enum": [1, 2, 3]}));
    schemas.push(json!({"const": "only"}));
    schemas.push(json!({"const": {"a": [1, 2, {"b": "c"}], "d": 1.25}}));
    schemas.push(json!({"enum": ["é", "猫", "😀", "\u{7f}"]}));
    schemas
}

fn arrays() -> Vec<Value> {
    let mut schemas = Vec::new();
    for (least, most) in [(0, 0), (0, 1), (1, 3), (4, 4), (2, 30)] {
        schemas.push(json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99},
            "minItems": least, "maxItems": most}));
    }
    schemas.push(json!({"type": "array", "minItems": 2, "maxItems": 3}));
    schemas.push(
        json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "boolean"}], "items": false}),
    );
    schemas.push(json!({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "minItems": 2,
        "items": {"type": "null"}, "maxItems": 5}));
    schemas
        .push(json!({"type": "array", "prefixItems": [{"type": "integer"}], "minItems": 1, "maxItems": 2}));
    schemas.push(json!({"type": "array", "uniqueItems": false, "items": {"type": "boolean"}}));
    for depth in 1..=8 {
        let schema = (0..depth).fold(
            json!({"enum": [0, 1]}),
            |inner, _| json!({"type": "array", "items": inner, "minItems": 1, "maxItems": 2}),
        );
        schemas.push(schema);
    }
    schemas
}

fn objects() -> Vec<Value> {
    let mut schemas = Vec::new();
    let properties = json!({"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 8}, "c": {"type": "boolean"},
        "d": {"type": "array", "items": {"type": "null"}, "maxItems": 2}});
    for required in 0..16u32 {
        let names: Vec<&str> =
            (0..4).filter(|i| required >> i & 1 == 1).map(|i| ["a", "b", "c", "d"][i]).collect();
        let closed = required % 3 != 0;
        schemas.push(json!({"type": "object", "properties": properties, "required": names,
            "additionalProperties": !closed}));
    }
    for extra in [
        json!({"additionalProperties": {"type": "integer"}}),
        json!({"additionalProperties": {"type": "string", "maxLength": 4}, "maxProperties": 2}),
        json!({"additionalProperties": {"type": "boolean"}, "minProperties": 1}),
        json!({"patternProperties": {"^x-": {"type": "string", "maxLength": 5}}, "additionalProperties": false}),
        json!({"patternProperties": {"^n\\d+$": {"type": "number"}, "^s\\d+$": {"type": "string"}},
            "additionalProperties": false, "minProperties": 1}),
        json!({"properties": {"x-a": {"type": "string"}}, "patternProperties": {"^x-": {"minLength": 3}},
            "required": ["x-a"]}),
        json!({"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}}),
        json!({"properties": {"a": {}, "b": {}}, "additionalProperties": false, "minProperties": 1}),
        json!({"properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "additionalProperties": false,
            "maxProperties": 1}),
        json!({"required": ["kind", "other"]}),
        json!({"properties": {"q\"uote": {"type": "null"}, "back\\slash": {"type": "null"}, "é\n": {"type": "null"},
            "": {"type": "null"}}, "required": ["q\"uote", "back\\slash", "é\n", ""]}),
        json!({"properties": {"never": false, "a": {"type": "integer"}}, "required": ["a"]}),
    ] {
        let mut schema = json!({"type": "object"});
        schema.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        schemas.push(schema);
    }
    schemas.push(json!({"properties": {"a": {"type": "integer"}}, "required": ["a"]}));
    let wide: Map<String, Value> =
        (0..60).map(|i| (format!("field{i}"), json!({"type": ["integer", "null"]}))).collect();
    schemas.push(json!({"type": "object", "properties": wide, "additionalProperties": false}));
    schemas.push(json!({"type": "object", "properties": wide, "required": wide.keys().collect::<Vec<_>>()}));
    schemas
}

fn alternatives() -> Vec<Value> {
    let variant = |kind: &str, name: &str, schema: Value| {
        json!({"type": "object", "properties": {"kind": {"const": kind}, name: schema}, "required": ["kind", name],
            "additionalProperties": false})
    };
    let circle = variant("circle", "radius", json!({"type": "number", "exclusiveMinimum": 0, "maximum": 10}));
    let square = variant("square", "side", json!({"type": "integer", "minimum": 1, "maximum": 9}));
    let label = variant("label", "text", json!({"type": "string", "minLength": 1, "maxLength": 12}));
    vec![
        json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        json!({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "string", "pattern": "^long-[a-z]+$"}]}),
        json!({"anyOf": [{"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 99}, {"const": "none"}]}),
        json!({"oneOf": [{"type": "string"}, {"type": "null"}, {"type": "array", "items": {"type": "integer"}}]}),
        json!({"oneOf": [{"type": "integer", "maximum": 5, "minimum": 0}, {"type": "integer", "minimum": 6, "maximum": 9}]}),
        json!({"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 4, "maxLength": 8}]}),
        json!({"oneOf": [circle, square, label]}),
        json!({"oneOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/s"}], "$defs": {"c": circle, "s": square}}),
        json!({"type": "array", "items": {"oneOf": [circle, square]}, "minItems": 1, "maxItems": 4}),
        json!({"type": "object", "properties": {"shape": {"oneOf": [circle, label]}}, "required": ["shape"]}),
        json!({"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 9}, "b": {"type": "string"}}, "required": ["b"]}]}),
        json!({"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 30}, {"multipleOf": 3}]}),
        json!({"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 6}, {"pattern": "^[a-f]+$"}]}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "additionalProperties": false, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        json!({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"],
            "allOf": [{"anyOf": [{"properties": {"x": {"const": 1}}, "required": ["x"]},
                {"properties": {"y": {"const": 2}}, "required": ["y"]}]}]}),
        json!({"anyOf": [{"type": "object", "required": ["a"]}, {"type": "array", "minItems": 1}]}),
        json!({"anyOf": [circle], "oneOf": [circle, {"type": "null"}]}),
        json!({"type": ["object", "null"], "properties": {"v": {"anyOf": [{"type": "null"}, {"enum": ["x", "y"]}]}},
            "required": ["v"]}),
    ]
}

fn recursive() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"},
            {"type": "null"}]}}, "required": ["value", "next"], "additionalProperties": false}),
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"name": {"type": "string",
            "maxLength": 5}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 3}},
            "required": ["name"], "additionalProperties": false}}}),
        json!({"$ref": "#/$defs/expression", "$defs": {
            "expression": {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/sum"}]},
            "sum": {"type": "object", "properties": {"op": {"enum": ["+", "-", "*"]}, "left": {"$ref": "#/$defs/expression"},
                "right": {"$ref": "#/$defs/expression"}}, "required": ["op", "left", "right"],
                "additionalProperties": false}}}),
        json!({"$ref": "#/$defs/a", "$defs": {
            "a": {"type": "array", "items": {"$ref": "#/$defs/b"}, "maxItems": 2},
            "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "additionalProperties": false}}}),
        json!({"type": "array", "items": {"$ref": "#"}, "maxItems": 3}),
        json!({"type": "object", "additionalProperties": {"$ref": "#node"}, "$defs": {"n": {"$anchor": "node",
            "anyOf": [{"type": "boolean"}, {"$ref": "#"}]}}}),
        json!({"type": "object", "properties": {"a/b": {"$ref": "#/properties/c~0d"}, "c~d": {"type": "integer"}},
            "required": ["a/b"]}),
        json!({"definitions": {"positive": {"type": "integer", "exclusiveMinimum": 0}}, "type": "array",
            "items": {"$ref": "#/definitions/positive", "maximum": 20}, "minItems": 1}),
    ]
}

fn nested() -> Vec<Value> {
    let mut schemas = Vec::new();
    for depth in 1..=8 {
        let schema = (0..depth).fold(json!({"type": "string", "maxLength": 4}), |inner, level| {
            json!({"type": "object", "properties": {format!("level{level}"): inner, "n": {"type": "integer", "minimum": 0,
                "maximum": 9}}, "required": [format!("level{level}")], "additionalProperties": false})
        });
        schemas.push(schema);
    }
    for depth in [4, 8] {
        let schema = (0..depth).fold(json!({"type": "boolean"}), |inner, level| {
            let list = json!({"type": "array", "items": inner, "minItems": 1, "maxItems": 2});
            json!({"oneOf": [{"type": "null"}, {"type": "object", "properties": {format!("p{level}"): list},
                "required": [format!("p{level}")], "additionalProperties": false}]})
        });
        schemas.push(schema);
    }
    schemas
}

fn documents() -> Vec<Value> {
    let text = |most: usize| json!({"type": "string", "minLength": 1, "maxLength": most});
    vec![
        json!({"title": "Person", "type": "object", "properties": {"name": text(20), "age": {"type": "integer",
            "minimum": 0, "maximum": 150}, "email": {"type": "string", "format": "email"}, "tags": {"type": "array",
            "items": text(8), "maxItems": 4}}, "required": ["name", "age"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"name": {"const": "get_weather"}, "arguments": {"type": "object",
            "properties": {"city": text(20), "unit": {"enum": ["celsius", "fahrenheit"]}, "days": {"type": "integer",
            "minimum": 1, "maximum": 14, "default": 1}}, "required": ["city"], "additionalProperties": false}},
            "required": ["name", "arguments"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"type": {"const": "Feature"}, "geometry": {"oneOf": [
            {"type": "object", "properties": {"type": {"const": "Point"}, "coordinates": {"type": "array", "items":
                {"type": "number", "minimum": -180, "maximum": 180}, "minItems": 2, "maxItems": 2}},
                "required": ["type", "coordinates"], "additionalProperties": false},
            {"type": "object", "properties": {"type": {"const": "LineString"}, "coordinates": {"type": "array", "items":
                {"type": "array", "items": {"type": "number", "minimum": -180, "maximum": 180}, "minItems": 2,
                "maxItems": 2}, "minItems": 2, "maxItems": 3}}, "required": ["type", "coordinates"],
                "additionalProperties": false}]}}, "required": ["type", "geometry"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"invoice": {"type": "string", "pattern": "^INV-\\d{6}$"},
            "date": {"type": "string", "format": "date"}, "lines": {"type": "array", "minItems": 1, "maxItems": 3,
            "items": {"type": "object", "properties": {"sku": {"type": "string", "pattern": "^[A-Z0-9]{4,8}$"},
            "quantity": {"type": "integer", "minimum": 1, "maximum": 999}, "price": {"type": "number", "minimum": 0,
            "maximum": 100000}}, "required": ["sku", "quantity", "price"], "additionalProperties": false}},
            "paid": {"type": "boolean"}}, "required": ["invoice", "date", "lines", "paid"],
            "additionalProperties": false}),
        json!({"type": "object", "properties": {"name": {"type": "string", "pattern": "^(@[a-z]+/)?[a-z][a-z0-9-]*$",
            "maxLength": 40}, "version": {"type": "string", "pattern": "^\\d+\\.\\d+\\.\\d+$"}, "dependencies":
            {"type": "object", "additionalProperties": {"type": "string", "pattern": "^[\\^~]?\\d+\\.\\d+\\.\\d+$"},
            "maxProperties": 3}, "private": {"type": "boolean"}}, "required": ["name", "version"],
            "additionalProperties": false}),
        json!({"type": "object", "properties": {"apiVersion": {"const": "v1"}, "kind": {"const": "Pod"}, "metadata":
            {"type": "object", "properties": {"name": {"type": "string", "format": "hostname"}, "labels": {"type":
            "object", "patternProperties": {"^[a-z]{1,8}$": text(6)}, "additionalProperties": false, "maxProperties": 2}},
            "required": ["name"], "additionalProperties": false}, "spec": {"type": "object", "properties": {"containers":
            {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "object", "properties": {"name": text(10),
            "image": text(20), "ports": {"type": "array", "maxItems": 2, "items": {"type": "object", "properties":
            {"containerPort": {"type": "integer", "minimum": 1, "maximum": 65535}, "protocol": {"enum": ["TCP", "UDP"]}},
            "required": ["containerPort"], "additionalProperties": false}}}, "required": ["name", "image"],
            "additionalProperties": false}}}, "required": ["containers"], "additionalProperties": false}},
            "required": ["apiVersion", "kind", "metadata", "spec"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"time": {"type": "string", "format": "date-time"}, "level": {"enum":
            ["debug", "info", "warn", "error"]}, "id": {"type": "string", "format": "uuid"}, "source": {"type": "string",
            "format": "ipv4"}, "took": {"type": "string", "format": "duration"}}, "required": ["time", "level", "id"],
            "additionalProperties": false}),
        json!({"type": "object", "properties": {"question": text(40), "options": {"type": "array", "items": text(10),
            "minItems": 4, "maxItems": 4}, "answer": {"enum": ["A", "B", "C", "D"]}, "difficulty": {"type": "number",
            "minimum": 0, "maximum": 1}}, "required": ["question", "options", "answer"], "additionalProperties": false}),
        json!({"type": "array", "maxItems": 3, "items": {"type": "object", "properties": {"entity": text(12), "kind":
            {"enum": ["person", "place", "organization", "date"]}, "span": {"type": "array", "prefixItems":
            [{"type": "integer", "minimum": 0}, {"type": "integer", "minimum": 0}], "items": false, "minItems": 2}},
            "required": ["entity", "kind", "span"], "additionalProperties": false}}),
        json!({"type": "object", "properties": {"steps": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"anyOf":
            [{"type": "object", "properties": {"tool": {"const": "search"}, "query": text(12)}, "required": ["tool",
            "query"], "additionalProperties": false}, {"type": "object", "properties": {"tool": {"const": "calculate"},
            "expression": {"type": "string", "pattern": "^\\d+( [+*/-] \\d+)*$"}}, "required": ["tool", "expression"],
            "additionalProperties": false}]}}}, "required": ["steps"], "additionalProperties": false}),
    ]
}

/// Objects of parts of the others, in pairs and threes.
fn combinations() -> Vec<Value> {
    let parts = [scalars(), texts(), arrays(), alternatives()].concat();
    // References are to the document.
    let parts: Vec<Value> = parts.into_iter().filter(|part| !part.to_string().contains("$ref")).collect();
    (0..60)
        .map(|i| {
            let part = |k: usize| parts[(i * 7 + k * 31) % parts.len()].clone();
            let mut properties = Map::from_iter([("first".to_owned(), part(0)), ("second".to_owned(), part(1))]);
            let mut required = vec!["first"];
            if i % 2 == 0 {
                properties.insert("third".to_owned(), part(2));
                required.push("third");
            }
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": i % 3 == 0})
        })
        .collect()
}
