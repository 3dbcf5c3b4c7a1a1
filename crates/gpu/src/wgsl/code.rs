//! Writer of indented source text.

/// Source text; lines are indented by the braces before them.
#[derive(Debug, Default)]
pub(crate) struct Code {
    text: String,
    depth: usize,
}

impl Code {
    /// Appends lines. A line that begins with `}` closes, one that ends with `{` opens a level.
    pub(crate) fn line(&mut self, lines: impl AsRef<str>) {
        for line in lines.as_ref().lines().map(str::trim) {
            if line.starts_with('}') {
                self.depth = self.depth.saturating_sub(1);
            }
            if !line.is_empty() {
                self.text.extend(std::iter::repeat_n("  ", self.depth));
            }
            self.text.push_str(line);
            self.text.push('\n');
            if line.ends_with('{') {
                self.depth += 1;
            }
        }
    }

    /// Appends a storage buffer: `access` is `read` or `read_write`.
    pub(crate) fn binding(&mut self, index: u32, access: &str, name: &str, element: &str) {
        self.line(format!("@group(0) @binding({index}) var<storage, {access}> {name}: array<{element}>;"));
    }

    pub(crate) fn finish(self) -> String {
        debug_assert_eq!(self.depth, 0, "unbalanced braces:\n{}", self.text);
        self.text
    }
}
