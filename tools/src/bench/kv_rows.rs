//! Rows added to the recorded table of `kv-quality`.

/// Section of the table: command lines, notes, rows, and the text after them.
struct Section<'a> {
    commands: &'a str,
    notes: Vec<&'a str>,
    head: [&'a str; 2],
    rows: Vec<&'a str>,
    tail: &'a str,
}

impl<'a> Section<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (commands, rest) = text.strip_prefix("```text\n")?.split_once("\n```\n\n")?;
        let (notes, rest) = rest.split_once("\n\n")?;
        let (table, tail) = rest.split_once("\n\n")?;
        let mut rows = table.lines();
        let head = [rows.next()?, rows.next()?];
        Some(Self { commands, notes: notes.lines().collect(), head, rows: rows.collect(), tail })
    }

    /// Text and baseline that figures of two runs must share: head, windows and first row.
    fn comparable(&self) -> [Option<&'a str>; 3] {
        [Some(self.head[0]), self.notes.last().copied(), self.rows.first().copied()]
    }
}

/// Policy of a row.
fn policy(row: &str) -> &str {
    row.split('`').nth(1).unwrap_or_default()
}

/// Adds the rows of a run to a recorded section, in the order of the policies `order`; replaces
/// rows of the same policies, and names the run.
///
/// # Errors
/// A reason, if one of the two is not such a section, or if texts or baselines differ.
pub(super) fn added(recorded: &str, run: &str, order: &[&str]) -> Result<String, String> {
    let mut section = Section::parse(recorded).ok_or("the recorded section has no table of this form")?;
    let run = Section::parse(run).ok_or("the run has no table")?;
    for (recorded, measured) in section.comparable().into_iter().zip(run.comparable()) {
        if recorded != measured {
            let [recorded, measured] = [recorded, measured].map(Option::unwrap_or_default);
            return Err(format!("recorded is {recorded:?}, this run has {measured:?}"));
        }
    }
    let new = run.rows.get(1..).unwrap_or_default();
    section.rows.retain(|row| new.iter().all(|new| policy(new) != policy(row)));
    section.rows.extend(new);
    section.rows.sort_by_key(|row| order.iter().position(|name| *name == policy(row)).unwrap_or(order.len()));
    let names: Vec<String> = new.iter().map(|row| format!("`{}`", policy(row))).collect();
    let windows = section.notes.pop().unwrap_or_default();
    let earlier: String = section.notes.iter().map(|note| format!("{note}\n")).collect();
    let sentence = run.notes.first().copied().unwrap_or_default();
    let Section { commands, head: [names_of_columns, rule], rows, tail, .. } = section;
    Ok(format!(
        "```text\n{commands}\n{}\n```\n\n{earlier}{}: {sentence}\n{windows}\n\n{names_of_columns}\n{rule}\n{}\n\n{tail}",
        run.commands,
        names.join(", "),
        rows.join("\n"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(command: &str, day: &str, rows: &str) -> String {
        format!(
            "```text\n{command}\n```\n\n{day}; 2 cores.\nWindows of 8 tokens.\n\n| policy | perplexity |\n|---|---|\n\
             {rows}\n\n![figure](a.svg)\n"
        )
    }

    const ORDER: [&str; 4] = ["f16", "q8", "q4", "kivi4"];

    #[test]
    fn rows_are_added_in_order_and_replace_those_of_the_same_policy() {
        let recorded =
            section("measure", "Monday", "| `f16` | 9 |\n| `kivi4` | 9.3 |\n| `q8` | 9.1 |\n| `x` | 8 |");
        let run = section("measure --add", "Friday", "| `f16` | 9 |\n| `q4` | 9.2 |\n| `q8` | 9.0 |");
        let expected = section(
            "measure\nmeasure --add",
            "Monday; 2 cores.\n`q4`, `q8`: Friday",
            "| `f16` | 9 |\n| `q8` | 9.0 |\n| `q4` | 9.2 |\n| `kivi4` | 9.3 |\n| `x` | 8 |",
        );
        assert_eq!(added(&recorded, &run, &ORDER), Ok(expected));
    }

    #[test]
    fn runs_of_another_text_or_baseline_are_refused() {
        let recorded = section("measure", "Monday", "| `f16` | 9 |\n| `q8` | 9.1 |");
        let run = section("measure", "Friday", "| `f16` | 10 |\n| `q8` | 9.0 |");
        let reason = added(&recorded, &run, &ORDER).expect_err("another baseline");
        assert_eq!(reason, r#"recorded is "| `f16` | 9 |", this run has "| `f16` | 10 |""#);
        let other = recorded.replace("of 8", "of 16");
        assert!(added(&recorded, &other, &ORDER).is_err(), "other windows");
        assert!(added("no section", &recorded, &ORDER).is_err());
    }
}
