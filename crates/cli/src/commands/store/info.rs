//! The entry of a model in the store, as `ruvllm show` prints it.

use ruvllm_hub::{Store, StoredFile, StoredModel};
use serde::Serialize;

use super::{ModelDocument, pulled};
use crate::error::{Result, printable};
use crate::output;

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    model: ModelDocument<'a>,
    endpoint: &'a str,
    files: &'a [StoredFile],
}

/// Prints the entry of the model `name`.
///
/// # Errors
/// As [`Store::inspect`].
pub(crate) fn run(name: &str, json: bool) -> Result<()> {
    let model = Store::from_env()?.inspect(name)?;
    if json {
        let (endpoint, files) = (&model.endpoint, &model.files);
        return output::write_json(&Document { model: (&model).into(), endpoint, files });
    }
    output::write_text(&human(&model)).map(|_| ())
}

fn human(model: &StoredModel) -> String {
    let facts = [
        ("name", model.name.clone()),
        ("source", format!("{} at {}", model.source, printable(&model.endpoint))),
        ("revision", model.commit.clone()),
        ("path", model.path.display().to_string()),
        ("size", output::bytes(model.bytes())),
        ("pulled", pulled(model)),
    ];
    // The checksum has a line of its own: beside the name it would not fit a terminal.
    let file = |file: &StoredFile| {
        let sha256 = file.sha256.as_deref().unwrap_or("not complete");
        let check = if file.unverified { " unverified" } else { "" };
        format!("  {}, {}\n    {sha256}{check}\n", printable(&file.path), output::bytes(file.bytes))
    };
    let files: String = model.files.iter().map(file).collect();
    format!(
        "{}files\n{}",
        output::table(&facts.map(|(name, value)| vec![name.to_owned(), value]), &[]),
        files
    )
}
