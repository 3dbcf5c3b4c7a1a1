//! Names of stored tensors: prefixes of larger models and classes, and numbers of layers.

/// Beginnings of names that are parts of a larger model or of a class.
const PREFIXES: [&str; 9] = [
    "model.language_model.model.",
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.",
    "bert.",
    "roberta.",
    "distilbert.",
    "backbone.",
];

/// Strips the prefix of the model's name.
pub(super) fn without_prefix(name: &str) -> &str {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

/// The name that a tensor has in a model for text.
pub(super) fn text_name(name: &str) -> String {
    match without_prefix(name) {
        outside if ["lm_head.", "mtp."].iter().any(|prefix| outside.starts_with(prefix)) => {
            outside.to_owned()
        }
        inner => format!("model.{inner}"),
    }
}

/// The layer at the beginning of a name, and the rest.
pub(super) fn split_layer(name: &str, n_layers: usize) -> Option<(usize, &str)> {
    let (layer, rest) = name.split_once('.')?;
    // Written back, so that `+1` and `01` are no layers.
    let layer = layer.parse::<usize>().ok().filter(|number| number.to_string() == layer)?;
    (layer < n_layers).then_some((layer, rest))
}
